"""The oracle: the cheapest run found by knowing the load in advance, changes of size included.

Dynamic programming over (step, size, backlog), in steps of one snapshot interval. At each step it may keep its size or
change to another one, in the way that its spec prefers. A change costs its price, and a gap in which nothing is
processed while the new size's slots are held: a whole restart with its state load, the switch of a handover, the first
batch with cold executors of a growth in place. Knowing the load, the oracle orders a change so early that the new size
works when it is needed; it pays for the slots that wait meanwhile:

    V(k, p, b) = min( core(p) + late(p, b) + V(k + 1, p, max(0, b + a(k) - c(p)))
                      min over n of  price + wait(p, n) + [core(n) + late(n, b')] over m steps + V(k + m, n, b') )

Capacities, times and state come from the model that the twin runs, but the recursion is a fluid: it has no
batch boundaries and no noise. So the plans, made with several capacity margins, run on the twin, and so does the
largest size of each plan held throughout. The cheapest of these runs is the oracle's. It is a result reached on the
twin, not a proof that nothing is cheaper.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tidegate.events.way import Way
from tidegate.lab.jobs import batch_bound, sizes_of
from tidegate.lab.score import DEMAND_WINDOW_SECONDS, Prices, Score, score
from tidegate.lab.simulate import JobRecording, Move, Scenario, play
from tidegate.twin.load import Load
from tidegate.twin.model import JobModel
from tidegate.twin.schedule import capacity, record_seconds

Array = npt.NDArray[np.float64]

LEVELS = 160
"""Number of backlog levels. They are closer together near the objective, where precision matters."""

BACKLOG_SECONDS = 1800.0
"""The highest level, in seconds of the peak load."""

MARGINS = (1.2, 1.1, 1.0, 0.95, 0.9)
"""Shares of the capacity that plans assume. With the twin's noise, the boldest plan is not always the cheapest. On a
noisy load, a plan that is late in the fluid may be on time in batches, which average the noise."""

CALM = 5.0
"""A second plan assumes that changes in place cost this many times their price. In the fluid, changes that are nearly
free follow every rounding of the backlog; on the twin, fewer of them are often cheaper."""


@dataclass(frozen=True, slots=True)
class Best:
    """The cheapest run found."""

    moves: tuple[Move, ...]
    recording: JobRecording
    score: Score


def oracle(scenario: Scenario, prices: Prices | None = None) -> Best:
    """Return the cheapest run of a scenario of one job with one source topic.

    It starts at the scenario's size, as the policies do. Raises `ValueError` for any other scenario.
    """
    if len(scenario.models) != 1 or len(scenario.models[0].sources) != 1:
        raise ValueError("the oracle plans for one job with one source topic")
    model, spec = scenario.models[0], scenario.specs[0]
    topic = scenario.topics[model.sources[0]]
    if topic.load is None:
        raise ValueError(f"topic {model.sources[0]!r} has no load")
    prices = prices or Prices()
    best: Best | None = None
    tried: set[tuple[Move, ...]] = set()
    for moves in _candidates(scenario, prices):
        if moves in tried:
            continue
        tried.add(moves)
        recording = play(scenario, moves)
        found = score(model, spec, topic.shares, recording, prices)
        if best is None or found.cost < best.score.cost:
            best = Best(moves, recording, found)
    if best is None:
        raise ValueError("the spec allows no size")
    return best


def _candidates(scenario: Scenario, prices: Prices) -> Iterator[tuple[Move, ...]]:
    """Yield the plans to try: the recursion's plans for each margin, and their largest sizes held throughout."""
    start = scenario.sizes[scenario.models[0].job_id]
    calm = replace(prices, in_place=CALM * prices.in_place)
    in_place = scenario.specs[0].application.ways[0] is Way.IN_PLACE
    for margin in MARGINS:
        for assumed in (prices, calm) if in_place else (prices,):
            moves = plan(scenario, assumed, margin)
            yield moves
            yield ((0.0, max((start, *(size for _, size in moves)))),)


def plan(scenario: Scenario, prices: Prices, margin: float = 1.0) -> tuple[Move, ...]:
    """Return the cheapest moves in the fluid, assuming `margin` times the capacity."""
    fluid = _Fluid.of(scenario, prices, margin)
    steps = fluid.steps
    values = np.zeros((steps + fluid.longest + 1, len(fluid.sizes), LEVELS))
    levels = np.broadcast_to(fluid.levels, (len(fluid.sizes), LEVELS))
    for k in range(steps - 1, -1, -1):
        stay = fluid.stay(k, levels, values)
        values[k] = np.minimum(stay, fluid.change(k, levels, values).min(axis=1))
    return _walk(fluid, values, scenario.sizes[scenario.models[0].job_id])


