"""The oracle's program: the cheapest sizes over time by dynamic programming, batch by batch, knowing the load.

A state is (second, size, backlog) at a batch boundary. From there, either the next batch runs at the same size, or the
size changes first, which takes a pause without batches and makes the first batch slower:

    V(t, p, b) = min( B(t, p, b),  min over n of  price + wait(p, n) + pause + B(t + pause, n, b + arrivals, cold) )
    B(t, p, b) = core(p) d + late + V(t + d, p, b - take + arrivals in d)
    take = min(b, batch limit),   d = overhead + take * seconds per record at size p

The arrivals are known, so the backlog says when the oldest record arrived: at A^-1(A(t) - b), if A(t) records have
arrived by t. The job is late from that moment plus the lag objective until the batch is committed, which is how the
score counts. Durations are those of the model that the twin runs, without noise. Batches shorter than an interval are
merged into one of that length: no policy can do anything in between. Values between grid points are interpolated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tidegate.events.way import Way
from tidegate.lab.jobs import sizes_of
from tidegate.lab.score import Prices
from tidegate.lab.simulate import Move, Scenario
from tidegate.twin.load import Load
from tidegate.twin.model import JobModel
from tidegate.twin.schedule import record_seconds

Array = npt.NDArray[np.float64]

LEVELS = 100
"""Number of backlog levels. They are closer together near zero, where precision matters."""

BACKLOG_SECONDS = 1800.0
"""The highest level, in seconds of the peak load."""


@dataclass(frozen=True, slots=True)
class Pause:
    """What a change to each size costs apart from its price; times in seconds, figures per size."""

    lead: float
    """How long before the pause the change is ordered."""
    pause: Array
    """Seconds without batches."""
    cold: Array
    """Extra seconds of the first batch."""
    waiting: float
    """Slot-seconds held before the pause, per slot more than the old size has."""
    both: float
    """Slot-seconds held before the pause, per slot of the new size."""


class BatchProgram:
    """The program of a scenario's only job. Arrays are sizes x backlogs."""

    def __init__(self, scenario: Scenario, prices: Prices, margin: float) -> None:
        """Assume `margin` times the capacity of every size."""
        model, spec = scenario.models[0], scenario.specs[0]
        topic, self.sizes = scenario.topics[model.sources[0]], sizes_of(spec)
        if topic.load is None:
            raise ValueError(f"topic {model.sources[0]!r} has no load")
        largest, way = spec.scaling.max_parallelism, spec.application.ways[0]
        self.grid = float(spec.interval_seconds)
        self.end = scenario.seconds
        self.steps = math.ceil(self.end / self.grid)
        self.load = topic.load
        self.seconds, self.arrived = _arrivals(topic.load, self.end)
        self.cost = np.array([record_seconds(model, topic.shares, size) / margin for size in self.sizes])[:, None]
        self.overhead = model.overhead_seconds
        self.cycle = max(self.grid, model.trigger_interval_seconds)
        self.limit = float(model.max_records_per_trigger or math.inf)
        # So many batches at the limit fit into one cycle.
        fit = self.cycle / np.maximum(model.trigger_interval_seconds, self.overhead + self.limit * self.cost)
        self.most = self.limit * np.maximum(1.0, fit)
        self.objective = spec.scaling.lag_objective_seconds
        self.slots = np.array(self.sizes, dtype=np.float64)[:, None]
        self.core, self.late = self.slots * prices.core_second, prices.violated_second * largest
        self.price = prices.of(way) * largest
        self.growth, self.shrink = _pauses(model, way, self.slots[:, 0])
        self.waiting = self.core * self.growth.waiting
        self.reading = _reading_seconds(model, topic.load, self.steps, self.grid) if way is not Way.IN_PLACE else None
        self.levels = max(1.0, topic.load.peak * BACKLOG_SECONDS) * np.linspace(0.0, 1.0, LEVELS) ** 2
        self.values = np.zeros((self.steps + 1, len(self.sizes), LEVELS))
        self._rows = np.arange(len(self.sizes))[:, None] * LEVELS

    def solve(self) -> None:
        """Work out the values of all states."""
        backlog = self.levels[None, :]
        for step in range(self.steps - 1, -1, -1):
            at = step * self.grid
            oldest = self._oldest(at, backlog)
            stay = self._batch(at, np.full((1, 1), at), backlog, oldest, 0.0)[0]
            grown, shrunk = self._changes(at, backlog, oldest)
            best = np.minimum(stay, _after_each(shrunk))
            grown = _after_each(grown[::-1])[::-1] - self.waiting
            self.values[step] = np.minimum(best, grown)

    def walk(self, start: int, eager: float = 0.0) -> tuple[Move, ...]:
        """Return the moves of the cheapest path from a size and no backlog.

        Values between grid points are a little off, so that a change may look cheaper an interval later, over and over.
        An `eager` path changes as soon as that costs at most this share of its price more than to wait.
        """
        place, at, backlog, moves = self.sizes.index(start), 0.0, 0.0, []
        sizes = np.arange(len(self.sizes))
        while at < self.end:
            here = np.full((1, 1), backlog)
            oldest = self._oldest(at, here)
            stay, after, left = self._batch(at, np.full((1, 1), at), here, oldest, 0.0)
            grown, shrunk = self._changes(at, here, oldest)
            change = np.where(sizes > place, grown[:, 0] - self.waiting[place, 0], shrunk[:, 0])
            change[place] = np.inf
            other = int(np.argmin(change))
            if change[other] < stay[place, 0] + eager * self.price - 1e-9:
                pause = self.growth if other > place else self.shrink
                # Ordered an interval early, so that the boundary at which the size changes is the next one.
                moves.append((max(0.0, at - pause.lead - self.grid), self.sizes[other]))
                _, after, left = self._after(at, here, oldest, pause)
                place = other
            at, backlog = float(after[place, 0]), float(left[place, 0])
        return tuple(moves)

    def _changes(self, at: float, backlog: Array, oldest: Array) -> tuple[Array, Array]:
        """Return the cost of a change to each size at a boundary and what follows, by a growth and by a shrink.

        A growth's slots wait until they work; the cost is as if the job had none before.
        """
        shrunk = grown = self._after(at, backlog, oldest, self.growth)[0]
        if self.shrink is not self.growth:
            shrunk = self._after(at, backlog, oldest, self.shrink)[0]
        return np.asarray(grown + self.waiting), shrunk

    def _after(self, at: float, backlog: Array, oldest: Array, pause: Pause) -> tuple[Array, Array, Array]:
        """Return the cost of a pause and its cold batch with what follows, when that ends, and what it leaves."""
        reading = 0.0 if self.reading is None else self.reading[min(int(at / self.grid), self.steps - 1)]
        begins = at + pause.pause[:, None] + reading
        waiting = backlog + self._by(begins) - self.load.arrived(at)
        cost, after, left = self._batch(at, begins, waiting, oldest, pause.cold[:, None])
        held = self.core * (np.minimum(begins, self.end) - at + pause.both)
        return np.asarray(cost + held + self.price), after, left

    def _batch(
        self, since: float, at: Array, backlog: Array, oldest: Array, cold: Array | float
    ) -> tuple[Array, Array, Array]:
        """Return the cost of a batch with what follows, when the next one starts, and the backlog then.

        The batch starts `at`; nothing has been committed `since`, when the oldest record was of `oldest`.
        """
        take = np.minimum(backlog, self.most)
        took = self.overhead * np.maximum(1.0, take / self.limit) + take * self.cost + cold
        late = np.maximum(0.0, np.minimum(at + took, self.end) - np.maximum(since, oldest + self.objective))
        after = at + np.maximum(took, self.cycle)
        left = backlog - take + self._by(after) - self._by(at)
        cost = self.core * (np.minimum(after, self.end) - np.minimum(at, self.end)) + self.late * late
        return np.asarray(cost + self._value(after, left)), np.asarray(after), np.asarray(left)

    def _oldest(self, at: float, backlog: Array) -> Array:
        """Return when the oldest record of a backlog arrived; without a whole record, nothing has waited."""
        arrived = np.interp(self.load.arrived(at) - backlog, self.arrived, self.seconds)
        return np.where(backlog < 1.0, at, arrived)

    def _by(self, at: Array) -> Array:
        """Return how many records have arrived by a second."""
        step = at / self.load.step_seconds
        first = np.minimum(step.astype(np.int64), len(self.arrived) - 2)
        before = self.arrived[first]
        return np.asarray(before + (self.arrived[first + 1] - before) * np.minimum(1.0, step - first))

    def _value(self, at: Array, backlog: Array) -> Array:
        """Return values between grid points, by linear interpolation in time and backlog."""
        step = np.minimum(at / self.grid, self.steps)
        first = np.minimum(step.astype(np.int64), self.steps - 1)
        later = step - first
        place = np.sqrt(np.minimum(backlog / self.levels[-1], 1.0)) * (LEVELS - 1)
        low = np.minimum(place.astype(np.int64), LEVELS - 2)
        below, above = self.levels[low], self.levels[low + 1]
        share = np.clip((backlog - below) / (above - below), 0.0, 1.0)
        flat, size = self.values.reshape(-1), len(self.sizes) * LEVELS
        index = first * size + self._rows + low
        now = flat[index] * (1.0 - share) + flat[index + 1] * share
        then = flat[index + size] * (1.0 - share) + flat[index + size + 1] * share
        return np.asarray(now * (1.0 - later) + then * later)


