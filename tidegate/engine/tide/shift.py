"""A shift of what a record costs: from some moment on, the same records take longer than before, or less long.

Payloads grow, a sink gets slow, another program shares the machine. Capacity is learned from about the last hundred
batches, so the old cost would be believed for many minutes. Batch by batch, n records are expected to last
d̂ = a + c · n, by what the present size has shown. Once `STREAK` batches in a row have all lasted more than (1 + h) · d̂,
or all less than d̂ / (1 + h), with

    h = max(LEAST_SHIFT, DEVIATIONS · v)          v: how much the job's batches vary, see `variation`

their records have cost r times as much as before

    r = (Σ d - a · batches) / (c · Σ n)           sums over the batches of the streak

and r corrects what all sizes have shown: a record costs another amount, but the job scales as it did.

Source: a run of points on one side, as in the zone rules of control charts (Western Electric, "Statistical Quality
Control Handbook", 1956; Nelson, "The Shewhart control chart: tests for special causes", 1984).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

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
    """How many times as much as before a record costs."""

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
    batches: int = 0
    records: int = 0
    seconds: float = 0.0

    @property
    def is_shift(self) -> bool:
        """Whether a record costs another amount than before."""
        return self.batches >= STREAK

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
                streak = Streak(side, streak.batches + 1, streak.records + records, streak.seconds + seconds)
        return streak

    def factor(self, known: SizeFit) -> float:
        """Return r: how many times as much as before a record costs, given what its size has shown before."""
        work = self.seconds - known.overhead * self.batches
        return min(MOST_SHIFT, max(1.0 / MOST_SHIFT, work / (known.cost * self.records)))


NO_STREAK = Streak()


def shifted(sizes: Sequence[SizeFit], factor: float, overhead: float) -> tuple[SizeFit, ...]:
    """Return what all sizes would have shown if a record had always cost `factor` times as much.

    `overhead` is what the events tell of it, in seconds per batch; 0 if they tell nothing.
    """
    found = []
    for each in sizes:
        more, sums = (factor - 1.0) * each.cost, each.sums
        seconds, products = sums.seconds + more * sums.records, sums.products + more * sums.squares
        sums = sums._replace(seconds=seconds, products=products)
        found.append(SizeFit(each.size, sums, *fit(sums, overhead)))
    return tuple(found)
