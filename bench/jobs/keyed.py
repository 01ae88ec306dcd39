"""The Spark job of the rescale benchmarks: counts a topic's records per key, with as much state as asked for.

    spark-submit keyed.py --bootstrap-servers B --input T --checkpoint DIR [--queries N]

Each record's value is a key. Per key the state holds a count and a text of about 1 kB, which does not compress well, in
RocksDB. The sink is `noop`: what is measured are the commits in the checkpoint.
"""

from __future__ import annotations

import argparse

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, concat, count, lit, sha2
from pyspark.sql.functions import max as largest

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def arguments() -> argparse.Namespace:
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(description="Counts a Kafka topic's records per key.")
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--input", required=True, help="topic to read; its values are the keys")
    parser.add_argument("--checkpoint", required=True, help="folder for the queries' checkpoints")
    parser.add_argument("--queries", type=int, default=1, help="how many queries read the topic")
    parser.add_argument("--trigger", default="1 second", help="processing-time trigger interval")
    return parser.parse_args()


def main() -> None:
    """Run the queries until they are stopped."""
    args = arguments()
    spark = (
        SparkSession.builder.config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
        .config("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
        .getOrCreate()
    )
    for number in range(args.queries):
        records = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", args.bootstrap_servers)
            .option("subscribe", args.input)
            .option("startingOffsets", "earliest")
            .load()
        )
        key = col("value").cast("string")
        text = concat(*(sha2(concat(key, lit(f"-{part}")), 512) for part in range(8)))
        counts = records.select(key.alias("key"), text.alias("text")).groupBy("key").agg(count("*"), largest("text"))
        (
            counts.writeStream.format("noop")
            .outputMode("update")
            .option("checkpointLocation", f"{args.checkpoint}/{number}")
            .trigger(processingTime=args.trigger)
            .start()
        )
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main()
