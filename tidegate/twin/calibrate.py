"""Calibration: fit a twin to one job's recorded snapshots.

    duration = overhead + cost * (records * makespan of one record spread over the partitions, at the run's slots)

One line, fitted to the batches of all sizes by least squares of the relative error, gives overhead and cost. A second
fit leaves out batches that are more than four median deviations off (a garbage collection, a neighbour's burst). The
first batch of a run is cold, so it is fitted separately: its time above the line is the model's first-batch cost. A
restart lasts from the last commit of one run to the first batch of the next; the results, if given, say when it was
submitted. The trigger interval follows from when batches start, the batch limit from the lag they leave.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tidegate.events.result import ActionResult, Phase
from tidegate.events.snapshot import MetricSnapshot, MicroBatch
from tidegate.twin.model import JobModel, StageModel
from tidegate.twin.recorded import CannotCalibrate, Part, every, lag_of, load_of, shares_of
from tidegate.twin.schedule import makespan

MIN_BATCHES = 10
OUTLIER_DEVIATIONS = 4.0
MIN_STARTS = 3
"""With fewer starts than this, the start time is assumed to be the same at every size."""
WAITED_SECONDS = 0.15
"""A batch that starts this long after the previous one ended has waited for its trigger."""


@dataclass(frozen=True, slots=True)
class Sized:
    """A time that grows with the size being started."""

    seconds: float
    slot_seconds: float = 0.0
    spread_seconds: float = 0.0
    """Range of the residuals, highest less lowest."""

    def at(self, slots: int) -> float:
        """Return the seconds at a size."""
        return self.seconds + self.slot_seconds * slots


@dataclass(frozen=True, slots=True)
class Calibration:
    """The fitted figures; None where the recording says nothing."""

    overhead_seconds: float
    record_cost_seconds: float
    """Slot-seconds per record."""
    noise_share: float
    """Relative standard deviation of the residuals."""
    first_batch: Sized
    """Extra time of a run's first batch."""
    restart: Sized | None
    """From the last commit to the first batch."""
    restart_seconds: tuple[float, ...]
    """One figure per restart seen."""
    exit_seconds: float | None
    """The part of a restart before the submission."""
    trigger_seconds: float | None
    """0: a batch starts as soon as there are records."""
    max_records: int | None
    """Largest number of records in one batch."""
    output_ratio: float
    shares: tuple[float, ...]
    """Share of the arrivals on each partition, over all sources."""
    batches: int

    def model(self, job_id: str, base: JobModel | None = None) -> JobModel:
        """Return the job's model; `base` supplies what this recording does not show."""
        base = base or JobModel(job_id=job_id, sources=("source",), stages=(StageModel("batch", 0.0),))
        restart = replace(
            base.restart,
            first_batch_seconds=max(0.0, self.first_batch.seconds),
            first_batch_slot_seconds=self.first_batch.slot_seconds,
        )
        if self.restart is not None:
            exit_seconds = base.restart.exit_seconds if self.exit_seconds is None else self.exit_seconds
            spread = self.restart.spread_seconds
            restart = replace(
                restart,
                exit_seconds=exit_seconds,
                start_seconds=max(0.0, self.restart.seconds - exit_seconds - spread / 2),
                start_slot_seconds=self.restart.slot_seconds,
                start_jitter_seconds=spread,
            )
        return replace(
            base,
            job_id=job_id,
            stages=(StageModel("batch", self.record_cost_seconds),),
            overhead_seconds=self.overhead_seconds,
            noise_share=self.noise_share,
            output_ratio=self.output_ratio,
            trigger_interval_seconds=(
                base.trigger_interval_seconds if self.trigger_seconds is None else self.trigger_seconds
            ),
            max_records_per_trigger=self.max_records or base.max_records_per_trigger,
            restart=restart,
        )


@dataclass(frozen=True, slots=True)
class _Sample:
    batch: MicroBatch
    spread_records: float
    """Records times the makespan of one record."""
    slots: int
    cold: bool
    committed_before: float | None
    """When the previous batch was committed, epoch seconds."""

    @property
    def started_at(self) -> float:
        return self.batch.started_at.timestamp()


