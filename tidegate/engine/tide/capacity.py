"""What a micro-batch job can do at a size, learned from its own batches.

A batch of n records on p slots lasts

    d = a + c · n / e(p)                      d s, a overhead in s, c cost in slot-seconds per record
    1/e(p) = Σ share · ceil(T / p) / T        over stages: T tasks of one length run in ceil(T/p) waves

so overhead is apart from cost, and slots that only shorten no wave add nothing; a stage of one task never gets
shorter (Amdahl). Until tasks were seen, one stage with a task per source partition stands for all of them. Jobs scale
less than linearly, which is learned from the sizes seen:

    c(p) = k / e(p)^β,   0 < β ≤ 1            seconds per record at a size

Weighted least squares on log c over log e, with a prior pulling β to 1: one size seen means nearly linear scaling
through it, so a first step errs on the small side when scaling is sub-linear, and never over.

Capacity is the rate in records/s of the largest batch there can be: kept to a duration of D seconds (half the lag
objective), to the M records at which a batch is cut off (`maxOffsetsPerTrigger`), and begun no sooner than the
trigger interval, T' seconds, allows:

    capacity(p) = n / max(T', a + c(p) · n),   n = min(M, (D - a) / c(p))

The sums over the batches of the sizes run last are kept, decayed, also across restarts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from tidegate.engine.batch_sums import NO_BATCHES, BatchSums
from tidegate.engine.state import Slice
from tidegate.engine.tide.pace import UNBOUND, Pace
from tidegate.events.snapshot import MicroBatch, StageTasks

DECAY = 0.99
"""Weight of the past per new batch: about the last hundred batches count."""

SIZES_KEPT = 4
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


def learn_stages(kept: Sequence[tuple[int, float]], stages: Sequence[StageTasks]) -> tuple[tuple[int, float], ...]:
    """Return (tasks, slot-seconds) of the busiest stages, stages of as many tasks taken as one; the past decays."""
    sums = {tasks: busy * STAGE_DECAY for tasks, busy in kept}
    for stage in stages:
        sums[stage.tasks] = sums.get(stage.tasks, 0.0) + stage.busy_seconds
    busiest = sorted(sums.items(), key=lambda item: (-item[1], item[0]))[:STAGES_KEPT]
    return tuple((tasks, busy) for tasks, busy in busiest if busy > 0)


def shape_of(kept: Sequence[tuple[int, float]], partitions: int | None) -> Shape:
    """Return the shape of the work: by the stages seen, else one task per partition; () when neither is known."""
    if not kept:
        return ((partitions, 1.0),) if partitions else ()
    total = sum(busy for _, busy in kept)
    grains = [(tasks, round(SHARE_GRAIN * busy / total)) for tasks, busy in kept]
    whole = sum(grain for _, grain in grains)
    return tuple((tasks, grain / whole) for tasks, grain in grains if grain)


def learn_overhead(kept: float | None, batches: Sequence[MicroBatch]) -> float | None:
    """Return the seconds a batch lasts besides its work (`addBatch`), smoothed; None while none told."""
    told = [b.duration_seconds - b.add_batch_seconds for b in batches if b.add_batch_seconds is not None]
    if not told:
        return kept
    mean = max(0.0, sum(told) / len(told))
    return mean if kept is None else kept + 0.1 * (mean - kept)


class Row(NamedTuple):
    """What a size has shown: decayed sums over its batches, and what they say."""

    size: int
    sums: BatchSums = NO_BATCHES
    overhead: float = 0.0
    """Seconds per batch."""
    cost: float = 0.0
    """Seconds per record."""
    told_apart: bool = False
    """Whether the batches differ enough to tell overhead and cost apart."""


def learn(rows: tuple[Row, ...], size: int, piece: Slice, overhead: float = 0.0) -> tuple[Row, ...]:
    """Return the rows with one slice's batches of a size taken in; the sizes seen last are kept.

    `overhead` is taken for batches too much alike to show theirs.
    """
    new = piece.sums
    if new.batches == 0 or new.records == 0 or new.seconds <= 0:
        return rows
    old, others = Row(size), []
    for row in rows:
        if row.size == size:
            old = row
        else:
            others.append(row)
    sums = old.sums.decay(DECAY**new.batches).add(new)
    return (*others[-SIZES_KEPT + 1 :], Row(size, sums, *fit(sums, overhead)))


def fit(sums: BatchSums, overhead: float) -> tuple[float, float, bool]:
    """Return (overhead, seconds per record, whether they could be told apart) of the sums over a size's batches."""
    if sums.batches >= MIN_BATCHES and sums.spread > (MIN_SPREAD * sums.records) ** 2:
        own, cost = sums.fit()
        if cost > 0 and own >= 0:
            return own, cost, True
        if cost > 0:  # no overhead to speak of: all of it is cost
            return 0.0, sums.seconds / sums.records, True
    overhead = min(overhead, 0.9 * sums.seconds / sums.batches)
    return overhead, (sums.seconds - overhead * sums.batches) / sums.records, False


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
    rate: float = field(init=False)
    """Capacity of the present size, records/s."""
    costs: dict[int, float] = field(init=False, default_factory=dict)
    """Seconds per record by size, as far as they were asked for."""
    capacities: dict[int, float] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.rate = self.capacity(self.size)

    def record_seconds(self, size: int) -> float:
        """Return c(p), the seconds that one more record lasts at a size."""
        cost = self.costs.get(size)
        if cost is None:
            ratio = effective(self.size, self.shape) / effective(size, self.shape) if size != self.size else 1.0
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
    rows: Sequence[Row], size: int, shape: Shape, batch_seconds: float, floor: float = 0.0, pace: Pace = UNBOUND
) -> CapacityModel | None:
    """Return the model at the present size, or None while nothing was processed at any size.

    `batch_seconds` is the batch duration capacity is reckoned at. `floor` is a rate the present size is known to have
    kept up with; the capacity is at least that.
    """
    if not rows:
        return None
    near = rows[-1] if rows[-1].size == size else min(rows, key=lambda row: (abs(row.size - size), row.size))
    beta = PRIOR_BETA
    if len(rows) > 1:
        weight = xs = ys = squares = products = 0.0  # weighted sums over x = log e, y = -log c
        for row in rows:
            x, y, w = math.log(effective(row.size, shape)), -math.log(row.cost), min(row.sums.batches, WEIGHT_LIMIT)
            weight += w
            xs += w * x
            ys += w * y
            squares += w * x * x
            products += w * x * y
        spread = PRIOR_WEIGHT + squares - xs * xs / weight
        slope = (PRIOR_WEIGHT * PRIOR_BETA + products - xs * ys / weight) / spread
        beta = min(max(slope, BETA_RANGE[0]), BETA_RANGE[1])
    cost, told_apart = near.cost, near.told_apart
    if near.size != size:
        cost *= (effective(near.size, shape) / effective(size, shape)) ** beta
        told_apart = False
    return CapacityModel(size, near.overhead, cost, beta, told_apart, shape, batch_seconds, pace, floor)
