"""Commands on real drivers of this machine, without a cluster: how starts are judged, and what their results say."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from services.actuator.backends.local import Local
from services.actuator.checkpoint import read_checkpoints
from services.actuator.command_log import CommandLog
from services.actuator.execute import CommandRunner
from tests.support.provider import StackProvider
from tests.support.wait import wait_until
from tidegate.events.command import CommandKind, ScalingCommand
from tidegate.events.job import Application, JobSpec
from tidegate.events.result import ActionResult, Phase
from tidegate.launcher.control import Control, Token
from tidegate.runtime.clock import SystemClock
from tidegate.stack.java import find_java

WORD_COUNT = """
from pyspark.sql import SparkSession
from pyspark.sql.functions import col

spark = SparkSession.builder.appName("StructuredWordCount").getOrCreate()
words = spark.readStream.format("rate").option("rowsPerSecond", 10).load().select((col("value") % 3).alias("word"))
counts = words.groupBy("word").count()
counts.writeStream.outputMode("complete").format("console").start().awaitTermination()
"""
"""Like Spark's own examples: neither a name nor a checkpoint."""

SLOW = """
import sys, time
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()

def batch(frame, batch_id):
    def slowly(rows):
        time.sleep(3.0 if batch_id == 0 else 0.0)
        return rows
    frame.rdd.union(spark.sparkContext.parallelize(range(12), 12)).mapPartitions(slowly).count()

rates = spark.readStream.format("rate").load()
rates.writeStream.option("checkpointLocation", sys.argv[1]).foreachBatch(batch).start().awaitTermination()
"""
"""A first batch of more than 36 s, with a checkpoint of its own."""

FROM_KAFKA = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
source = spark.readStream.format("kafka").option("subscribe", sys.argv[2])
source = source.option("kafka.bootstrap.servers", sys.argv[1]).load()
source.writeStream.format("noop").start().awaitTermination()
"""


class OneMachine:
    """A job on this machine and an actuator's parts, with the fence in the control directory alone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.results: list[ActionResult] = []
        self.clock = SystemClock()
        self.backend = Local(folder)
        self.runner = CommandRunner(
            clock=self.clock,
            log=CommandLog(),
            fence=self,
            backends={"local": self.backend},
            publish=lambda result, _trace_id: self.results.append(result),
            owner="test",
        )
        (folder / "events").mkdir()

    def claim(self, control: Control, job_id: str, epoch: int, owner: str) -> Token | None:
        """Return the next token of `epoch`; no other actuator is about."""
        del job_id, owner
        held = control.newest_claim()
        return Token(epoch, held[0].run + 1 if held is not None and held[0].epoch == epoch else 1)

    def spec(self, script: str, *args: str, **more: Any) -> JobSpec:
        """Return a job that runs a script."""
        (self.folder / "script.py").write_text(script)
        return JobSpec(
            job_id="job",
            sources=("in",),
            application=Application(
                backend="local",
                master="local[1]",
                script=str(self.folder / "script.py"),
                args=args,
                conf={"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"},
                checkpoint_location=str(self.folder / "ck"),
                event_log_dir=str(self.folder / "events"),
                control_dir=str(self.folder / "control"),
                **({"start_deadline_seconds": 120.0} | more),
            ),
        )

    def carry(self, spec: JobSpec, kind: CommandKind, to: int) -> ActionResult:
        """Carry out a command; return its last result."""
        epoch = len({result.command_id for result in self.results}) + 1
        command = ScalingCommand(
            command_id=f"c{epoch}",
            job_id=spec.job_id,
            pipeline_id=spec.pipeline_id,
            snapshot_id="s",
            spec_version=1,
            kind=kind,
            from_parallelism=0 if kind is CommandKind.START else 1,
            to_parallelism=to,
            epoch=epoch,
            issued_at=self.clock.now(),
            expires_at=self.clock.now() + timedelta(seconds=60),
            reason="a test asks for it",
        )
        self.runner.run(command, spec, threading.Event())
        return self.results[-1]

    def log(self) -> str:
        """Return what the drivers printed last."""
        return "\n".join(path.read_text()[-5000:] for path in sorted(self.folder.glob("*.log")))

    def close(self, spec: JobSpec) -> None:
        """Kill every driver that still runs."""
        drivers = {result.submission_id for result in self.results if result.submission_id is not None}
        for driver in drivers:
            self.backend.kill(spec, driver)
        ended = wait_until(lambda: not any(self.backend.state(spec, driver).alive for driver in drivers), 20)
        assert ended, drivers


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OneMachine]:
    """A job that can run on this machine."""
    monkeypatch.setenv("JAVA_HOME", str(find_java().home))
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    machine = OneMachine(tmp_path)
    yield machine
    machine.close(machine.spec(""))


@pytest.mark.timeout(300)
def test_a_script_without_a_checkpoint_gets_the_specs(machine: OneMachine) -> None:
    """An example that would make a temporary checkpoint is verified by its commits at the spec's location."""
    spec = machine.spec(WORD_COUNT)
    end = machine.carry(spec, CommandKind.START, 1)
    assert (end.phase, end.code) == (Phase.VERIFIED, "OK"), machine.log()
    assert "committed batch 0" in end.sentence
    (checkpoint,) = read_checkpoints(spec.application.checkpoint_location)
    facts = Control(machine.folder / "control", "job").running(Token(1)) or {}
    query = {"id": checkpoint.query_id, "name": None, "checkpoint": f"file:{machine.folder / 'ck'}"}
    assert facts["queries"] == [query]


@pytest.mark.timeout(300)
def test_a_topic_that_does_not_exist_is_named_in_the_result(machine: OneMachine, stack: StackProvider) -> None:
    """The result of the failed start carries the query's exception, so that nobody must look for the driver's log."""
    info = stack.need(kafka=True)
    jars = tuple(str(jar) for jar in info.connector_jars)
    spec = machine.spec(FROM_KAFKA, info.bootstrap_servers, "no-such-topic", jars=jars)
    end = machine.carry(spec, CommandKind.START, 1)
    assert (end.phase, end.code) == (Phase.FAILED, "NOT_VERIFIED"), machine.log()
    assert "ended before its first batch" in end.sentence
    assert "UnknownTopicOrPartitionException" in end.sentence
    print(end.sentence)


@pytest.mark.timeout(400)
def test_a_slow_first_batch_and_a_checkpoint_elsewhere(machine: OneMachine) -> None:
    """A batch that takes longer than the deadline is waited for; where the script keeps its checkpoint is told.

    Such a job is not restarted to change its size. But it can be stopped.
    """
    mine = machine.folder / "mine"
    spec = machine.spec(SLOW, str(mine), start_deadline_seconds=30.0)
    end = machine.carry(spec, CommandKind.START, 1)
    assert (end.phase, end.code) == (Phase.VERIFIED, "CHECKPOINT_ELSEWHERE"), (end, machine.log())
    assert f"checkpoint at file:{mine}; the spec says {machine.folder / 'ck'}." in end.sentence
    assert float(end.details["verify_seconds"]) > 36
    rescale = machine.carry(spec, CommandKind.RESCALE, 2)
    assert (rescale.phase, rescale.code) == (Phase.REJECTED, "CHECKPOINT_ELSEWHERE")
    stopped = machine.carry(spec, CommandKind.STOP, 0)
    assert stopped.phase is Phase.VERIFIED
    assert read_checkpoints(str(mine))[0].clean