def _walk(fluid: _Fluid, values: Array, size: int) -> tuple[Move, ...]:
    """Return the moves of the cheapest path through `values`, from a size and no backlog."""
    place = fluid.sizes.index(size)
    backlog, k, moves = 0.0, 0, []
    while k < fluid.steps:
        here = np.full((len(fluid.sizes), 1), backlog)
        stay = float(fluid.stay(k, here, values)[place, 0])
        change = fluid.change(k, here, values)[place, :, 0]
        other = int(np.argmin(change))
        if float(change[other]) < stay - 1e-9:
            gap = fluid.growth if other > place else fluid.shrink
            moves.append((max(0.0, (k - gap.lead) * fluid.seconds), fluid.sizes[other]))
            backlog = float(fluid.after_gap(k, here, gap)[other, 0])
            place, k = other, k + int(gap.steps[k])
        else:
            backlog = float(fluid.after_step(k, here)[place, 0])
            k += 1
    return tuple(moves)


@dataclass(frozen=True, slots=True)
class _Gap:
    """A change of size as the fluid sees it: a gap in which nothing is processed."""

    lead: int
    """How many steps before the gap the change is ordered."""
    steps: npt.NDArray[np.int64]
    """Length of a gap that starts at each step."""
    left: Array
    """Per step: the share of the gap's last step in which the job processes records again."""
    waiting: Array
    """Old sizes x new sizes: slot-seconds held before the gap in addition to the old size's."""

    @staticmethod
    def of(lead_seconds: float, gap_seconds: Array, waiting: Array, seconds: float) -> _Gap:
        """Return the gap in steps of `seconds`."""
        steps = np.maximum(1, np.ceil(gap_seconds / seconds)).astype(np.int64)
        return _Gap(math.ceil(lead_seconds / seconds), steps, (steps * seconds - gap_seconds) / seconds, waiting)


