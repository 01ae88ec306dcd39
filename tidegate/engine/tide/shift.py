"""A shift: from some moment on, the batches of a job take longer than before, or less long.

Payloads grow, a sink gets slow, another program shares the machine. Capacity is learned from about the last hundred
batches, so without this rule the old cost would count for many minutes. A batch of n records is expected to last
d̂ = a + c · n, by what the present size has shown. There is a shift once `STREAK` batches in a row have all lasted more
than (1 + h) · d̂, or all less than d̂ / (1 + h), with

    h = max(LEAST_SHIFT, DEVIATIONS · v)          v: how much the job's batches vary, see `variation`

Two things may have happened. Of these, the one counts that explains the batches of the streak with the smaller sum of
squared errors:

    d = a + r · c · n          a record costs r times as much as before:     r = Σ (d - a) · n / (c · Σ n²)
    d = a + s + c · n          every batch lasts s seconds longer:           s = Σ (d - a - c · n) / batches

If r would be 0 or less, it is the second, since no record costs less than nothing. Either way, what all sizes have
shown is corrected: the job scales as it did. For the capacity the two differ widely. If a batch of few records lasts
three times as long, its overhead may have grown by some seconds, which hardly matters for a large batch, or the job can
now process only a third of what it could.

Source: a run of points on one side, as in the zone rules of control charts (Western Electric, "Statistical Quality
Control Handbook", 1956; Nelson, "The Shewhart control chart: tests for special causes", 1984).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from tidegate.engine.batch_sums import NO_BATCHES, BatchSums, one_batch
from tidegate.engine.tide.capacity import SizeFit, fit
from tidegate.events.snapshot import MicroBatch

STREAK = 4
"""Batches in a row that make a shift. One slow batch, or two, are no shift."""

KNOWN_BATCHES: Final = 20.0
"""Batches that a size must have shown before a streak at it counts: a line through fewer may be wrong by as much."""

LEAST_SHIFT: Final = 0.15
"""Share by which all batches of a streak deviate at least."""

DEVIATIONS: Final = 1.5
"""The same in deviations of a batch. Four in a row by chance: once in 25,000 batches, if they vary normally."""

MOST_SHIFT: Final = 10.0
"""A record costs at most so many times as much as before, or as little."""

NAMED_SECONDS: Final = 600.0
"""How long a shift is named as the cause of a scale-up. Shifts within this time count as one."""


class Shift(NamedTuple):
    """The newest shift."""

    at: float = 0.0
    """When it was found, epoch seconds."""
    factor: float = 1.0
    """How many times as long as before the same batches take."""

    def after(self, at: float, factor: float) -> Shift:
        """Return the newest shift after another one."""
        return Shift(at, self.named(at) * factor)

    def named(self, at: float) -> float:
        """Return its factor, or 1 if it was long ago."""
        return self.factor if at - self.at <= NAMED_SECONDS else 1.0


NO_SHIFT = Shift()


class Streak(NamedTuple):
    """The newest batches, as long as they all deviate to one side."""

    side: int = 0
    """1: they last longer than expected; -1: less long; 0: there is no streak."""
    sums: BatchSums = NO_BATCHES
    squares: float = 0.0
    """Σd²"""

    @property
    def is_shift(self) -> bool:
        """Whether these batches show a shift."""
        return self.sums.batches >= STREAK

    def after(self, batches: Sequence[MicroBatch], known: SizeFit, variation: float) -> Streak:
        """Return the streak with new batches of a size added, given what the size has shown before them."""
        if known.sums.batches < KNOWN_BATCHES:
            return NO_STREAK
        streak, limit = self, 1.0 + max(LEAST_SHIFT, DEVIATIONS * variation)
        for batch in batches:
            records, seconds = batch.input_records, batch.duration_seconds
            if not records:
                continue
            ratio = seconds / known.lasts(records)
            side = 1 if ratio > limit else -1 if ratio * limit < 1.0 else 0
            if side != streak.side:
                streak = NO_STREAK
            if side:
                sums = streak.sums.add(one_batch(records, seconds))
                streak = Streak(side, sums, streak.squares + seconds * seconds)
        return streak

    def factor(self, known: SizeFit) -> float:
        """Return how many times as long as expected these batches took."""
        batches, records, seconds, _, _ = self.sums
        return seconds / (known.overhead * batches + known.cost * records)

    def explained(self, known: SizeFit) -> tuple[float, float]:
        """Return (s, r): by how many seconds a batch lasts longer, and 1; or 0, and what factor a record costs more."""
        batches, records, seconds, squares, products = self.sums
        a, c = known.overhead, known.cost
        work, work_products = seconds - a * batches, products - a * records  # Σ (d - a), Σ (d - a) · n
        more = work - c * records
        work_squares = self.squares - 2.0 * a * seconds + a * a * batches
        dearer = work_squares - work_products * work_products / squares
        longer = work_squares - 2.0 * c * work_products + c * c * squares - more * more / batches
        if longer <= dearer or work_products <= 0.0:
            return more / batches, 1.0
        return 0.0, min(MOST_SHIFT, max(1.0 / MOST_SHIFT, work_products / (c * squares)))


NO_STREAK = Streak()


def shifted(
    sizes: Sequence[SizeFit], longer: float, factor: float, overhead: float, noise: float = 1.0
) -> tuple[SizeFit, ...]:
    """Return what all sizes would have shown if batches had always been so, given (s, r) of `Streak.explained`.

    `overhead` is what the events tell of it, in seconds per batch; 0 if they tell nothing. `noise` is for `fit`.
    """
    found = []
    for each in sizes:
        sums, cost = each.sums, (factor - 1.0) * each.cost
        more = max(longer, -each.overhead)
        seconds = sums.seconds + more * sums.batches + cost * sums.records
        products = sums.products + more * sums.records + cost * sums.squares
        if seconds > 0.0:
            sums = sums._replace(seconds=seconds, products=products)
            found.append(SizeFit(each.size, sums, *fit(sums, overhead, noise)))
        else:  # it has shown next to nothing
            found.append(each)
    return tuple(found)
