"""Measure a twin job as the collector measures a real one: one snapshot per interval, which names what is missing.

The seed decides which part is missing, at most one per snapshot. It looks as it does on the wire: unknown offsets are
null, lists are empty, and the part is named. A lost snapshot only leaves a gap in the sequence.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from itertools import chain

from tidegate.events.snapshot import (
    ClusterState,
    MetricSnapshot,
    MicroBatch,
    Part,
    RunningBatch,
    SourceOffsets,
    StageTasks,
    StateOperator,
    snapshot_id,
)
from tidegate.twin.execution import incarnation
from tidegate.twin.job import Batch, Job, Life

MAX_BATCHES = 200
"""The most micro-batches that one snapshot may hold by the contract."""

_STATES = {
    Life.STOPPED: ClusterState.STOPPED,
    Life.STARTING: ClusterState.STARTING,
    Life.RUNNING: ClusterState.RUNNING,
    Life.LEAVING: ClusterState.STOPPED,
    Life.FAILED: ClusterState.FAILED,
}

_PARTS = tuple(Part)


def lost(job: Job, sequence: int) -> bool:
    """Whether the interval's snapshot is lost."""
    share = job.model.measurement.lost_share
    return share > 0 and job.noise.uniform(3, sequence) < share


def delay_seconds(job: Job, sequence: int) -> float:
    """Return the snapshot's delay on its way to the decider."""
    measurement = job.model.measurement
    if measurement.delay_jitter_seconds == 0:
        return measurement.delay_seconds
    return measurement.delay_seconds + measurement.delay_jitter_seconds * job.noise.uniform(4, sequence)


def measured(job: Job, sequence: int, interval_seconds: int, epoch: float) -> MetricSnapshot:
    """Return the snapshot of the interval ending at `sequence` (epoch seconds), and reset the stage sums."""
    at = sequence - epoch
    model = job.model
    absent = _absent(job, sequence)
    ran = job.run.ordinal > 0  # a stopped job still shows its last run, as the event log does
    finished = [batch for batch in job.finished if at - interval_seconds < batch.ends_at <= at]
    job.finished.clear()
    shown = finished[-MAX_BATCHES:] if Part.PROGRESS is not absent else []
    running = job.batch if job.life is Life.RUNNING and Part.PROGRESS is not absent else None
    stages = _stages(job) if Part.TASKS is not absent else ()
    job.stage_sums.clear()
    return MetricSnapshot(
        snapshot_id=snapshot_id(model.job_id, sequence),
        job_id=model.job_id,
        pipeline_id=model.pipeline,
        sequence=sequence,
        interval_seconds=interval_seconds,
        observed_at=_instant(float(sequence)),
        state=ClusterState.UNKNOWN if absent is Part.JOB_STATE else _STATES[job.life],
        incarnation=incarnation(job) if ran else None,
        incarnation_started_at=_instant(epoch + job.run.started_at) if ran else None,
        query_id=f"query-{model.job_id}",
        sources=_sources(job, at, absent),
        batches=tuple(_batch(batch, epoch) for batch in shown),
        batches_left_out=len(finished) - len(shown) if Part.PROGRESS is not absent else 0,
        current_batch_started_at=_instant(epoch + running.started_at) if running is not None else None,
        running=_running(job, running, at, interval_seconds) if Part.TASKS is not absent else None,
        stages=stages,
        state_operators=_state(job) if Part.PROGRESS is not absent else (),
        slots_granted=None if absent is Part.CAPACITY else job.size,
        gc_ratio=_gc_ratio(job) if stages else None,
        pool=None if absent is Part.CAPACITY else job.pool.view(),
        missing=(absent,) if absent is not None else (),
    )


def _instant(epoch_seconds: float) -> datetime:
    return datetime.fromtimestamp(epoch_seconds, UTC)


