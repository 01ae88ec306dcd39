"""A twin of one job, `job`, which reads topic `in`: 2 ms per record, batches of at most 5,000 records."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tests.support.events import command
from tidegate.events.command import CommandKind, ScalingCommand
from tidegate.events.result import ActionResult
from tidegate.events.snapshot import MetricSnapshot
from tidegate.events.way import Way
from tidegate.twin.load import Load
from tidegate.twin.model import JobModel, RestartCosts, StageModel
from tidegate.twin.pool import SlotPool
from tidegate.twin.topic import TwinTopic, even
from tidegate.twin.world import EPOCH, World


def twin_model(**more: object) -> JobModel:
    """Return the job's model without noise; `more` are other fields of it."""
    fields: dict[str, object] = {
        "overhead_seconds": 0.5,
        "noise_share": 0.0,
        "max_records_per_trigger": 5_000,
        "restart": RestartCosts(exit_seconds=2.0, start_seconds=20.0, first_batch_seconds=3.0),
        **more,
    }
    return JobModel("job", ("in",), (StageModel("map", 0.002),), **fields)  # type: ignore[arg-type]


def twin_world(model: JobModel, *, rate: float = 1000.0, slots: int = 16, size: int = 4, partitions: int = 8) -> World:
    """Return a world in which the job runs in a pool of `slots` slots."""
    topic = TwinTopic("in", even(partitions), Load([rate]))
    return World([model], [topic], [SlotPool("default", slots)], sizes={model.job_id: size})


def twin_command(
    at: float,
    size: int,
    *,
    kind: CommandKind = CommandKind.RESCALE,
    before: int = 4,
    name: str = "c1",
    ttl: float = 120.0,
    way: Way | None = None,
    first_batch_seconds: float | None = None,
) -> ScalingCommand:
    """Return a command issued `at` seconds after the world's start."""
    moment = datetime.fromtimestamp(EPOCH + at, UTC)
    return command(
        kind,
        to=size,
        epoch=1,
        command_id=name,
        job_id="job",
        pipeline_id="job",
        from_parallelism=before,
        issued_at=moment,
        expires_at=moment + timedelta(seconds=ttl),
        way=way,
        first_batch_seconds=first_batch_seconds,
    )


def twin_snapshot(world: World, sequence: int) -> MetricSnapshot:
    """Return the job's snapshot, which must not be lost."""
    snapshot = world.snapshot("job", sequence)
    assert snapshot is not None
    return snapshot


def phases_of(results: list[ActionResult]) -> list[str]:
    """Return the phases of results."""
    return [result.phase.value for result in results]
