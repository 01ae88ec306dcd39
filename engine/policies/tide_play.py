"""Playing a size through the horizon: how late the job would be, and what it would cost.

The horizon is cut into stretches with an expected demand λ each (its upper bound). The first stretch is as long as a
restart: a size that needs one computes nothing in it.

    lag after a stretch     max(0, L + (λ - C(p)) · dt),     L + λ · dt while restarting
    late                    time after the restart with lag above objective · C(p), until it is worked off

What is late while restarting is late afterwards too, and counted then: so more lag never favours a smaller size.

    cost(p) = core price · p · horizon + late price · seconds late + restart price [p ≠ current]

Two things come from micro-batches. A stop waits for the end of the running batch, while more arrives. And lag falls
only when a batch commits: the first one after a restart takes all that waited, or as much as a batch ever took.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from engine.policies.tide_capacity import CapacityModel

Stretch = tuple[float, float]
"""(seconds, records/s)."""

LEAST_SPARE = 0.02
"""Share of its capacity with which a size works off what is left in the end, when it has no more to spare."""


@dataclass(slots=True)
class Prices:
    """What things cost, in slot-seconds."""

    core_second: float
    late_second: float
    restart: float


@dataclass(slots=True)
class Play:
    """The board on which sizes are played."""

    known: CapacityModel
    prices: Prices
    stretches: tuple[Stretch, ...]
    lag: float
    """Records waiting now."""
    objective_seconds: float
    """Lag, in seconds of work, from which the job is late."""
    reserve: float
    """Share of it that is not to be used up, except for a reduction: that one picks its moment."""
    headroom: float
    restarts: bool
    """Whether a restart is reckoned with."""

    @property
    def lasting(self) -> float:
        """The largest demand expected after the restart."""
        return max(demand for _, demand in self.stretches[1:])

    def enough(self, sizes: Sequence[int]) -> int:
        """Return the place of the smallest size that holds what lasts, with its headroom; past the end if none does."""
        return bisect_left(sizes, self.lasting / (1.0 - self.headroom), key=self.known.capacity)

    @property
    def rising(self) -> float:
        """By how much lag grows a second until the restart, at least 0."""
        return max(0.0, self.stretches[0][1] - self.known.rate)

    @property
    def lag_at_stop(self) -> float:
        """Lag when the running batch has ended."""
        known = self.known
        return self.lag + self.rising * min(known.batch_of(known.size, self.lag), known.batch_seconds)

    def late(self, size: int, lag: float) -> float:
        """Return how long a size would be late, begun with `lag` records."""
        known, stretches = self.known, self.stretches
        full = known.capacity(size)
        limit = full * self.objective_seconds * (1.0 if size < known.size else 1.0 - self.reserve)
        restarts = self.restarts and size != known.size
        if restarts:
            seconds, demand = stretches[0]
            limit -= demand * known.batch_of(size, lag + demand * seconds)
        return late_seconds(lag, stretches, full * (1.0 - self.headroom), limit, restarts=restarts)

    def late_by_waiting(self, size: int, seconds: float) -> float:
        """Return how long the job would be late if the change to `size` were put off."""
        rate, demand = self.known.rate, self.stretches[0][1]
        limit = rate * self.objective_seconds * (1.0 - self.reserve)
        meanwhile = late_seconds(self.lag, ((seconds, demand),), rate, limit, restarts=False)
        return meanwhile + self.late(size, self.lag_at_stop + self.rising * seconds)


def late_seconds(lag: float, stretches: tuple[Stretch, ...], capacity: float, limit: float, *, restarts: bool) -> float:
    """Return how long a capacity is late; `limit` is the lag in records from which it is."""
    late = spare = 0.0
    if restarts:
        seconds, demand = stretches[0]
        lag, stretches = lag + demand * seconds, stretches[1:]
    for seconds, demand in stretches:
        spare = capacity - demand
        after = lag - spare * seconds
        if lag > limit:
            late += seconds if after > limit else (lag - limit) / spare
        elif after > limit:
            late += (after - limit) / -spare
        lag = max(0.0, after)
    # The last demand goes on until all is worked off: were it cut, more lag could make a smaller size look as good.
    return late + (lag - limit) / max(spare, LEAST_SPARE * capacity) if lag > limit else late
