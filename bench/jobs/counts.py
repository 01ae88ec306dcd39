"""A stateful job with shuffles: counts numbers by key, a bounded number in each batch, and writes all counts out.

It needs no Kafka. Batch n must count exactly (n + 1) times the rows of a batch, so lost and repeated rows show.

    spark-submit counts.py --output DIR --checkpoint DIR
"""

import argparse
import json
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, udf


def main() -> None:
    """Run the query until it is stopped."""
    parser = argparse.ArgumentParser(description="Counts numbers by key.")
    parser.add_argument("--output", required=True, help="folder for a file per batch")
    parser.add_argument("--checkpoint", required=True, help="checkpoint directory")
    parser.add_argument("--rows", type=int, default=400, help="rows in each batch")
    parser.add_argument("--partitions", type=int, default=8, help="tasks that read the rows")
    parser.add_argument("--record-ms", type=float, default=2.0, help="milliseconds of work per row")
    parser.add_argument("--trigger", default="1 second", help="processing-time trigger interval")
    args = parser.parse_args()
    spark = SparkSession.builder.getOrCreate()
    seconds = args.record_ms / 1000.0

    @udf("long", useArrow=False)  # type: ignore[untyped-decorator]
    def work(value: int) -> int:
        time.sleep(seconds)
        return value

    def write(counts: DataFrame, batch_id: int) -> None:
        found = {row["key"]: row["count"] for row in counts.collect()}
        temporary = Path(args.output) / f".{batch_id}"
        temporary.write_text(json.dumps(found), encoding="utf-8")
        temporary.replace(Path(args.output) / f"{batch_id}.json")

    source = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", args.rows)
        .option("numPartitions", args.partitions)
    )
    query = (
        source.load()
        .select(work(col("value")).alias("value"))
        .groupBy((col("value") % 50).alias("key"))
        .count()
        .writeStream.outputMode("complete")
        .foreachBatch(write)
        .option("checkpointLocation", args.checkpoint)
        .trigger(processingTime=args.trigger)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
