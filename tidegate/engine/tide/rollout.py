"""Rollout: simulate each size over the horizon, and price it.

Records are not followed one by one. They flow in at an expected rate and out at the capacity (a *fluid queue*). The
horizon is cut into four segments with one expected rate each: until a change of size works, then 60 s, 120 s and the
rest. The first one ends with the outage of the change, in which nothing is processed; until then the present size goes
on. A change in place has no outage, and removed slots are gone at once.

    λ, λ'   expected arrivals in a segment, and the smallest of all segments, records/s
    L, A    lag in records, and the age of its oldest record in seconds: the lag objective is about A
    p       slots                                         C(p)    capacity on p slots, records/s
    a       overhead of a batch, seconds                  c(p)    seconds per record on p slots
    M       most records of a batch (the record limit)    T'      trigger interval, seconds

    a change with an outage of F seconds begins when a batch has ended:             L + λ · F,  A + F

    what waits then     k batches of d seconds:  d = a + c(p) · n,  n = min(L, M),  k = L / n or 1
                        which take, seconds      B = d + (k - 1) · max(T', d)
                        seconds late             max(0, A + B - objective)
    what comes later    lag after t seconds      max(0, L + (λ - C(p)) · t),  at first with L = λ · B
                        seconds late             time with L > objective · λ', until it is worked off

    cost(p) = p · horizon + late price · seconds late + change price [p ≠ current]             slot-seconds

The late price and the change price are the options times `max_parallelism`. `[p ≠ current]` is 1 if the size changes,
else 0. For the present size and larger ones, the objective is the lag objective less the share `LAG_HEADROOM`. When the
last of the k batches ends, no record that waits is older than A + B. No lag is older than L / λ'.

**When a change begins.** Where a change has an outage, staying and changing are both counted from the end of a batch,
and how late the job is until then counts for both. Staying goes on with the batch that runs. The order for a change may
arrive after that batch, so the change waits for a whole batch from now, at least until the next trigger. A restart
waits no longer than the stop deadline: it breaks a longer batch, whose records then still wait. The lag that builds up
during a change in place is charged once, afterwards.

**Which load counts.** The demand of the last segment is the *sustained demand*, an upper bound. A smaller size must be
able to hold it, unless it is only meant for a while, and a larger size that cannot is charged a second change. The
segments before it are expected means, because a change happens once and its mean cost is what counts. A smaller size
that is not among the last ones seen must hold it with `EXTRAPOLATION_MARGIN` of its capacity taken off, unless batches
have a record limit.

**When nothing shrinks.** No smaller size is enough while the present size would take longer than the lag objective
to work off the lag.

**More lag never makes a smaller size more attractive.** More lag makes no size cheaper, and under an even load it makes
the fastest size dearer by the least. Where the forecast falls steeply, two large sizes can change places.

**Enough for a while.** In place, a size that falls behind slowly may do until its lag has used half of the lag
objective. With T how long the job can stay at that size, R the seconds to notice that it must grow and to do so, and v
how much batches vary (`variation`):

    L + (λ - C(p)) · (T + R) = min(λ', C(p)) · objective / (2 · (1 + v))            T is at most the horizon

The right side also has C(p), because a batch that takes all of that lag must end in time too. The change is worth it if
the slots saved in T seconds cost more than twice the price of both changes, the one to that size and the one back, and
more than the smallest sufficient size saves over the horizon. So a job whose load lies between two sizes alternates
between them, as in pulse-width modulation.

**Headroom.** C(p) and 1 / c(p) are those of the model less the share `headroom` + v / 2, at most 0.9. So a job whose
batches all last what their records need is filled up, and one with a slow batch now and then can catch up.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Container, Sequence
from typing import Final, NamedTuple

from tidegate.engine.tide.capacity import CapacityModel
from tidegate.engine.ways import PlannedChange
from tidegate.events.way import Way

Segment = tuple[float, float]
"""(seconds, records/s)."""

MIN_BATCH_SECONDS: Final = 1e-3
"""No batch is shorter."""

LAG_HEADROOM = 0.1
"""Share of the lag objective that a scale-up keeps free. A scale-down may use it, because it picks its moment."""

EXTRAPOLATION_MARGIN = 0.1
"""Share taken off the capacity of a smaller size that has not run yet."""

FREE: Final = 0.5
"""Share of the lag objective that a size which is enough for a while leaves free, for a load higher than forecast."""

HEADROOM_PER_VARIATION = 0.5
"""Share of the capacity kept free per coefficient of variation of a batch's duration."""

