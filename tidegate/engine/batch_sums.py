"""Sums over micro-batches, and the line through them: what a batch costs apart from its records.

A batch of n records lasts `d = overhead + cost · n` seconds. Ordinary least squares needs five sums only:

    spread   = B · Σn² - (Σn)²                      B: number of batches
    cost     = (B · Σnd - Σn · Σd) / spread         seconds per record
    overhead = (Σd - cost · Σn) / B                 seconds per batch

Sums add up, so those of neighbouring stretches of time can be merged, and they decay, so that the past can fade.
How many batches and how much spread a fit needs is up to the caller.
"""

from __future__ import annotations

from typing import NamedTuple

Exact = int | float
"""A whole number until it decays. A compiled engine would make a plain `float` of it, and write 3 as 3.0."""


def micro(seconds: float) -> float:
    """Return seconds, at least 0, to the microsecond: noise below it only makes the state longer.

    As `round(seconds, 6)`, which takes far longer, because it goes through decimal text.
    """
    return int(seconds * 1e6 + 0.5) / 1e6


class BatchSums(NamedTuple):
    """Sums over batches of n records that lasted d seconds; whole numbers until they decay."""

    batches: Exact = 0
    records: Exact = 0
    """Σn"""
    seconds: float = 0.0
    """Σd"""
    squares: Exact = 0
    """Σn²"""
    products: float = 0.0
    """Σnd"""

    def add(self, other: BatchSums) -> BatchSums:
        """Return the sums over the batches of both."""
        batches, records, seconds, squares, products = other
        return BatchSums(
            self.batches + batches,
            self.records + records,
            self.seconds + seconds,
            self.squares + squares,
            self.products + products,
        )

    def faded(self, keep: float, other: BatchSums) -> BatchSums:
        """Return the sums over the batches of both, these with the share `keep` of their weight."""
        batches, records, seconds, squares, products = other
        return BatchSums(
            self.batches * keep + batches,
            self.records * keep + records,
            self.seconds * keep + seconds,
            self.squares * keep + squares,
            self.products * keep + products,
        )

    def rounded(self) -> BatchSums:
        """Return the sums with their seconds to the microsecond."""
        batches, records, seconds, squares, products = self
        return BatchSums(batches, records, micro(seconds), squares, micro(products))

    @property
    def spread(self) -> Exact:
        """B · Σn² - (Σn)², which is B² times the variance of the records per batch."""
        return self.batches * self.squares - self.records * self.records

    def fit(self) -> tuple[float, float]:
        """Return (overhead in seconds per batch, cost in seconds per record); the spread must not be 0."""
        return line(*self)


NO_BATCHES = BatchSums()


def one_batch(records: int, seconds: float) -> BatchSums:
    """Return the sums over one batch."""
    return BatchSums(1, records, seconds, records * records, records * seconds)


def line(batches: Exact, records: Exact, seconds: float, squares: Exact, products: float) -> tuple[float, float]:
    """Return `BatchSums.fit` of these sums, without making them."""
    cost = (batches * products - records * seconds) / (batches * squares - records * records)
    return (seconds - cost * records) / batches, cost
