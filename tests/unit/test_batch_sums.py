"""Sums over micro-batches: they add, decay, and give the least-squares line."""

from __future__ import annotations

import statistics

import pytest

from tidegate.engine.batch_sums import NO_BATCHES, BatchSums

BATCHES = [(100, 0.61), (400, 0.88), (200, 0.72), (800, 1.27)]


def sums_of(*batches: tuple[int, float]) -> BatchSums:
    """Return the sums over batches, given as (records, seconds)."""
    found = NO_BATCHES
    for n, d in batches:
        found = found.add(BatchSums(1, n, d, n * n, n * d))
    return found


def test_the_fit_is_the_least_squares_line() -> None:
    """Overhead and cost are intercept and slope of the ordinary regression of duration over records."""
    line = statistics.linear_regression(*zip(*BATCHES, strict=True))
    assert sums_of(*BATCHES).fit() == pytest.approx((line.intercept, line.slope))
    assert sums_of(*BATCHES).spread == pytest.approx(16 * statistics.pvariance([n for n, _ in BATCHES]))


def test_sums_of_two_stretches_add_up() -> None:
    """Sums over two stretches of time are the sums over all their batches."""
    assert sums_of(*BATCHES[:2]).add(sums_of(*BATCHES[2:])) == pytest.approx(sums_of(*BATCHES))


def test_decay_keeps_the_line() -> None:
    """All sums decay alike, so batches count less and the line through them stays."""
    faded = sums_of(*BATCHES).faded(0.25, NO_BATCHES)
    assert faded.batches == 1.0
    assert faded.fit() == pytest.approx(sums_of(*BATCHES).fit())


def test_rounding_is_of_seconds_only() -> None:
    """Whole numbers stay whole; seconds and their products keep the digits asked for."""
    assert BatchSums(1, 3, 0.1234567, 9, 0.3703701).rounded() == BatchSums(1, 3, 0.123457, 9, 0.37037)