MOST_HEADROOM: Final = 0.9

BRIEF_WORTH = 2.0
"""So many times the price of both changes a size must save that is enough for a while."""

MIN_SPARE: Final = 0.002
"""Share of its capacity with which a size without spare capacity is assumed to work off its lag in the end."""


class Backlog(NamedTuple):
    """What waits now."""

    lag: float = 0.0
    """Records not committed."""
    age: float = 0.0
    """Seconds since the oldest of them arrived."""
    running_seconds: float = 0.0
    """How long the running batch has been running; 0 if none is known."""


class Goal(NamedTuple):
    """What a size must achieve."""

    objective_seconds: float
    """Lag objective, the age up to which a record is on time."""
    headroom: float
    """Share of the capacity kept free of the expected demand, besides that for the variation of batches."""
    variation: float
    """Coefficient of variation of a batch's duration."""


class Timing(NamedTuple):
    """How a change of size goes."""

    change: PlannedChange
    """Its outage is the end of the first segment."""
    reaction_seconds: float
    """How long it takes to see that the job must grow, and to do it."""
    stop_seconds: float = math.inf
    """How long a change with an outage waits for the end of a batch, which it then breaks."""
    is_simulated: bool = True
    """Otherwise a size works at once."""


class SlotPrices(NamedTuple):
    """Prices in slot-seconds."""

    late_second: float
    change: float
    horizon_seconds: float
    """How long slots are paid for."""


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
        segments: Sequence[Segment],
        backlog: Backlog,
        goal: Goal,
        timing: Timing,
        prices: SlotPrices,
    ) -> None:
        """Set up the rollout.

        `sizes` to choose from are rising. The first of the `segments` of the horizon lasts until a change works.
        """
        self.model, self.sizes, self.prices, self.segments = model, sizes, prices, segments
        self.lag, self.age, self.running_seconds = backlog
        self.objective_seconds, headroom, variation = goal
        self.headroom = min(MOST_HEADROOM, headroom + HEADROOM_PER_VARIATION * variation)
        """Share of the capacity that the size of a job keeps free."""
        self.brief_share = (1.0 - FREE) / (1.0 + variation)
        """Share of the lag objective that the lag may use at a size which is enough for a while."""
        self.change, self.reaction_seconds, stop_seconds, self.changes = timing
        self.outage = self.change.outage
        self.horizon_seconds = prices.horizon_seconds
        self.demand = segments[0][1]
        self.sustained = segments[-1][1]
        """Sustained demand, records/s."""
        rates = [rate for _, rate in segments]
        self.peak, self.density = max(rates), min(rates)
        """λ': records that arrive in a second at least, so that no lag is older than it is large."""
        self.smallest_sufficient = self._smallest_sufficient(self.sustained / (1.0 - self.headroom))
        """Index of the smallest size that holds the sustained demand with headroom; past the end if none does."""
        self.lag_growth = max(0.0, self.demand - model.rate)
        """How fast the lag grows until the change, records/s; at least 0."""
        stop = self._at_stop(stop_seconds) if self.outage else (self.lag, self.age, 0.0)
        self.lag_at_stop, self.age_at_stop, self.late_to_stop = stop
        """Lag and age when the change begins, and the seconds late until then."""

    def stay(self) -> Choice:
        """Return what the present size costs."""
        size, lag, age, before = self.model.size, self.lag, self.age, 0.0
        if self.outage:
            lag, age, before = self._after_batch(self.running_seconds)
        late = before + self.late(size, lag, age)
        return Choice(size, self.horizon_seconds * size + self.prices.late_second * late, late)

    def cheapest_growth(self, stay: Choice) -> Choice:
        """Return the cheapest of the present size and the larger ones.

        A size that cannot hold the sustained demand is charged a second change. If it also processes no more than the
        present one, as with a record limit, the job is late with both, for as long.
        """
        sizes, first = self.sizes, self.smallest_sufficient
        best = stay
        for index in range(max(bisect_right(sizes, self.model.size), min(first, len(sizes) - 1) - 2), len(sizes)):
            size = sizes[index]
            if index < first and not self.model.gains(size):
                continue
            cost = self.horizon_seconds * size + self.prices.change * (1.0 if index >= first else 2.0)
            if cost >= best.cost and index >= first:
                break
            late = self.late_to_stop + self.late(size, self.lag_at_stop, self.age_at_stop)
            cost += self.prices.late_second * late
            if cost < best.cost:
                best = Choice(size, cost, late)
        return best

    def smaller(self, sizes_seen: Container[float]) -> list[int]:
        """Return the smaller sizes that are enough, rising; none while the lag is more work than the objective allows.

        They hold the sustained demand; a size that is not among `sizes_seen` must do so with `EXTRAPOLATION_MARGIN` of
        its capacity taken off. In place, those that are enough for a while come first. A handover or a restart may have
        been measured without an outage, as behind a long trigger interval, and is still no change to make twice.
        """
        model = self.model
        if self.lag_at_stop > model.rate * self.objective_seconds:
            return []
        sizes = self.sizes[self.smallest_sufficient : bisect_left(self.sizes, model.size)]
        is_in_place = self.change.way is Way.IN_PLACE and not self.outage
        found = self._brief(sizes[0] if sizes else model.size) if is_in_place else []
        trusted = 1.0 - self.headroom - EXTRAPOLATION_MARGIN
        for place, size in enumerate(sizes):
            if trusted * model.capacity(size) >= self.sustained:
                return [*found, *sizes[place:]]
            if size in sizes_seen:
                found.append(size)
        return found

    def holds(self, size: int) -> bool:
        """Whether a size holds the sustained demand."""
        return size >= self.sizes[min(self.smallest_sufficient, len(self.sizes) - 1)]

    def _brief(self, sufficient: int) -> list[int]:
        """Return the sizes below a sufficient one that are on time for long enough to be worth it, rising.

        Until the job must grow again, each saves more than the sufficient size does over the horizon, and more than
        both changes cost.
        """
        now = self.model.size
        least = max((now - sufficient) * self.horizon_seconds, BRIEF_WORTH * 2.0 * self.prices.change)
        found: list[int] = []
        for place in range(bisect_left(self.sizes, sufficient) - 1, -1, -1):
            size = self.sizes[place]
            seconds = self.lasts(size)
            # A smaller size does not last longer, so it saves at most this.
            if (now - self.sizes[0]) * seconds <= least:
                break
            if (now - size) * seconds > least:
                found.append(size)
        return found[::-1]

    def lasts(self, size: int) -> float:
        """Return for how many seconds of the horizon a size stays on time, with time left to grow again."""
        capacity, lag, passed = self.model.capacity(size) * (1.0 - self.headroom), self.lag, 0.0
        most = self.brief_share * min(self.density, capacity) * self.objective_seconds
        for seconds, demand in self.segments:
            growth = demand - capacity
            room = most - growth * self.reaction_seconds - lag
            if growth > 0.0 and room < growth * seconds:
                return max(0.0, passed + room / growth)
            lag = max(0.0, lag + growth * seconds)
            passed += seconds
        return passed

    def smallest_growth(self) -> int:
        """Return the smallest larger size that holds the sustained demand, or the largest size."""
        first = max(self.smallest_sufficient, bisect_right(self.sizes, self.model.size))
        return self.sizes[min(first, len(self.sizes) - 1)]

    def _smallest_sufficient(self, demand: float) -> int:
        """Return the index of the smallest size with such a capacity, which is most often near the present size."""
        sizes, model = self.sizes, self.model
        index = bisect_left(sizes, model.size)
        while index < len(sizes) and model.capacity(sizes[index]) < demand:
            index += 1
        while index > 0 and model.capacity(sizes[index - 1]) >= demand:
            index -= 1
        return index

    def late(self, size: int, lag: float, age: float) -> float:
        """Return for how many seconds a size would be late, from `lag` records on, the oldest of which has `age`."""
        model, segments = self.model, self.segments
        # A scale-down picks its moment, so it keeps nothing free.
        limit = self.objective_seconds * (1.0 if size < model.size else 1.0 - LAG_HEADROOM)
        if size != model.size and self.changes and (size > model.size or self.outage):
            lag, age, segments = self.lag_after_change(lag), self._age_after_change(age), segments[1:]
        batch, batches = self._batch(size, lag)
        busy = batch + (batches - 1.0) * model.limits.cycle(batch)
        late = max(0.0, age + busy - limit)
        # What arrives while that is worked off waits for later.
        capacity, most = self.model.capacity(size) * (1.0 - self.headroom), self.density * limit
        lag = demand = 0.0
        for seconds, demand in segments:
            taken = seconds if seconds < busy else busy
            busy -= taken
            lag += demand * taken
            after = lag + (demand - capacity) * (seconds - taken)
            if lag > most or after > most:
                late += _above(most, lag, after, seconds - taken)
            lag = after if after > 0.0 else 0.0
        lag += demand * busy
        if lag > most:
            late += (lag - most) / max(capacity - demand, MIN_SPARE * capacity)
        return late

    def lag_after_change(self, lag: float) -> float:
        """Return the lag when a change that finds `lag` records works: after the outage, or the delay in place."""
        before = lag + (self.demand - self.model.rate) * (self.segments[0][0] - self.outage)
        return max(0.0, before) + self.demand * self.outage

    def late_if_delayed(self, size: int, seconds: float) -> float:
        """Return for how many seconds the job would be late if the change to `size` came `seconds` later."""
        most = self.density * self.objective_seconds * (1.0 - LAG_HEADROOM)
        after = self.lag + (self.demand - self.model.rate * (1.0 - self.headroom)) * seconds
        meanwhile = _above(most, self.lag, after, seconds)
        grown = self.lag_growth * seconds
        return meanwhile + self.late(size, self.lag_at_stop + grown, self.age_at_stop)

    def _age_after_change(self, age: float) -> float:
        """Return the age of the oldest record when a change that finds it at `age` works."""
        grown = self.lag_growth * (self.segments[0][0] - self.outage)
        return age + self.outage + (grown / self.demand if grown else 0.0)

    def _after_batch(self, running: float) -> tuple[float, float, float]:
        """Return lag and age when the batch ends that began `running` seconds ago, and the seconds late until then."""
        arrived = min(self.lag, self.demand * running)  # since it began
        taken = self.lag - arrived
        batch, batches = self._batch(self.model.size, taken)
        more, rest = 1.0 - 1.0 / batches, max(0.0, self.model.limits.cycle(batch) - running)
        late = self.age + rest - self.objective_seconds * (1.0 - LAG_HEADROOM)
        age = max(min(self.age, running), self.age * more)
        return arrived + taken * more + self.demand * rest, age + rest, min(max(0.0, late), rest)

    def _at_stop(self, most: float) -> tuple[float, float, float]:
        """Return lag and age when a change begins that breaks a batch after `most` seconds, and the seconds late."""
        demand = self.demand
        batch, _ = self._batch(self.model.size, self.lag)
        running, _ = self._batch(self.model.size, self.lag - min(self.lag, demand * self.running_seconds))
        if min(batch, running - self.running_seconds) <= most:
            return self._after_batch(0.0)
        age = self.age + most
        late = age - self.objective_seconds * (1.0 - LAG_HEADROOM)
        return self.lag + demand * most, age, min(max(0.0, late), most)

    def _batch(self, size: int, lag: float) -> tuple[float, float]:
        """Return how long the next batch lasts, and how many such batches take the whole lag."""
        model, most = self.model, self.model.limits.max_records
        taken = lag if most is None or lag < most else float(most)
        seconds = model.overhead + model.record_seconds(size) / (1.0 - self.headroom) * taken
        return max(seconds, MIN_BATCH_SECONDS), lag / taken if taken else 1.0


def _above(most: float, before: float, after: float, seconds: float) -> float:
    """Return for how many seconds a lag that changes evenly from `before` to `after` is above `most`."""
    low, high = (before, after) if before < after else (after, before)
    return 0.0 if high <= most else seconds if low >= most else seconds * (high - most) / (high - low)
