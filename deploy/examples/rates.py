"""The demo job: copies a topic record by record, about 2 ms each, as plain PySpark that knows nothing of Tidegate.

The time per record is a sleep in a Python UDF: task slots scale it on any machine, however few its real cores. The
output's value is JSON with the source partition and offset of the record, so loss and duplicates can be counted.

    spark-submit rates.py --bootstrap-servers B --input T --output T --checkpoint DIR
"""

import argparse
import time

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, struct, to_json, udf


def arguments() -> argparse.Namespace:
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(description="Copies a Kafka topic at a bounded rate per task slot.")
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--input", required=True, help="topic to read")
    parser.add_argument("--output", required=True, help="topic to write")
    parser.add_argument("--checkpoint", required=True, help="checkpoint directory")
    parser.add_argument("--record-ms", type=float, default=2.0, help="milliseconds of work per record")
    parser.add_argument("--trigger", default="2 seconds", help="processing-time trigger interval")
    parser.add_argument("--max-offsets-per-trigger", type=int, help="most records in one micro-batch")
    return parser.parse_args()


def main() -> None:
    """Run the query until it is stopped."""
    args = arguments()
    spark = SparkSession.builder.getOrCreate()

    seconds = args.record_ms / 1000.0

    @udf("string", useArrow=False)  # type: ignore[untyped-decorator]
    def work(value: str) -> str:
        time.sleep(seconds)
        return value

    source = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", args.bootstrap_servers)
        .option("subscribe", args.input)
        .option("startingOffsets", "earliest")
    )
    if args.max_offsets_per_trigger:
        source = source.option("maxOffsetsPerTrigger", args.max_offsets_per_trigger)
    record = struct(
        col("partition").alias("source_partition"),
        col("offset").alias("source_offset"),
        work(col("value").cast("string")).alias("value"),
    )
    query = (
        source.load()
        .select(col("key"), to_json(record).alias("value"))
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", args.bootstrap_servers)
        .option("topic", args.output)
        .option("checkpointLocation", args.checkpoint)
        .trigger(processingTime=args.trigger)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
