"""Records the event logs of `versions/`: the same jobs on a real Kafka and a real Spark, of the version installed.

    PYTHONPATH=.tidegate/spark-3.5 .venv/bin/python -m tests.support.eventlogs.record [JOB ...]

Every job reads the same records in batches of the same size, so that all versions must give the same figures. The first
job runs on a standalone cluster, the others on `local[2]`. Query plans, class paths, addresses and the machine's paths
are taken out; no line is removed, and no figure changed.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zstandard
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.eventlogs import VERSIONS
from tidegate.runtime.topics import create_topics
from tidegate.stack import StackInfo, down, up
from tidegate.stack.jars import spark_home, spark_version

PARTITIONS, RECORDS = 4, 100
SKEWED = (340, 20, 20, 20)
PER_BATCH = 200
_KEPT_PROPERTIES = (
    "spark.app.",
    "spark.master",
    "spark.tidegate.",
    "spark.executor.cores",
    "spark.eventLog.",
    "spark.sql.",
)
_KEPT_LOCAL = ("streaming.sql.", "sql.streaming.", "spark.job", "spark.sql.execution.id")


@dataclass(frozen=True, slots=True)
class Sources:
    """What a job reads, and where it keeps what it writes."""

    spark: Any
    servers: str
    folder: Path

    def read(self, topic: str) -> Any:
        """Return a stream of a topic's values, in batches of `PER_BATCH` records."""
        source = self.spark.readStream.format("kafka").option("kafka.bootstrap.servers", self.servers)
        source = source.option("subscribe", topic).option("startingOffsets", "earliest")
        return source.option("maxOffsetsPerTrigger", PER_BATCH).load().selectExpr("CAST(value AS STRING) AS value")

    def write(self, frame: Any, name: str, mode: str = "append", sink: str = "noop") -> Any:
        """Return the writer of a query that ends when it has read everything."""
        writer = frame.writeStream.format(sink).outputMode(mode).queryName(name).trigger(availableNow=True)
        return writer.option("checkpointLocation", str(self.folder / "checkpoint" / name))


def stateless(of: Sources) -> None:
    """Copy a topic to another one."""
    writer = of.write(of.read("even"), "copy", sink="kafka").option("kafka.bootstrap.servers", of.servers)
    writer.option("topic", "copied").start().awaitTermination()


def rocksdb(of: Sources) -> None:
    """Count values in RocksDB: 400 records of 50 values."""
    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    of.spark.conf.set("spark.sql.streaming.stateStore.providerClass", provider)
    of.write(of.read("even").groupBy("value").count(), "counts", "update").start().awaitTermination()


def queries(of: Sources) -> None:
    """Two queries, one after the other."""
    for name in ("first", "second"):
        of.write(of.read("even"), name).start().awaitTermination()


def join(of: Sources) -> None:
    """Join two topics, both of which stay in the state."""
    left, right = of.read("even"), of.read("skewed").withColumnRenamed("value", "other")
    of.write(left.join(right, left.value == right.other), "join").start().awaitTermination()


def skew(of: Sources) -> None:
    """One partition has most records, and each takes its time."""
    from pyspark.sql.functions import udf  # noqa: PLC0415 - of the version that is recorded

    def slow(value: str) -> str:
        time.sleep(0.005)
        return value

    of.write(of.read("skewed").select(udf(slow, "string")("value")), "skew").start().awaitTermination()


def idle(of: Sources) -> None:
    """Read everything, then wait for records that do not come."""
    of.spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "1000")
    query = of.write(of.read("even"), "idle").trigger(processingTime="200 milliseconds").start()
    query.processAllAvailable()
    time.sleep(4)
    query.stop()


def failing(of: Sources) -> None:
    """A function of the user's raises."""
    from pyspark.errors import StreamingQueryException  # noqa: PLC0415 - of the version that is recorded
    from pyspark.sql.functions import udf  # noqa: PLC0415

    def fail(value: str) -> str:
        raise ValueError(f"the record {value} is bad")

    query = of.write(of.read("even").select(udf(fail, "string")("value")), "failing").start()
    try:
        query.awaitTermination()
    except StreamingQueryException:
        return
    raise AssertionError("the query did not fail")


