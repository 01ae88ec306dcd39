"""How much micro-batches vary: the spread of their durations around what their records make expected.

A batch of n records is expected to last d̂ = a + c · n, by what its size has shown before. With x = d / d̂ - 1 of each
batch, and weights w that fade with age,

    variation   v = sqrt(Σ w · x² / (Σ w + PRIOR_BATCHES))         the coefficient of variation of a batch

While a slow batch runs, records pile up, so the next batch is larger. The nearer a job is to its capacity, the longer
that goes on: with rho the utilization, the share (1 + v²) · rho² of a batch's variance is still there in the next one
(Kesten, "Random difference equations and renewal theory for products of random matrices", 1973). So headroom in
proportion to v is kept free.

When capacity is learned, a batch counts for at most `SLOW` times what was expected. Otherwise a slow batch of few
records, followed by a large one, would make the overhead look expensive and the records cheap.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Final, NamedTuple

from tidegate.engine.batch_sums import BatchSums
from tidegate.engine.tide.capacity import SizeFit
from tidegate.events.snapshot import MicroBatch

MIN_FIT_BATCHES: Final = 5.0
"""Batches that a size must have shown before others are compared with what it makes expected."""

KEEP: Final = 0.998
"""Weight of the past after another batch, so that about the last 500 count: slow batches may be rare."""

PRIOR_BATCHES: Final = 20.0
"""How many batches without any variation are assumed before the first one."""

FURTHEST: Final = 3.0
"""x of a batch is at most this: one that hung for an hour says nothing about the others."""

NOISY = 0.15
"""Coefficient of variation from which the batches of a job are noisy: the line through them may point anywhere."""

PRIOR_NOISY: Final = 5.0
"""How many noisy batches are assumed before the first one, as long as it is not known how noisy they are."""

SLOW = 1.5
"""Times the expected duration that a batch counts for at most when capacity is learned."""


class Variation(NamedTuple):
    """Decayed sums over the batches of all sizes."""

    batches: float = 0.0
    squares: float = 0.0
    """Σ x²"""

    @property
    def coefficient(self) -> float:
        """v, as a share of the duration of a batch."""
        return sqrt(self.squares / (self.batches + PRIOR_BATCHES))

    @property
    def noise(self) -> float:
        """How noisy the batches are, from 0 to 1: the variance of one, over that of a noisy one."""
        assumed = PRIOR_NOISY * NOISY * NOISY
        return min(1.0, (assumed + self.squares) / (PRIOR_NOISY + self.batches) / (NOISY * NOISY))

    def after(self, batches: Sequence[MicroBatch], fit: SizeFit) -> Variation:
        """Return the variation with new batches of a size added, given what the size has shown before them."""
        count, squares = self
        for batch in batches:
            records = batch.input_records
            if records:
                x = min(FURTHEST, batch.duration_seconds / fit.lasts(records) - 1.0)
                count, squares = count * KEEP + 1.0, squares * KEEP + x * x
        return Variation(count, squares)


NO_VARIATION = Variation()


def without_slow(sums: BatchSums, batches: Sequence[MicroBatch], fit: SizeFit) -> BatchSums:
    """Return the sums over these batches with slow ones shortened, given what the size has shown before them."""
    for batch in batches:
        records = batch.input_records
        excess = batch.duration_seconds - SLOW * fit.lasts(records)
        if records and excess > 0.0:
            sums = sums._replace(seconds=sums.seconds - excess, products=sums.products - excess * records)
    return sums


def fit_of(sizes: Sequence[SizeFit], size: int) -> SizeFit | None:
    """Return what the present size has shown, if that is enough to compare other batches with."""
    if sizes and sizes[-1].size == size and sizes[-1].sums.batches >= MIN_FIT_BATCHES:
        return sizes[-1]
    return None
