"""A load: how many records a second arrive, as steps of equal length, with their running sum.

The sum makes "how many have arrived by t" one look-up, whatever the length of a run: the twin asks it for every
micro-batch. Within a step the rate is constant; after the last one its rate goes on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

from twin.noise import Noise

STEP_SECONDS = 5.0


class BadLoad(ValueError):
    """A load that cannot be: the text names the value and its place."""


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

    def scaled(self, peak: float) -> Load:
        """Return the same shape with another peak, so that a trace fits a job's size."""
        if self.peak <= 0:
            raise BadLoad("a load without any arrival cannot be scaled to a peak")
        return Load((rate * peak / self.peak for rate in self.rates), self.step_seconds)

    def faster(self, factor: float) -> Load:
        """Return the same shape in 1/`factor` of the time, at the same rates."""
        return Load(self.rates, self.step_seconds / factor)

    def cut(self, start: float, seconds: float) -> Load:
        """Return `seconds` of the load from second `start`."""
        first = int(start / self.step_seconds)
        count = max(1, math.ceil(seconds / self.step_seconds))
        return Load(self.rates[first : first + count], self.step_seconds)

    def noisy(self, share: float, seed: int, correlation_seconds: float = 60.0) -> Load:
        """Return the load with relative noise of standard deviation `share` around every rate.

        The noise is a first-order autoregression, because noise independent from second to second averages out
        within one micro-batch and would trouble no scaler.
        """
        noise = Noise(seed, "load")
        keep = math.exp(-self.step_seconds / correlation_seconds)
        level, rates = noise.normal(0), []
        for place, rate in enumerate(self.rates):
            rates.append(max(0.0, rate * (1.0 + share * level)))
            level = keep * level + math.sqrt(1.0 - keep * keep) * noise.normal(place + 1)
        return Load(rates, self.step_seconds)


def from_points(points: Sequence[tuple[float, float]], step_seconds: float = STEP_SECONDS) -> Load:
    """Return the load of a trace of (seconds, records per second); each rate holds until the next point.

    Raises `BadLoad` for fewer than two points, or seconds that do not rise.
    """
    if len(points) < 2:
        raise BadLoad(f"a trace needs at least 2 points, found {len(points)}")
    for place, ((before, _), (after, _)) in enumerate(pairwise(points)):
        if not after > before:
            raise BadLoad(f"point {place + 2}: seconds must rise, found {after:g} after {before:g}")
    start = points[0][0]
    length = points[-1][0] - start + (points[-1][0] - points[-2][0])
    rates, place = [], 0
    for step in range(math.ceil(length / step_seconds)):
        while place + 1 < len(points) and points[place + 1][0] - start <= step * step_seconds:
            place += 1
        rates.append(points[place][1])
    return Load(rates, step_seconds)
