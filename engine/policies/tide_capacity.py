"""What a micro-batch job can do at a size, learned from its own batches.

A batch of n records on p slots lasts

    d = a + c · n / e(p)                      a overhead (s), c cost (slot-seconds per record)
    1/e(p) = Σ share · ceil(T / p) / T        over stages: T tasks of one length run in ceil(T/p) waves

so overhead is apart from cost, and slots that only shorten no wave add nothing; a stage of one task never gets
shorter (Amdahl). Until tasks were seen, one stage with a task per source partition stands for all of them. Jobs scale
less than linearly, which is learned from the sizes seen:

    c(p) = k / e(p)^β,   0 < β ≤ 1            seconds per record at a size

Weighted least squares on log c over log e, with a prior pulling β to 1: one size seen means nearly linear scaling
through it, so a first step errs on the small side when scaling is sub-linear, and never over.

Capacity is the rate of the largest batch there can be: kept to a duration D, to the M records at which a batch is cut
off (`maxOffsetsPerTrigger`), and begun no sooner than the trigger interval T allows:

    capacity(p) = n / max(T, a + c(p) · n),   n = min(M, (D - a) / c(p))

Each size keeps decayed sums over its batches, [size, count, Σn, Σd, Σn², Σnd]: six numbers per size, kept across
restarts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from engine.state import Slice
from schemas.snapshot import MicroBatch, StageTasks

DECAY = 0.99
"""Weight of the past per new batch: about the last hundred batches count."""

SIZES_KEPT = 5
MIN_BATCHES = 6.0
MIN_SPREAD = 0.08
"""Relative spread of batch sizes a fit needs; below it overhead and cost cannot be told apart."""

PRIOR_WEIGHT = 2.0
"""How many batches' worth of belief in linear scaling stand against what was seen."""

WEIGHT_LIMIT = 30.0
"""Batches from which on a size counts no more for having been seen longer."""

PRIOR_BETA = 1.0
BETA_RANGE = (0.3, 1.0)

STAGE_DECAY = 0.8
"""Weight of the past per snapshot in the stages' shares of the work."""

STAGES_KEPT = 4
SHARE_GRAIN = 20
"""Shares are told apart to a twentieth."""

ALIKE = 0.01
"""Batches that differ by less are cut off at the same limit."""

CUT_LAG = 2.5
IDLE = 0.05
"""A batch that begins later than this share of the one before it after its end has waited for its trigger."""

Row = list[float]
Shape = tuple[tuple[int, float], ...]
"""(tasks, share of the work) of each stage."""


