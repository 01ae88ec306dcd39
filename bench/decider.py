"""The decider against an empty Faust agent with the same I/O, and the latency from snapshot to command.

Both run as processes on the same broker, one after the other, on the same snapshots; the floor writes as many bytes
per record as the decider wrote on average. Rates are taken from the broker's record times, so start-up does not count.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta

from confluent_kafka import Message
from pydantic import SecretStr

from bench.servers import end_group, servers
from bench.streams import spec_of
from bench.table import BenchRow
from services.decider.settings import DeciderSettings
from tidegate.events.command import ScalingCommand
from tidegate.events.envelope import decode
from tidegate.events.job import Scaling
from tidegate.events.snapshot import ClusterState, MetricSnapshot, MicroBatch, Pool, SourceOffsets, snapshot_id
from tidegate.events.topics import COMMANDS, DECISIONS, SNAPSHOTS
from tidegate.runtime.consumer import TopicReader
from tidegate.runtime.publisher import Publisher
from tidegate.runtime.topics import ensure_topics
from tidegate.stack import StackInfo
from tidegate.stack.processes import inherited

ROUNDS = 3
JOBS, SNAPSHOTS_PER_JOB = 150, 10
RATE_PER_SECOND = 100
COMMANDS_WANTED = 40
COMMAND_EVERY = 10
"""One in this many snapshots brings a command; the others keep the decider busy."""
PARTITIONS = 8
SOURCE_PARTITIONS = 50
CAPACITY = 400
"""Of a job, in records/s."""
SCALING = Scaling(
    policy="flip271",
    policy_options={"metrics_window_seconds": 60.0, "stabilization_interval_seconds": 0.0},
    guards={"stabilization": {"seconds": 0.0}},
    max_parallelism=16,
)


def main() -> list[BenchRow]:
    """Measure; return the rows."""
    with servers(spark=False) as info:
        pairs = []
        _throughput(info, "first", ["-m", "services.decider"])  # a new broker is slow at first, whoever runs first
        for number in range(ROUNDS):
            ours, decision_bytes, state_bytes = _throughput(info, f"ours{number}", ["-m", "services.decider"])
            sizes = [str(decision_bytes), str(state_bytes)]
            floor, _, _ = _throughput(info, f"floor{number}", ["-m", "bench.empty_agent", *sizes])
            pairs.append((ours, floor))
            _say(
                f"round {number + 1}: {ours:.0f}/s against {floor:.0f}/s ({decision_bytes} B and {state_bytes} B each)"
            )
        ours, floor = (statistics.median(column) for column in zip(*pairs, strict=True))
        # Take the ratio of each round: other load on the machine affects both of a pair alike.
        ratio = statistics.median(a / b for a, b in pairs)
        p50, p99 = _latency(info)
    return [
        BenchRow("decider, snapshots/s", f"{ours:,.0f}/s", f"empty Faust agent, same I/O: {floor:,.0f}/s", ratio, 0.8),
        BenchRow(
            f"snapshot to command at {RATE_PER_SECOND}/s, p99",
            f"{p99 * 1000:.0f} ms (p50 {p50 * 1000:.0f} ms)",
            "250 ms",
            p99 / 0.25,
            1.0,
            at_most=True,
        ),
    ]


def _settings(info: StackInfo, name: str) -> DeciderSettings:
    prefix = f"bench-{int(time.time() * 1000)}-{name}"
    os.environ.pop("TIDEGATE_STACK_DIR", None)
    return DeciderSettings(
        bootstrap_servers=info.bootstrap_servers,
        topic_prefix=f"{prefix}.",
        redis_url=info.redis_url,
        redis_password=SecretStr(info.redis_password),
        redis_prefix=f"{prefix}:",
        log_level="WARNING",
    )


@contextmanager
def _process(settings: DeciderSettings, command: Sequence[str]) -> Iterator[None]:
    """Run a program in its own process group and end it."""
    environment = inherited()
    for name in ("bootstrap_servers", "topic_prefix", "redis_url", "redis_prefix", "log_level"):
        environment[f"TIDEGATE_{name.upper()}"] = str(getattr(settings, name))
    if settings.redis_password:
        environment["TIDEGATE_REDIS_PASSWORD"] = settings.redis_password.get_secret_value()
    process = subprocess.Popen([sys.executable, *command], env=environment, start_new_session=True)
    try:
        yield
    finally:
        end_group(process, 20)


def _throughput(info: StackInfo, name: str, command: Sequence[str]) -> tuple[float, int, int]:
    """Return (records/s, mean decision bytes, mean state bytes) over snapshots written before the start."""
    settings = _settings(info, name)
    ensure_topics(settings, partitions=PARTITIONS)
    publisher = Publisher(settings)
    jobs = [f"job-{number}" for number in range(JOBS)]
    for job_id in jobs:
        publisher.send(spec_of(job_id, scaling=SCALING))
    base = datetime.now(UTC).replace(microsecond=0)
    for step in range(SNAPSHOTS_PER_JOB):
        for job_id in jobs:
            publisher.send(_snapshot(job_id, base, step - SNAPSHOTS_PER_JOB, arriving=300))
    publisher.flush()
    total = JOBS * SNAPSHOTS_PER_JOB
    with _process(settings, command):
        decisions = _wait(settings, DECISIONS.named(settings.topic_prefix), total)
    times = sorted(message.timestamp()[1] / 1000 for message in decisions)
    rest = times[total // 10 :]  # connections and code are warm by then
    states = _wait(settings, settings.changelog, total)
    return (len(rest) - 1) / (rest[-1] - rest[0]), _mean_bytes(decisions), _mean_bytes(states)


def _latency(info: StackInfo) -> tuple[float, float]:
    """Return p50 and p99 in seconds from a snapshot's record time to its command's, at a steady rate."""
    settings = _settings(info, "latency")
    ensure_topics(settings, partitions=PARTITIONS)
    publisher = Publisher(settings)
    jobs = [f"job-{number}" for number in range(COMMANDS_WANTED * COMMAND_EVERY)]
    warm_up = 6  # they cover 50 s of the policy's 60 s window; the next one fills it and brings the command
    base = datetime.now(UTC).replace(microsecond=0)
    with _process(settings, ["-m", "services.decider"]):
        for job_id in jobs:
            publisher.send(spec_of(job_id, scaling=SCALING))
        publisher.flush()
        time.sleep(2.0)
        for step in range(warm_up):
            for number, job_id in enumerate(jobs):
                publisher.send(_snapshot(job_id, base, step - warm_up, arriving=_load(number)))
        publisher.flush()
        _wait(settings, DECISIONS.named(settings.topic_prefix), warm_up * len(jobs))
        begin = time.monotonic()
        for number, job_id in enumerate(jobs):
            time.sleep(max(0.0, begin + number / RATE_PER_SECOND - time.monotonic()))
            publisher.send(_snapshot(job_id, base, 0, arriving=_load(number)))
        publisher.flush()
        commands = _wait(settings, COMMANDS.named(settings.topic_prefix), COMMANDS_WANTED)
    snapshots = _wait(settings, SNAPSHOTS.named(settings.topic_prefix), (warm_up + 1) * len(jobs))
    sent = {decode(MetricSnapshot, m.value()).snapshot_id: m.timestamp()[1] for m in snapshots}
    delays = sorted((m.timestamp()[1] - sent[decode(ScalingCommand, m.value()).snapshot_id]) / 1000 for m in commands)
    return statistics.median(delays), delays[int(len(delays) * 0.99) - 1]


def _load(number: int) -> int:
    """Return the arrival rate, records/s, of the `number`-th job: twice its capacity if it is to get a command."""
    return 800 if number % COMMAND_EVERY == 0 else 300


def _wait(settings: DeciderSettings, topic: str, count: int, seconds: float = 120.0) -> list[Message]:
    """Wait for `count` records of a topic and return them."""
    deadline = time.monotonic() + seconds
    found: list[Message] = []
    with closing(TopicReader(settings, [topic])) as reader:
        while len(found) < count:
            message = reader.poll(0.5)
            if message is not None:
                found.append(message)
            elif time.monotonic() > deadline:
                raise TimeoutError(f"{len(found)} of {count} records on {topic} after {seconds:g} s")
    return found


def _mean_bytes(messages: Sequence[Message]) -> int:
    return sum(len(message.value() or b"") for message in messages) // len(messages)


def _snapshot(job_id: str, base: datetime, step: int, *, arriving: int) -> MetricSnapshot:
    """Return the snapshot `step` intervals after `base` of a job with `arriving` records/s."""
    at = base + timedelta(seconds=10 * step)
    sequence = int(at.timestamp())
    done = min(arriving, CAPACITY)
    since = 10 * (step + 100)
    seconds = 10 * done / CAPACITY
    return MetricSnapshot(
        snapshot_id=snapshot_id(job_id, sequence),
        job_id=job_id,
        pipeline_id=job_id,
        sequence=sequence,
        interval_seconds=10,
        observed_at=at,
        state=ClusterState.RUNNING,
        incarnation="app-1",
        sources=(
            SourceOffsets(
                topic="in",
                end_offsets=(since * arriving // SOURCE_PARTITIONS,) * SOURCE_PARTITIONS,
                committed_offsets=(since * done // SOURCE_PARTITIONS,) * SOURCE_PARTITIONS,
            ),
        ),
        batches=(
            MicroBatch(
                batch_id=step + 100,
                started_at=at - timedelta(seconds=seconds),
                duration_seconds=seconds,
                input_records=10 * done,
            ),
        ),
        slots_granted=4,
        pool=Pool(pool_id="default", slots_total=100_000, slots_used=4, workers_alive=1),
    )


def _say(line: str) -> None:
    sys.stderr.write(f"  {line}\n")
