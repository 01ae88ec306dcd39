"""Exponential smoothing with damped trend and additive season: pure functions of numbers.

    level   l = α · (y - s) + (1 - α) · (l + φ · b)
    trend   b = β · (l - l') + (1 - β) · φ · b
    season  s = γ · (y - l) + (1 - γ) · s                      one value per bucket of the season
    ahead   y(h) = l + (φ + φ² + … + φ^h) · b + s(h)

y: arrival rate of the newest step, l: level, b: trend per step, s: season, all in records/s; l': the level before;
h: steps ahead. α, β, γ and φ are weights from 0 to 1; γ is the book's γ*, whose γ is γ* · (1 - α).

The spread is the smoothed absolute error of a forecast one step ahead. For h steps ahead it is √h times as wide.

Source: R. J. Hyndman, G. Athanasopoulos, "Forecasting: Principles and Practice", 3rd ed., sections 8.2 and 8.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt


@dataclass(frozen=True, slots=True)
class Smoothing:
    """The weights: level α, trend β, season γ, damping φ; each 0..1."""

    level: float
    trend: float
    season: float
    damping: float


@dataclass(frozen=True, slots=True)
class Model:
    """What was learned: level, trend per step, spread of the one-step error, season by bucket, steps seen."""

    level: float
    trend: float = 0.0
    spread: float = 0.0
    season: tuple[float, ...] = ()
    steps: int = 1


def learn(model: Model | None, value: float, bucket: int, buckets: int, weights: Smoothing) -> Model:
    """Return the model after one more value, which belongs to `bucket` of `buckets` (0: no season)."""
    if model is None or len(model.season) != buckets:
        return Model(level=value, season=(0.0,) * buckets)
    seasonal = model.season[bucket] if buckets else 0.0
    expected = model.level + weights.damping * model.trend + seasonal
    level = weights.level * (value - seasonal) + (1 - weights.level) * (model.level + weights.damping * model.trend)
    trend = weights.trend * (level - model.level) + (1 - weights.trend) * weights.damping * model.trend
    season = model.season
    if buckets:
        changed = weights.season * (value - level) + (1 - weights.season) * seasonal
        season = (*season[:bucket], changed, *season[bucket + 1 :])
    error = abs(value - expected)
    spread = error if model.steps == 1 else 0.2 * error + 0.8 * model.spread
    return Model(level, trend, spread, season, model.steps + 1)


def ahead(model: Model, steps: int, buckets_ahead: Sequence[int], damping: float, widths: float) -> float:
    """Return the largest value forecast for the next `steps` steps, `widths` spreads above the expected one.

    `buckets_ahead` has the bucket of the season for each step; it is empty without a season.
    """
    most, damped, reach = 0.0, 1.0, 0.0
    for step in range(1, steps + 1):
        damped *= damping
        reach += damped
        seasonal = model.season[buckets_ahead[step - 1]] if model.season else 0.0
        most = max(most, model.level + reach * model.trend + seasonal + widths * sqrt(step) * model.spread)
    return most
