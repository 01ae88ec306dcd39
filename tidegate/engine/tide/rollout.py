"""Rollout: simulate each size over the horizon, and price it.

The horizon is cut into segments of dt seconds, each with the upper bound of its demand, λ records/s. The first segment
lasts until a change of size works. It ends with the outage of the change, in which nothing is processed; until then the
present size goes on. A change in place has no outage, and removes slots at once. With L the lag in records, and C(p)
the capacity of p slots in records/s:

    lag after a segment     max(0, L + (λ - C(p)) · dt);     L + λ · dt during the outage
    seconds late            time after the change with a lag above objective · C(p), until it is worked off

    cost(p) = core price · p · horizon + late price · seconds late + change price [p ≠ current]

Being late during the change is not counted by itself: that lag is still there afterwards, and counted then. So more
lag never favours a smaller size.

The demand of the last segment is the *sustained demand*. A smaller size must be able to hold it, and a larger size that
cannot is charged a second change. Demand above it in earlier segments causes lag for a minute or two, and the rollout
counts it as lag.

Micro-batches add two effects to a change with an outage. It waits for the running batch to end while more records
arrive. And lag falls only when a batch commits: the first batch after the outage takes all waiting records, or as many
as a batch ever took.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Container, Sequence
from typing import NamedTuple

from tidegate.engine.tide.capacity import CapacityModel
from tidegate.engine.ways import PlannedChange

Segment = tuple[float, float]
"""(seconds, records/s)."""

MIN_SPARE = 0.002
"""Share of its capacity with which a size without spare capacity is assumed to work off its lag in the end."""


class SlotPrices(NamedTuple):
    """Prices in slot-seconds."""

    core_second: float
    late_second: float
    change: float


class Choice(NamedTuple):
    """A size, what it costs over the horizon, and for how many seconds the job would be late."""

    size: int
    cost: float
    late: float


class Rollout:
    """The sizes to choose from, each simulated over the horizon when it is asked about."""

    def __init__(
        self,
        model: CapacityModel,
        sizes: tuple[int, ...],
        prices: SlotPrices,
        segments: Sequence[Segment],
        lag: float,
        *,
        objective_seconds: float,
        lag_headroom: float,
        headroom: float,
        change: PlannedChange,
        changes: bool,
        horizon_seconds: float,
    ) -> None:
        """Set up the rollout.

        Args:
            model: the capacity of each size.
            sizes: the sizes to choose from, rising.
            prices: what slots, lateness and a change cost.
            segments: the horizon; the first segment lasts until a change of size works.
            lag: records waiting now.
            objective_seconds: lag objective, in seconds of work.
            lag_headroom: share of the objective kept free; a scale-down may use it, because it picks its moment.
            headroom: share of the capacity kept free of the expected demand.
            change: how the size would be changed; its outage is the end of the first segment.
            changes: whether changes are simulated; otherwise a size works at once.
            horizon_seconds: how long slots are paid for.
        """
        self.model, self.sizes, self.prices, self.segments, self.lag = model, sizes, prices, segments, lag
        self.objective_seconds, self.lag_headroom, self.headroom = objective_seconds, lag_headroom, headroom
        self.change, self.outage, self.changes = change, change.outage, changes
        self.slot_cost = prices.core_second * horizon_seconds
        """Cost of one slot over the horizon."""
        self.demand = segments[0][1]
        self.sustained = segments[-1][1]
        """Sustained demand, records/s."""
        self.smallest_sufficient = bisect_left(sizes, self.sustained / (1.0 - headroom), key=model.capacity)
        """Index of the smallest size that holds the sustained demand with headroom; past the end if none does."""
        self.lag_growth = max(0.0, self.demand - model.rate)
        """How fast the lag grows until the change, records/s; at least 0."""
        self.lag_at_stop = lag
        """Lag when the change begins: one with an outage waits until the running batch has ended."""
        if change.outage:
            self.lag_at_stop += self.lag_growth * min(model.batch_of(model.size, lag), model.batch_seconds)

    def stay(self) -> Choice:
        """Return what the present size costs."""
        size = self.model.size
        late = self.late(size, self.lag)
        return Choice(size, self.slot_cost * size + self.prices.late_second * late, late)

    def is_right_size(self, stay: Choice) -> bool:
        """Whether the present size is never late, so it need not grow, and no smaller size is sufficient."""
        first = self.smallest_sufficient
        return stay.late == 0.0 and first < len(self.sizes) and self.sizes[first] >= self.model.size

    def cheapest(
        self, stay: Choice, sizes_seen: Container[float], ineffective_from: float, extrapolation_margin: float
    ) -> Choice:
        """Return the cheapest size with its cost.

        A smaller size must hold the sustained demand; if it is not among `sizes_seen`, with `extrapolation_margin` of
        its capacity taken off. The switching threshold pays for its change. While the job is late, it does not shrink.
        A larger size that cannot hold the sustained demand is charged a second change. Sizes from `ineffective_from`
        on are not considered.
        """
        model, sizes, current, first = self.model, self.sizes, self.model.size, self.smallest_sufficient
        late_now = self.lag_at_stop > model.rate * self.objective_seconds
        trusted = 1.0 - self.headroom - extrapolation_margin
        best = stay
        for index in range(max(0, min(first, len(sizes) - 1) - 2), len(sizes)):
            size = sizes[index]
            cost = self.slot_cost * size
            if size > current:
                if size >= ineffective_from:
                    break
                cost += self.prices.change * (1.0 if index >= first else 2.0)
                if cost >= best.cost and index >= first:
                    break
            elif (
                size == current
                or index < first
                or late_now
                or (size not in sizes_seen and model.capacity(size) * trusted < self.sustained)
            ):
                continue
            late = self.late(size, self.lag_at_stop)
            cost += self.prices.late_second * late
            if cost < best.cost:
                best = Choice(size, cost, late)
        return best

    def smallest_growth(self) -> int:
        """Return the smallest larger size that holds the sustained demand, or the largest size."""
        first = max(self.smallest_sufficient, bisect_right(self.sizes, self.model.size))
        return self.sizes[min(first, len(self.sizes) - 1)]

    def late(self, size: int, lag: float) -> float:
        """Return for how many seconds a size would be late, starting with `lag` records."""
        model, segments = self.model, self.segments
        full = model.capacity(size)
        limit = full * self.objective_seconds * (1.0 if size < model.size else 1.0 - self.lag_headroom)
        if size != model.size and self.changes and (size > model.size or self.outage):
            lag, segments = self.lag_after_change(lag), segments[1:]
            if self.outage:
                limit -= self.demand * model.batch_of(size, lag)
        return late_seconds(lag, segments, full * (1.0 - self.headroom), limit)

    def lag_after_change(self, lag: float) -> float:
        """Return the lag when a change that finds `lag` records works: after the outage, or the delay in place."""
        before = lag + (self.demand - self.model.rate) * (self.segments[0][0] - self.outage)
        return max(0.0, before) + self.demand * self.outage

    def late_if_delayed(self, size: int, seconds: float) -> float:
        """Return for how many seconds the job would be late if the change to `size` came `seconds` later."""
        rate = self.model.rate
        limit = rate * self.objective_seconds * (1.0 - self.lag_headroom)
        meanwhile = late_seconds(self.lag, ((seconds, self.demand),), rate, limit)
        return meanwhile + self.late(size, self.lag_at_stop + self.lag_growth * seconds)


def late_seconds(lag: float, segments: Sequence[Segment], capacity: float, limit: float) -> float:
    """Return for how many seconds the lag is above `limit` records at a capacity in records/s."""
    late = spare = 0.0
    for seconds, demand in segments:
        spare = capacity - demand
        after = lag - spare * seconds
        if lag > limit:
            late += seconds if after > limit else (lag - limit) / spare
        elif after > limit:
            late += (after - limit) / -spare
        lag = after if after > 0.0 else 0.0
    # The last demand continues until the lag is worked off. If the count ended with the horizon, more lag could make a
    # smaller size look as good as a larger one.
    return late + (lag - limit) / max(spare, MIN_SPARE * capacity) if lag > limit else late