def _absent(job: Job, sequence: int) -> Part | None:
    share = job.model.measurement.missing_share
    if share == 0 or job.noise.uniform(5, sequence) >= share:
        return None
    return _PARTS[int(job.noise.uniform(6, sequence) * len(_PARTS))]


def _sources(job: Job, at: float, absent: Part | None) -> tuple[SourceOffsets, ...]:
    found = []
    for topic, offsets in zip(job.sources, job.committed, strict=True):
        unknown = (None,) * len(offsets)
        found.append(
            SourceOffsets(
                topic=topic.name,
                end_offsets=unknown if absent is Part.END_OFFSETS else tuple(topic.end_offsets(at)),
                committed_offsets=unknown if absent is Part.COMMITTED_OFFSETS else tuple(offsets),
            )
        )
    return tuple(found)


def _batch(batch: Batch, epoch: float) -> MicroBatch:
    return MicroBatch(
        batch_id=batch.batch_id,
        started_at=_instant(epoch + batch.started_at),
        duration_seconds=batch.ends_at - batch.started_at,
        add_batch_seconds=min(batch.work_seconds, batch.ends_at - batch.started_at),
        input_records=batch.records,
        output_records=batch.outputs,
    )


def _running(job: Job, batch: Batch | None, at: float, interval_seconds: int) -> tuple[RunningBatch, ...] | None:
    """Return the running batch by its finished tasks; the first stage reads.

    None for one shorter than an interval: the engine asks nothing of it, and simulated hours stay cheap.
    """
    if batch is None or at - batch.started_at < interval_seconds:
        return None
    since = at - batch.started_at - batch.overhead_seconds
    stages = job.task_runs(batch)
    ended = [[task.seconds for task in stage if task.finished <= since] for stage in stages]
    started = 1
    while started < len(stages) and len(ended[started - 1]) == len(stages[started - 1]):
        started += 1
    first, read = job.model.stages[0], [task.finished <= since for task in stages[0]]
    counts = [float(count) for takes in batch.takes for count in takes if count]
    records = counts if first.tasks is None else [weight * batch.records for weight in first.weights(())]
    return (
        RunningBatch(
            batch_id=batch.batch_id,
            started_at=_instant(job.epoch + batch.started_at),
            tasks=sum(map(len, stages[:started])),
            tasks_finished=sum(map(len, ended)),
            busy_seconds=math.fsum(chain.from_iterable(ended)),
            read_tasks=len(stages[0]),
            read_tasks_finished=len(ended[0]),
            records_read=round(math.fsum(count for count, done in zip(records, read, strict=True) if done)),
            read_seconds=math.fsum(ended[0]),
            slowest_read_seconds=max(ended[0], default=0.0),
        ),
    )


def _stages(job: Job) -> tuple[StageTasks, ...]:
    return tuple(
        StageTasks(
            name=name,
            tasks=sums.tasks,
            runs=sums.runs,
            busy_seconds=sums.busy_seconds,
            median_task_seconds=sums.median_seconds / sums.runs,
            slowest_task_seconds=sums.slowest_seconds / sums.runs,
            slowest_task_place=sums.slowest_place,
        )
        for name, sums in job.stage_sums.items()
        if sums.runs
    )


def _state(job: Job) -> tuple[StateOperator, ...]:
    state = job.model.state
    if state is None:
        return ()
    return (
        StateOperator(
            name="stateful",
            rows=int(job.state_bytes / state.bytes_per_row) if state.bytes_per_row else 0,
            memory_bytes=int(job.state_bytes),
            partitions=state.partitions,
        ),
    )


def _gc_ratio(job: Job) -> float | None:
    """Return the share of time in garbage collection, which grows with live over free memory (Appel, 1987)."""
    slots = job.size
    if slots == 0 or job.model.memory_bytes_per_slot == 0:
        return None
    live = min(0.99, job.state_bytes / (slots * job.model.memory_bytes_per_slot))
    return min(0.9, 0.02 * (1.0 + live / (1.0 - live)))
