"""Sums of floats whose last digit is the same on every version of Python."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import add


def total(values: Iterable[float]) -> float:
    """Return the sum, added from left to right and rounded after each value, as the published rules add.

    The builtin `sum` did so, too, up to Python 3.11. Since 3.12 it compensates for the rounding, so a decision that is
    made with it on one version cannot be recomputed bit for bit on another.
    """
    return reduce(add, values, 0.0)