JOBS: tuple[Callable[[Sources], None], ...] = (stateless, rocksdb, queries, join, skew, idle, failing)


def main() -> None:
    """Record the jobs that are named, or all of them, on the installed Spark."""
    version, names = spark_version(), sys.argv[1:]
    target = VERSIONS / version
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tidegate-record-") as name:
        folder = Path(name)
        info = up(folder / "stack", redis=False, worker_slots=2, tied=True)
        try:
            _fill(info)
            for job in (job for job in JOBS if not names or job.__name__ in names):
                log = _run(job, info, folder / job.__name__)
                lines = [_trimmed(line, folder) for line in log]
                packed = zstandard.ZstdCompressor(level=19).compress(b"".join(lines))
                (target / f"{job.__name__}.zstd").write_bytes(packed)
                print(f"{version} {job.__name__}: {len(lines)} events in {len(packed)} bytes", flush=True)
        finally:
            down(folder / "stack")


def _fill(info: StackInfo) -> None:
    servers = {"bootstrap.servers": info.bootstrap_servers}
    topics = [NewTopic(name, PARTITIONS, 1) for name in ("even", "skewed", "copied")]
    create_topics(AdminClient(servers), topics)
    producer = Producer(servers)
    for topic, sizes in (("even", (RECORDS,) * PARTITIONS), ("skewed", SKEWED)):
        for partition, size in enumerate(sizes):
            for number in range(size):
                producer.produce(topic, str(number % 50).encode(), partition=partition)
    if producer.flush(30):
        raise RuntimeError("not all records were written")


def _run(job: Callable[[Sources], None], info: StackInfo, folder: Path) -> Iterator[bytes]:
    """Run a job in a session of its own; yield the lines of its event log."""
    os.environ |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": str(info.python), "JAVA_HOME": str(info.java_home)}
    from pyspark.sql import SparkSession  # noqa: PLC0415 - of the version that is recorded

    folder.mkdir()
    (folder / "events").mkdir()
    settings = {
        "spark.app.name": "recorded",
        "spark.tidegate.job_id": "recorded",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.jars": ",".join(map(str, info.connector_jars)),
        "spark.cores.max": "2",
        "spark.executor.cores": "1",
        "spark.executor.memory": "500m",
        "spark.sql.shuffle.partitions": "2",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": (folder / "events").as_uri(),
        "spark.eventLog.rolling.enabled": "true",
        "spark.eventLog.compress": "true",
        "spark.eventLog.compression.codec": "zstd",
    }
    builder = SparkSession.builder.master(info.spark_master if job is stateless else "local[2]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    try:
        spark.sparkContext.setLogLevel("ERROR")
        job(Sources(spark, info.bootstrap_servers, folder))
    finally:
        spark.stop()
    (log,) = (folder / "events").glob("eventlog_v2_*/events_1_*.zstd")
    with log.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True) as content:
        yield from content.read().splitlines(keepends=True)


def _trimmed(line: bytes, folder: Path) -> bytes:
    """Return an event without plans, without most settings, and without the machine's paths."""
    event = json.loads(line)
    for key in ("physicalPlanDescription", "details"):
        if key in event:
            event[key] = ""
    if "sparkPlanInfo" in event:
        event["sparkPlanInfo"] = {}
    if event["Event"] == "SparkListenerEnvironmentUpdate":
        kept = {k: v for k, v in event["Spark Properties"].items() if k.startswith(_KEPT_PROPERTIES)}
        empty: dict[str, Any] = {key: {} for key in event if key != "Event"}
        event |= {**empty, "Spark Properties": kept}
    elif "Properties" in event:
        event["Properties"] = {k: v for k, v in (event["Properties"] or {}).items() if k.startswith(_KEPT_LOCAL)}
    if "Stage Infos" in event:
        event["Stage Infos"] = []
    text = json.dumps(event, separators=(",", ":"), ensure_ascii=False)
    for path, instead in ((str(folder), "/data"), (str(spark_home()), "/spark"), (str(Path.cwd()), "/app")):
        text = text.replace(path, instead)
    return text.replace('"User":"root"', '"User":"spark"').encode() + b"\n"


if __name__ == "__main__":
    main()