@lru_cache(maxsize=65_536)
def effective(size: int, shape: Shape) -> float:
    """Return e(p): the slots' worth of work that `size` slots do; all of them when no stage is known."""
    return 1.0 / sum(share * -(-tasks // size) / tasks for tasks, share in shape) if shape else float(size)


@lru_cache(maxsize=4096)
def useful_sizes(low: int, high: int, shape: Shape, step: int = 1) -> tuple[int, ...]:
    """Return the sizes in [low, high], multiples of `step`, that do more than the next smaller one; `low` included."""
    sizes: list[int] = []
    best = 0.0
    for size in range(-(-low // step) * step, high + 1, step):
        does = effective(size, shape)
        if does > best * (1 + 1e-9):
            sizes.append(size)
            best = does
    return tuple(sizes)


def learn_stages(kept: Sequence[Sequence[float]], stages: Sequence[StageTasks]) -> list[list[float]]:
    """Return [tasks, slot-seconds] of the busiest stages, stages of as many tasks taken as one; the past decays."""
    sums = {int(tasks): busy * STAGE_DECAY for tasks, busy in kept}
    for stage in stages:
        sums[stage.tasks] = sums.get(stage.tasks, 0.0) + stage.busy_seconds
    busiest = sorted(sums.items(), key=lambda item: (-item[1], item[0]))[:STAGES_KEPT]
    return [[tasks, busy] for tasks, busy in busiest if busy > 0]


def shape_of(kept: Sequence[Sequence[float]], partitions: int | None) -> Shape:
    """Return the shape of the work: by the stages seen, else one task per partition; () when neither is known."""
    total = sum(busy for _, busy in kept)
    if total <= 0:
        return ((partitions, 1.0),) if partitions else ()
    grains = [(int(tasks), round(SHARE_GRAIN * busy / total)) for tasks, busy in kept]
    whole = sum(grain for _, grain in grains)
    return tuple((tasks, grain / whole) for tasks, grain in grains if grain)


def learn_overhead(kept: float | None, batches: Sequence[MicroBatch]) -> float | None:
    """Return the seconds a batch lasts besides its work (`addBatch`), smoothed; None while none told."""
    told = [b.duration_seconds - b.add_batch_seconds for b in batches if b.add_batch_seconds is not None]
    if not told:
        return kept
    mean = max(0.0, sum(told) / len(told))
    return mean if kept is None else kept + 0.1 * (mean - kept)


def learn(rows: Sequence[Row], size: int, piece: Slice) -> list[Row]:
    """Return the sums with one slice's batches of a size taken in; the sizes seen last are kept."""
    if piece.batches == 0 or piece.records == 0 or piece.duration_seconds <= 0:
        return list(rows)
    old = next((row for row in rows if row[0] == size), [size, 0.0, 0.0, 0.0, 0.0, 0.0])
    keep = DECAY**piece.batches
    new: Row = [
        size,
        old[1] * keep + piece.batches,
        old[2] * keep + piece.records,
        old[3] * keep + piece.duration_seconds,
        old[4] * keep + piece.records_squared,
        old[5] * keep + piece.records_times_seconds,
    ]
    return [*(row for row in rows if row[0] != size), new][-SIZES_KEPT:]


@dataclass(slots=True)
class Pace:
    """What bounds a batch from outside; None where no bound was seen."""

    records: int | None = None
    """M: records at which a batch is cut off."""
    seconds: float | None = None
    """T: seconds from one trigger to the next."""
    last: int = 0
    """Records of the newest batch."""
    lag: int = 0
    """Records that were not committed when the newest snapshot was taken."""
    largest: int = 0
    """Records of the largest batch seen."""
    gap: float = 0.0
    """Seconds between the starts of the last two batches of which the second waited."""

    def learn(self, batches: Sequence[MicroBatch], lag: int | None) -> None:
        """Learn from a snapshot's batches, with `lag` records not committed.

        Batches that keep up leave no more than one under way and one to come. Two alike that had more before them
        and left more were cut off.
        Batches that begin later than the ones before them ended, and twice at one distance, wait for a trigger.
        """
        last = batches[-1].input_records
        before = batches[-2].input_records if len(batches) > 1 else self.last
        left = min(self.lag, lag or 0)
        if left > CUT_LAG * last and abs(before - last) <= ALIKE * last:
            self.records = last
        elif self.records is not None and last > self.records * (1 + ALIKE):
            self.records = None
        self.last, self.lag = last, lag or 0
        self.largest = max(self.largest, *(batch.input_records for batch in batches))
        if len(batches) > 1:
            gap = (batches[-1].started_at - batches[-2].started_at).total_seconds()
            if gap > batches[-2].duration_seconds * (1 + IDLE):
                if abs(gap - self.gap) <= ALIKE * gap:
                    self.seconds = gap
                self.gap = gap
            elif self.seconds is not None and gap < 0.5 * self.seconds:
                self.seconds = None


class Fit(NamedTuple):
    """What one size's batches say: overhead and seconds per record, or only the plain rate when they are alike."""

    overhead: float
    seconds_per_record: float
    told_apart: bool


def fit(row: Row, overhead: float = 0.0) -> Fit | None:
    """Return the fit of a size's sums; None before anything was processed.

    `overhead` is taken where the batches are too much alike to show it.
    """
    _, count, records, seconds, squares, products = row
    if records <= 0 or seconds <= 0:
        return None
    spread = count * squares - records * records
    if count >= MIN_BATCHES and spread > (MIN_SPREAD * records) ** 2:
        cost = (count * products - records * seconds) / spread
        own = (seconds - cost * records) / count
        if cost > 0 and own >= 0:
            return Fit(own, cost, told_apart=True)
        if cost > 0:  # no overhead to speak of: all of it is cost
            return Fit(0.0, seconds / records, told_apart=True)
    overhead = min(overhead, 0.9 * seconds / count)
    return Fit(overhead, (seconds - overhead * count) / records, told_apart=False)


@dataclass(slots=True)
class CapacityModel:
    """What the present size shows, and c(p) = k / e(p)^β through it."""

    size: int
    overhead: float
    seconds_per_record: float
    """At the present size."""
    beta: float
    told_apart: bool
    shape: Shape
    batch_seconds: float
    pace: Pace
    floor: float = 0.0
    """A rate the present size is known to have kept up with."""
    costs: dict[int, float] = field(default_factory=dict)
    """Seconds per record by size, as far as they were asked for."""
    capacities: dict[int, float] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Capacity of the present size, records/s."""
        return self.capacity(self.size)

    def record_seconds(self, size: int) -> float:
        """Return c(p), the seconds that one more record lasts at a size."""
        cost = self.costs.get(size)
        if cost is None:
            ratio = effective(self.size, self.shape) / effective(size, self.shape)
            cost = self.costs[size] = self.seconds_per_record * float(ratio**self.beta)
        return cost

    def capacity(self, size: int) -> float:
        """Return the capacity of a size, records/s."""
        rate = self.capacities.get(size)
        if rate is None:
            rate = self.capacities[size] = self._capacity(size)
        return rate

    def _capacity(self, size: int) -> float:
        cost, pace = self.record_seconds(size), self.pace
        records = max(0.05 * self.batch_seconds, self.batch_seconds - self.overhead) / cost
        if pace.records is not None and pace.records < records:
            records = pace.records
        seconds = self.overhead + cost * records
        if pace.seconds is not None and pace.seconds > seconds:
            seconds = pace.seconds
        rate = records / seconds
        return rate if size < self.size or rate > self.floor else self.floor

    def batch_of(self, size: int, lag: float) -> float:
        """Return how long the batch lasts that takes `lag` waiting records, seconds."""
        most = self.pace.records or self.pace.largest
        return self.overhead + self.record_seconds(size) * (min(most, lag))


def model(
    rows: Sequence[Row],
    size: int,
    shape: Shape,
    batch_seconds: float,
    floor: float = 0.0,
    pace: Pace | None = None,
    overhead: float = 0.0,
) -> CapacityModel | None:
    """Return the model at the present size, or None while nothing was processed at any size.

    `batch_seconds` is the batch duration capacity is reckoned at. `floor` is a rate the present size is known to have
    kept up with; the capacity is at least that. `overhead` is taken for sizes whose batches do not show it.
    """
    near: Fit | None = None
    near_size, fits = 0, 0
    weight = xs = ys = squares = products = 0.0  # weighted sums over x = log e, y = -log c
    for row in rows:
        found = fit(row, overhead)
        if found is None:
            continue
        at = int(row[0])
        x, y, w = math.log(effective(at, shape)), -math.log(found.seconds_per_record), min(row[1], WEIGHT_LIMIT)
        fits += 1
        weight += w
        xs += w * x
        ys += w * y
        squares += w * x * x
        products += w * x * y
        if near is None or (abs(at - size), at) < (abs(near_size - size), near_size):
            near, near_size = found, at
    if near is None:
        return None
    beta = PRIOR_BETA
    if fits > 1:
        spread = PRIOR_WEIGHT + squares - xs * xs / weight
        slope = (PRIOR_WEIGHT * PRIOR_BETA + products - xs * ys / weight) / spread
        beta = min(max(slope, BETA_RANGE[0]), BETA_RANGE[1])
    cost, told_apart = near.seconds_per_record, near.told_apart
    if near_size != size:
        cost *= (effective(near_size, shape) / effective(size, shape)) ** beta
        told_apart = False
    pace = pace or Pace()
    return CapacityModel(size, near.overhead, cost, beta, told_apart, shape, batch_seconds, pace, floor, {size: cost})
