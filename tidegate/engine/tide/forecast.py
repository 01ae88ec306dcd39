"""Forecast of the arrival rate: a level with a trend, the residual around it, and an interval learned from both.

Symbols of this section. Rates are in records/s, times in seconds.

    Δ    interval: time between two rates       t    how far ahead a forecast looks
    M    memory of the level                    n    rates since the level was set, plus `PRIOR_RATES`
    D    damping time, `DAMPING_SECONDS`        m    intervals in the segment of a forecast
    v    variance of the residuals              φ    autocorrelation: share of a residual left one interval later

**Level and trend** are a straight line through the rates, in which older rates count less: a g-h filter with fading
memory (Brookner, "Tracking and Kalman Filtering Made Easy", 1998, chapter 1). A rate that lies e above the level moves

    level += g · e          g = max(1 - θ²,     2 (2n + 1) / ((n + 1)(n + 2)))         θ = exp(-Δ / M)
    trend += h · e / Δ      h = max((1 - θ)²,   6 / ((n + 1)(n + 2)))

so the filter starts as a least-squares line and forgets once it is older than M. The trend is damped (Gardner &
McKenzie, 1985), and it changes the load by at most `MAX_TREND_GROWTH` and `MAX_TREND_FALL`.

**The residual** is the distance of the newest rate from the level. The share φ of it is still there one interval later
(a first-order autoregression), so it fades:

    change(t)    = trend · D · (1 - exp(-t/D))
    forecast(t)  = level + change(t) + residual · φ^(t/Δ)

**The confidence interval.** What fills a queue is the sum of the arrivals, that is, their mean over a segment of m
intervals. Independent noise averages out within a segment, autocorrelated noise does not. With the effective number of
independent observations among m (Bayley & Hammersley, 1946), the variance of the mean over m intervals around t ahead
is about

    error(t)²    = v · min(1, (1 + φ) / (1 - φ) / m) · (1 - φ^(2t/Δ))  +  v · min(1, (1 + φ) / (1 - φ) · (g - (1 - θ²)))

The factor (1 - φ^(2t/Δ)) removes what the present residual already tells. The second term is the error of the level
itself while it is young: the end of a line through n rates has g times their variance. For an old level it is 0,
because its error is already part of the residuals.

**Outliers and step changes.** A rate more than three deviations of past one-step errors from its forecast is an
*outlier*. The level stays, and the next rate decides what it was:

- A second outlier on the same side is a step change if it is also more than `STEP_DEVIATIONS` deviations of the
  residuals from the level. The level restarts there. If the rate kept rising, the slope between the two outliers
  becomes the trend: this is a flash crowd. A step in the middle of an interval looks the same at first; a size too
  large for a few minutes is the cheaper of the two mistakes. For the same reason a fall gets no trend.
- Otherwise it is a fluctuation. Where residuals are autocorrelated, a large one is still there an interval later, so
  measuring it twice confirms nothing.

**An outage** of the producers is no step change: they send later what they held back. So the level survives a rate of
zero for `OUTAGE_SECONDS`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from tidegate.engine.records import quick_replace

RESIDUAL_SECONDS = 60.0
"""How long a residual lasts, until that is learned."""
DAMPING_SECONDS = 300.0
"""D: how long a trend lasts."""
OUTAGE_SECONDS = 900.0
"""How long the level survives without arrivals."""
PRIOR_RATES: Final = 3
"""A new level starts as if this many rates had already been equal to it: the first rates show no trend yet."""
OUTLIER_DEVIATIONS: Final = 3.0
"""Deviations of the one-step errors beyond which a rate is an outlier; larger errors are cut to this."""
STEP_DEVIATIONS: Final = 3.5
"""Deviations of the residuals beyond which two outliers in a row are a step change."""
RAMP_DEVIATIONS: Final = 1.5
"""Deviations by which the second outlier must exceed the first for the step change to have a trend."""
MAX_TREND_GROWTH: Final = 1.0
"""Most that a trend adds, as a share of the level: further growth will be seen in time to scale up again."""
MAX_TREND_FALL: Final = 0.5
"""Most that a trend subtracts, as a share of the level."""
MIN_DEVIATION: Final = 0.03
"""Smallest deviation assumed, as a share of the level."""
MIN_RESIDUAL_WEIGHT: Final = 0.02
"""Smallest weight of the newest residual in variance and covariance: about the last fifty count."""
MIN_ERROR_WEIGHT: Final = 0.05
"""Smallest weight of the newest one-step error in their variance."""
PRIOR_RESIDUALS: Final = 20.0
"""How many residuals the prior autocorrelation is worth."""
MAX_AUTOCORRELATION: Final = 0.95


@quick_replace
class ArrivalForecast(NamedTuple):
    """What is remembered of the arrivals. Rates in records/s, times in epoch seconds."""

    at: float | None = None
    level: float = 0.0
    trend: float = 0.0
    residual: float = 0.0
    """How far above the level the newest rate is."""
    error_variance: float = 0.0
    """Variance of the one-step errors: each rate minus its forecast one interval earlier."""
    variance: float = 0.0
    """Variance of the residuals."""
    covariance: float = 0.0
    """Covariance of a residual with the one before it."""
    interval: float = 1.0
    """Seconds the newest rate was measured over."""
    seen: int = 0
    outlier: float | None = None
    """The last rate, if it was an outlier that is not confirmed yet."""
    outage_since: float | None = None
    age: int = 1
    """Rates since the level was set."""
    autocorrelation: float = 0.0
    """φ: the share of a residual that is left one interval later."""

    def update(self, at: float, rate: float, memory: float) -> ArrivalForecast:
        """Return the forecast after a rate measured up to `at`, with a memory of the level of so many seconds."""
        then, level, trend, residual, error_variance, variance, covariance, _, seen, before, _, age, phi = self
        if then is None:
            return ArrivalForecast(at, rate, seen=1, autocorrelation=math.exp(-1.0 / RESIDUAL_SECONDS))
        gap = at - then
        if gap <= 0:
            return self
        deviation = max(math.sqrt(error_variance), MIN_DEVIATION * level)
        level += trend * gap
        expected = level + phi * residual
        error = rate - expected
        is_outlier = abs(error) > OUTLIER_DEVIATIONS * deviation
        if is_outlier and rate == 0:
            stopped = self.outage_since or then
            kept = self.level if at - stopped < OUTAGE_SECONDS else 0.0
            return self._replace(at=at, level=kept, trend=0.0, residual=0.0, outlier=None, outage_since=stopped)
        # A step change is no noise: an error beyond three deviations counts as three.
        counted = math.copysign(OUTLIER_DEVIATIONS * deviation, error) if is_outlier else error
        off = expected - level + counted
        seen += 1
        error_variance += max(MIN_ERROR_WEIGHT, 1.0 / seen) * (counted * counted - error_variance)
        weight = max(MIN_RESIDUAL_WEIGHT, 1.0 / seen)
        variance += weight * (off * off - variance)
        covariance += weight * (off * residual - covariance)
        residual *= phi
        outlier = None
        if is_outlier and (before is None or (before > expected) is not (error > 0)):
            outlier = rate
        elif not is_outlier or before is None or abs(rate - level) <= STEP_DEVIATIONS * math.sqrt(variance):
            keep = math.exp(-gap / memory)
            n = age + PRIOR_RATES
            level += _gain(keep, age) * off
            trend += max((1.0 - keep) ** 2, 6.0 / ((n + 1) * (n + 2))) * off / gap
            residual, age = rate - level, age + 1
        else:
            further = rate - before
            least = max(RAMP_DEVIATIONS * deviation, OUTLIER_DEVIATIONS * MIN_DEVIATION * rate)
            is_ramp = error > 0 and further > least
            level, trend, residual, age = rate, further / gap if is_ramp else 0.0, 0.0, 1
        phi = _autocorrelation(gap, variance, covariance, seen)
        return ArrivalForecast(
            at,
            level,
            trend,
            residual,
            error_variance,
            variance,
            covariance,
            gap,
            seen,
            outlier,
            None,
            age,
            phi,
        )

    def as_step(self) -> ArrivalForecast:
        """Return the forecast as if the outlier, if there is one, were a step change."""
        if self.outlier is None:
            return self
        return self._replace(level=self.outlier, trend=0.0, residual=0.0, outlier=None, age=1)

    def ahead(
        self, spans: Sequence[tuple[float, float]], memory: float, deviations: float = 0.0
    ) -> list[tuple[float, float]]:
        """Return (seconds, mean rate) for each span (from, seconds) ahead, with a memory of so many seconds.

        For the last span it is the upper bound `deviations` above the forecast.
        """
        level, trend, residual, variance = self.level, self.trend * DAMPING_SECONDS, self.residual, self.variance
        phi = self.autocorrelation
        decay, damping = math.log(max(phi, 1e-9)) / self.interval, -1.0 / DAMPING_SECONDS
        exp, found = math.exp, []
        # Seconds that must pass until two residuals are as good as independent.
        independent = (1.0 + phi) / (1.0 - phi) * self.interval
        keep = exp(-self.interval / memory)
        level_error = min(1.0, independent / self.interval * (_gain(keep, self.age) - (1.0 - keep * keep)))
        lowest, highest = -MAX_TREND_FALL * level, MAX_TREND_GROWTH * level
        middle = seconds = rate = 0.0
        for start, seconds in spans:
            middle = start + 0.5 * seconds
            left = exp(decay * middle)
            change = trend * (1.0 - exp(damping * middle))
            if change < lowest:
                change = lowest
            if change > highest:
                change = highest
            rate = level + change + residual * left
            found.append((seconds, rate if rate > 0.0 else 0.0))
        if deviations:
            share = independent / seconds if seconds > independent else 1.0
            error = math.sqrt(variance * (share * (1.0 - exp(2.0 * decay * middle)) + level_error))
            found[-1] = (seconds, found[-1][1] + deviations * error)
        return found


NO_FORECAST = ArrivalForecast()
"""For a job whose arrivals were not measured yet."""


def _gain(keep: float, age: int) -> float:
    """Return g for a level of `age` rates; `keep` is θ."""
    n = age + PRIOR_RATES
    return max(1.0 - keep * keep, (4 * n + 2) / ((n + 1) * (n + 2)))


def _autocorrelation(interval: float, variance: float, covariance: float, seen: int) -> float:
    """Return φ: covariance over variance, mixed with the prior while few residuals were seen."""
    prior = math.exp(-interval / RESIDUAL_SECONDS)
    if variance <= 0.0:
        return prior
    belief = PRIOR_RESIDUALS / (PRIOR_RESIDUALS + min(seen, 1.0 / MIN_RESIDUAL_WEIGHT))
    return belief * prior + (1.0 - belief) * min(MAX_AUTOCORRELATION, max(0.0, covariance / variance))
