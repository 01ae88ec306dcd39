"""Scaling to zero, and back: seconds from the first record to its output, with all three services.

A job with `min_parallelism: 0` is stopped after a short silence. Then one record arrives, and the clock runs until it
is in the output topic. In the last round, collector and event logs are gone while the job sleeps: a new collector must
find the committed offsets in the checkpoint. `TIDEGATE_STACK_DIR` names a running stack to use; otherwise one is
started.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
import uuid
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from confluent_kafka import Consumer, Producer

from bench.servers import servers
from bench.services import WAIT_SECONDS, Services
from bench.table import BenchRow
from tidegate.client import received
from tidegate.events.command import CommandKind
from tidegate.events.decision import Decision
from tidegate.events.job import JobSpec, Scaling
from tidegate.events.result import ActionResult, Phase
from tidegate.runtime.publisher import Publisher

ROUNDS = 3
INTERVAL_SECONDS = 2
SILENCE_SECONDS = 6.0
SLEEP_SECONDS = 10.0
"""Before the record comes: after a shorter sleep, the checkpoint would still be watched for foreign writers."""


@dataclass(frozen=True, slots=True)
class Wake:
    """One start from zero, in seconds after the first record."""

    ordered: float
    running: float
    committed: float
    output: float


@dataclass
class Rig:
    """The services, the topics and the job of one run."""

    services: Services
    partitions: int = 2

    def __post_init__(self) -> None:
        """Create the topics of the job."""
        self.info, self.tag, self.settings = self.services.info, self.services.tag, self.services.settings
        self.folder = self.services.folder_of(self.tag)
        self.services.create_topics(f"{self.tag}-in", f"{self.tag}-out", partitions=self.partitions)
        self.producer = Producer(self.settings.kafka())
        self.outputs = Consumer({**self.settings.kafka(), "group.id": self.tag, "auto.offset.reset": "earliest"})
        self.outputs.subscribe([f"{self.tag}-out"])

    def close(self) -> None:
        """End what runs."""
        self.services.end()
        self.outputs.close()

    def spec(self) -> JobSpec:
        """Return the job: two slots at first, stopped after six seconds without records."""
        source, sink = f"{self.tag}-in", f"{self.tag}-out"
        return JobSpec(
            job_id=self.tag,
            sources=(source,),
            sinks=(sink,),
            interval_seconds=INTERVAL_SECONDS,
            application=self.services.application(self.tag, source, sink, record_ms=1, trigger="500 milliseconds"),
            scaling=Scaling(
                min_parallelism=0,
                max_parallelism=2,
                initial_parallelism=2,
                guards={
                    "silence": {"after_seconds": SILENCE_SECONDS},
                    "stabilization": {"seconds": 0.0},
                    "cooldown": {"up_seconds": 0.0, "down_seconds": 0.0},
                },
            ),
        )

    def send(self, count: int) -> float:
        """Send records; return when the last was acknowledged, in seconds since 1970."""
        for number in range(count):
            self.producer.produce(f"{self.tag}-in", str(number).encode(), partition=number % 2)
        if self.producer.flush(30):
            raise RuntimeError("the benchmark's records were not delivered")
        return time.time()

    def take(self, count: int) -> None:
        """Wait until the output topic has brought so many records."""
        deadline = time.monotonic() + WAIT_SECONDS
        while count:
            message = self.outputs.poll(0.05)
            if message is not None and message.error() is None:
                count -= 1
            elif time.monotonic() > deadline:
                raise TimeoutError(
                    f"{count} records did not reach the output; see {self.folder}\n{self.services.story()}"
                )

    def stops(self) -> int:
        """Return how often the job was stopped."""
        return sum(r.kind is CommandKind.STOP and r.phase is Phase.VERIFIED for r in self.services.results())

    def asleep(self, since: datetime) -> bool:
        """Whether a decision after an instant says that the job sleeps, with nothing missing."""
        found = [one.event for one in received(Decision, self.settings, since=timedelta(seconds=30))]
        newest = found[-1] if found else None
        return (
            newest is not None
            and newest.decided_at > since
            and newest.trail[0].code == "SCALED_TO_ZERO"
            and not newest.evidence.missing
        )

    def put_to_sleep(self, stops: int, *, forget: bool) -> None:
        """Wait until the job has been stopped more than `stops` times, and sleeps.

        To `forget` means that the collector ends and the event logs are deleted, and that a new collector starts.
        """
        self.services.wait("the job is scaled to zero", lambda: self.stops() > stops)
        if forget:
            self.services.end("collector")
            shutil.rmtree(self.folder / "events")
            (self.folder / "events").mkdir()
            self.services.start("collector")
        since = datetime.now(UTC)
        self.services.wait("the job sleeps", lambda: self.asleep(since))


def main() -> list[BenchRow]:
    """Put a job to sleep and wake it `ROUNDS` times; return the row."""
    wakes: list[Wake] = []
    with (
        servers(spark=True) as info,
        tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder,
        ExitStack() as end,
    ):
        rig = Rig(Services(info, Path(folder), f"zero-{uuid.uuid4().hex[:8]}"))
        end.callback(rig.close)
        rig.services.start()
        rig.send(100)
        Publisher(rig.settings).publish(rig.spec())
        rig.take(100)
        rig.services.wait("the first start", lambda: any(_is_started(result) for result in rig.services.results()))
        first = next(result for result in rig.services.results() if _is_started(result))
        for number in range(ROUNDS):
            rig.put_to_sleep(number, forget=number == ROUNDS - 1)
            time.sleep(SLEEP_SECONDS)
            at = rig.send(1)
            rig.take(1)
            wakes.append(_wake(rig, at, time.time()))
            sys.stderr.write(f"  {wakes[-1]}\n")
        rig.services.wait("the job is stopped again", lambda: rig.stops() > ROUNDS)
    output, ordered = (statistics.median(getattr(wake, name) for wake in wakes) for name in ("output", "ordered"))
    took = f"{output:.1f} s (worst {max(wake.output for wake in wakes):.1f} s), of it {ordered:.1f} s until the order"
    delay = first.delay_seconds or 0.0
    floor = f"the job's first start, to its first commit: {delay:.1f} s"
    return [BenchRow("from zero: first record to its output", took, floor, output / delay, 1.5, at_most=True)]


def _is_started(result: ActionResult) -> bool:
    return result.kind is CommandKind.START and result.phase is Phase.VERIFIED


def _wake(rig: Rig, sent: float, output: float) -> Wake:
    """Return the times of the start that followed a record."""

    def phases() -> dict[Phase, float]:
        after = (r for r in rig.services.results() if r.kind is CommandKind.START and r.at.timestamp() > sent)
        return {result.phase: round(result.at.timestamp() - sent, 2) for result in after}

    rig.services.wait("the start is verified", lambda: Phase.VERIFIED in phases())
    told = phases()
    return Wake(told[Phase.ACCEPTED], told[Phase.RUNNING], told[Phase.VERIFIED], round(output - sent, 2))
