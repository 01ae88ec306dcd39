"""Repeat a recording on the twin, with the same load and the same commands at the same times, and report the error.

The twin starts where the recorded job stood. Everything after that is simulated: when a batch starts, what it reads,
how long a stop and a start take. Each recorded batch is compared with the twin's batch that started nearest to it.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from tidegate.events.command import ScalingCommand
from tidegate.events.result import ActionResult, Phase
from tidegate.events.snapshot import MetricSnapshot, MicroBatch
from tidegate.twin.load import Load
from tidegate.twin.model import JobModel
from tidegate.twin.pool import SlotPool
from tidegate.twin.recorded import CannotCalibrate, Part, every, lag_of, load_of, shares_of
from tidegate.twin.schedule import record_seconds
from tidegate.twin.topic import TwinTopic
from tidegate.twin.world import World

FLOOR_SECONDS = 1.0
"""A lag below this many seconds of arrivals is too small for a relative error and is left out of it."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The differences between a twin's run and the recorded one."""

    lag_error: float
    """Median relative error of the lag in records, where the recorded lag is over the floor."""
    lag_error_tenth: float
    """The 90th percentile of the same error."""
    lag_points: int
    lag_seconds: float
    """Median error of the lag in seconds of work at the recorded size, all snapshots."""
    snapshots: int
    """Snapshots in which both lags are known."""
    batch_error: float
    """Median relative error of the batch duration."""
    batch_points: int


def carried_out(commands: Sequence[ScalingCommand], results: Sequence[ActionResult]) -> list[ScalingCommand]:
    """Return the commands that were not rejected, with the way each was carried out in, if its results tell it.

    That may not be the way it named.
    """
    ways = {result.command_id: result.way for result in results if result.way is not None}
    rejected = {result.command_id for result in results if result.phase is Phase.REJECTED}
    return [
        command.model_copy(update={"way": ways.get(command.command_id, command.way)})
        for command in commands
        if command.command_id not in rejected
    ]


def rerun(
    snapshots: Sequence[MetricSnapshot], commands: Sequence[ScalingCommand], model: JobModel, *, seed: int = 0
) -> list[MetricSnapshot]:
    """Return the twin's snapshots of one job at the recorded sequences, oldest first.

    The twin goes the way that each command names; `carried_out` names the ones that were gone.
    """
    first = snapshots[0]
    model = replace(model, job_id=first.job_id, pipeline_id=first.pipeline_id, sources=("source",), sink=None)
    load = load_of(snapshots)
    topic = TwinTopic("source", shares_of(snapshots), load)
    topic.written = first_lag(snapshots, load)
    sizes = [s.slots_granted or 0 for s in snapshots] + [c.to_parallelism for c in commands]
    world = World(
        [model],
        [topic],
        [SlotPool(model.pool_id, 2 * max(sizes))],
        sizes={first.job_id: next((s.slots_granted for s in snapshots if s.slots_granted is not None), 0)},
        seed=seed,
        epoch=first.sequence,
    )
    waiting, found = [c for c in commands if c.issued_at.timestamp() >= first.sequence], []
    for snapshot in snapshots:
        while waiting and waiting[0].issued_at.timestamp() <= snapshot.sequence:
            command = waiting.pop(0)
            world.advance(command.issued_at.timestamp())
            world.order(command)
        world.advance(snapshot.sequence)
        taken = world.snapshot(first.job_id, snapshot.sequence, snapshot.interval_seconds)
        if taken is not None:
            found.append(taken)
    return found


def compare(
    recorded: Sequence[MetricSnapshot], twin: Sequence[MetricSnapshot], model: JobModel, part: Part = every
) -> Comparison:
    """Return the errors of a twin's run against the recorded one. Raises `CannotCalibrate` if nothing can be compared.

    Only the recorded batches that `part` selects are compared.
    """
    runs = {snapshot.sequence: snapshot for snapshot in twin}
    load, shares = load_of(recorded), shares_of(recorded)
    size = next((s.slots_granted for s in recorded if s.slots_granted), 1)
    relative, seconds = [], []
    for real in recorded:
        size = real.slots_granted or size
        ours = runs.get(real.sequence)
        lag, other = lag_of(real), lag_of(ours) if ours is not None else None
        if lag is None or other is None:
            continue
        seconds.append(abs(other - lag) * record_seconds(model, shares, size))
        if lag > FLOOR_SECONDS * load.rate(real.sequence - recorded[0].sequence):
            relative.append(abs(other - lag) / lag)
    made = sorted((batch for snapshot in twin for batch in snapshot.batches), key=attrgetter("started_at"))
    durations = [
        abs(_nearest(made, batch).duration_seconds / batch.duration_seconds - 1)
        for snapshot in recorded
        for batch in snapshot.batches
        if made and batch.duration_seconds and part(batch)
    ]
    if not relative or not durations:
        raise CannotCalibrate("recording and twin share no snapshot with noticeable lag, or no finished batch")
    return Comparison(
        lag_error=statistics.median(relative),
        lag_error_tenth=sorted(relative)[len(relative) * 9 // 10],
        lag_points=len(relative),
        lag_seconds=statistics.median(seconds),
        snapshots=len(seconds),
        batch_error=statistics.median(durations),
        batch_points=len(durations),
    )


def _nearest(made: Sequence[MicroBatch], batch: MicroBatch) -> MicroBatch:
    """Return the batch of `made`, in the order of their starts, that started nearest to another one."""
    place = bisect_left(made, batch.started_at, key=attrgetter("started_at"))
    return min(made[max(0, place - 1) : place + 1], key=lambda b: abs(b.started_at - batch.started_at))


def first_lag(snapshots: Sequence[MetricSnapshot], load: Load) -> int:
    """Return the lag at the first snapshot. Before the first commit it follows from what was committed later."""
    since = 0
    for place, snapshot in enumerate(snapshots):
        since += sum(batch.input_records for batch in snapshot.batches) if place else 0
        lag = lag_of(snapshot)
        if lag is not None:
            arrived = load.arrived(snapshot.sequence - snapshots[0].sequence)
            return max(0, round(lag + since - arrived))
    return 0
