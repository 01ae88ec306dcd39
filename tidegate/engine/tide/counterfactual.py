"""Review of scale-ups: what would have happened without each of them.

From the moment a scale-up is ordered, the size p it left is simulated on as a *counterfactual*, with the arrivals that
really come and the capacity C(p) that was learned for it. Every Δt seconds:

    simulated lag  =  max(0, simulated lag + arrivals - C(p) · Δt)

The lag that would be *measured* is up to twice that, because the records of a batch count until it is committed.

- If the measured lag would have exceeded the lag objective, the scale-up was necessary.
- If the simulated lag is worked off without that, and the job is back at p slots or fewer, it was *unnecessary*: the
  load would have turned before the lag became too long.

After `MIN_UNNECESSARY` unnecessary scale-ups in a row, the job does not grow beyond p as long as neither arrivals nor
lag exceed what p would have handled, with a tolerance of `TOLERANCE`. So `tide` stops following a load that comes and
goes, such as a batch that arrives every hour. The first necessary scale-up resets this.

Source: regret against the best action in hindsight (Hannan, 1957; Cesa-Bianchi & Lugosi, "Prediction, Learning, and
Games", 2006, chapter 4), here for one action at a time.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from tidegate.engine.tide.capacity import CapacityModel

MIN_UNNECESSARY = 2
TOLERANCE = 1.1
FORGET_SECONDS = 7200.0
"""An unnecessary scale-up counts for this long after such a load was last seen."""

KEPT = 4


class Counterfactual(NamedTuple):
    """A size that a scale-up left, simulated on."""

    size: int
    at: float
    """Epoch seconds up to which it is simulated."""
    arrived: int
    """Sum of the broker's end offsets at that time."""
    lag: float
    """Simulated lag, records."""
    max_lag: float
    """Largest lag that would have been measured so far."""
    max_rate: float
    """Largest arrival rate so far, records/s."""

    def advanced(self, at: float, arrived: int, capacity: float, batch: float) -> Counterfactual | None:
        """Return the counterfactual simulated up to `at`, in batches of at most `batch` records.

        None if time or offsets went backwards.
        """
        came, seconds = arrived - self.arrived, at - self.at
        if came < 0 or seconds <= 0:
            return None
        lag = max(0.0, self.lag + came - capacity * seconds)
        measured = lag + min(lag, batch)
        rate = max(self.max_rate, came / seconds)
        return Counterfactual(self.size, at, arrived, lag, max(self.max_lag, measured), rate)


class UnnecessaryGrowth(NamedTuple):
    """Unnecessary scale-ups from one size, and the load that the size would have handled."""

    size: int
    times: int
    lag: float
    """Largest lag the size would have worked off in time, records."""
    rate: float
    """Largest arrival rate it would have handled, records/s."""
    at: float
    """When such a load was last seen, epoch seconds."""


class GrowthReview(NamedTuple):
    """The counterfactuals of a job, and what they have shown."""

    running: tuple[Counterfactual, ...] = ()
    unnecessary: tuple[UnnecessaryGrowth, ...] = ()

    def after_growth(self, size: int, at: float, arrived: int | None, lag: float) -> GrowthReview:
        """Return the review with a counterfactual for the size that a scale-up leaves, unless there is one."""
        if arrived is None or any(each.size == size for each in self.running):
            return self
        return self._replace(running=(*self.running, Counterfactual(size, at, arrived, lag, lag, 0.0))[-KEPT:])

    def advanced(
        self, at: float, arrived: int | None, model: CapacityModel, *, late_seconds: float, done_seconds: float
    ) -> GrowthReview:
        """Return the review after all counterfactuals were simulated up to `at`.

        A counterfactual is late with more than `late_seconds` of work waiting, and done with at most `done_seconds`.
        """
        if not self.running or arrived is None:
            return self
        running, unnecessary = [], self.unnecessary
        for before in self.running:
            capacity = model.capacity(before.size)
            now = before.advanced(at, arrived, capacity, model.limits.max_records or math.inf)
            if now is None:
                continue
            if now.max_lag > late_seconds * capacity:
                unnecessary = tuple(found for found in unnecessary if found.size != now.size)
            elif model.size <= now.size and now.lag <= done_seconds * capacity:
                unnecessary = _with(unnecessary, now)
            else:
                running.append(now)
        return GrowthReview(tuple(running), unnecessary)

    def sufficient(
        self, sizes: range, at: float, lag: float, rate: float, delay_seconds: float
    ) -> UnnecessaryGrowth | None:
        """Return the smallest of `sizes`, from the present one on, that has handled such a load before, or None."""
        found = [
            each
            for each in self.unnecessary
            if each.size in sizes
            and each.times >= MIN_UNNECESSARY
            and at - each.at <= FORGET_SECONDS
            and rate <= TOLERANCE * each.rate
            and lag + (rate * delay_seconds if each.size > sizes.start else 0.0) <= TOLERANCE * each.lag
        ]
        return min(found, default=None)

    def seen_again(self, found: UnnecessaryGrowth, at: float) -> GrowthReview:
        """Return the review after such a load was seen again."""
        return self._replace(
            unnecessary=tuple(found._replace(at=at) if each is found else each for each in self.unnecessary)
        )


def _with(unnecessary: tuple[UnnecessaryGrowth, ...], done: Counterfactual) -> tuple[UnnecessaryGrowth, ...]:
    """Return the list with one more unnecessary scale-up; of the loads that one size handled, the largest counts."""
    size, at, _, _, lag, rate = done
    times, others = 1, []
    for old in unnecessary:
        if old.size == size:
            times, lag, rate = old.times + 1, max(old.lag, lag), max(old.rate, rate)
        else:
            others.append(old)
    return (*others[-KEPT + 1 :], UnnecessaryGrowth(size, times, lag, rate, at))


NO_REVIEW = GrowthReview()
"""For a job that has not grown yet."""
