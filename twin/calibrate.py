"""Calibration: a twin fitted to recorded snapshots, run again under the recorded load, and its error.

    duration = overhead + cost * (records * makespan of one record spread over the partitions, at the run's slots)

One least-squares line over the batches of all sizes gives overhead and cost; batches more than four median deviations
off (a garbage collection, a neighbour's burst) are left out of a second fit. The first batch of a run is cold and is
kept apart; what it takes longer than the line says is the model's `first_batch_seconds`. A restart's length is the
time from the last commit of one run to the first batch of the next.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from schemas.command import CommandKind, ScalingCommand
from schemas.snapshot import MetricSnapshot, MicroBatch
from schemas.wire import identity
from twin.load import Load
from twin.model import JobModel, Restart, Stage
from twin.pool import SlotPool
from twin.schedule import makespan
from twin.topic import Topic
from twin.world import World

MIN_BATCHES = 10
OUTLIER_DEVIATIONS = 4.0


class CannotCalibrate(ValueError):
    """The recording does not say enough; the text says what is lacking."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was fitted."""

    overhead_seconds: float
    record_cost_seconds: float
    """Slot-seconds per record."""
    noise_share: float
    """Relative standard deviation of what the line leaves."""
    first_batch_seconds: float
    restart_seconds: tuple[float, ...]
    """One figure per restart seen: last commit to first batch."""
    output_ratio: float
    shares: tuple[float, ...]
    """Parts of the arrivals on each partition of all sources."""
    batches: int

    def model(self, job_id: str, base: JobModel | None = None) -> JobModel:
        """Return the model of the job; `base` says what a recording cannot tell, such as trigger and batch limit."""
        base = base or JobModel(job_id=job_id, sources=("source",), stages=(Stage("batch", 0.0),))
        restart = base.restart
        if self.restart_seconds:
            start = max(0.0, statistics.median(self.restart_seconds) - restart.exit_seconds)
            spread = max(self.restart_seconds) - min(self.restart_seconds)
            restart = replace(restart, start_seconds=max(0.0, start - spread / 2), start_jitter_seconds=spread)
        return replace(
            base,
            job_id=job_id,
            stages=(Stage("batch", self.record_cost_seconds),),
            overhead_seconds=self.overhead_seconds,
            noise_share=self.noise_share,
            output_ratio=self.output_ratio,
            restart=Restart(
                exit_seconds=restart.exit_seconds,
                start_seconds=restart.start_seconds,
                start_jitter_seconds=restart.start_jitter_seconds,
                first_batch_seconds=self.first_batch_seconds,
                load_bytes_per_second=restart.load_bytes_per_second,
                in_place=restart.in_place,
                executor_seconds=restart.executor_seconds,
            ),
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """How far a twin's run is from the recorded one."""

    lag_error: float
    """Median relative error of the lag in records; a lag below one interval's arrivals counts as that much."""
    batch_error: float
    """Median relative error of the mean batch duration, per snapshot in which both finished a batch."""
    lag_points: int
    batch_points: int


@dataclass(frozen=True, slots=True)
class _Sample:
    spread_records: float
    """Records times the makespan of one record."""
    records: int
    outputs: int | None
    started_at: float
    seconds: float
    incarnation: str | None


def calibrate(snapshots: Sequence[MetricSnapshot]) -> Calibration:
    """Return what one job's snapshots, oldest first, say of it; raises `CannotCalibrate`."""
    shares = shares_of(snapshots)
    samples = _samples(snapshots, shares)
    firsts = {s.incarnation: s for s in reversed(samples)}
    cold = [s for s in firsts.values() if s is not samples[0]] if samples else []
    warm = [s for s in samples if not any(s is c for c in cold)]
    if len(warm) < MIN_BATCHES:
        raise CannotCalibrate(f"{len(warm)} batches of known size and slots were recorded, {MIN_BATCHES} are needed")
    overhead, cost = _line(warm)
    residuals = [s.seconds - overhead - cost * s.spread_records for s in warm]
    middle = statistics.median(residuals)
    deviation = statistics.median(abs(r - middle) for r in residuals)
    kept = [
        s for s, r in zip(warm, residuals, strict=True) if abs(r - middle) <= OUTLIER_DEVIATIONS * max(deviation, 1e-9)
    ]
    if len(kept) >= MIN_BATCHES:
        overhead, cost = _line(kept)
    relative = [s.seconds / max(1e-9, overhead + cost * s.spread_records) - 1 for s in kept]
    seen = [s for s in samples if s.outputs is not None]
    return Calibration(
        overhead_seconds=max(0.0, overhead),
        record_cost_seconds=cost,
        noise_share=min(0.5, statistics.pstdev(relative)) if len(relative) > 1 else 0.0,
        first_batch_seconds=max(
            0.0, statistics.median([s.seconds - overhead - cost * s.spread_records for s in cold] or [0.0])
        ),
        restart_seconds=_restarts(snapshots),
        output_ratio=sum(s.outputs or 0 for s in seen) / max(1, sum(s.records for s in seen)) if seen else 1.0,
        shares=shares,
        batches=len(kept),
    )


def shares_of(snapshots: Sequence[MetricSnapshot]) -> tuple[float, ...]:
    """Return the parts of the arrivals on each partition; raises `CannotCalibrate` where nothing arrived."""
    columns = [ends for s in snapshots if (ends := _ends(s)) is not None]
    if len(columns) < 2 or len(columns[0]) != len(columns[-1]):
        raise CannotCalibrate("end offsets of the same partitions are needed in at least 2 snapshots")
    grown = [max(0, last - first) for first, last in zip(columns[0], columns[-1], strict=True)]
    if not sum(grown):
        raise CannotCalibrate("no record arrived in the recording")
    return tuple(max(count, 1e-6) / sum(grown) for count in grown)


def load_of(snapshots: Sequence[MetricSnapshot]) -> Load:
    """Return the recorded arrivals as a load beginning at the first snapshot; raises `CannotCalibrate`."""
    points = [(s.sequence, sum(ends)) for s in snapshots if (ends := _ends(s)) is not None]
    if len(points) < 2:
        raise CannotCalibrate("end offsets are needed in at least 2 snapshots")
    step, rates = snapshots[0].interval_seconds, []
    for (before, first), (after, last) in pairwise(points):
        # A gap in the sequence is filled with the mean over it: the counters survived it.
        rates += [max(0, last - first) / (after - before)] * max(1, round((after - before) / step))
    return Load(rates, step)


def rerun(snapshots: Sequence[MetricSnapshot], model: JobModel, *, seed: int = 0) -> list[MetricSnapshot]:
    """Return the twin's snapshots under the load and the sizes of a recording, at the same sequences.

    The twin begins with the recorded lag and size, and is ordered to each new size when the recorded run stopped.
    """
    first = snapshots[0]
    model = replace(model, job_id=first.job_id, pipeline_id=first.pipeline_id, sources=("source",), sink=None)
    topic = Topic("source", shares_of(snapshots), load_of(snapshots))
    topic.written = _lag(first) or 0
    largest = max((s.slots_granted or 0 for s in snapshots), default=0)
    if not first.slots_granted:
        raise CannotCalibrate("the first snapshot must say how many slots the job has")
    world = World(
        [model],
        [topic],
        [SlotPool(model.pool_id, largest)],
        sizes={first.job_id: first.slots_granted},
        seed=seed,
        epoch=first.sequence,
    )
    moves, found = _moves(snapshots), []
    for snapshot in snapshots[1:]:
        while moves and moves[0][0] <= snapshot.sequence:
            at, size = moves.pop(0)
            world.advance(at)
            world.order(_command(snapshot, at, world.truth(first.job_id).slots, size))
        world.advance(snapshot.sequence)
        taken = world.snapshot(first.job_id, snapshot.sequence, snapshot.interval_seconds)
        if taken is not None:
            found.append(taken)
    return found


def compare(recorded: Sequence[MetricSnapshot], twin: Sequence[MetricSnapshot]) -> Comparison:
    """Return the errors of a twin's run against the recorded one; raises `CannotCalibrate` where nothing compares."""
    runs = {snapshot.sequence: snapshot for snapshot in twin}
    load = load_of(recorded)
    lags, durations = [], []
    for real in recorded:
        ours = runs.get(real.sequence)
        if ours is None:
            continue
        lag, other = _lag(real), _lag(ours)
        if lag is not None and other is not None:
            least = load.rate(real.sequence - recorded[0].sequence) * real.interval_seconds
            lags.append(abs(other - lag) / max(lag, least, 1.0))
        if real.batches and ours.batches:
            mean = statistics.fmean(b.duration_seconds for b in real.batches)
            durations.append(abs(statistics.fmean(b.duration_seconds for b in ours.batches) - mean) / max(mean, 1e-3))
    if not lags or not durations:
        raise CannotCalibrate("recording and twin share no snapshot with a known lag and a finished batch")
    return Comparison(statistics.median(lags), statistics.median(durations), len(lags), len(durations))


def _ends(snapshot: MetricSnapshot) -> list[int] | None:
    ends = [end for source in snapshot.sources for end in source.end_offsets]
    return [end for end in ends if end is not None] if ends and None not in ends else None


def _lag(snapshot: MetricSnapshot) -> int | None:
    ends = _ends(snapshot)
    done = [offset for source in snapshot.sources for offset in source.committed_offsets]
    if ends is None or None in done:
        return None
    return sum(ends) - sum(offset for offset in done if offset is not None)


def _samples(snapshots: Sequence[MetricSnapshot], shares: tuple[float, ...]) -> list[_Sample]:
    """Return the batches with records whose slots are known; a change of size in place leaves one snapshot unknown."""
    found: list[_Sample] = []
    before: tuple[int | None, str | None] = (snapshots[0].slots_granted, snapshots[0].incarnation)
    for snapshot in snapshots:
        slots, run = snapshot.slots_granted, snapshot.incarnation
        resized = slots != before[0] and run == before[1]
        before = (slots, run)
        if not slots or resized:
            continue
        spread = makespan(shares, slots)
        found += [
            _Sample(
                batch.input_records * spread,
                batch.input_records,
                batch.output_records,
                batch.started_at.timestamp(),
                batch.duration_seconds,
                run,
            )
            for batch in snapshot.batches
            if batch.input_records and _of_run(batch, snapshot)
        ]
    return found


def _of_run(batch: MicroBatch, snapshot: MetricSnapshot) -> bool:
    """Whether a batch belongs to the run its snapshot names, and not to the one before it."""
    began = snapshot.incarnation_started_at
    return snapshot.incarnation is not None and (began is None or batch.started_at >= began)


def _restarts(snapshots: Sequence[MetricSnapshot]) -> tuple[float, ...]:
    """Return the seconds from the last commit of each run to the first batch of the next."""
    gaps: list[float] = []
    run = next((s.incarnation for s in snapshots if s.incarnation), None)
    last_end: float | None = None
    for snapshot in snapshots:
        for batch in snapshot.batches:
            start = batch.started_at.timestamp()
            if snapshot.incarnation != run and _of_run(batch, snapshot):
                run = snapshot.incarnation
                if last_end is not None:
                    gaps.append(start - last_end)
            last_end = start + batch.duration_seconds
    return tuple(gaps)


def _line(samples: Sequence[_Sample]) -> tuple[float, float]:
    """Return (overhead, cost) by least squares; raises `CannotCalibrate` when batches of one size say nothing."""
    xs, ys = [s.spread_records for s in samples], [s.seconds for s in samples]
    if statistics.pvariance(xs) <= (0.01 * statistics.fmean(xs)) ** 2:
        raise CannotCalibrate("all recorded batches are of nearly one size: overhead and cost cannot be told apart")
    fit = statistics.linear_regression(xs, ys)
    if fit.slope <= 0:
        raise CannotCalibrate("larger batches took no longer in the recording: no cost per record can be told")
    return fit.intercept, fit.slope


def _moves(snapshots: Sequence[MetricSnapshot]) -> list[tuple[float, int]]:
    """Return (epoch second of the stop, new size) of each change of size; a stop is the last commit before it."""
    moves, size, last_commit = [], snapshots[0].slots_granted, float(snapshots[0].sequence)
    for snapshot in snapshots[1:]:
        slots = snapshot.slots_granted
        if slots and slots != size:
            moves.append((last_commit, slots))
            size = slots
        for batch in snapshot.batches:
            last_commit = batch.started_at.timestamp() + batch.duration_seconds
    return moves


def _command(snapshot: MetricSnapshot, at: float, before: int, size: int) -> ScalingCommand:
    moment = datetime.fromtimestamp(at, UTC)
    return ScalingCommand(
        command_id=identity("rerun", snapshot.job_id, snapshot.sequence),
        job_id=snapshot.job_id,
        pipeline_id=snapshot.pipeline_id,
        snapshot_id=snapshot.snapshot_id,
        spec_version=1,
        kind=CommandKind.RESCALE,
        from_parallelism=before,
        to_parallelism=size,
        epoch=snapshot.sequence,
        issued_at=moment,
        expires_at=moment + timedelta(seconds=600),
        reason="as in the recording",
    )
