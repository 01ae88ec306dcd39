"""Delay over time from commits: means over windows, quantiles, and the error between two of them.

The delay is the age of the oldest record that is not committed: it rises by a second per second, and falls with a
commit. Two runs that commit the same records one second apart differ a lot at that second, and little over a minute. So
delays are compared by their means over windows.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

WINDOW_SECONDS = 30.0
FLOOR_SECONDS = 1.0
"""A delay below this is too short for a relative error."""

Commits = Sequence[tuple[float, float]]
"""(second of a commit, when the oldest record arrived that was not committed until then), as in a `JobRecording`."""


@dataclass(frozen=True, slots=True)
class Errors:
    """Relative errors."""

    median: float
    p95: float
    points: int


def window_seconds(batch_seconds: Sequence[float]) -> float:
    """Return a window that holds several batches, so that it does not matter when in it they commit."""
    return max(WINDOW_SECONDS, 4.0 * statistics.median(batch_seconds)) if batch_seconds else WINDOW_SECONDS


def mean_delays(commits: Commits, seconds: float, window: float) -> list[float]:
    """Return the mean delay of each whole window of the first `seconds`."""
    sums = [0.0] * max(1, math.floor(seconds / window + 1e-9))
    before = 0.0
    for at, oldest in commits:
        low, high = max(before, oldest, 0.0), min(at, len(sums) * window)
        while low < high:
            place = min(int(low / window + 1e-9), len(sums) - 1)
            to = min(high, (place + 1) * window)
            sums[place] += ((to - oldest) ** 2 - (low - oldest) ** 2) / 2
            low = to
        before = at
    return [each / window for each in sums]


def errors(found: Sequence[float], real: Sequence[float], floor: float = FLOOR_SECONDS) -> Errors | None:
    """Return how far figures are from the real ones, relative to these; None if all real ones are below the floor."""
    off = sorted(abs(a / b - 1.0) for a, b in zip(found, real, strict=True) if b >= floor)
    return Errors(statistics.median(off), quantile(off, 0.95), len(off)) if off else None


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return a quantile of figures in ascending order; 0 if there are none."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
