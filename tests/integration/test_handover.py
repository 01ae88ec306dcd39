"""Handovers of a stateful job on real Kafka, Redis and Spark."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from demo.environment import LIGHT_JVMS
from services.actuator.checkpoint import read_checkpoints
from tests.support.actuator import ActuatorRig
from tests.support.provider import StackProvider
from tidegate.events.command import CommandKind
from tidegate.events.result import ActionResult, Phase
from tidegate.events.way import Way
from tidegate.runtime.poll import wait_until
from tidegate.stack.jars import spark_version

pytestmark = pytest.mark.spark

SCRIPT = """
import argparse, pathlib, time
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, to_json, struct, count, max as highest, udf

parser = argparse.ArgumentParser()
for name in ("bootstrap-servers", "input", "output", "checkpoint", "mode"):
    parser.add_argument("--" + name)
args = parser.parse_args()
spark = SparkSession.builder.getOrCreate()

@udf("string")
def same(value):
    return value

mode = pathlib.Path(args.mode).read_text()
if mode == "broken":
    raise RuntimeError("this version is broken")
counts = (
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", args.bootstrap_servers)
    .option("subscribe", args.input)
    .option("startingOffsets", "earliest")
    .load()
    .select("partition", same(col("value").cast("string")).alias("value"))
    .groupBy("partition")
    .agg(count("value").alias("records"))
    .select(to_json(struct("partition", "records")).alias("value"))
)
if mode == "two":
    other = counts.writeStream.format("noop").outputMode("update").trigger(processingTime="4 seconds")
    other.option("checkpointLocation", args.checkpoint + "/query-2").start()
writer = counts.writeStream.outputMode("update").option("checkpointLocation", args.checkpoint)
writer = writer.trigger(processingTime="4 seconds")
if mode == "stuck":
    query = writer.foreachBatch(lambda _frame, _batch: time.sleep(3600)).start()
elif mode == "long":
    def write_late(frame, _batch):
        time.sleep(60)
        to_kafka = frame.write.format("kafka").option("kafka.bootstrap.servers", args.bootstrap_servers)
        to_kafka.option("topic", args.output).save()
    query = writer.foreachBatch(write_late).start()
else:
    writer = writer.format("kafka").option("kafka.bootstrap.servers", args.bootstrap_servers)
    query = writer.option("topic", args.output).start()
while query.isActive:
    query.awaitTermination(5)
