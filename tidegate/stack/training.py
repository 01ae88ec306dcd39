"""A small Spark program that uses what jobs use: see `class_data`. It has the class path of drivers and executors."""

from __future__ import annotations

import tempfile

from pyspark.sql import SparkSession

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
MAINS = (
    "org.apache.spark.deploy.master.Master",
    "org.apache.spark.deploy.worker.DriverWrapper",
    "org.apache.spark.deploy.worker.Worker",
    "org.apache.spark.executor.CoarseGrainedExecutorBackend",
    "org.apache.spark.scheduler.cluster.StandaloneSchedulerBackend",
)
"""What runs only on a cluster."""


def main() -> None:
    """Run a stateful streaming query for a few batches, and a query over a table."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    }
    with tempfile.TemporaryDirectory(prefix="tidegate-training-") as folder:
        settings |= {"spark.eventLog.enabled": "true", "spark.eventLog.dir": f"file://{folder}"}
        spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
        rates = spark.readStream.format("rate").option("rowsPerSecond", 10).load()
        counts = rates.selectExpr("CAST(value % 3 AS STRING) AS key").groupBy("key").count()
        query = counts.writeStream.outputMode("update").format("noop").option("checkpointLocation", f"{folder}/ck")
        running = query.trigger(processingTime="0 seconds").start()
        while running.isActive and (running.lastProgress or {"batchId": 0})["batchId"] < 2:
            running.awaitTermination(0.2)
        running.stop()
        table = spark.range(100).selectExpr("id", "id % 7 AS key", "to_json(struct(id)) AS value")
        table.join(table.groupBy("key").count(), "key").orderBy("id").collect()
        table.write.json(f"{folder}/lines")
        lines = spark.read.schema("id long, key long, value string").json(f"{folder}/lines")
        lines.repartition("key").sortWithinPartitions("key", "id").rdd.map(len).count()
        for name in MAINS:
            spark.sparkContext._jvm.java.lang.Class.forName(name)  # noqa: SLF001 - Spark has no public name for it
        spark.stop()


if __name__ == "__main__":
    main()
