"""Calibration: fit a twin to one job's recorded snapshots.

    duration = overhead + cost * (records * makespan of one record spread over the partitions, at the run's slots)

One line, fitted to the batches of all sizes by least squares of the relative error, gives overhead and cost. A second
fit leaves out batches that are more than four median deviations off (a garbage collection, a neighbour's burst). The
first batch of a run, and the first one with new executors, is cold, so it is fitted separately for each way to change
size: its time above the line is the model's first-batch cost. The trigger interval follows from when batches start, the
batch limit from the lag they leave.

A restart lasts from the last commit of one run to the first batch of the next; the results, if given, say when it was
submitted. What a handover and a change in place take is known from their results only.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tidegate.events.result import ActionResult
from tidegate.events.snapshot import MetricSnapshot
from tidegate.events.way import Way
from tidegate.twin.calibrate_ways import (
    HandoverFit,
    InPlaceFit,
    Sized,
    handovers_of,
    in_place_of,
    level,
    restarts_of,
    sized,
    spread_around,
)
from tidegate.twin.model import JobModel, StageModel
from tidegate.twin.recorded import (
    CannotCalibrate,
    Part,
    changes_of,
    every,
    lag_of,
    load_of,
    shares_of,
)
from tidegate.twin.samples import Sample, samples_of

MIN_BATCHES = 10
OUTLIER_DEVIATIONS = 4.0
WAITED_SECONDS = 0.15
"""A batch that starts this long after the previous one ended has waited for its trigger."""


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
    handover: HandoverFit | None
    in_place: InPlaceFit | None
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
            start, jitter = spread_around(self.restart.seconds - exit_seconds, self.restart.spread_seconds)
            restart = replace(
                restart,
                exit_seconds=exit_seconds,
                start_seconds=start,
                start_slot_seconds=self.restart.slot_seconds,
                start_jitter_seconds=jitter,
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
            handover=base.handover if self.handover is None else self.handover.costs(),
            in_place=base.in_place if self.in_place is None else self.in_place.costs(base.in_place),
        )


@dataclass(frozen=True, slots=True)
class _Line:
    overhead: float
    cost: float

    def at(self, sample: Sample) -> float:
        return self.overhead + self.cost * sample.spread_records

    def off(self, sample: Sample) -> float:
        """Return the relative residual: how much longer the batch took than the line says."""
        return sample.batch.duration_seconds / max(1e-9, self.at(sample)) - 1.0


def calibrate(
    snapshots: Sequence[MetricSnapshot], results: Sequence[ActionResult] = (), part: Part = every
) -> Calibration:
    """Fit a twin to one job's snapshots and results, oldest first. Raises `CannotCalibrate`.

    Only the batches that `part` selects are fitted, so that the others can test the fit.
    """
    shares, changes = shares_of(snapshots), changes_of(results)
    everything = samples_of(snapshots, shares, changes)
    samples = [s for s in everything if part(s.batch)]
    warm = [s for s in samples if s.cold is None]
    if len(warm) < MIN_BATCHES:
        raise CannotCalibrate(f"{len(warm)} batches of known size and slots were recorded, {MIN_BATCHES} are needed")
    line = _line(warm)
    middle = statistics.median(map(line.off, warm))
    deviation = statistics.median(abs(line.off(s) - middle) for s in warm)
    kept = [s for s in warm if abs(line.off(s) - middle) <= OUTLIER_DEVIATIONS * max(deviation, 1e-9)]
    if len(kept) >= MIN_BATCHES:
        line = _line(kept)
    seen = [s.batch for s in samples if s.batch.output_records is not None]
    exit_seconds, restarts = restarts_of([s for s in everything if s.cold is Way.RESTART], results)

    def first_batches(way: Way) -> list[tuple[int, float]]:
        return [(s.slots, s.batch.duration_seconds - line.at(s)) for s in samples if s.cold is way]

    def first_batch(way: Way) -> Sized | None:
        return level([seconds for _, seconds in first_batches(way)])

    return Calibration(
        overhead_seconds=max(0.0, line.overhead),
        record_cost_seconds=line.cost,
        noise_share=min(0.5, statistics.pstdev(map(line.off, kept))) if len(kept) > 1 else 0.0,
        first_batch=sized(first_batches(Way.RESTART)) or Sized(0.0),
        restart=sized(restarts),
        handover=handovers_of(changes, everything, first_batch(Way.HANDOVER) or Sized(0.0)),
        in_place=in_place_of(changes, snapshots, first_batch(Way.IN_PLACE)),
        restart_seconds=tuple(seconds for _, seconds in restarts),
        exit_seconds=exit_seconds,
        trigger_seconds=_trigger([s for s in everything if s.cold is None]),
        max_records=_limit(snapshots),
        output_ratio=sum(b.output_records or 0 for b in seen) / sum(b.input_records for b in seen) if seen else 1.0,
        shares=shares,
        batches=len(kept),
    )


def batch_error(
    found: Calibration,
    snapshots: Sequence[MetricSnapshot],
    results: Sequence[ActionResult] = (),
    part: Part = every,
) -> float:
    """Return the median relative error of the fit over the recorded batches, given each batch's records and size."""
    line = _Line(found.overhead_seconds, found.record_cost_seconds)
    extra: dict[Way, Sized | None] = {
        Way.RESTART: found.first_batch,
        Way.HANDOVER: found.handover.first_batch if found.handover is not None else None,
        Way.IN_PLACE: found.in_place.first_batch if found.in_place is not None else None,
    }

    def predicted(sample: Sample) -> float:
        cold = extra[sample.cold] if sample.cold is not None else None
        return line.at(sample) + (cold.at(sample.slots) if cold is not None else 0.0)

    off = [
        abs(predicted(s) / s.batch.duration_seconds - 1.0)
        for s in samples_of(snapshots, found.shares, changes_of(results))
        if part(s.batch) and s.batch.duration_seconds
    ]
    if not off:
        raise CannotCalibrate("the recording has no batch of known size and slots to test the fit on")
    return statistics.median(off)


