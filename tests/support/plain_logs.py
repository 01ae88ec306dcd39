"""Event logs as plain spark-submit writes them, of a twin job whose figures are known."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tidegate.twin.load import Load
from tidegate.twin.model import JobModel, StageModel
from tidegate.twin.pool import SlotPool
from tidegate.twin.topic import TwinTopic, even
from tidegate.twin.world import EPOCH, World

PARTITIONS = 8
SLOTS = 3
QUERY_STARTED = "org.apache.spark.sql.streaming.StreamingQueryListener$QueryStartedEvent"
PROGRESS = "org.apache.spark.sql.streaming.StreamingQueryListener$QueryProgressEvent"
COMMAND = (
    "org.apache.spark.deploy.SparkSubmit --master spark://master:7077 --conf spark.cores.max=4 --name orders "
    "--py-files /jobs/lib.py /jobs/orders.py --input orders-in --checkpoint /data/cp/orders --trigger 5 seconds"
)
SPARK = {
    "spark.app.name": "orders",
    "spark.master": "spark://master:7077",
    "spark.executor.cores": "1",
    "spark.executor.memory": "1g",
    "spark.driver.memory": "512m",
    "spark.cores.max": "4",
    "spark.eventLog.dir": "file:///data/events",
    "spark.sql.shuffle.partitions": "16",
    "spark.jars": "file:///jars/kafka.jar",
    "spark.submit.pyFiles": "/jobs/lib.py",
    "spark.redis.password": "*********(redacted)",
}


def model(**changes: Any) -> JobModel:
    """Return the job that is recorded: 2 ms a record, 0.5 s a batch, a trigger every 5 s."""
    figures: dict[str, Any] = {"overhead_seconds": 0.5, "trigger_interval_seconds": 5.0, "noise_share": 0.03}
    figures["stages"] = (StageModel("batch", 0.002),)
    return JobModel(job_id="orders", sources=("orders-in",), **figures | changes)


def load(hours: float = 1.0) -> Load:
    """Return a load that rises and falls, between 200 and 1800 records/s: now and then too much for 3 slots."""
    steps = int(hours * 720)
    return Load([1000.0 - 800.0 * math.cos(2 * math.pi * step / 200) for step in range(steps)])


def write_log(
    path: Path, arrivals: Load, job: JobModel, *, name: str = "orders", later: float = 0.0, first: int = 0
) -> None:
    """Run the twin with three slots, and write the event log of that run.

    `later` is how many seconds after `EPOCH` it starts; `first` is the first offset of each partition.
    """
    path.write_text(
        "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in _lines(arrivals, job, name, later, first))
    )


def _lines(arrivals: Load, job: JobModel, name: str, later: float, first: int) -> Iterator[dict[str, Any]]:
    topic = TwinTopic("orders-in", even(PARTITIONS), arrivals)
    epoch = EPOCH + int(later)
    world = World([job], [topic], [SlotPool("default", SLOTS)], sizes={job.job_id: SLOTS}, epoch=epoch)
    world.advance(epoch + arrivals.seconds)
    began = epoch - 20.0
    yield {"Event": "SparkListenerLogStart", "Spark Version": "4.2.0"}
    yield {
        "Event": "SparkListenerEnvironmentUpdate",
        "Spark Properties": {**SPARK, "spark.app.name": name, "spark.app.submitTime": str(int((began - 4) * 1000))},
        "System Properties": {"sun.java.command": COMMAND},
    }
    yield {
        "Event": "SparkListenerApplicationStart",
        "App Name": name,
        "App ID": f"app-{epoch}",
        "Timestamp": began * 1000,
    }
    for executor in range(SLOTS):
        yield {
            "Event": "SparkListenerExecutorAdded",
            "Timestamp": int((began + 6) * 1000),
            "Executor ID": str(executor),
            "Executor Info": {"Total Cores": 1},
        }
    yield {"Event": QUERY_STARTED, "id": "query-1", "timestamp": datetime.fromtimestamp(epoch - 2.0, UTC).isoformat()}
    done: Sequence[int] = [first] * PARTITIONS
    for batch in world.job(job.job_id).finished:
        after = [offset + take for offset, take in zip(done, batch.takes[0], strict=True)]
        took = round((batch.ends_at - batch.started_at) * 1000)
        source = {
            "description": "KafkaV2[Subscribe[orders-in]]",
            "startOffset": _offsets(done) if batch.batch_id or first else None,
            "endOffset": _offsets(after),
            "latestOffset": _offsets([first + end for end in topic.end_offsets(batch.started_at)]),
            "numInputRows": batch.records,
        }
        progress = {
            "id": "query-1",
            "batchId": batch.batch_id,
            "timestamp": datetime.fromtimestamp(epoch + batch.started_at, UTC).isoformat(),
            "durationMs": {"triggerExecution": took, "addBatch": took - 100},
            "sources": [source],
            "sink": {"numOutputRows": batch.records},
        }
        yield {
            "Event": PROGRESS,
            "progress": progress,
        }
        done = after
    yield {"Event": "SparkListenerApplicationEnd", "Timestamp": int((epoch + arrivals.seconds) * 1000)}


def _offsets(offsets: Sequence[int]) -> str:
    return json.dumps({"orders-in": {str(partition): offset for partition, offset in enumerate(offsets)}})
