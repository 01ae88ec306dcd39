"""Arrivals ahead: a line, the swings around it, and an interval that past swings have earned.

The line is a g-h filter (Brookner, "Tracking and Kalman Filtering Made Easy", 1998, chapter 1) with fading memory of
M seconds (`level_seconds`): a rate that is off the line's level by e records/s after Δ seconds moves

    level += g · e          g = max(1 - θ²,     2 (2n + 1) / ((n + 1)(n + 2)))         θ = exp(-Δ / M)
    trend += h · e / Δ      h = max((1 - θ)²,   6 / ((n + 1)(n + 2)))                  n: rates on this line so far

so a new line is fitted by least squares at first, and forgets when it has become long. What a rate is off the line
then is a *swing*: of it the share φ is left one interval later. A trend is damped over D seconds (`damping_seconds`),
since none is to be believed for ever (Gardner & McKenzie, 1985), and at most doubles or halves the load. The rate h
seconds ahead:

    change(h)    = trend · D · (1 - exp(-h/D)), from -level/2 to level
    forecast(h)  = level + change(h) + swing · φ^(h/Δ)

How much swings last is learned, as covariance of neighbours over variance v (a first-order autoregression), because
it decides how wide the interval must be. A queue feels sums: of n rates on end, each off by its own noise, the mean
is off by little; noise that lasts does not average out. With the effective number of independent observations among n
(Bayley & Hammersley, 1946), over the n intervals around h ahead

    error(h)²    = v · min(1, (1 + φ) / (1 - φ) / n) · (1 - φ^(2h/Δ))  +  v · min(1, (1 + φ) / (1 - φ) · (g - (1 - θ²)))

where (1 - φ^(2h/Δ)) takes off what is known of the present swing. The second part is what a young line is off itself:
the end of a line fitted to n rates has g times their variance. What an old line is off is in its swings already.

A rate that is three deviations of past one-step errors off what was expected is a *surprise*: a jump, or an outlier.
The line stays, the surprise stands beside it; the next rate settles which it was. A second one on the same side is a
jump if it is also farther from the line than three and a half deviations of the swings. If not, it is a swing: where
swings last, one that came at once is still there an interval later, and a second look at it confirms nothing. After a
jump a new line begins where it was measured, and if the second rate went on in the same direction, the slope between
the two is its trend: a crowd that gathers. A step in the middle of an interval looks the same at first; of the two
mistakes a size too large for some minutes is the cheaper.

*Silence* is no surprise: producers that stop send later what they kept back, so the level outlasts a silence.

The season is the mean rate of each half-hour of the day, as a ratio to the day's mean, used once a day was seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

DAY_SECONDS = 86_400.0
BINS = 48
PRIOR_RATES = 3
"""A new line begins as if it had gone through this many rates of its level: the first ones show no trend yet."""
SURPRISING = 3.0
"""Deviations beyond which a rate is a surprise; one-step errors count as no more than this."""
JUMPING = 3.5
"""Deviations of the swings beyond which two surprises on end are a jump and no swing."""
GOING_ON = 1.5
"""Deviations that a second surprise must lie beyond the first to be a crowd that gathers."""
MOST_GROWTH = 1.0
"""Share of the level that a trend is believed to add at most: what grows further will be seen in time to grow again."""
MOST_FALL = 0.5
"""Share of the level that a trend is believed to take off at most."""
LEAST_DEVIATION = 0.03
"""Share of the level that is always taken for noise."""
LEARNING = 0.02
"""Least weight of the newest swing in variance and covariance: about the last fifty count."""
SURPRISE_LEARNING = 0.05
"""Least weight of the newest one-step error in their variance."""
PRIOR_SWINGS = 20.0
"""Swings' worth of belief that one lasts as long as the option says."""
LONGEST = 0.95
"""Largest share of a swing that is ever taken to be left an interval later."""


@dataclass(frozen=True, slots=True)
class Smoothing:
    """Time constants, in seconds."""

    level: float = 800.0
    swing: float = 60.0
    damping: float = 300.0
    silence: float = 900.0


