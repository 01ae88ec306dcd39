"""A contest of two forecasts: one remembers the arrivals for long, the other briefly; the better one is believed.

A long memory (800 s) averages noise out, but follows a real change of the load too late. A short one (50 s) follows it
at once, but mistakes noise for a change. Which is better differs from job to job and from hour to hour. So `tide` keeps
both, and every `CONTEST_SECONDS` each forecasts the mean rate until the next time. With e the error of a forecast and w
(`CONTEST_KEEP`) the weight of the past,

    score = w · score + e²

The short memory is believed while its score is below `SHORT_BIAS` times that of the long one.

Source: the sum of past losses, discounted, as the weight of an expert (Cesa-Bianchi & Lugosi, "Prediction, Learning,
and Games", 2006, section 2.11), with the better of two experts taken as it is.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tidegate.engine.tide.forecast import ArrivalForecast

CONTEST_SECONDS: Final = 60.0
"""How far ahead the two are compared: about the time in which a change of size takes effect."""

CONTEST_KEEP: Final = 0.9
"""w: the weight of the past after another comparison, so that about the last ten count."""

SHORT_BIAS = 0.7
"""The short memory must be clearly better: where it is wrong, the job changes its size for nothing."""


class Contest(NamedTuple):
    """The forecasts made at an instant, and the scores before."""

    at: float = 0.0
    """Epoch seconds."""
    arrived: int | None = None
    """Sum of the broker's end offsets then; None before the first forecast."""
    long: float = 0.0
    """Mean rate that the long memory forecast, records/s."""
    short: float = 0.0
    long_score: float = 0.0
    """Discounted sum of squared errors, (records/s)²."""
    short_score: float = 0.0

    def judged(
        self,
        at: float,
        arrived: int,
        long: tuple[ArrivalForecast, float],
        short: tuple[ArrivalForecast, float],
    ) -> Contest:
        """Return the contest after a snapshot at `at`; the forecasts, with their memories in seconds, have seen it."""
        seconds = at - self.at
        if self.arrived is not None and seconds < CONTEST_SECONDS:
            return self
        long_score, short_score = self.long_score, self.short_score
        if self.arrived is not None and arrived >= self.arrived:
            came = (arrived - self.arrived) / seconds
            long_score = CONTEST_KEEP * long_score + (came - self.long) ** 2
            short_score = CONTEST_KEEP * short_score + (came - self.short) ** 2
        return Contest(at, arrived, _minute(*long), _minute(*short), long_score, short_score)

    @property
    def short_wins(self) -> bool:
        """Whether the short memory has been clearly better."""
        return self.short_score < SHORT_BIAS * self.long_score


NO_CONTEST = Contest()
"""For a job whose arrivals were not measured yet."""


def _minute(forecast: ArrivalForecast, memory: float) -> float:
    """Return the mean rate forecast until the next comparison."""
    ((_, rate),) = forecast.as_step().ahead(((0.0, CONTEST_SECONDS),), memory)
    return rate
