"""The oracle: the cheapest run found by knowing the load in advance, restarts included.

Dynamic programming over (step, size, backlog), in steps of one snapshot interval. At each step it may keep its size or
restart at another one. A restart holds the new size's slots, processes nothing while it lasts (state load included)
and costs the restart's price:

    V(k, p, b) = min( core(p) + late(p, b) + V(k + 1, p, max(0, b + a(k) - c(p)))
                      min over n of  restart + [core(n) + late(n, b')] over m steps + V(k + m, n, b') )

Capacities, restart lengths and state come from the model that the twin runs, but the recursion is a fluid: it has no
batch boundaries and no noise. So the plans, made with several capacity margins, run on the twin, and so does the
largest size of each plan held throughout. The cheapest of these runs is the oracle's. It is a result reached on the
twin, not a proof that nothing is cheaper.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
import numpy.typing as npt

from tidegate.events.command import CommandKind, ScalingCommand
from tidegate.events.job import JobSpec
from tidegate.events.result import ActionResult
from tidegate.events.snapshot import ClusterState, MetricSnapshot
from tidegate.events.wire import identity
from tidegate.lab.jobs import batch_bound, sizes_of
from tidegate.lab.score import DEMAND_WINDOW_SECONDS, Prices, Score, score
from tidegate.lab.simulate import Decided, JobRecording, Scenario, simulate
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

Move = tuple[float, int]
"""(seconds since the start, size)."""


class PlanDecider:
    """Executes a plan made in advance, whatever is measured."""

    def __init__(self, moves: Sequence[Move], epoch: float) -> None:
        self._moves = sorted(moves)
        self._epoch = epoch

    def decide(self, spec: JobSpec, snapshot: MetricSnapshot, now: float, seen: Sequence[ActionResult]) -> Decided:
        """Order the newest move that is due, if the job can take a command."""
        del seen
        wanted = None
        while self._moves and self._moves[0][0] <= now - self._epoch + 1e-6:
            wanted = self._moves.pop(0)
        if wanted is None:
            return Decided(None, None)
        size = snapshot.slots_granted or 0
        if snapshot.state is not ClusterState.RUNNING:
            self._moves.insert(0, wanted)
            return Decided(None, None)
        if size == wanted[1]:
            return Decided(None, None)
        at = datetime.fromtimestamp(now, UTC)
        command = ScalingCommand(
            command_id=identity("oracle", spec.job_id, snapshot.sequence),
            job_id=spec.job_id,
            pipeline_id=spec.pipeline_id,
            snapshot_id=snapshot.snapshot_id,
            spec_version=spec.version,
            kind=CommandKind.RESCALE,
            from_parallelism=size,
            to_parallelism=wanted[1],
            epoch=snapshot.sequence,
            issued_at=at,
            expires_at=at + timedelta(seconds=spec.scaling.command_ttl_seconds),
            reason="planned by the oracle",
        )
        return Decided(None, command)


@dataclass(frozen=True, slots=True)
class Best:
    """The cheapest run found."""

    moves: tuple[Move, ...]
    start_size: int
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
    start = scenario.sizes[model.job_id]
    for moves in _candidates(scenario, prices):
        if moves in tried:
            continue
        tried.add(moves)
        recording = simulate(scenario, PlanDecider(moves, scenario.epoch))[model.job_id]
        found = score(model, spec, topic.shares, recording, prices)
        if best is None or found.cost < best.score.cost:
            best = Best(moves, start, recording, found)
    if best is None:
        raise ValueError("the spec allows no size")
    return best


def _candidates(scenario: Scenario, prices: Prices) -> Iterator[tuple[Move, ...]]:
    """Yield the plans to try: the recursion's plan for each margin, and its largest size held throughout."""
    start = scenario.sizes[scenario.models[0].job_id]
    for margin in MARGINS:
        moves = plan(scenario, prices, margin)
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
        switch = fluid.switch(k, levels, values)
        values[k] = np.minimum(stay, switch.min(axis=0)[None, :])
    return _walk(fluid, values, scenario.sizes[scenario.models[0].job_id])


