"""Playing a size through the horizon: how late the job would be, and what it would cost.

The horizon is cut into stretches of dt seconds with an expected demand λ each (its upper bound, records/s). The first
is as long as a restart: a size that needs one computes nothing in it. With L the lag in records and C(p) the capacity
of p slots in records/s:

    lag after a stretch     max(0, L + (λ - C(p)) · dt),     L + λ · dt while restarting
    late                    time after the restart with lag above objective · C(p), until it is worked off

What is late while restarting is late afterwards too, and counted then: so more lag never favours a smaller size.

    cost(p) = core price · p · horizon + late price · seconds late + restart price [p ≠ current]

The demand of the last stretch is the one that *lasts*. A reduction must hold it, and a growth that does not is charged
with the next restart too. What is above it for a minute or two on the way there is only lag, and counted as such.

Two things come from micro-batches. A stop waits for the end of the running batch, while more arrives. And lag falls
only when a batch commits: the first one after a restart takes all that waited, or as much as a batch ever took.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Container, Sequence
from typing import NamedTuple

from tidegate.engine.tide.capacity import CapacityModel

Stretch = tuple[float, float]
"""(seconds, records/s)."""

LEAST_SPARE = 0.002
"""Share of its capacity with which a size works off what is left in the end, when it has no more to spare."""


class Prices(NamedTuple):
    """What things cost, in slot-seconds."""

    core_second: float
    late_second: float
    restart: float


class Choice(NamedTuple):
    """A size, what it costs over the horizon, and for how many seconds the job would be late."""

    size: int
    cost: float
    late: float


class Play:
    """The board on which sizes are played."""

    def __init__(
        self,
        known: CapacityModel,
        sizes: tuple[int, ...],
        prices: Prices,
        stretches: Sequence[Stretch],
        lag: float,
        *,
        objective_seconds: float,
        reserve: float,
        headroom: float,
        restarts: bool,
        horizon_seconds: float,
    ) -> None:
        """Set up the board.

        Args:
            known: what each size can do.
            sizes: those to choose from, rising.
            prices: what things cost.
            stretches: the horizon; the first is as long as a restart.
            lag: records waiting now.
            objective_seconds: lag, in seconds of work, from which the job is late.
            reserve: share of it that is not to be used up, except for a reduction: that one picks its moment.
            headroom: share of capacity kept free of the expected load.
            restarts: whether a restart is reckoned with.
            horizon_seconds: for how long slots are paid.
        """
        self.known, self.sizes, self.prices, self.stretches, self.lag = known, sizes, prices, stretches, lag
        self.objective_seconds, self.reserve, self.headroom = objective_seconds, reserve, headroom
        self.restarts = restarts
        self.slot = prices.core_second * horizon_seconds
        """What a slot costs over the horizon."""
        self.demand = stretches[0][1]
        self.lasting = stretches[-1][1]
        """The demand expected to last."""
        self.enough = bisect_left(sizes, self.lasting / (1.0 - headroom), key=known.capacity)
        """Place of the smallest size that holds what lasts, with its headroom; past the end if none does."""
        self.rising = max(0.0, self.demand - known.rate)
        """By how much lag grows a second until the restart, at least 0."""
        self.lag_at_stop = lag + self.rising * min(known.batch_of(known.size, lag), known.batch_seconds)
        """Lag when the running batch has ended."""

    def stay(self) -> Choice:
        """Return what the present size costs."""
        size = self.known.size
        late = self.late(size, self.lag)
        return Choice(size, self.slot * size + self.prices.late_second * late, late)

    def settled(self, stay: Choice) -> bool:
        """Whether the present size is never late, so that it need not grow, and nothing smaller would be enough."""
        return stay.late == 0.0 and self.enough < len(self.sizes) and self.sizes[self.enough] >= self.known.size

    def cheapest(self, stay: Choice, tried: Container[float], useless: float, doubt: float) -> Choice:
        """Return the cheapest size, with what it costs.

        A reduction must hold what lasts, and of a size not `tried` the share `doubt` is taken off; it pays its
        restart by patience, and is none while the job is late. A growth that will not last is charged with the next
        restart too; from the size `useless` on there is none.
        """
        known, sizes, current, first = self.known, self.sizes, self.known.size, self.enough
        late_now = self.lag_at_stop > known.rate * self.objective_seconds
        sure = 1.0 - self.headroom - doubt
        best = stay
        for place in range(max(0, min(first, len(sizes) - 1) - 2), len(sizes)):
            size = sizes[place]
            cost = self.slot * size
            if size > current:
                if size >= useless:
                    break
                cost += self.prices.restart * (1.0 if place >= first else 2.0)
                if cost >= best.cost and place >= first:
                    break
            elif (
                size == current
                or place < first
                or late_now
                or (size not in tried and known.capacity(size) * sure < self.lasting)
            ):
                continue
            late = self.late(size, self.lag_at_stop)
            cost += self.prices.late_second * late
            if cost < best.cost:
                best = Choice(size, cost, late)
        return best

    def least_growth(self) -> int:
        """Return the smallest size above the present one that holds what is expected, else the largest."""
        first = max(self.enough, bisect_right(self.sizes, self.known.size))
        return self.sizes[min(first, len(self.sizes) - 1)]

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
        rate = self.known.rate
        limit = rate * self.objective_seconds * (1.0 - self.reserve)
        meanwhile = late_seconds(self.lag, ((seconds, self.demand),), rate, limit, restarts=False)
        return meanwhile + self.late(size, self.lag_at_stop + self.rising * seconds)


def late_seconds(lag: float, stretches: Sequence[Stretch], capacity: float, limit: float, *, restarts: bool) -> float:
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