print("THE SCRIPT WENT ON", flush=True)
"""


class HandoverJob(ActuatorRig):
    """A job that counts the records of each partition of its input, and may only hand over or restart."""

    def __init__(
        self, stack: StackProvider, folder: Path, ways: Sequence[Way] = (Way.HANDOVER, Way.RESTART), **application: Any
    ) -> None:
        (folder / "script.py").write_text(SCRIPT)
        self.mode = folder / "mode"
        self.mode.write_text("good")
        info = stack.need(kafka=True, redis=True, spark=True)
        super().__init__(
            info,
            folder,
            script=str(folder / "script.py"),
            rescale=tuple(ways),
            executor_cores=1,
            conf={**LIGHT_JVMS, "spark.sql.shuffle.partitions": "4"},
            **application,
        )

    def _spec(self, **application: Any) -> Any:
        spec = super()._spec(**application)
        app = spec.application
        args: tuple[str, ...] = (
            "--bootstrap-servers",
            self.info.bootstrap_servers,
            "--input",
            self.input,
            "--output",
            self.output,
        )
        args += ("--checkpoint", str(app.checkpoint_location), "--mode", str(self.mode))
        scaling = spec.scaling.model_copy(update={"min_parallelism": 1})
        return spec.model_copy(update={"application": app.model_copy(update={"args": args}), "scaling": scaling})

    def run_first(self, batches: int = 2) -> None:
        """Start the job at size 1 under load, and wait for some batches."""
        self.load()
        self.start_actuator()
        end = self.wait_for_end(self.command(CommandKind.START, 1))
        assert end.phase is Phase.VERIFIED, end
        self.wait_for_batches(batches)

    def wait_for_batches(self, more: int) -> None:
        """Wait until the job has committed some more batches."""
        before = self.batch()
        assert wait_until(lambda: self.batch() >= before + more, 120), f"only batch {self.batch()} was committed"

    def batch(self) -> int:
        """Return the newest committed batch; -1 before the first."""
        return max(self.batches(), default=-1)

    def batches(self) -> list[int]:
        """Return the newest committed batch of each query; -1 before its first."""
        found = read_checkpoints(self.spec.application.checkpoint_location)
        return [-1 if c.newest_commit is None else c.newest_commit for c in found]

    def counted(self) -> int:
        """Return how many records the job says it has read; fail if a count went backwards or came twice."""
        told = [(value["partition"], value["records"]) for value in self.output_values()]
        assert len(set(told)) == len(told), "a batch was written twice"
        return sum(dict(sorted(told)).values())

    def check_counts(self, seconds: float = 90) -> None:
        """Stop the load; every record must have been counted exactly once."""
        self.stop_load()
        assert wait_until(lambda: self.counted() >= self.records, seconds, every=1), (self.counted(), self.records)
        assert self.counted() == self.records

    def alive(self) -> list[str]:
        """Return the drivers of this job that the master has as running."""
        return [driver for driver, state in self.drivers().items() if state == "RUNNING"]

    def hand_over(self, to: int, before: int) -> ActionResult:
        """Order another size; return how it ended."""
        # on a busy machine it takes minutes until the JVMs have compiled
        end = self.wait_for_end(self.command(CommandKind.RESCALE, to, before=before), 540)
        print(end.phase, end.code, end.sentence)
        return end


@pytest.fixture
def job(stack: StackProvider, tmp_path: Path) -> Iterator[HandoverJob]:
    """A job that has not been started."""
    with contextlib.closing(HandoverJob(stack, tmp_path, start_deadline_seconds=120.0)) as job:
        yield job


@pytest.mark.timeout(900)
def test_a_stateful_job_is_handed_over(job: HandoverJob) -> None:
    """The second driver goes on with both queries; every record is counted once, and one driver is left."""
    job.mode.write_text("two")
    job.run_first()
    assert wait_until(lambda: len(job.batches()) == 2 and min(job.batches()) >= 0, 60), job.batches()
    (first,) = job.alive()
    command = job.command(CommandKind.RESCALE, 2, before=1)
    end = job.wait_for_end(command, 540)  # as in `hand_over`
    assert (end.phase, end.way, end.parallelism) == (Phase.VERIFIED, Way.HANDOVER, 2), end
    print("handover: gap", end.downtime_seconds, "beyond the pace", end.outage_seconds, end.details)
    assert job.alive() == [end.submission_id]
    assert end.submission_id != first
    assert end.details["clean"] is True
    (ready,) = (result for result in job.results(command.command_id) if result.phase is Phase.SWITCHING)
    assert ready.details["rehearsed_batches"] == 8, "four of each query"
    reads_state = not spark_version().startswith("3.")
    assert bool(ready.details["loaded_state_partitions"]) is reads_state, "two for each slot and stateful query"
    before = min(job.batches())
    assert wait_until(lambda: min(job.batches()) > before, 60), job.batches()
    granted = [app["cores"] for app in job.master()["activeapps"] if app["id"] == end.incarnation]
    assert granted == [2]
    job.check_counts()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_version_that_never_commits_is_taken_back(job: HandoverJob) -> None:
    """The first driver goes on by itself, in the same application, and can be handed over later."""
    job.run_first()
    (first,) = job.alive()
    job.mode.write_text("stuck")
    end = job.hand_over(2, 1)
    assert (end.phase, end.way, end.parallelism) == (Phase.ROLLED_BACK, Way.HANDOVER, 1), end
    assert job.alive() == [first]
    job.wait_for_batches(3)
    job.mode.write_text("good")
    end = job.hand_over(2, 1)
    assert (end.phase, end.way) == (Phase.VERIFIED, Way.HANDOVER), end
    job.check_counts()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_broken_version_changes_nothing(job: HandoverJob) -> None:
    """A script that fails while it starts is reported with its error; the job does not miss a batch."""
    job.run_first()
    (first,) = job.alive()
    job.mode.write_text("broken")
    end = job.hand_over(2, 1)
    assert (end.phase, end.code) == (Phase.ROLLED_BACK, "NOT_WARM"), end
    assert "this version is broken" in end.sentence
    assert job.alive() == [first]
    job.wait_for_batches(2)
    job.check_counts()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_kill_9_of_the_second_driver_while_it_warms_up(job: HandoverJob) -> None:
    """The first driver is not touched."""
    job.run_first()
    (first,) = job.alive()
    command = job.command(CommandKind.RESCALE, 2, before=1)
    second = wait_until(lambda: _process_of(job, first), 120)
    assert second is not None
    os.kill(second, signal.SIGKILL)
    end = job.wait_for_end(command)
    assert (end.phase, end.code) == (Phase.ROLLED_BACK, "NOT_WARM"), end
    assert job.alive() == [first]
    job.check_counts()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_kill_9_of_the_first_driver_while_it_is_paused(job: HandoverJob) -> None:
    """The second driver has taken over already; its commit ends the command."""
    job.run_first()
    (first,) = job.alive()
    assert job.actuators[0].stop(30) == 0
    actuator = job.start_actuator(pause="before:running")
    command = job.command(CommandKind.RESCALE, 2, before=1)
    assert wait_until(lambda: list(Path(job.control.place).glob("paused-*.json")), 200), job.phases(command)
    pids = [facts for t in job.control.runs() if (facts := job.control.running(t)) and facts["submission_id"] == first]
    for name in ("pid", "jvm_pid"):
        os.kill(pids[0][name], signal.SIGKILL)
    time.sleep(3)
    actuator.signal(signal.SIGCONT)
    end = job.wait_for_end(command)
    assert (end.phase, end.way) == (Phase.VERIFIED, Way.HANDOVER), end
    assert job.alive() == [end.submission_id]
    job.check_counts()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_kill_9_of_the_second_driver_while_the_first_one_finishes_a_long_batch(
    stack: StackProvider, tmp_path: Path
) -> None:
    """The first driver goes on in the middle of its batch, which is neither broken nor repeated."""
    deadlines = {"start_deadline_seconds": 120.0, "stop_deadline_seconds": 5.0}
    with contextlib.closing(HandoverJob(stack, tmp_path, (Way.HANDOVER,), **deadlines)) as job:
        job.mode.write_text("long")
        job.run_first(batches=1)
        (first,) = job.alive()
        command = job.command(CommandKind.RESCALE, 2, before=1)
        assert wait_until(lambda: Phase.SWITCHING in job.phases(command), 300), job.phases(command)
        second = _process_of(job, first)
        assert second is not None
        os.kill(second, signal.SIGKILL)
        assert wait_until(lambda: Phase.RESUMING in job.phases(command), 30), job.phases(command)
        end = job.wait_for_end(command)
        assert (end.phase, end.code, end.parallelism) == (Phase.ROLLED_BACK, "NOT_SWITCHED", 1), end
        assert "ended while the first one finished its batch" in end.sentence
        assert job.alive() == [first]
        job.check_counts(200)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "point", ["after:warming", "before:switching", "before:running", "after:running", "after:retiring"]
)
def test_kill_9_of_the_actuator(job: HandoverJob, point: str) -> None:
    """A successor ends the handover: one terminal result, one driver, every record counted once."""
    job.run_first()
    assert job.actuators[0].stop(30) == 0
    victim = job.start_actuator(kill=point)
    command = job.command(CommandKind.RESCALE, 2, before=1)
    assert victim.wait(300) == -9
    job.start_actuator()
    end = job.wait_for_end(command)
    assert (end.phase, end.way) == (Phase.VERIFIED, Way.HANDOVER), end
    assert [r.phase for r in job.results(command.command_id) if r.phase.terminal] == [Phase.VERIFIED]
    assert job.alive() == [end.submission_id]
    job.check_counts()


def _process_of(job: HandoverJob, first: str) -> int | None:
    """Return the JVM of a second driver that has registered its application; None while there is none."""
    for token in job.control.runs():
        facts = job.control.running(token) or {}
        if facts.get("submission_id") != first and "application_id" in facts:
            return int(facts["jvm_pid"])
    return None
