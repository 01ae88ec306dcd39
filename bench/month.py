"""Many jobs over days: the twin's run on real Kafka, archived by day, and every decision recomputed from the archive.

    python -m bench.month --jobs 200 --days 30                                hours of work
    python -m bench.month --jobs 200 --days 30 --interval 300 --trigger 60    less than an hour on two fast cores

`python -m bench month` takes the small defaults.

The twin plays jobs of all kinds under a load that follows the day, and the engine decides, in simulated time: a month
does not fit into a benchmark otherwise. What they would have published goes to real topics, with the time at which it
would have been. From there on all is real: `tidegate archive`, recomputing and the audit on Spark.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from bench.arguments import count
from bench.servers import servers
from bench.table import BenchRow, render
from tidegate.archive import stream
from tidegate.archive.read import read_archive
from tidegate.archive.store import load
from tidegate.events.envelope import encode
from tidegate.events.topics import DECISIONS, SNAPSHOTS, TOPICS
from tidegate.events.wire import Wire
from tidegate.lab.jobs import SOURCE
from tidegate.lab.kinds import KINDS, drawn_kind
from tidegate.lab.simulate import Scenario, TopicPlan, simulate
from tidegate.replay.audit.records import of_directory
from tidegate.replay.audit.run import CheckStatus, audit
from tidegate.replay.recompute import verify
from tidegate.replay.source import start_session
from tidegate.runtime.publisher import Publisher
from tidegate.runtime.settings import ServiceSettings
from tidegate.runtime.topics import create_topics
from tidegate.stack import StackInfo
from tidegate.twin.load import Load
from tidegate.twin.world import EPOCH

DAY = 86_400.0
STEP_SECONDS = 60.0
PARTITIONS = 8
BAR = 10_000
SPEED_UP_BAR = 1.5
GROWTH_BAR = 1.15
"""Seconds per decision of the whole history over those of half of it: 1 if time grows with the days."""
MEMORY_BAR = 1.15
"""Peak memory of the driver's Python with the whole history over that with half of it."""
AUDIT_BAR = 6.0
"""Time of an audit over that of recomputing alone, which is one of its checks."""
TRIGGERS_LATE = 4
"""Lag objective of jobs whose trigger is given, in triggers."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is played."""

    jobs: int = 16
    days: int = 4
    interval_seconds: int = 60
    trigger_seconds: float | None = None
    """Trigger of every job; drawn by kind, 10 s at most, if None."""


def main(size: Size = Size()) -> list[BenchRow]:
    """Play, archive and recompute; return the rows."""
    with servers(spark=False) as info, tempfile.TemporaryDirectory(prefix="tidegate-bench-") as work:
        settings = _topics(info)
        started = time.monotonic()
        decisions = _play(settings, size)
        _say(f"{decisions:,} decisions of {size.jobs} jobs played in {time.monotonic() - started:.0f} s")
        folder = Path(work) / "archive"
        archived, records = _archive(settings, info, folder)
        rows, seconds = _recomputed(folder, size, decisions)
        return [
            BenchRow("archived, records/s", f"{records / archived:,.0f}/s", f"bar {BAR:,}/s", records / archived, BAR),
            *rows,
            _audited(folder, seconds),
            _one_day(folder, size),
        ]


def _topics(info: StackInfo) -> ServiceSettings:
    """Make topics that keep records of any age, since what is played is long ago."""
    prefix = f"month-{int(time.time())}."
    settings = ServiceSettings(bootstrap_servers=info.bootstrap_servers, topic_prefix=prefix)
    config = {"retention.ms": "-1", "message.timestamp.type": "CreateTime"}
    wanted = [NewTopic(topic.named(prefix), PARTITIONS, 1, config=config) for topic in TOPICS]
    create_topics(AdminClient(settings.kafka()), wanted)
    return settings


def _play(settings: ServiceSettings, size: Size) -> int:
    """Play all jobs, on all cores; return the number of their decisions."""
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        done = 0
        for number, count in enumerate(pool.map(play, *zip(*_tasks(settings, size), strict=True))):
            done += count
            _say(f"job {number + 1} of {size.jobs}: {done:,} decisions", end="\r")
        return done


def _tasks(settings: ServiceSettings, size: Size) -> list[tuple[str, str, int, Size]]:
    return [(settings.bootstrap_servers, settings.topic_prefix, number, size) for number in range(size.jobs)]