def _after_each(costs: Array) -> Array:
    """Return the least cost in the rows before each row; infinite for the first."""
    least = np.minimum.accumulate(costs, axis=0)
    return np.concatenate([np.full_like(costs[:1], np.inf), least[:-1]])


def _arrivals(load: Load, end: float) -> tuple[Array, Array]:
    """Return seconds and the records that have arrived by then."""
    seconds = np.arange(0.0, end + BACKLOG_SECONDS, load.step_seconds)
    return seconds, np.array([load.arrived(at) for at in seconds])


def _pauses(model: JobModel, way: Way, sizes: Array) -> tuple[Pause, Pause]:
    """Return what a growth and a shrink take in a way, apart from reading the state."""
    restart, place, handover = model.restart, model.in_place, model.handover
    nothing = np.zeros_like(sizes)
    if way is Way.RESTART:
        start = restart.start_seconds + restart.start_jitter_seconds / 2 + restart.start_slot_seconds * sizes
        cold = restart.first_batch_seconds + restart.first_batch_slot_seconds * sizes
        whole = Pause(0.0, restart.exit_seconds + start, cold, 0.0, 0.0)
        return whole, whole
    if way is Way.HANDOVER:
        lead = handover.warm_seconds
        cold = nothing + handover.first_batch_seconds
        whole = Pause(lead, nothing + handover.switch_seconds, cold, 0.0, lead)
        return whole, whole
    lead = place.register_seconds + place.register_jitter_seconds / 2 + place.working_seconds
    return Pause(lead, nothing, nothing + place.first_batch_seconds, lead, 0.0), Pause(0.0, nothing, nothing, 0.0, 0.0)


def _reading_seconds(model: JobModel, load: Load, steps: int, seconds: float) -> Array:
    """Return how long a run that starts at each step reads its state."""
    state, lengths = model.state, np.zeros(steps)
    if state is None:
        return lengths
    held, kept = state.initial_bytes, math.exp(-seconds / state.ttl_seconds)
    for step in range(steps):
        lengths[step] = held / model.restart.load_bytes_per_second
        held = held * kept + load.rate(step * seconds) * seconds * state.bytes_per_record
    return lengths