@dataclass(frozen=True, slots=True)
class _Line:
    overhead: float
    cost: float

    def at(self, sample: _Sample) -> float:
        return self.overhead + self.cost * sample.spread_records

    def off(self, sample: _Sample) -> float:
        """Return the relative residual: how much longer the batch took than the line says."""
        return sample.batch.duration_seconds / max(1e-9, self.at(sample)) - 1.0


def calibrate(
    snapshots: Sequence[MetricSnapshot], results: Sequence[ActionResult] = (), part: Part = every
) -> Calibration:
    """Fit a twin to one job's snapshots and results, oldest first. Raises `CannotCalibrate`.

    Only the batches that `part` selects are fitted, so that the others can test the fit.
    """
    shares = shares_of(snapshots)
    everything = _samples(snapshots, shares)
    samples = [s for s in everything if part(s.batch)]
    warm, cold = [s for s in samples if not s.cold], [s for s in samples if s.cold]
    if len(warm) < MIN_BATCHES:
        raise CannotCalibrate(f"{len(warm)} batches of known size and slots were recorded, {MIN_BATCHES} are needed")
    line = _line(warm)
    middle = statistics.median(map(line.off, warm))
    deviation = statistics.median(abs(line.off(s) - middle) for s in warm)
    kept = [s for s in warm if abs(line.off(s) - middle) <= OUTLIER_DEVIATIONS * max(deviation, 1e-9)]
    if len(kept) >= MIN_BATCHES:
        line = _line(kept)
    seen = [s.batch for s in samples if s.batch.output_records is not None]
    exit_seconds, restarts = _restarts([s for s in everything if s.cold], results)
    return Calibration(
        overhead_seconds=max(0.0, line.overhead),
        record_cost_seconds=line.cost,
        noise_share=min(0.5, statistics.pstdev(map(line.off, kept))) if len(kept) > 1 else 0.0,
        first_batch=_sized([(s.slots, s.batch.duration_seconds - line.at(s)) for s in cold]) or Sized(0.0),
        restart=_sized(restarts),
        restart_seconds=tuple(seconds for _, seconds in restarts),
        exit_seconds=exit_seconds,
        trigger_seconds=_trigger([s for s in everything if not s.cold]),
        max_records=_limit(snapshots),
        output_ratio=sum(b.output_records or 0 for b in seen) / sum(b.input_records for b in seen) if seen else 1.0,
        shares=shares,
        batches=len(kept),
    )


def batch_error(found: Calibration, snapshots: Sequence[MetricSnapshot], part: Part = every) -> float:
    """Return the median relative error of the fit over the recorded batches, given each batch's records and size."""
    line = _Line(found.overhead_seconds, found.record_cost_seconds)
    off = [
        abs((line.at(s) + (found.first_batch.at(s.slots) if s.cold else 0.0)) / s.batch.duration_seconds - 1.0)
        for s in _samples(snapshots, found.shares)
        if part(s.batch) and s.batch.duration_seconds
    ]
    if not off:
        raise CannotCalibrate("the recording has no batch of known size and slots to test the fit on")
    return statistics.median(off)


def _samples(snapshots: Sequence[MetricSnapshot], shares: tuple[float, ...]) -> list[_Sample]:
    """Return the non-empty batches whose slots are known: not those of the first snapshot after a change in place."""
    found: list[_Sample] = []
    run, size, last_end = None, None, None
    begin = snapshots[0].observed_at
    cold_runs = {s.incarnation for s in snapshots if s.incarnation_started_at and s.incarnation_started_at >= begin}
    for snapshot in snapshots:
        same = snapshot.incarnation == run
        # A job that has just stopped ran its last batch on its previous slots.
        slots = snapshot.slots_granted or (size if same else None)
        resized = same and size is not None and slots != size
        run, size = snapshot.incarnation, slots
        for batch in snapshot.batches:
            if batch.input_records and slots and not resized and _of_run(batch, snapshot):
                spread = batch.input_records * makespan(shares, slots)
                found.append(_Sample(batch, spread, slots, run in cold_runs, last_end))
                cold_runs.discard(run)
            last_end = batch.started_at.timestamp() + batch.duration_seconds
    return found


def _of_run(batch: MicroBatch, snapshot: MetricSnapshot) -> bool:
    """Whether a batch belongs to the run its snapshot names, not to the previous run."""
    started_at = snapshot.incarnation_started_at
    return snapshot.incarnation is not None and (started_at is None or batch.started_at >= started_at)