class Forecast(NamedTuple):
    """What is remembered of arrivals. Rates in records/s, times in epoch seconds."""

    at: float | None = None
    level: float = 0.0
    trend: float = 0.0
    swing: float = 0.0
    """How far above the level the rate is just now."""
    errors: float = 0.0
    """Variance of the rates from what was expected of them one interval before."""
    variance: float = 0.0
    """Of the swings."""
    covariance: float = 0.0
    """Of a swing with the one before it."""
    interval: float = 1.0
    """Seconds the newest rate was measured over."""
    seen: int = 0
    since: float | None = None
    surprise: float | None = None
    """The last rate, when it was far from what was expected and nothing has confirmed it yet."""
    silent_since: float | None = None
    run: int = 1
    fade: float = 0.0
    """φ: the share of a swing that is left one interval later."""
    season: tuple[float, ...] = ()
    """Mean rate of each half-hour of the day; 0 where none was seen."""

    def update(self, at: float, rate: float, smoothing: Smoothing) -> Forecast:
        """Return the forecast after a rate measured up to `at`."""
        season = self._season_with(at, rate)
        if self.at is None:
            return Forecast(at, rate, seen=1, since=at, fade=math.exp(-1.0 / smoothing.swing), season=season)
        gap = at - self.at
        if gap <= 0:
            return self
        level, fade = self.level + self.trend * gap, self.fade
        expected = level + fade * self.swing
        error = rate - expected
        deviation = max(math.sqrt(self.errors), LEAST_DEVIATION * self.level)
        surprising = abs(error) > SURPRISING * deviation
        if surprising and rate == 0:
            since = self.silent_since or self.at
            kept = self.level if at - since < smoothing.silence else 0.0
            return self._replace(at=at, level=kept, trend=0.0, swing=0.0, surprise=None, silent_since=since)
        # A step is no noise: an error beyond three deviations counts as three.
        counted = math.copysign(SURPRISING * deviation, error) if surprising else error
        off = expected - level + counted
        errors = self.errors + max(SURPRISE_LEARNING, 1.0 / (self.seen + 1)) * (counted * counted - self.errors)
        weight = max(LEARNING, 1.0 / (self.seen + 1))
        variance = self.variance + weight * (off * off - self.variance)
        covariance = self.covariance + weight * (off * self.swing - self.covariance)
        trend, swing, run = self.trend, fade * self.swing, self.run
        before, surprise = self.surprise, None
        if surprising and (before is None or (before > expected) is not (error > 0)):
            surprise = rate
        elif not surprising or before is None or abs(rate - level) <= JUMPING * math.sqrt(variance):
            keep = math.exp(-gap / smoothing.level)
            n = run + PRIOR_RATES
            level += _gain(keep, run) * off
            trend += max((1.0 - keep) ** 2, 6.0 / ((n + 1) * (n + 2))) * off / gap
            swing, run = rate - level, run + 1
        else:
            further = rate - before
            goes_on = further * error > 0 and abs(further) > max(
                GOING_ON * deviation, SURPRISING * LEAST_DEVIATION * rate
            )
            level, trend, swing, run = rate, further / gap if goes_on else 0.0, 0.0, 1
        return Forecast(
            at=at,
            level=level,
            trend=trend,
            swing=swing,
            errors=errors,
            variance=variance,
            covariance=covariance,
            interval=gap,
            seen=self.seen + 1,
            since=self.since,
            surprise=surprise,
            silent_since=None,
            run=run,
            fade=_fade(gap, variance, covariance, self.seen + 1, smoothing),
            season=season,
        )

    def believed(self) -> Forecast:
        """Return the forecast if the last surprise was a jump."""
        if self.surprise is None:
            return self
        return self._replace(level=self.surprise, trend=0.0, swing=0.0, surprise=None, run=1)

    def ahead(
        self, stretches: Sequence[tuple[float, float]], smoothing: Smoothing, deviations: float
    ) -> list[tuple[float, float]]:
        """Return (seconds, mean rate to be ready for, `deviations` above the expected) of each (from, seconds)."""
        level, trend, swing, variance = self.level, self.trend * smoothing.damping, self.swing, self.variance
        fade, now = self.fade, self.at if self._whole_day else None
        decay, damping = math.log(max(fade, 1e-9)) / self.interval, -1.0 / smoothing.damping
        together = (1.0 + fade) / (1.0 - fade) * self.interval
        exp, found = math.exp, []
        keep = exp(-self.interval / smoothing.level)
        young = min(1.0, together / self.interval * (_gain(keep, self.run) - (1.0 - keep * keep)))
        for start, seconds in stretches:
            middle = start + 0.5 * seconds
            left = exp(decay * middle)
            change = min(max(trend * (1.0 - exp(damping * middle)), -MOST_FALL * level), MOST_GROWTH * level)
            rate = level + change + swing * left
            if now is not None:
                rate *= self._season_ratio(now, middle)
            share = together / seconds if seconds > together else 1.0
            error = math.sqrt(variance * (share * (1.0 - left * left) + young))
            found.append((seconds, max(0.0, rate) + deviations * error))
        return found

    @property
    def _whole_day(self) -> bool:
        """Whether a whole day was seen."""
        if self.at is None or self.since is None or self.at - self.since < DAY_SECONDS:
            return False
        return 0 not in self.season

    def _season_with(self, at: float, rate: float) -> tuple[float, ...]:
        bins = list(self.season) or [0.0] * BINS
        index = int(at % DAY_SECONDS * BINS / DAY_SECONDS)
        old = bins[index]
        bins[index] = float(f"{rate if old == 0 else old + 0.02 * (rate - old):.5g}")
        return tuple(bins)

    def _season_ratio(self, at: float, seconds: float) -> float:
        """Return how much the season changes the rate from `at` to `seconds` later."""
        now = self.season[int(at % DAY_SECONDS * BINS / DAY_SECONDS)]
        then = self.season[int((at + seconds) % DAY_SECONDS * BINS / DAY_SECONDS)]
        return min(4.0, max(0.25, then / now))


UNSEEN = Forecast()
"""Of a job whose arrivals were not seen yet."""


def _gain(keep: float, run: int) -> float:
    """Return g after `run` rates on a line that keeps the share `keep` of its memory from one to the next."""
    n = run + PRIOR_RATES
    return max(1.0 - keep * keep, (4 * n + 2) / ((n + 1) * (n + 2)))


def _fade(interval: float, variance: float, covariance: float, seen: int, smoothing: Smoothing) -> float:
    """Return φ as it was learned, from a prior."""
    prior = math.exp(-interval / smoothing.swing)
    if variance <= 0.0:
        return prior
    belief = PRIOR_SWINGS / (PRIOR_SWINGS + min(seen, 1.0 / LEARNING))
    return belief * prior + (1.0 - belief) * min(LONGEST, max(0.0, covariance / variance))
