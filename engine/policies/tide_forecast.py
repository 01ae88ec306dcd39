"""Arrivals ahead: a line, the swings around it, and an interval that was earned by past errors.

The line is a g-h filter (Brookner, "Tracking and Kalman Filtering Made Easy", 1998, chapter 1) with fading memory: a
rate r that is off the line's level by e after Δ seconds moves

    level += g · e          g = max(1 - θ²,     2 (2n + 1) / ((n + 1)(n + 2)))         θ = exp(-Δ / memory)
    trend += h · e / Δ      h = max((1 - θ)²,   6 / ((n + 1)(n + 2)))                  n: rates on this line so far

so a new line is fitted by least squares at first, and forgets when it has become long. What a rate is off the line
then is a *swing*: it fades. A trend is damped, since none is to be believed for ever (Gardner & McKenzie, 1985).

    forecast(h)  = level + trend · φ(h) + swing · exp(-h/S),      φ(h) = T · (1 - exp(-h/T))
    error(h)²    = variance of one-step errors · (1 + h/20S)

A rate beyond three deviations is a *surprise*: a jump, or an outlier. The line stays, the surprise stands beside it;
the next rate settles which it was. If it was a jump, a new line begins where it was measured, and if the second rate
went on in the same direction, the slope between the two is its trend: a crowd that gathers. A step in the middle of an
interval looks the same at first; of the two mistakes a size too large for some minutes is the cheaper.

*Silence* is no surprise: producers that stop send later what they kept back, so the level outlasts a silence.

The season is the mean rate of each half-hour of the day, as a ratio to the day's mean, used once a day was seen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from pydantic import JsonValue

DAY_SECONDS = 86_400.0
BINS = 48
PRIOR_RATES = 3
"""A new line begins as if it had gone through this many rates of its level: the first ones show no trend yet."""
SURPRISING = 3.0
"""Deviations beyond which a rate is a surprise; one-step errors count as no more than this."""

LEAST_DEVIATION = 0.03
"""Share of the level that is always taken for noise."""


@dataclass(frozen=True, slots=True)
class Smoothing:
    """Time constants, in seconds."""

    level: float = 400.0
    swing: float = 60.0
    damping: float = 300.0
    silence: float = 900.0


@dataclass(slots=True)
class Forecast:
    """What is remembered of arrivals. Rates in records/s, times in epoch seconds."""

    at: float | None = None
    level: float = 0.0
    trend: float = 0.0
    swing: float = 0.0
    """How far above the level the rate is just now."""
    variance: float = 0.0
    seen: int = 0
    since: float | None = None
    surprise: float | None = None
    """The last rate, when it was far from what was expected and nothing has confirmed it yet."""
    silent_since: float | None = None
    run: int = 1
    season: list[float] = field(default_factory=list)
    """Mean rate of each half-hour of the day; 0 where none was seen. Never changed in place."""

    def update(self, at: float, rate: float, smoothing: Smoothing) -> Forecast:
        """Return the forecast after a rate measured up to `at`."""
        season = self._season_with(at, rate)
        if self.at is None:
            return Forecast(at, rate, seen=1, since=at, season=season)
        gap = at - self.at
        if gap <= 0:
            return self
        level = self.level + self.trend * gap
        expected = level + self.swing * math.exp(-gap / smoothing.swing)
        error = rate - expected
        deviation = max(math.sqrt(self.variance), LEAST_DEVIATION * self.level)
        surprising = abs(error) > SURPRISING * deviation
        if surprising and rate == 0:
            since = self.silent_since or self.at
            kept = self.level if at - since < smoothing.silence else 0.0
            return Forecast(
                at, kept, 0.0, 0.0, self.variance, self.seen, self.since, None, since, self.run, self.season
            )
        # A step is no noise: an error beyond three deviations counts as three.
        counted = SURPRISING * deviation if surprising else error
        weight = max(0.05, 1.0 / (self.seen + 1))
        variance = self.variance + weight * (counted * counted - self.variance)
        seen = self.seen + 1
        if not surprising:
            keep = math.exp(-gap / smoothing.level)
            n = self.run + PRIOR_RATES
            off = rate - level
            new = level + max(1.0 - keep * keep, (4 * n + 2) / ((n + 1) * (n + 2))) * off
            trend = self.trend + max((1.0 - keep) ** 2, 6.0 / ((n + 1) * (n + 2))) * off / gap
            return Forecast(at, new, trend, rate - new, variance, seen, self.since, season=season, run=self.run + 1)
        if self.surprise is None or (self.surprise > expected) is not (error > 0):
            return Forecast(
                at, level, self.trend, expected - level, variance, seen, self.since, rate, run=self.run, season=season
            )
        further = rate - self.surprise
        goes_on = further * error > 0 and abs(further) > SURPRISING * LEAST_DEVIATION * rate
        return Forecast(at, rate, further / gap if goes_on else 0.0, 0.0, variance, seen, self.since, season=season)

    def believed(self) -> Forecast:
        """Return the forecast if the last surprise was a jump."""
        if self.surprise is None:
            return self
        return Forecast(self.at, self.surprise, 0.0, 0.0, self.variance, self.seen, self.since, season=self.season)

    def ahead(self, seconds: float, smoothing: Smoothing) -> float:
        """Return the expected rate `seconds` ahead, never below zero."""
        rate = self.level + self.trend * _damped(seconds, smoothing.damping)
        rate += self.swing * math.exp(-seconds / smoothing.swing)
        return max(0.0, rate * self._season_ratio(seconds))

    def deviation(self, seconds: float, smoothing: Smoothing) -> float:
        """Return the standard deviation of the error of a forecast `seconds` ahead."""
        return math.sqrt(self.variance * (1.0 + seconds / (20.0 * smoothing.swing)))

    def wire(self) -> list[JsonValue]:
        """Return the forecast as JSON values."""
        rates: list[JsonValue] = [self.level, self.trend, self.swing, self.variance]
        season: list[JsonValue] = self.season  # type: ignore[assignment]
        return [self.at, *rates, self.seen, self.since, self.surprise, self.silent_since, self.run, season]

    @staticmethod
    def of(wire: Any) -> Forecast:
        """Return the forecast that `wire` wrote."""
        return Forecast(*wire) if wire else Forecast()

    def _season_with(self, at: float, rate: float) -> list[float]:
        bins = self.season.copy() if self.season else [0.0] * BINS
        index = int(at % DAY_SECONDS * BINS / DAY_SECONDS)
        old = bins[index]
        bins[index] = float(f"{rate if old == 0 else old + 0.02 * (rate - old):.5g}")
        return bins

    def _season_ratio(self, seconds: float) -> float:
        """Return how much the season changes the rate from now to `seconds` ahead; 1 until a whole day was seen."""
        if self.at is None or self.since is None or self.at - self.since < DAY_SECONDS or 0 in self.season:
            return 1.0
        now = self.season[int(self.at % DAY_SECONDS * BINS / DAY_SECONDS)]
        then = self.season[int((self.at + seconds) % DAY_SECONDS * BINS / DAY_SECONDS)]
        return min(4.0, max(0.25, then / now))


def _damped(seconds: float, trend_seconds: float) -> float:
    return trend_seconds * (1.0 - math.exp(-seconds / trend_seconds))