def _line(samples: Sequence[_Sample]) -> _Line:
    """Return the line of least relative squares. Raises `CannotCalibrate` if all batches are of nearly one size."""
    xs, ys = [s.spread_records for s in samples], [max(1e-3, s.batch.duration_seconds) for s in samples]
    if statistics.pvariance(xs) <= (0.01 * statistics.fmean(xs)) ** 2:
        raise CannotCalibrate(
            "all recorded batches are of nearly the same size, so overhead and cost cannot be separated"
        )
    weights = [1.0 / (y * y) for y in ys]
    x, y = statistics.fmean(xs, weights), statistics.fmean(ys, weights)
    slope = sum(w * (a - x) * (b - y) for w, a, b in zip(weights, xs, ys, strict=True)) / sum(
        w * (a - x) ** 2 for w, a in zip(weights, xs, strict=True)
    )
    if slope <= 0:
        raise CannotCalibrate("larger batches took no longer in the recording, so there is no cost per record to fit")
    return _Line(y - slope * x, slope)


def _restarts(cold: Sequence[_Sample], results: Sequence[ActionResult]) -> tuple[float | None, list[tuple[int, float]]]:
    """Return the seconds from a commit to the next submission, and (slots, seconds from commit to batch) per start.

    A start without an earlier commit counts from its submission, as if the job had just been stopped.
    """
    submissions = [r.at.timestamp() for r in results if r.phase is Phase.STARTING]
    starts = []
    for sample in cold:
        submitted = max((at for at in submissions if at <= sample.started_at), default=None)
        starts.append((sample.slots, sample.committed_before, submitted, sample.started_at))
    exits = [sub - before for _, before, sub, _ in starts if sub is not None and before is not None and sub >= before]
    exit_seconds = statistics.median(exits) if exits else None
    found = []
    for slots, before, submitted, at in starts:
        if before is not None:
            found.append((slots, at - before))
        elif submitted is not None:
            found.append((slots, at - submitted + (exit_seconds or 0.0)))
    return exit_seconds, found


def _sized(points: Sequence[tuple[int, float]]) -> Sized | None:
    """Return a line through (slots, seconds) if there are enough starts of different sizes, else their median."""
    if not points:
        return None
    sizes, seconds = [float(slots) for slots, _ in points], [each for _, each in points]
    if len(points) >= MIN_STARTS and len(set(sizes)) > 1:
        fit = statistics.linear_regression(sizes, seconds)
        if fit.slope > 0:
            left = [s - fit.slope * n for n, s in zip(sizes, seconds, strict=True)]
            return Sized(fit.intercept, fit.slope, max(left) - min(left))
    return Sized(statistics.median(seconds), 0.0, max(seconds) - min(seconds))


def _trigger(samples: Sequence[_Sample]) -> float | None:
    """Return the trigger interval on whose multiples waiting batches started; 0: none fits, None: too few waited."""
    waited = [
        s.started_at
        for s in samples
        if s.committed_before is not None and s.started_at - s.committed_before > WAITED_SECONDS
    ]
    if len(waited) < MIN_BATCHES / 2:
        return None
    for interval in sorted({round(b - a, 1) for a, b in pairwise(waited)}, reverse=True):
        if interval > 0:
            off = [abs(at - interval * round(at / interval)) for at in waited]
            if sum(o <= min(0.1, interval / 20) for o in off) >= 0.9 * len(off):
                return interval
    return 0.0


def _limit(snapshots: Sequence[MetricSnapshot]) -> int | None:
    """Return the largest batch's records if several batches of that size left earlier records waiting."""
    load, begin, found = load_of(snapshots), snapshots[0].sequence, []
    for snapshot in snapshots:
        lag = lag_of(snapshot)
        if snapshot.batches and lag is not None:
            last = snapshot.batches[-1]
            since = load.arrived(snapshot.sequence - begin) - load.arrived(last.started_at.timestamp() - begin)
            if lag - since > 0.1 * last.input_records:
                found.append(last.input_records)
    alike = [records for records in found if records >= 0.98 * max(found)]
    return max(alike) if len(alike) > 1 else None
