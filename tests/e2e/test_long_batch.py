"""A job whose micro-batches last two minutes grows before its first one has ended, on real Kafka, Redis and Spark.

Two queries without a limit on their batches find a backlog and share one slot. Nothing is committed for a long time, so
the finished tasks inside the running batch are all the evidence there is.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer

from bench.rescale import failed_tasks
from demo.environment import PARTITIONS, Environment, start_environment, start_services
from demo.job import spec_for
from demo.watch import Timeline, Watcher
from tests.support.provider import ProcessProvider, StackProvider
from tidegate.events.command import CommandKind
from tidegate.events.job import JobSpec, Scaling
from tidegate.events.result import ActionResult, Phase
from tidegate.events.way import Way
from tidegate.runtime.poll import wait_until
from tidegate.runtime.publisher import Publisher
from tidegate.sparklog.event_log import ApplicationLog

RECORD_MS = 75.0
BACKLOG = 92 * PARTITIONS
"""One slot needs 110 s for them in both queries, and longer with what arrives until the job starts."""
RATE = 12.0
"""Records/s that arrive; one slot works off 6.7 of them for both queries."""
INTERVAL_SECONDS = 10
QUERIES = 2
PROGRESS = "org.apache.spark.sql.streaming.StreamingQueryListener$QueryProgressEvent"
SCRIPT = f"""
import sys, time
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, udf

servers, topic, checkpoint = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()

@udf("string", useArrow=False)
def work(value):
    time.sleep({RECORD_MS / 1000})
    return value

records = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
records = records.option("startingOffsets", "earliest").load().select(work(col("value").cast("string")).alias("value"))
for name in ("first", "second"):
    records.writeStream.format("noop").option("checkpointLocation", f"{{checkpoint}}/{{name}}").start()
spark.streams.awaitAnyTermination()
"""


@pytest.fixture
def environment(stack: StackProvider, tmp_path: Path) -> Iterator[Environment]:
    """The services on the stack, and a topic with a backlog."""
    if not isinstance(stack, ProcessProvider):
        pytest.skip("the job's script and checkpoint are files of this machine, which containers do not see")
    info = stack.need(kafka=True, redis=True, spark=True)
    with closing(start_environment(tmp_path, info, "long-batch", print)) as environment:
        producer = Producer({"bootstrap.servers": info.bootstrap_servers})
        for number in range(BACKLOG):
            producer.produce(environment.source, str(number).encode(), partition=number % PARTITIONS)
        assert producer.flush(30) == 0
        start_services(environment, print)
        yield environment


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_long_batch_is_helped_while_it_runs(environment: Environment) -> None:
    """The decision comes within two intervals of its first task's end; new slots take its waiting tasks."""
    spec = _spec(environment)
    watcher = Watcher(environment.settings, spec.job_id, environment.source, environment.sink, environment.checkpoint)
    seen = watcher.timeline
    try:
        environment.set_rate(RATE)
        Publisher(environment.settings).publish(spec)
        resized = wait_until(lambda: _ends(seen, CommandKind.RESCALE), 400)
        assert resized, [r.sentence for r in seen.results]
        assert wait_until(lambda: set(_batches(spec)) >= {(query, 1) for query in range(QUERIES)}, 400, every=1)
        Publisher(environment.settings).publish(spec.model_copy(update={"running": False, "version": 2}))
        assert wait_until(lambda: _ends(seen, CommandKind.STOP), 200)
    finally:
        watcher.close()
    decided = next(decision for decision in seen.decisions if decision.command and decision.final_parallelism > 1)
    late = decided.decided_at.timestamp() - min(_ends_of_tasks(spec))
    batches = _batches(spec)
    first = [batches[query, 0] for query in range(QUERIES)]
    alone = sum(batch.records for batch in first) * RECORD_MS / 1000
    print(f"{late:.1f} s after the end of the first task: {decided.sentence}")
    print(f"{resized[0].sentence} After {resized[0].delay_seconds} s. One slot alone: {alone} s; with help: {first}")
    assert late <= 2 * INTERVAL_SECONDS
    assert (resized[0].phase, resized[0].way) == (Phase.VERIFIED, Way.IN_PLACE), resized[0]
    assert max(batch.seconds for batch in first) < 0.75 * alone, "new slots took tasks of the batch that ran"
    assert max(Counter(_jobs(spec)).values()) == 1, "no batch ran twice"
    assert failed_tasks(spec) == []


def _spec(environment: Environment) -> JobSpec:
    """Return the demo's job with another script, one slot to begin with, and the policy's own options."""
    spec = spec_for(environment, objective_seconds=60)
    script, events = environment.folder / "job.py", environment.folder / "events"
    script.write_text(SCRIPT, "utf-8")
    events.mkdir()
    args = (environment.info.bootstrap_servers, environment.source, str(environment.checkpoint))
    application = {"script": str(script), "args": args, "executor_cores": 1, "event_log_dir": str(events)}
    return spec.model_copy(
        update={
            "application": spec.application.model_copy(update=application),
            "sinks": (),
            "interval_seconds": INTERVAL_SECONDS,
            "scaling": Scaling(min_parallelism=1, max_parallelism=6, lag_objective_seconds=60.0),
        }
    )


def _ends(seen: Timeline, kind: CommandKind) -> list[ActionResult]:
    return [result for result in seen.results if result.kind is kind and result.phase.terminal]


def _events(spec: JobSpec, kind: str) -> Iterator[dict[str, Any]]:
    """Return Spark's own events of one kind, of all runs of the job."""
    for run in sorted(Path(spec.application.event_log_dir).iterdir()):
        for line in ApplicationLog(run).lines(1 << 30):
            if b'"Event":"' + kind.encode() in line[:120]:
                yield json.loads(line)


def _ends_of_tasks(spec: JobSpec) -> list[float]:
    """Return when the tasks that read records ended, in seconds since the epoch."""
    return [
        task["Task Info"]["Finish Time"] / 1000
        for task in _events(spec, "SparkListenerTaskEnd")
        if task["Task Metrics"]["Input Metrics"]["Records Read"]
    ]


def _jobs(spec: JobSpec) -> list[tuple[str, str]]:
    """Return query and batch of each Spark job that ran for a batch of a query."""
    properties = [job["Properties"] for job in _events(spec, "SparkListenerJobStart")]
    return [
        (p["sql.streaming.queryId"], p["streaming.sql.batchId"]) for p in properties if "streaming.sql.batchId" in p
    ]


class Batch(NamedTuple):
    """One batch of one query."""

    records: int
    seconds: float


def _batches(spec: JobSpec) -> dict[tuple[int, int], Batch]:
    """Return the batches, by number of the query and of the batch."""
    found = [event["progress"] for event in _events(spec, PROGRESS)]
    queries = sorted({progress["id"] for progress in found})
    return {
        (queries.index(p["id"]), p["batchId"]): Batch(
            sum(source["numInputRows"] for source in p["sources"]), p["durationMs"]["triggerExecution"] / 1000
        )
        for p in found
        if "addBatch" in p["durationMs"]
    }
