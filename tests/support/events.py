"""Builders of wire events for tests: a job, its snapshots and what the decider observed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from tidegate.events.command import CommandKind, ScalingCommand
from tidegate.events.decision import Decision, Observed
from tidegate.events.job import Application, JobSpec, Scaling
from tidegate.events.result import ActionResult, Phase, result_id
from tidegate.events.snapshot import ClusterState, MetricSnapshot, MicroBatch, Part, Pool, SourceOffsets, snapshot_id

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
FAST_FLIP271: dict[str, Any] = {
    "metrics_window_seconds": 60.0,
    "stabilization_interval_seconds": 0.0,
    "catch_up_duration_seconds": 60.0,
    "restart_time_seconds": 30.0,
    "scale_down_interval_seconds": 0.0,
}
"""flip271 with short times, so that a test needs a handful of snapshots."""
NO_WAIT: dict[str, dict[str, Any]] = {
    "cooldown": {"up_seconds": 0, "down_seconds": 0},
    "stabilization": {"seconds": 0},
}
"""Guards that let a job change its size whenever it wants to."""


def job(job_id: str = "rates", *, version: int = 1, pipeline_id: str | None = None, **scaling: Any) -> JobSpec:
    """Return a spec; keyword arguments go to `Scaling`, and `manual`, `running`, `executor_cores`, `rescale` theirs."""
    spec: dict[str, Any] = {name: scaling.pop(name) for name in ("manual", "running") if name in scaling}
    settings: dict[str, Any] = {
        "policy": "flip271",
        "policy_options": FAST_FLIP271,
        "min_parallelism": 1,
        "max_parallelism": 16,
        "guards": NO_WAIT,
    }
    application = Application(
        script="/jobs/rates.py",
        checkpoint_location=f"/checkpoints/{job_id}",
        event_log_dir="/events",
        control_dir="/control",
        executor_cores=scaling.pop("executor_cores", 1),
        rescale=scaling.pop("rescale", None),
    )
    return JobSpec(
        job_id=job_id,
        pipeline_id=pipeline_id or job_id,
        version=version,
        sources=("in",),
        sinks=("out",),
        interval_seconds=10,
        application=application,
        scaling=Scaling(**(settings | scaling)),
        **spec,
    )


def with_application(spec: JobSpec, **changed: Any) -> JobSpec:
    """Return a spec with other fields of its application."""
    return spec.model_copy(update={"application": spec.application.model_copy(update=changed)})


def snapshot(
    number: int,
    *,
    job_id: str = "rates",
    pipeline_id: str | None = None,
    arrived: int | None = 0,
    committed: int | None = 0,
    partitions: int = 8,
    slots: int | None = 4,
    batches: Sequence[MicroBatch] = (),
    free: int | None = 100,
    missing: Sequence[Part] = (),
    state: ClusterState = ClusterState.RUNNING,
    incarnation: str | None = "app-1",
    **more: Any,
) -> MetricSnapshot:
    """Return the `number`-th ten-second snapshot; offsets are given as totals, spread over the partitions."""
    at = START + timedelta(seconds=10 * number)
    sequence = int(at.timestamp())
    used = slots or 0
    pool = (
        Pool(pool_id="default", slots_total=used + free, slots_used=used, workers_alive=1) if free is not None else None
    )
    return MetricSnapshot(
        snapshot_id=snapshot_id(job_id, sequence),
        job_id=job_id,
        pipeline_id=pipeline_id or job_id,
        sequence=sequence,
        interval_seconds=10,
        observed_at=at,
        state=state,
        incarnation=incarnation,
        sources=(
            SourceOffsets(
                topic="in", end_offsets=_spread(arrived, partitions), committed_offsets=_spread(committed, partitions)
            ),
        ),
        batches=tuple(batches),
        slots_granted=slots,
        pool=pool,
        missing=tuple(missing),
        **more,
    )


def batch(number: float, batch_id: int, records: int, seconds: float) -> MicroBatch:
    """Return a micro-batch that ended just when snapshot `number` was taken."""
    end = START + timedelta(seconds=10 * number)
    return MicroBatch(
        batch_id=batch_id, started_at=end - timedelta(seconds=seconds), duration_seconds=seconds, input_records=records
    )


def steady(
    count: int, *, rate: int, capacity: int, slots: int = 4, first: int = 0, lag: int = 0, **more: Any
) -> list[MetricSnapshot]:
    """Return snapshots of a job into which `rate` records/s flow and which can do `capacity` records/s."""
    arrived, committed = 1_000_000 + lag, 1_000_000
    snapshots = []
    for number in range(first, first + count):
        done = min(arrived + 10 * rate - committed, 10 * capacity)
        arrived, committed = arrived + 10 * rate, committed + done
        took = (batch(number, number, done, done / capacity),) if done else ()
        snapshots.append(snapshot(number, arrived=arrived, committed=committed, slots=slots, batches=took, **more))
    return snapshots


def overloaded(count: int = 7, **more: Any) -> list[MetricSnapshot]:
    """Return snapshots of a job of 4 slots that gets twice the load it can process."""
    return steady(count, rate=800, capacity=400, **more)


def observed(of: MetricSnapshot, **more: Any) -> Observed:
    """Return what a decider saw a second after the snapshot."""
    return Observed(at=of.observed_at + timedelta(seconds=1), **more)


def codes(decision: Decision) -> list[str]:
    """Return the codes of a decision's reasons, in order."""
    return [entry.code for entry in decision.trail]


def held(decision: Decision) -> bool:
    """Whether nothing changes."""
    return decision.command is None and decision.final_parallelism == decision.current_parallelism


def result(
    command_id: str,
    phase: Phase,
    number: int = 0,
    *,
    kind: CommandKind = CommandKind.RESCALE,
    job_id: str = "rates",
    **more: Any,
) -> ActionResult:
    """Return a result at the time of snapshot `number`."""
    at = START + timedelta(seconds=10 * number)
    fields: dict[str, Any] = {"attempt": 1, "epoch": 1, "at": at, "parallelism": 4} | more
    return ActionResult(
        result_id=result_id(command_id, phase, fields["attempt"]),
        command_id=command_id,
        job_id=job_id,
        pipeline_id=job_id,
        kind=kind,
        phase=phase,
        **fields,
    )


def command(kind: CommandKind = CommandKind.RESCALE, *, to: int = 4, epoch: int = 7, **more: Any) -> ScalingCommand:
    """Return a command that expires two minutes after START."""
    fields: dict[str, Any] = {
        "command_id": "c",
        "job_id": "rates",
        "pipeline_id": "rates",
        "snapshot_id": "s",
        "spec_version": 1,
        "from_parallelism": 2,
        "issued_at": START,
        "expires_at": START + timedelta(seconds=120),
        "reason": "r",
    }
    return ScalingCommand(kind=kind, to_parallelism=to, epoch=epoch, **(fields | more))


def _spread(total: int | None, partitions: int) -> tuple[int | None, ...]:
    if total is None:
        return (None,) * partitions
    share, rest = divmod(total, partitions)
    return tuple(share + (1 if index < rest else 0) for index in range(partitions))
