"""What a micro-batch job can do at a size, learned from its own batches.

A batch of n records on p slots over N partitions lasts

    d = a + c · n / e(p)          a overhead (s), c cost (slot-seconds per record)
    e(p) = N / ceil(N / p)        each partition is read by one task, so tasks run in ceil(N/p) waves

so batches kept to a duration D carry (1 - a/D) · e(p) / c records per second: overhead is apart from cost, and
slots that only shorten no wave add nothing. Jobs scale less than linearly, which is learned from the sizes seen:

    capacity(p) = K · e(p)^β,   0 < β ≤ 1

Weighted least squares on log capacity over log e, with a prior pulling β to 1: one size seen means linear scaling
through it, so a first step errs on the small side when scaling is sub-linear, and never over.

Each size keeps decayed sums over its batches, [size, count, Σn, Σd, Σn², Σnd]: six numbers per size, kept across
restarts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from engine.state import Slice

DECAY = 0.99
"""Weight of the past per new batch: about the last hundred batches count."""

SIZES_KEPT = 8
MIN_BATCHES = 6.0
MIN_SPREAD = 0.03
"""Relative spread of batch sizes a fit needs; below it overhead and cost cannot be told apart."""

PRIOR_WEIGHT = 4.0
"""How many batches' worth of belief in linear scaling stand against what was seen."""

BETA_RANGE = (0.3, 1.0)

Row = tuple[int, float, float, float, float, float]


def effective(size: int, partitions: int | None) -> float:
    """Return e(p): the slots' worth of work that `size` slots do over `partitions` equal tasks."""
    if partitions is None or partitions <= 0:
        return float(size)
    return partitions / math.ceil(partitions / size)


def useful_sizes(low: int, high: int, partitions: int | None, step: int = 1) -> list[int]:
    """Return the sizes in [low, high], multiples of `step`, that do more than the next smaller one; `low` included."""
    sizes: list[int] = []
    best = 0.0
    for size in range(-(-low // step) * step, high + 1, step):
        does = effective(size, partitions)
        if does > best + 1e-9:
            sizes.append(size)
            best = does
    return sizes


def learn(rows: Sequence[Row], size: int, piece: Slice) -> list[Row]:
    """Return the sums with one slice's batches of a size taken in; the sizes seen last are kept."""
    if piece.batches == 0 or piece.records == 0 or piece.duration_seconds <= 0:
        return list(rows)
    old = next((row for row in rows if row[0] == size), (size, 0.0, 0.0, 0.0, 0.0, 0.0))
    keep = DECAY**piece.batches
    new: Row = (
        size,
        _short(old[1] * keep + piece.batches),
        _short(old[2] * keep + piece.records),
        _short(old[3] * keep + piece.duration_seconds),
        _short(old[4] * keep + piece.records_squared),
        _short(old[5] * keep + piece.records_times_seconds),
    )
    return [*(row for row in rows if row[0] != size), new][-SIZES_KEPT:]


@dataclass(frozen=True, slots=True)
class Fit:
    """What one size's batches say: overhead and seconds per record, or only the plain rate when they are alike."""

    overhead: float
    seconds_per_record: float
    told_apart: bool

    def capacity(self, batch_seconds: float) -> float:
        """Return records/s of batches kept to `batch_seconds`."""
        share = max(0.05, 1.0 - self.overhead / batch_seconds) if batch_seconds > 0 else 1.0
        return share / self.seconds_per_record


def fit(row: Row) -> Fit | None:
    """Return the fit of a size's sums; None before anything was processed."""
    _, count, records, seconds, squares, products = row
    if records <= 0 or seconds <= 0:
        return None
    spread = count * squares - records * records
    if count >= MIN_BATCHES and spread > (MIN_SPREAD * records) ** 2:
        cost = (count * products - records * seconds) / spread
        overhead = (seconds - cost * records) / count
        if cost > 0 and overhead >= 0:
            return Fit(overhead, cost, told_apart=True)
        if cost > 0:  # no overhead to speak of: all of it is cost
            return Fit(0.0, seconds / records, told_apart=True)
    return Fit(0.0, seconds / records, told_apart=False)


@dataclass(frozen=True, slots=True)
class CapacityModel:
    """capacity(p) = K · e(p)^β, through what is known of the present size."""

    size: int
    rate: float
    """Capacity of the present size, records/s."""
    beta: float
    partitions: int | None
    told_apart: bool

    def capacity(self, size: int) -> float:
        """Return the capacity of a size, records/s."""
        ratio = effective(size, self.partitions) / effective(self.size, self.partitions)
        return self.rate * math.pow(ratio, self.beta)


def model(
    rows: Sequence[Row], size: int, partitions: int | None, batch_seconds: float, floor_rate: float | None
) -> CapacityModel | None:
    """Return the model at the present size, or None while nothing was processed at any size.

    `batch_seconds` is the batch duration capacity is reckoned at. `floor_rate` is a rate the present size is known
    to have kept up with; the capacity is at least that.
    """
    points = []
    here = None
    for row in rows:
        found = fit(row)
        if found is None:
            continue
        capacity = found.capacity(batch_seconds)
        if row[0] == size:
            capacity = max(capacity, floor_rate or 0.0)
            here = (capacity, found.told_apart)
        points.append((math.log(effective(row[0], partitions)), math.log(capacity), min(row[1], 30.0)))
    if not points:
        return None
    beta = _exponent(points)
    if here is None:
        near = min(rows, key=lambda row: (abs(row[0] - size), row[0]))
        seen = fit(near)
        if seen is None:
            return None
        scale = (effective(size, partitions) / effective(near[0], partitions)) ** beta
        here = (max(seen.capacity(batch_seconds) * scale, floor_rate or 0.0), False)
    return CapacityModel(size, here[0], beta, partitions, here[1])


def _exponent(points: Sequence[tuple[float, float, float]]) -> float:
    """Return β of log capacity = log K + β · log e: weighted least squares with a prior at 1."""
    weight = sum(w for _, _, w in points)
    mean_x = sum(w * x for x, _, w in points) / weight
    mean_y = sum(w * y for _, y, w in points) / weight
    spread = sum(w * (x - mean_x) ** 2 for x, _, w in points)
    products = sum(w * (x - mean_x) * (y - mean_y) for x, y, w in points)
    beta = (products + PRIOR_WEIGHT) / (spread + PRIOR_WEIGHT)
    return min(max(beta, BETA_RANGE[0]), BETA_RANGE[1])


def _short(value: float) -> float:
    """Return a sum to 9 significant digits: the rest is noise that only makes the state longer."""
    return float(f"{value:.9g}")
