"""A job's last hours as columns of numbers, in bounded memory. Pure.

A timeline starts with a point per decision. When it is full, it joins each pair of points, so that it holds twice the
time; once it spans `HORIZON_SECONDS` it drops the oldest points instead. A joined point keeps the largest delay and
lag, because a peak must stay visible, the mean of the rates, and the newest size.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import NamedTuple

CAPACITY = 360
"""Points per job: at most 20 kB."""
HORIZON_SECONDS = 6 * 3600.0
"""Time after which points are dropped."""


class TimelinePoint(NamedTuple):
    """A job over a moment or, once joined, a longer time. NaN means unknown, never zero."""

    at: float
    """Epoch seconds in which the newest decision's snapshot was measured: its sequence."""
    arrival_rate: float
    """Records/s."""
    capacity: float
    """Records/s that the present size can process."""
    delay_seconds: float
    lag_records: float
    slots: float


def largest(first: float, second: float, _times: int) -> float:
    """Return the larger of two figures; the known one if the other is not."""
    return second if math.isnan(first) else first if math.isnan(second) else max(first, second)


def mean(first: float, second: float, times: int) -> float:
    """Return the mean of two figures, the first one of which stands for `times`; the known one if the other is not."""
    return second if math.isnan(first) else first if math.isnan(second) else (times * first + second) / (times + 1)


def newest(_first: float, second: float, _times: int) -> float:
    """Return the later figure."""
    return second


JOINED: tuple[Callable[[float, float, int], float], ...] = (
    newest,
    mean,
    mean,
    largest,
    largest,
    newest,
)
"""How two neighbouring points become one, in the order of the fields of `TimelinePoint`."""


class JobTimeline:
    """The points of one job, oldest first."""

    __slots__ = ("_columns", "_in_last", "_width")

    def __init__(self) -> None:
        self._columns = tuple(array("d") for _ in TimelinePoint._fields)
        self._width = 0.0
        """Seconds that one point covers; 0 while each is a single decision."""
        self._in_last = 1
        """Decisions in the newest point."""

    def __len__(self) -> int:
        return len(self._columns[0])

    def __iter__(self) -> Iterator[TimelinePoint]:
        return (TimelinePoint(*values) for values in zip(*self._columns, strict=True))

    @property
    def seconds(self) -> float:
        """The time between the oldest and the newest point."""
        times = self._columns[0]
        return times[-1] - times[0] if times else 0.0

    def add(self, point: TimelinePoint) -> None:
        """Append a point that is later than all others."""
        times = self._columns[0]
        if len(times) > 1 and point.at - times[-2] < self._width:
            for column, join, value in zip(self._columns, JOINED, point, strict=True):
                column[-1] = join(column[-1], value, self._in_last)
            self._in_last += 1
            return
        if len(times) == CAPACITY:
            self._make_room()
        for column, value in zip(self._columns, point, strict=True):
            column.append(value)
        self._in_last = 1

    def _make_room(self) -> None:
        if self.seconds >= HORIZON_SECONDS:
            for column in self._columns:
                del column[0]
            return
        self._width = 2 * self.seconds / (CAPACITY - 1)
        for column, join in zip(self._columns, JOINED, strict=True):
            column[:] = array("d", map(join, column[::2], column[1::2], repeat(1)))