def _walk(fluid: _Fluid, values: Array, size: int) -> tuple[Move, ...]:
    """Return the moves of the cheapest path through `values`, from a size and no backlog."""
    place = fluid.sizes.index(size)
    backlog, k, moves = 0.0, 0, []
    while k < fluid.steps:
        here = np.full((len(fluid.sizes), 1), backlog)
        stay = float(fluid.stay(k, here, values)[place, 0])
        switch = fluid.switch(k, here, values)[:, 0]
        other = int(np.argmin(switch))
        if other != place and float(switch[other]) < stay - 1e-9:
            moves.append((k * fluid.seconds, fluid.sizes[other]))
            backlog = float(fluid.after_restart(k, here)[other, 0])
            place, k = other, k + int(fluid.restart_steps[k])
        else:
            backlog = float(fluid.after_step(k, here)[place, 0])
            k += 1
    return tuple(moves)


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
    restart_steps: npt.NDArray[np.int64]
    restart_left: Array
    """Per step: the share of a restart's last step in which the job processes records again."""
    levels: Array
    objective_steps: float
    core: Array
    late: float
    restart: float

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
        restarts = _restart_seconds(model, load, steps, seconds)
        restart_steps = np.maximum(1, np.ceil(restarts / seconds)).astype(np.int64)
        moments = [load.arrived(k * seconds) for k in range(steps + 1)]
        arrivals = np.concatenate([np.diff(moments), np.zeros(int(restart_steps.max()) + 1)])
        largest, minute = spec.scaling.max_parallelism, max(1, round(DEMAND_WINDOW_SECONDS / seconds))
        return _Fluid(
            sizes=sizes,
            seconds=seconds,
            arrivals=arrivals,
            capacities=(able * seconds)[:, None],
            # Ten seconds above the capacity do not make a long batch: batches follow the minute, as demand does.
            floors=_floors(model, topic.shares, sizes, _smooth(arrivals / seconds, minute), batch_bound(spec)),
            restart_steps=restart_steps,
            restart_left=(restart_steps * seconds - restarts) / seconds,
            levels=load.peak * BACKLOG_SECONDS * np.linspace(0.0, 1.0, LEVELS) ** 2,
            objective_steps=spec.scaling.lag_objective_seconds / seconds,
            core=(np.array(sizes, dtype=np.float64) * prices.core_second * seconds)[:, None],
            late=prices.violated_second * largest * seconds,
            restart=prices.restart * largest,
        )

    @property
    def steps(self) -> int:
        """Number of steps of the run."""
        return len(self.restart_steps)

    @property
    def longest(self) -> int:
        """The longest restart, in steps."""
        return int(self.restart_steps.max())

    def after_step(self, k: int, backlog: Array) -> Array:
        """Return the backlog after a step without restart."""
        return np.asarray(np.maximum(0.0, backlog + self.arrivals[k] - self.capacities))

    def after_restart(self, k: int, backlog: Array) -> Array:
        """Return the backlog after a restart that starts at step `k`."""
        m = int(self.restart_steps[k])
        left = backlog + self.arrivals[k : k + m].sum() - self.capacities * self.restart_left[k]
        return np.asarray(np.maximum(0.0, left))

    def stay(self, k: int, backlog: Array, values: Array) -> Array:
        """Return the cost of keeping the size from step `k` on, sizes x backlogs."""
        after = self.after_step(k, backlog)
        late = (after + self.floors[k][:, None]) > self.objective_steps * self.capacities
        return np.asarray(self.core + self.late * late + self._value(values[k + 1], after))

    def switch(self, k: int, backlog: Array, values: Array) -> Array:
        """Return the cost of restarting at each size at step `k`, and what follows, sizes x backlogs."""
        m = int(self.restart_steps[k])
        cost = self.restart + m * self.core
        waiting = backlog
        for step in range(k, k + m):
            waiting = waiting + self.arrivals[step]
            cost = cost + self.late * (waiting > self.objective_steps * self.capacities)
        return cost + self._value(values[k + m], self.after_restart(k, backlog))

    def _value(self, values: Array, backlog: Array) -> Array:
        """Return values at backlogs between levels, by linear interpolation."""
        place = np.sqrt(np.minimum(backlog / self.levels[-1], 1.0)) * (LEVELS - 1)
        low = np.minimum(place.astype(np.int64), LEVELS - 2)
        below, above = self.levels[low], self.levels[low + 1]
        share = np.clip((backlog - below) / (above - below), 0.0, 1.0)
        first = np.take_along_axis(values, low, axis=1)
        second = np.take_along_axis(values, low + 1, axis=1)
        return np.asarray(first + share * (second - first))


def _restart_seconds(model: JobModel, load: Load, steps: int, seconds: float) -> Array:
    """Return the length of a restart that starts at each step, given the state's size at that time."""
    restart, state = model.restart, model.state
    fixed = restart.exit_seconds + restart.start_seconds + restart.start_jitter_seconds / 2
    lengths = np.full(steps, fixed + restart.first_batch_seconds)
    if state is None:
        return lengths
    held, kept = state.initial_bytes, math.exp(-seconds / state.ttl_seconds)
    for k in range(steps):
        lengths[k] += held / restart.load_bytes_per_second
        held = held * kept + load.rate(k * seconds) * seconds * state.bytes_per_record
    return lengths


def _smooth(rates: Array, steps: int) -> Array:
    """Return the mean of the last `steps` rates at each step."""
    padded = np.concatenate([np.full(steps - 1, rates[0]), rates])
    return np.convolve(padded, np.ones(steps) / steps, "valid")


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