def play(servers: str, prefix: str, number: int, size: Size) -> int:
    """Play one job and publish its events; return the number of its decisions. Runs in a process of its own."""
    settings = ServiceSettings(bootstrap_servers=servers, topic_prefix=prefix)
    played = scenario(number, size)
    (recording,) = simulate(played, keep_snapshots=True).values()
    publisher = Publisher(settings)
    spec = played.specs[0]
    events: list[tuple[datetime, Wire]] = [(datetime.fromtimestamp(EPOCH, UTC), spec)]
    events += [(each.observed_at, each) for each in recording.snapshots]
    events += [(each.decided_at, each) for each in recording.decisions]
    events += [(each.issued_at, each) for each in recording.commands]
    events += [(each.at, each) for each in recording.results]
    for at, event in sorted(events, key=lambda pair: pair[0]):
        record = encode(event)
        publisher.send_raw(
            record.topic.named(prefix),
            record.key,
            record.value,
            record.headers,
            timestamp_ms=int(at.timestamp() * 1000),
        )
    publisher.flush()
    return len(recording.decisions)


def scenario(number: int, size: Size) -> Scenario:
    """Return the run of one job, whose kind, load and figures follow from its number."""
    name = list(KINDS)[number % len(KINDS)]
    drawn = drawn_kind(name, number, limited=number % 3 > 0)
    job_id = f"job-{number:03}"
    model = replace(drawn.model, job_id=job_id)
    changed: dict[str, Any] = {"policy": "tide"}
    if (trigger := size.trigger_seconds) is not None:
        model = replace(model, trigger_interval_seconds=trigger, max_records_per_trigger=None)
        changed["lag_objective_seconds"] = TRIGGERS_LATE * trigger
    scaling = drawn.spec.scaling.model_copy(update=changed)
    spec = drawn.spec.model_copy(
        update={
            "job_id": job_id,
            "pipeline_id": job_id,
            "interval_seconds": size.interval_seconds,
            "scaling": scaling,
        }
    )
    drawn = replace(drawn, model=model, spec=spec)
    return Scenario(
        models=(model,),
        specs=(spec,),
        topics={SOURCE: TopicPlan(drawn.shares, _daily(0.9 * drawn.most, size.days, number))},
        pools={model.pool_id: 2 * spec.scaling.max_parallelism},
        sizes={job_id: max(1, spec.scaling.max_parallelism // 2)},
        seconds=size.days * DAY,
        seed=number,
    )


def _daily(peak: float, days: int, seed: int) -> Load:
    """Return a load between a quarter of the peak and the peak that follows the day, with noise and rare bursts."""
    draw = random.Random(seed)  # noqa: S311  (no secret)
    phase, burst, rates = draw.random(), 1.0, []
    for step in range(int(days * DAY / STEP_SECONDS)):
        if draw.random() < 1 / 720:  # about two a day
            burst = draw.uniform(0.5, 1.6)
        burst += 0.05 * (1.0 - burst)
        of_day = 0.6 - 0.35 * math.cos(2 * math.pi * (step * STEP_SECONDS / DAY + phase))
        rates.append(min(peak, peak * of_day * burst * draw.gauss(1.0, 0.03)))
    return Load(tuple(max(0.0, rate) for rate in rates), STEP_SECONDS)


def _archive(settings: ServiceSettings, info: StackInfo, folder: Path) -> tuple[float, int]:
    """Archive everything; return (seconds, records)."""
    spark = start_session("local[2]", list(info.connector_jars))
    try:
        started = time.monotonic()
        stream.archive(spark, settings, folder, once=True)
        seconds = time.monotonic() - started
    finally:
        spark.stop()
    files = load(folder).files
    records = sum(file.records for file in files)
    _say(f"{records:,} records archived in {seconds:.0f} s, {sum(file.bytes for file in files) / 1e6:,.0f} MB")
    return seconds, records


def _recomputed(folder: Path, size: Size, decisions: int) -> tuple[list[BenchRow], float]:
    """Recompute the first half of the days and all on two cores, and all on one; return rows and the second's time."""
    half = max(1, size.days // 2)
    part, count_of_half, same = _timed("local[2]", folder, half)
    memory_of_half = _peak_memory()
    two, count, whole = _timed("local[2]", folder, size.days)
    memory = _peak_memory()
    one, _, _ = _timed("local[1]", folder, size.days)
    if not (whole and same) or count != decisions:
        raise RuntimeError(f"{count} of {decisions} decisions were read, identical: {whole}")
    pace, growth = count / two, (two / count) / (part / count_of_half)
    days = f"{size.days} days against {half}"
    rows = [
        BenchRow("recomputed from the archive on local[2], decisions/s", f"{pace:,.0f}/s", "", pace, BAR),
        BenchRow("two cores against one", f"{two:.0f} s", f"local[1]: {one:.0f} s", one / two, SPEED_UP_BAR),
        BenchRow(f"seconds per decision, {days}", f"{two:.0f} s", f"{part:.0f} s", growth, GROWTH_BAR, at_most=True),
        BenchRow(
            f"driver's memory without the JVM's 2 GB, {days}",
            f"{memory:.0f} MB",
            f"{memory_of_half:.0f} MB",
            memory / memory_of_half,
            MEMORY_BAR,
            at_most=True,
        ),
    ]
    return rows, two


def _peak_memory() -> float:
    """Return the most memory this process has had, MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def _audited(folder: Path, recomputing: float) -> BenchRow:
    """Audit the archive, without event logs and Redis; return how long that takes against recomputing alone."""
    spark = start_session("local[2]")
    try:
        result = audit(spark, of_directory(spark, folder))
    finally:
        spark.stop()
    if not result.ok():
        raise RuntimeError(f"the audit failed: {result.with_status(CheckStatus.FAILED)}")
    _say(f"{sum(result.records.values()):,} records audited in {result.seconds:.0f} s")
    return BenchRow(
        "audited on local[2], against recomputing alone",
        f"{result.seconds:.0f} s",
        f"{recomputing:.0f} s",
        result.seconds / recomputing,
        AUDIT_BAR,
        at_most=True,
    )


def _timed(master: str, folder: Path, days: int) -> tuple[float, int, bool]:
    """Return (seconds, decisions, whether all are identical) of recomputing the first days."""
    first = datetime.fromtimestamp(EPOCH, UTC).date()
    spark = start_session(master)
    try:
        spark.range(1000).count()  # starts what Spark needs
        started = time.monotonic()
        tallies = verify(spark, _decided(spark, folder, first, first + timedelta(days=days - 1)))
        seconds = time.monotonic() - started
    finally:
        spark.stop()
    count, identical = sum(tally.decisions for tally in tallies), sum(tally.identical for tally in tallies)
    _say(f"{master}, {days} days: {identical:,} of {count:,} decisions identical in {seconds:.0f} s")
    return seconds, count, identical == count


def _decided(spark: Any, folder: Path, first: Any, last: Any) -> Any:
    """Return snapshots and decisions as recomputing wants them."""
    from pyspark.sql import functions as f  # noqa: PLC0415  (seconds to import)

    records = read_archive(spark, folder, (SNAPSHOTS.suffix, DECISIONS.suffix), first, last)
    kind = (f.col("topic") == DECISIONS.suffix).cast("int").alias("kind")
    return records.select(kind, "partition", "offset", "value")


def _one_day(folder: Path, size: Size) -> BenchRow:
    """Return what share of the archive's bytes a day in the middle has to read."""
    manifest = load(folder)
    day = (datetime.fromtimestamp(EPOCH, UTC) + timedelta(days=size.days // 2)).date()
    mine = sum(file.bytes for file in manifest.of(None, day, day))
    whole = sum(file.bytes for file in manifest.files)
    share = mine / whole * size.days
    return BenchRow(
        "bytes read for one day, as days",
        f"{mine / 1e6:,.1f} MB",
        f"of {whole / 1e6:,.0f} MB",
        share,
        1.5,
        at_most=True,
    )


def _say(text: str, end: str = "\n") -> None:
    sys.stderr.write(f"  {text}{end}")


def _run(action: Callable[[Size], list[BenchRow]]) -> int:
    parser = argparse.ArgumentParser("python -m bench.month", description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=count, default=200, help="jobs to play")
    parser.add_argument("--days", type=count, default=30, help="days of each")
    parser.add_argument("--interval", type=count, default=60, help="seconds between two snapshots")
    parser.add_argument("--trigger", type=float, help="seconds between two micro-batches; drawn by kind if not given")
    given = parser.parse_args()
    rows = action(Size(given.jobs, given.days, given.interval, given.trigger))
    print(render(rows))
    return 0 if all(row.met for row in rows) else 1


if __name__ == "__main__":
    sys.exit(_run(main))
