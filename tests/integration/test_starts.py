"""Commands on real drivers of this machine, without a cluster: how starts are judged, and what their results say."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.counting import StandaloneCountingJob
from bench.orders import JobOperator
from services.actuator.backends.local import Local
from services.actuator.checkpoint import read_checkpoints
from tests.support.local_job import local_job
from tests.support.provider import ProcessProvider, StackProvider
from tidegate.events.command import CommandKind
from tidegate.events.result import Phase
from tidegate.events.way import Way
from tidegate.launcher.control.files import Token
from tidegate.runtime.poll import wait_until
from tidegate.stack.jars import spark_home
from tidegate.stack.java import find_java

pytestmark = pytest.mark.spark

WORD_COUNT = spark_home() / "examples/src/main/python/sql/streaming/structured_kafka_wordcount.py"
"""Spark's own example, unchanged: it names neither its query nor a checkpoint, and prints all counts per batch."""

SLOW = """
import sys, time
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()

def batch(frame, batch_id):
    def slowly(rows):
        time.sleep(2.0 if batch_id == 0 else 0.0)
        return rows
    frame.rdd.union(spark.sparkContext.parallelize(range(12), 12)).mapPartitions(slowly).count()

rates = spark.readStream.format("rate").load()
rates.writeStream.option("checkpointLocation", sys.argv[1]).foreachBatch(batch).start().awaitTermination()
"""
"""A first batch of more than 24 s, with a checkpoint of its own."""

FROM_KAFKA = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
source = spark.readStream.format("kafka").option("subscribe", sys.argv[2])
source = source.option("kafka.bootstrap.servers", sys.argv[1]).load()
source.writeStream.format("noop").start().awaitTermination()
"""


class OneMachine:
    """A job on this machine, and who gives it commands."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._operators: list[JobOperator] = []

    def operator(self, script: str, *args: str, **more: Any) -> JobOperator:
        """Return an operator of a job that runs a script."""
        (self.folder / "script.py").write_text(script)
        spec = local_job(self.folder, args=args, **({"start_deadline_seconds": 120.0} | more))
        self._operators.append(JobOperator(spec, Local(self.folder)))
        return self._operators[-1]

    def log(self) -> str:
        """Return what the drivers printed last."""
        return "\n".join(path.read_text()[-5000:] for path in sorted(self.folder.glob("*.log")))

    def close(self) -> None:
        """Kill every driver that still runs."""
        for operator in self._operators:
            operator.close()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OneMachine]:
    """A job that can run on this machine."""
    monkeypatch.setenv("JAVA_HOME", str(find_java().home))
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    machine = OneMachine(tmp_path)
    yield machine
    machine.close()


@pytest.mark.timeout(400)
def test_an_unchanged_example_of_spark_is_changed_in_place(stack: StackProvider, tmp_path: Path) -> None:
    """An example that would make a temporary checkpoint gets the spec's, and changes size while it counts on."""
    if not isinstance(stack, ProcessProvider):
        pytest.skip("the job's script and checkpoint are files of this machine, which containers do not see")
    info = stack.need(kafka=True, spark=True)
    topic = f"words-{tmp_path.name}"
    job = StandaloneCountingJob(
        info,
        tmp_path,
        most=3,
        script=str(WORD_COUNT),
        args=(info.bootstrap_servers, "subscribe", topic),
        jars=tuple(str(jar) for jar in info.connector_jars),
    )
    with closing(job), _words(info.bootstrap_servers, topic):
        end = job.carry_out(CommandKind.START, 1)
        # on a busy machine the first batch is seen at work before it commits
        works = {"OK": "committed batch 0", "FIRST_BATCH": "of the first batch have finished"}
        assert end.phase is Phase.VERIFIED, end
        assert works[end.code] in end.sentence, end
        assert wait_until(lambda: any(c.newest_commit is not None for c in read_checkpoints(str(tmp_path / "ck"))), 120)
        (checkpoint,) = read_checkpoints(str(tmp_path / "ck"))
        facts = job.control.running(Token(1)) or {}
        assert facts["queries"] == [{"id": checkpoint.query_id, "name": None, "checkpoint": f"file:{tmp_path / 'ck'}"}]
        for size in (3, 2):
            end = job.carry_out(CommandKind.RESCALE, size)
            print(end.sentence, end.delay_seconds, end.outage_seconds)
            assert (end.phase, end.way, end.parallelism) == (Phase.VERIFIED, Way.IN_PLACE, size), end
            assert end.details["tasks_failed"] == 0, end
            assert wait_until(lambda: job.granted() == size, 30)  # noqa: B023 - the master hears of it from the workers
        assert job.carry_out(CommandKind.STOP, 0).phase is Phase.VERIFIED
        driver = str(end.submission_id)
        printed = job.cluster.log_tail(job.spec, driver, Token(1)).rpartition("Batch: ")[2]
        counts = {word: int(count) for word, count in re.findall(r"^\| *(\w+)\| *(\d+)\|$", printed, re.MULTILINE)}
        assert set(counts) == set(WORDS)
        assert sum(counts.values()) == _read_by(tmp_path / "ck"), printed


