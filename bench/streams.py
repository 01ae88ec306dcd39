"""Recorded streams for benchmarks and tests: the real engine decides on a job whose load rises and falls.

The job is a plain queue with a fixed number of records per second and slot. Each command takes effect at once, with all
its results. This is not a simulator (the twin is): it only takes the engine through its cases.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from tidegate.engine.state import JobState
from tidegate.events.decision import Decision, Observed
from tidegate.events.envelope import encode
from tidegate.events.job import Application, JobSpec, Scaling
from tidegate.events.result import ActionResult, Phase, result_id
from tidegate.events.snapshot import ClusterState, MetricSnapshot, MicroBatch, Pool, SourceOffsets, snapshot_id
from tidegate.events.topics import DECISIONS, PREFIX, SNAPSHOTS
from tidegate.events.wire import Wire
from tidegate.installed import engine
from tidegate.replay.files import KafkaRecord, RecordingManifest, TopicFile, sha256, to_line, write_manifest

START = datetime(2026, 3, 1, tzinfo=UTC)
INTERVAL = 10
PER_SLOT = 450.0
"""Capacity of one slot, records/s."""

PLAIN = Scaling(min_parallelism=1, max_parallelism=32)


def spec_of(job_id: str, version: int = 1, scaling: Scaling = PLAIN) -> JobSpec:
    """Return the spec of a stream's job."""
    return JobSpec(
        job_id=job_id,
        pipeline_id=job_id,
        version=version,
        sources=("in",),
        application=Application(
            script="/jobs/rates.py",
            checkpoint_location=f"/checkpoints/{job_id}",
            event_log_dir="/events",
            control_dir="/control",
        ),
        scaling=scaling,
    )


def decided(
    job_id: str,
    count: int,
    *,
    partitions: int = 50,
    seed: int = 0,
    respec_every: int = 0,
    scaling: Scaling = PLAIN,
) -> Iterator[tuple[MetricSnapshot, Decision]]:
    """Yield `count` snapshots of a job with the engine's decisions on them; the same arguments give the same bytes.

    Args:
        job_id: the job, a pipeline of its own.
        count: how many.
        partitions: of its one source topic.
        seed: shifts the load in time, so that jobs differ.
        respec_every: snapshots per version of the spec; 0: one version.
        scaling: how the job may be scaled.
    """
    spec, state = spec_of(job_id, 1, scaling), JobState.new()
    arrived = committed = 1_000_000 * partitions
    slots = 4
    results: tuple[ActionResult, ...] = ()
    for number in range(count):
        if respec_every and number and number % respec_every == 0:
            spec = spec_of(job_id, spec.version + 1, scaling)
        at = START + timedelta(seconds=INTERVAL * (number + 1))
        rate = 2500 + 2000 * math.sin((number + 37 * seed) / 60)
        came = round(rate * INTERVAL)
        arrived += came
        done = min(arrived - committed, round(slots * PER_SLOT * INTERVAL))
        committed += done
        took = max(0.2, done / (slots * PER_SLOT))
        snapshot = MetricSnapshot(
            snapshot_id=snapshot_id(job_id, int(at.timestamp())),
            job_id=job_id,
            pipeline_id=job_id,
            sequence=int(at.timestamp()),
            interval_seconds=INTERVAL,
            observed_at=at,
            state=ClusterState.RUNNING,
            incarnation=f"app-{spec.version}",
            sources=(
                SourceOffsets(
                    topic="in",
                    end_offsets=_spread(arrived, partitions),
                    committed_offsets=_spread(committed, partitions),
                ),
            ),
            batches=(
                MicroBatch(
                    batch_id=number,
                    started_at=at - timedelta(seconds=took),
                    duration_seconds=took,
                    add_batch_seconds=took * 0.9,
                    input_records=done,
                ),
            ),
            slots_granted=slots,
            gc_ratio=0.02,
            pool=Pool(pool_id="default", slots_total=64, slots_used=slots, workers_alive=4),
        )
        state, decision = engine().step(state, snapshot, spec, Observed(at=at + timedelta(seconds=1), results=results))
        results = ()
        if decision.command is not None:
            slots = decision.command.to_parallelism
            results = tuple(_result(decision, phase, at) for phase in (Phase.ACCEPTED, Phase.STARTING, Phase.VERIFIED))
        yield snapshot, decision


def _result(decision: Decision, phase: Phase, at: datetime) -> ActionResult:
    command = decision.command
    assert command is not None  # noqa: S101  (the caller has checked it)
    return ActionResult(
        result_id=result_id(command.command_id, phase),
        command_id=command.command_id,
        job_id=command.job_id,
        pipeline_id=command.pipeline_id,
        kind=command.kind,
        phase=phase,
        epoch=command.epoch,
        at=at + timedelta(seconds=5),
        parallelism=command.to_parallelism,
        incarnation=f"app-{command.spec_version}",
        way=command.way,
        outage_seconds=0.0 if phase is Phase.VERIFIED else None,
        delay_seconds=8.0 if phase is Phase.VERIFIED else None,
    )


def _spread(total: int, partitions: int) -> tuple[int, ...]:
    share, rest = divmod(total, partitions)
    return tuple(share + (index < rest) for index in range(partitions))


def write_recording(directory: Path, *, jobs: int, per_job: int, partitions: int = 50, processes: int = 1) -> int:
    """Write a recording of `jobs` jobs with `per_job` decisions each; return the number of decisions."""
    directory.mkdir(parents=True)
    paths = {topic: directory / f"{topic.suffix}.ndjson" for topic in (SNAPSHOTS, DECISIONS)}
    make = partial(_job_lines, per_job=per_job, partitions=partitions)
    # Spawn, not fork: a fork would copy the locks of the caller's threads.
    workers = ProcessPoolExecutor(processes, get_context("spawn")) if processes > 1 else nullcontext()
    with workers as pool, paths[SNAPSHOTS].open("wb") as snapshots, paths[DECISIONS].open("wb") as decisions:
        for some_snapshots, some_decisions in (pool.map if pool else map)(make, range(jobs)):
            snapshots.write(some_snapshots)
            decisions.write(some_decisions)
    entries = [
        TopicFile(
            topic=topic.suffix, file=path.name, records=jobs * per_job, bytes=path.stat().st_size, sha256=sha256(path)
        )
        for topic, path in paths.items()
    ]
    write_manifest(directory, RecordingManifest(topic_prefix=PREFIX, recorded_at=START, files=tuple(entries)))
    return jobs * per_job


def _job_lines(job: int, *, per_job: int, partitions: int) -> tuple[bytes, bytes]:
    """Return one job's lines of both files."""
    snapshots, decisions = bytearray(), bytearray()
    stream = decided(f"job-{job:04}", per_job, partitions=partitions, seed=job)
    for offset, (snapshot, decision) in enumerate(stream, job * per_job):
        snapshots += _line(snapshot, job % 8, offset)
        decisions += _line(decision, job % 8, offset)
    return bytes(snapshots), bytes(decisions)


def _line(event: Wire, partition: int, offset: int) -> bytes:
    made = encode(event)
    record = KafkaRecord(partition, offset, 1_772_366_400_000 + offset, made.key, made.value, tuple(made.headers))
    return to_line(record).encode() + b"\n"