@dataclass(frozen=True, slots=True)
class _Fluid:
    """The job as a fluid. In arrays, sizes are columns and backlog levels are rows."""

    sizes: tuple[int, ...]
    seconds: float
    arrivals: Array
    """Records per step, with zeros past the end."""
    capacities: Array
    """Records per step and size."""
    floors: Array
    """Steps x sizes: records that wait even when the job keeps up, for the trigger or in the running batch."""
    growth: _Gap
    shrink: _Gap
    price: float
    """Of a change."""
    levels: Array
    recent: Array
    """Records that arrive within the lag objective before each step's end: with more waiting, the oldest is late."""
    core_second: float
    core: Array
    late: float

    @staticmethod
    def of(scenario: Scenario, prices: Prices, margin: float) -> _Fluid:
        """Return the fluid of a scenario's only job."""
        model, spec = scenario.models[0], scenario.specs[0]
        topic = scenario.topics[model.sources[0]]
        load = topic.load
        assert load is not None  # noqa: S101 - `oracle` has checked it
        seconds, sizes = float(spec.interval_seconds), sizes_of(spec)
        steps = int(scenario.seconds // seconds)
        able = np.array([capacity(model, topic.shares, size, batch_bound(spec)) for size in sizes]) * margin
        way, state_seconds = spec.application.ways[0], _state_seconds(model, load, steps, seconds)
        growth, shrink = _gaps(model, way, np.array(sizes, dtype=np.float64), state_seconds, seconds)
        moments = [load.arrived(k * seconds) for k in range(steps + 1)]
        arrivals = np.concatenate([np.diff(moments), np.zeros(int(growth.steps.max()) + 1)])
        largest, minute = spec.scaling.max_parallelism, max(1, round(DEMAND_WINDOW_SECONDS / seconds))
        return _Fluid(
            sizes=sizes,
            seconds=seconds,
            arrivals=arrivals,
            capacities=(able * seconds)[:, None],
            # Ten seconds above the capacity do not make a long batch: batches follow the minute, as demand does.
            floors=_floors(model, topic.shares, sizes, _smooth(arrivals / seconds, minute), batch_bound(spec)),
            growth=growth,
            shrink=shrink,
            price=prices.of(way) * largest,
            levels=load.peak * BACKLOG_SECONDS * np.linspace(0.0, 1.0, LEVELS) ** 2,
            recent=_sums(arrivals, round(spec.scaling.lag_objective_seconds / seconds)),
            core_second=prices.core_second,
            core=(np.array(sizes, dtype=np.float64) * prices.core_second * seconds)[:, None],
            late=prices.violated_second * largest * seconds,
        )

    @property
    def steps(self) -> int:
        """Number of steps of the run."""
        return len(self.growth.steps)

    @property
    def longest(self) -> int:
        """The longest gap, in steps."""
        return int(self.growth.steps.max())

    def after_step(self, k: int, backlog: Array) -> Array:
        """Return the backlog after a step without restart."""
        return np.asarray(np.maximum(0.0, backlog + self.arrivals[k] - self.capacities))

    def after_gap(self, k: int, backlog: Array, gap: _Gap) -> Array:
        """Return the backlog after a gap that starts at step `k`."""
        m = int(gap.steps[k])
        left = backlog + self.arrivals[k : k + m].sum() - self.capacities * gap.left[k]
        return np.asarray(np.maximum(0.0, left))

    def stay(self, k: int, backlog: Array, values: Array) -> Array:
        """Return the cost of keeping the size from step `k` on, sizes x backlogs."""
        after = self.after_step(k, backlog)
        late = (after + self.floors[k][:, None]) > self.recent[k] + 1e-9
        return np.asarray(self.core + self.late * late + self._value(values[k + 1], after))

    def change(self, k: int, backlog: Array, values: Array) -> Array:
        """Return the cost of a change at step `k`, and what follows, old sizes x new sizes x backlogs."""
        growth = shrink = self._after_change(k, backlog, values, self.growth)
        if self.shrink is not self.growth:
            shrink = self._after_change(k, backlog, values, self.shrink)
        place = np.arange(len(self.sizes))
        grows = (place[:, None] < place[None, :])[:, :, None]
        waiting = np.where(grows, self.growth.waiting[:, :, None], self.shrink.waiting[:, :, None])
        found = np.where(grows, growth[None], shrink[None]) + waiting * self.core_second
        found[place, place] = np.inf
        return np.asarray(found)

    def _after_change(self, k: int, backlog: Array, values: Array, gap: _Gap) -> Array:
        """Return the cost of a gap and of what follows, new sizes x backlogs."""
        m = int(gap.steps[k])
        cost = self.price + m * self.core
        waiting = backlog
        for step in range(k, k + m):
            waiting = waiting + self.arrivals[step]
            cost = cost + self.late * (waiting > self.recent[step] + 1e-9)
        return np.asarray(cost + self._value(values[k + m], self.after_gap(k, backlog, gap)))

    def _value(self, values: Array, backlog: Array) -> Array:
        """Return values at backlogs between levels, by linear interpolation."""
        place = np.sqrt(np.minimum(backlog / self.levels[-1], 1.0)) * (LEVELS - 1)
        low = np.minimum(place.astype(np.int64), LEVELS - 2)
        below, above = self.levels[low], self.levels[low + 1]
        share = np.clip((backlog - below) / (above - below), 0.0, 1.0)
        first = np.take_along_axis(values, low, axis=1)
        second = np.take_along_axis(values, low + 1, axis=1)
        return np.asarray(first + share * (second - first))


def _gaps(model: JobModel, way: Way, sizes: Array, state_seconds: Array, seconds: float) -> tuple[_Gap, _Gap]:
    """Return what a growth and a shrink cost in a way; `state_seconds` is the state's load time at each step."""
    restart, place, handover = model.restart, model.in_place, model.handover
    none, new, old = np.zeros((len(sizes), len(sizes))), sizes[None, :], sizes[:, None]
    if way is Way.RESTART:
        start = restart.start_seconds + restart.start_jitter_seconds / 2
        fixed = restart.exit_seconds + start + restart.first_batch_seconds
        whole = _Gap.of(0.0, fixed + state_seconds, none, seconds)
        return whole, whole
    if way is Way.HANDOVER:
        lead = handover.warm_seconds
        pause = handover.switch_seconds + handover.first_batch_seconds + state_seconds
        whole = _Gap.of(lead, pause, new * lead + old * restart.exit_seconds, seconds)
        return whole, whole
    lead = place.register_seconds + place.register_jitter_seconds / 2 + place.working_seconds
    nothing = np.zeros_like(state_seconds)
    growth = _Gap.of(lead, nothing + place.first_batch_seconds, np.maximum(0.0, new - old) * lead, seconds)
    return growth, _Gap.of(0.0, nothing, none, seconds)


def _state_seconds(model: JobModel, load: Load, steps: int, seconds: float) -> Array:
    """Return how long a run that starts at each step reads its state."""
    state, lengths = model.state, np.zeros(steps)
    if state is None:
        return lengths
    held, kept = state.initial_bytes, math.exp(-seconds / state.ttl_seconds)
    for k in range(steps):
        lengths[k] = held / model.restart.load_bytes_per_second
        held = held * kept + load.rate(k * seconds) * seconds * state.bytes_per_record
    return lengths


def _smooth(rates: Array, steps: int) -> Array:
    """Return the mean of the last `steps` rates at each step."""
    padded = np.concatenate([np.full(steps - 1, rates[0]), rates])
    return np.convolve(padded, np.ones(steps) / steps, "valid")


def _sums(arrivals: Array, steps: int) -> Array:
    """Return the sum of the last `steps` arrivals at each step; before the first one it was as busy as then."""
    padded = np.concatenate([np.full(max(1, steps) - 1, arrivals[0]), arrivals])
    return np.convolve(padded, np.ones(max(1, steps)), "valid")


def _floors(model: JobModel, shares: tuple[float, ...], sizes: Sequence[int], rates: Array, bound: float) -> Array:
    """Return the records that wait even when the job keeps up: one trigger's and one batch's, at each rate."""
    floors = np.zeros((len(rates), len(sizes)))
    for place, size in enumerate(sizes):
        busy = rates * record_seconds(model, shares, size)
        batch = np.minimum(bound, model.overhead_seconds / np.maximum(1e-9, 1.0 - np.minimum(busy, 1.0 - 1e-9)))
        trigger = np.maximum(batch, model.trigger_interval_seconds)
        if model.trigger_interval_seconds:
            batch = np.minimum(trigger, model.overhead_seconds + busy * trigger)
        floors[:, place] = rates * (trigger + batch)
    return floors
