"""A small job: every ten seconds a few made-up rows, counted by key. It needs no Kafka and no Python workers.

spark-submit small.py --checkpoint DIR
"""

import argparse

from pyspark.sql import SparkSession


def main() -> None:
    """Run the query until it is stopped."""
    parser = argparse.ArgumentParser(description="Counts a few rows by key.")
    parser.add_argument("--checkpoint", required=True, help="checkpoint directory")
    args = parser.parse_args()
    spark = SparkSession.builder.getOrCreate()
    rows = spark.readStream.format("rate").option("rowsPerSecond", 10).option("numPartitions", 4).load()
    counts = rows.selectExpr("value % 10 AS key").groupBy("key").count()
    writer = counts.writeStream.outputMode("update").option("checkpointLocation", args.checkpoint)
    writer.format("noop").trigger(processingTime="10 seconds").start().awaitTermination()


if __name__ == "__main__":
    main()