def _line(samples: Sequence[Sample]) -> _Line:
    """Return the line of least relative squares. Raises `CannotCalibrate` if all batches are of nearly one size."""
    xs, ys = [s.spread_records for s in samples], [max(1e-3, s.batch.duration_seconds) for s in samples]
    if statistics.pvariance(xs) <= (0.01 * statistics.fmean(xs)) ** 2:
        raise CannotCalibrate(
            "all recorded batches are of nearly the same size, so overhead and cost cannot be separated"
        )
    weights = [1.0 / (y * y) for y in ys]
    x, y = statistics.fmean(xs, weights), statistics.fmean(ys, weights)
    slope = math.fsum(w * (a - x) * (b - y) for w, a, b in zip(weights, xs, ys, strict=True)) / math.fsum(
        w * (a - x) ** 2 for w, a in zip(weights, xs, strict=True)
    )
    if slope <= 0:
        raise CannotCalibrate("larger batches took no longer in the recording, so there is no cost per record to fit")
    if y < slope * x:  # no overhead is below 0: the line goes through 0
        products = ((w * a * b, w * a * a) for w, a, b in zip(weights, xs, ys, strict=True))
        up, down = map(math.fsum, zip(*products, strict=True))
        return _Line(0.0, up / down)
    return _Line(y - slope * x, slope)


def _trigger(samples: Sequence[Sample]) -> float | None:
    """Return the trigger interval on whose multiples waiting batches started; 0: none fits, None: too few waited."""
    waited = [
        s.started_at
        for s in samples
        if s.committed_before is not None and s.started_at - s.committed_before > WAITED_SECONDS
    ]
    if len(waited) < MIN_BATCHES / 2:
        return None
    for interval in sorted({round(b - a, 1) for a, b in pairwise(waited)}, reverse=True):
        if interval > 0 and _fits(interval, waited):
            return interval
    return 0.0


def _fits(interval: float, waited: Sequence[float]) -> bool:
    """Whether nine of ten batches started at multiples of an interval."""
    near, fit = min(0.1, interval / 20), len(waited)
    for at in waited:
        fit -= abs(at - interval * round(at / interval)) > near
        if fit < 0.9 * len(waited):  # of a day with many intervals, most end here
            return False
    return True


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
    largest = max(found, default=0)
    alike = [records for records in found if records >= 0.98 * largest]
    return largest if len(alike) > 1 else None
