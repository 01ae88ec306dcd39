"""Arrivals ahead: level and damped trend, with an interval that was earned by past errors.

Holt's linear method with a damped trend (Gardner & McKenzie, 1985), on irregular steps: with Δ seconds since the
last rate r, a weight α = 1 - exp(-Δ/τ) replaces the fixed smoothing constant.

    forecast(h)  = level + trend · φ(h),      φ(h) = T · (1 - exp(-h/T)):  a trend is not believed for ever
    error(h)²    = variance of one-step errors · (1 + h/τ)

The season is the mean rate of each half-hour of the day, as a ratio to the day's mean, used once a day was seen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

DAY_SECONDS = 86_400.0
BINS = 48


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is remembered of arrivals. Rates in records/s, times in epoch seconds."""

    at: float | None = None
    level: float = 0.0
    trend: float = 0.0
    variance: float = 0.0
    seen: int = 0
    since: float | None = None
    surprise: int = 0
    """+1 or -1 when the last rate was far above or below what was expected, and nothing has confirmed it yet."""
    season: tuple[float, ...] = ()
    """Mean rate of each half-hour of the day; 0 where none was seen."""

    def update(self, at: float, rate: float, *, level_seconds: float, trend_seconds: float) -> Forecast:
        """Return the forecast after a rate measured at `at`."""
        season = self._season_with(at, rate)
        if self.at is None:
            return Forecast(at, rate, 0.0, 0.0, 1, at, 0, season)
        gap = at - self.at
        if gap <= 0:
            return self
        expected = self.level + self.trend * _damped(gap, trend_seconds)
        error = rate - expected
        usual = 9.0 * max(self.variance, (0.03 * self.level) ** 2)
        sign = (1 if error > 0 else -1) if error * error > usual and self.seen > 3 else 0
        weight = min(0.2, 2.0 / (self.seen + 1))
        # A step is no noise: an error beyond three deviations counts as three, or one step would widen the interval
        # for an hour.
        variance = (1 - weight) * self.variance + weight * min(error * error, usual)
        if sign and sign == self.surprise:
            # Twice in a row on the same side: the level has moved, and is where it is measured.
            return Forecast(at, rate, 0.0, variance, self.seen + 1, self.since, 0, season)
        alpha = 1.0 - math.exp(-gap / level_seconds)
        beta = 1.0 - math.exp(-gap / trend_seconds)
        level = expected + alpha * error
        step = (level - self.level) / gap
        trend = self.trend + beta * (step - self.trend)
        return Forecast(at, level, trend, variance, self.seen + 1, self.since, sign, season)

    def ahead(self, seconds: float, *, trend_seconds: float) -> float:
        """Return the expected rate `seconds` ahead, never below zero."""
        rate = self.level + self.trend * _damped(seconds, trend_seconds)
        return max(0.0, rate * self._season_ratio(seconds))

    def deviation(self, seconds: float, *, level_seconds: float) -> float:
        """Return the standard deviation of the error of a forecast `seconds` ahead."""
        return math.sqrt(self.variance * (1.0 + seconds / (20.0 * level_seconds)))

    def wire(self) -> list[JsonValue]:
        """Return the forecast as JSON values."""
        season: list[JsonValue] = [float(f"{rate:.4g}") for rate in self.season]
        rates: list[JsonValue] = [_short(self.level), _short(self.trend), _short(self.variance)]
        return [self.at, *rates, self.seen, self.since, self.surprise, season]

    @staticmethod
    def of(wire: Any) -> Forecast:
        """Return the forecast that `wire` wrote."""
        if not wire:
            return Forecast()
        at, level, trend, variance, seen, since, surprise, season = wire
        return Forecast(at, level, trend, variance, seen, since, surprise, tuple(season))

    def _season_with(self, at: float, rate: float) -> tuple[float, ...]:
        bins = list(self.season or (0.0,) * BINS)
        index = int(at % DAY_SECONDS * BINS / DAY_SECONDS)
        bins[index] = rate if bins[index] == 0 else bins[index] + 0.02 * (rate - bins[index])
        return tuple(bins)

    def _season_ratio(self, seconds: float) -> float:
        """Return how much the season changes the rate from now to `seconds` ahead; 1 until a whole day was seen."""
        if self.at is None or self.since is None or self.at - self.since < DAY_SECONDS or 0 in self.season:
            return 1.0
        now = self.season[int(self.at % DAY_SECONDS * BINS / DAY_SECONDS)]
        then = self.season[int((self.at + seconds) % DAY_SECONDS * BINS / DAY_SECONDS)]
        return min(4.0, max(0.25, then / now))


def _damped(seconds: float, trend_seconds: float) -> float:
    return trend_seconds * (1.0 - math.exp(-seconds / trend_seconds))


def _short(value: float) -> float:
    return float(f"{value:.9g}")
