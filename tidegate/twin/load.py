"""A load: arrivals in records/s, as steps of equal length, with their running sum.

The sum answers "how many records have arrived by t" with one look-up, which the twin needs for every micro-batch. The
rate is constant within a step and continues after the last one.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

from tidegate.twin.noise import Noise

STEP_SECONDS = 5.0


class BadLoad(ValueError):
    """An invalid load; the text names the value and its place."""


class Load:
    """Arrival rates in records/s, one per `step_seconds`, from second 0."""

    __slots__ = ("_sums", "rates", "step_seconds")

    def __init__(self, rates: Iterable[float], step_seconds: float = STEP_SECONDS) -> None:
        """Raise `BadLoad` when there is no rate, or one is negative or not a number."""
        self.rates = tuple(map(float, rates))
        self.step_seconds = float(step_seconds)
        if not self.rates:
            raise BadLoad("a load needs at least one rate")
        if not (math.isfinite(self.step_seconds) and self.step_seconds > 0):
            raise BadLoad(f"step_seconds must be above 0, found {step_seconds}")
        for place, rate in enumerate(self.rates):
            if not (math.isfinite(rate) and rate >= 0):
                raise BadLoad(f"rate {place} (second {place * self.step_seconds:g}) must be at least 0, found {rate}")
        self._sums = (0.0, *accumulate(rate * self.step_seconds for rate in self.rates))

    @property
    def seconds(self) -> float:
        """Length of the load."""
        return len(self.rates) * self.step_seconds

    @property
    def peak(self) -> float:
        """Highest rate, records/s."""
        return max(self.rates)

    def rate(self, second: float) -> float:
        """Return the rate at a second; 0 before the start, the last one after the end."""
        if second < 0:
            return 0.0
        return self.rates[min(int(second / self.step_seconds), len(self.rates) - 1)]

    def arrived(self, second: float) -> float:
        """Return how many records have arrived by a second."""
        if second <= 0:
            return 0.0
        step = min(int(second / self.step_seconds), len(self.rates) - 1)
        return self._sums[step] + (second - step * self.step_seconds) * self.rates[step]

    def arrives(self, records: float) -> float:
        """Return the first second by which so many records have arrived, or will; infinite if they never do."""
        if records <= 0:
            return 0.0
        step = min(bisect_left(self._sums, records), len(self.rates)) - 1
        rate = self.rates[step]
        return step * self.step_seconds + (records - self._sums[step]) / rate if rate > 0 else math.inf

    def scaled(self, peak: float) -> Load:
        """Return the same shape with another peak, to fit a trace to a job's size."""
        if self.peak <= 0:
            raise BadLoad("a load without arrivals cannot be scaled to a peak")
        return Load((rate * peak / self.peak for rate in self.rates), self.step_seconds)

    def noisy(self, share: float, seed: int, correlation_seconds: float = 60.0) -> Load:
        """Return the load with relative noise of standard deviation `share` around every rate.

        The noise is a first-order autoregression. Noise independent from second to second would average out within one
        micro-batch and test no scaler.
        """
        noise = Noise(seed, "load")
        keep = math.exp(-self.step_seconds / correlation_seconds)
        level, rates = noise.normal(0), []
        for place, rate in enumerate(self.rates):
            rates.append(max(0.0, rate * (1.0 + share * level)))
            level = keep * level + math.sqrt(1.0 - keep * keep) * noise.normal(place + 1)
        return Load(rates, self.step_seconds)

    def pulsed(self, seconds: float) -> Load:
        """Return the load with all arrivals of every `seconds` in the first fifth of that time.

        So a job reads a topic that another micro-batch job fills.
        """
        step = 1.0
        cycle, loud = max(1, round(seconds / step)), max(1, round(0.2 * seconds / step))
        rates: list[float] = []
        for start in range(0, math.ceil(self.seconds / step), cycle):
            records = self.arrived((start + cycle) * step) - self.arrived(start * step)
            rates += [records / (loud * step)] * loud + [0.0] * (cycle - loud)
        return Load(rates[: math.ceil(self.seconds / step)], step)


def seconds_of(points: Sequence[tuple[float, float]]) -> float:
    """Return the length of a trace of (seconds, records per second); the last point lasts as long as the one before it.

    Raises `BadLoad` for fewer than two points, or seconds that do not rise.
    """
    if len(points) < 2:
        raise BadLoad(f"a trace needs at least 2 points, found {len(points)}")
    for place, ((before, _), (after, _)) in enumerate(pairwise(points)):
        if not after > before:
            raise BadLoad(f"point {place + 2}: seconds must rise, found {after:g} after {before:g}")
    return 2 * points[-1][0] - points[-2][0] - points[0][0]


def from_points(
    points: Sequence[tuple[float, float]],
    step_seconds: float = STEP_SECONDS,
    *,
    start: float = 0.0,
    seconds: float = math.inf,
) -> Load:
    """Return the load of a trace of (seconds, records per second), its points joined by straight lines.

    A trace that samples every half hour says nothing of the time in between. If each rate held until the next point,
    the load would jump where the real one did not. A real jump is two points close together. The last rate continues.
    Each step has the mean rate of its span, so no arrival is lost between steps.

    The load starts `start` seconds after the first point and lasts `seconds`, or until the trace ends.
    Raises `BadLoad` as `seconds_of` does, or if the trace ends before `start`.
    """
    whole = seconds_of(points)
    if not 0 <= start < whole:
        raise BadLoad(f"a trace of {whole:g} s has no second {start:g}")
    arrived = _Lines(points)
    steps = math.ceil(min(seconds, whole - start) / step_seconds - 1e-9)
    begin = points[0][0] + start
    sums = [arrived.until(begin + step * step_seconds) for step in range(steps + 1)]
    return Load([max(0.0, after - before) / step_seconds for before, after in pairwise(sums)], step_seconds)


class _Lines:
    """The running sum of a rate that is linear between points and constant after the last one."""

    def __init__(self, points: Sequence[tuple[float, float]]) -> None:
        self._points = points
        self._at = [at for at, _ in points]
        areas = ((then - at) * (rate + other) / 2 for (at, rate), (then, other) in pairwise(points))
        self._sums = (0.0, *accumulate(areas))

    def until(self, second: float) -> float:
        """Return how many records have arrived by a second at or after the first point."""
        place = bisect_right(self._at, second) - 1
        at, rate = self._points[place]
        passed, slope = second - at, 0.0
        if place + 1 < len(self._points):
            then, other = self._points[place + 1]
            slope = (other - rate) / (then - at)
        return self._sums[place] + passed * (rate + slope * passed / 2)