WORDS = ("ebb", "flow", "spring", "neap", "slack")


@contextmanager
def _words(bootstrap_servers: str, topic: str) -> Iterator[None]:
    """Produce a hundred words, each a record, every five seconds: the example starts a batch as soon as one arrives."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(timeout=20)
    producer, stop = Producer({"bootstrap.servers": bootstrap_servers}), threading.Event()

    def produce() -> None:
        while not stop.wait(5.0):
            for number in range(100):
                producer.produce(topic, WORDS[number % len(WORDS)], partition=number % 2)
            producer.poll(0)

    thread = threading.Thread(target=produce, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(10)
        producer.flush(10)


def _read_by(checkpoint: Path) -> int:
    """Return how many records the query has read, by the first and the last offsets in its checkpoint."""
    newest = max((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    first_at, newest_at = (
        sum(sum(topic.values()) for topic in json.loads(path.read_bytes().splitlines()[-1]).values())
        for path in (checkpoint / "sources" / "0" / "0", newest)
    )
    return newest_at - first_at


@pytest.mark.timeout(300)
def test_a_topic_that_does_not_exist_is_named_in_the_result(machine: OneMachine, stack: StackProvider) -> None:
    """The result of the failed start carries the query's exception, so that nobody must look for the driver's log."""
    info = stack.need(kafka=True)
    jars = tuple(str(jar) for jar in info.connector_jars)
    operator = machine.operator(FROM_KAFKA, info.bootstrap_servers, "no-such-topic", jars=jars)
    end = operator.carry_out(CommandKind.START, 1)
    assert (end.phase, end.code) == (Phase.FAILED, "NOT_VERIFIED"), machine.log()
    assert "ended before its first batch" in end.sentence
    assert "UnknownTopicOrPartitionException" in end.sentence
    print(end.sentence)


@pytest.mark.timeout(400)
def test_a_slow_first_batch_and_a_checkpoint_elsewhere(machine: OneMachine) -> None:
    """A start ends while its first batch is at work; where the script keeps its checkpoint is told.

    Such a job is not restarted to change its size. But it can be stopped, at the end of that batch.
    """
    mine = machine.folder / "mine"
    operator = machine.operator(SLOW, str(mine))
    end = operator.carry_out(CommandKind.START, 1)
    assert (end.phase, end.code) == (Phase.VERIFIED, "CHECKPOINT_ELSEWHERE"), (end, machine.log())
    assert f"checkpoint at file:{mine}; the spec says {machine.folder / 'ck'}." in end.sentence
    assert "tasks of the first batch have finished" in end.sentence
    assert read_checkpoints(str(mine))[0].newest_commit is None
    rescale = operator.carry_out(CommandKind.RESCALE, 2)
    assert (rescale.phase, rescale.code) == (Phase.REJECTED, "CHECKPOINT_ELSEWHERE")
    stopped = operator.carry_out(CommandKind.STOP, 0)
    assert stopped.phase is Phase.VERIFIED
    assert read_checkpoints(str(mine))[0].clean
