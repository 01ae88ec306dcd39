"""The inputs of a decision, each as a number that can be another one, while all others stay as recorded. Pure.

    input                     what another value changes
    arrival rate              what arrived in the window; the job works on it at its capacity, the rest waits
    lag                       what is committed, by the same number of records over the whole window
    capacity                  how long batches take: those of the window, and those that `tide` has learned from
    free slots                what other jobs hold of the pool
    time since the change     when the last change of size was ordered, by the job and in Redis
    time since the start      when the run began
    objective, size limits    the spec

The window and what the policy remembers are part of the recorded state, so a value that was different for long before
could lead elsewhere: an input says what this decision, with this state, would have made of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from tidegate.events.decision import Decision, Evidence
from tidegate.events.snapshot import MetricSnapshot
from tidegate.whatif.altered import DecisionInputs, arriving, earlier, lagging, slower

HOURS = 4 * 3600.0
"""Longest time since a change or a start that is tried."""
MOST = 20.0
"""The most that a figure is multiplied with."""
SLOTS = 64
"""The most slots added to a limit."""


@dataclass(frozen=True, slots=True)
class DecisionInput:
    """One number that a decision depended on."""

    name: str
    unit: str
    value: float
    """As recorded."""
    low: float
    high: float
    change: Callable[[float], DecisionInputs]
    """Gives all inputs with another value of this one."""
    step: int = 0
    """For whole numbers, how far apart they are; 0 for all others."""
    seen: Callable[[Evidence], float | None] | None = None
    """Where the evidence shows the value: it may differ a little from the one asked for."""


def inputs_of(at: DecisionInputs, decision: Decision) -> list[DecisionInput]:
    """Return the known inputs of a decision; what was not known cannot be varied."""
    return [*_measured(at, decision.evidence), *_waits(at), *_limits(at)]


def _measured(at: DecisionInputs, seen: Evidence) -> Iterator[DecisionInput]:
    rate, lag, capacity, pool = seen.arrival_rate, seen.lag_records, seen.true_processing_rate, at.snapshot.pool
    ends = at.state.arrivals.knots[-1].ends if at.state.arrivals.knots else None
    whole = _whole(at.snapshot)
    if rate and whole and ends and len(ends) == whole:
        yield DecisionInput(
            "the arrival rate",
            "records/s",
            rate,
            0.0,
            MOST * rate,
            lambda value: arriving(at, ends, value / rate, seen.utilization),
            seen=lambda evidence: evidence.arrival_rate,
        )
    if lag is not None and whole:
        most = MOST * max(lag, (rate or 0.0) * at.snapshot.interval_seconds * MOST, 1.0)
        yield DecisionInput(
            "the lag",
            "records",
            lag,
            0,
            most,
            lambda value: lagging(at, lag, int(value), rate or 0.0),
            step=1,
            seen=lambda evidence: evidence.lag_records,
        )
    if capacity:
        yield DecisionInput(
            "the capacity",
            "records/s",
            capacity,
            capacity / MOST,
            MOST * capacity,
            lambda value: slower(at, capacity / value),
            seen=lambda evidence: evidence.true_processing_rate,
        )
    if pool is not None:
        free = max(0, pool.slots_total - pool.slots_used)
        most = free + at.spec.scaling.max_parallelism

        def with_free(value: float) -> DecisionInputs:
            other = pool.model_copy(update={"slots_total": pool.slots_used + int(value)})
            return replace(at, snapshot=at.snapshot.model_copy(update={"pool": other}))

        yield DecisionInput("the pool", "free slots", free, 0, most, with_free, step=1)


def _waits(at: DecisionInputs) -> Iterator[DecisionInput]:
    state, now = at.state, at.observed.at.timestamp()
    last, began = state.last_action_at, state.run_since
    if last is not None:
        since = max(0.0, now - last)
        yield DecisionInput("the last change", "s ago", since, 0.0, HOURS, lambda value: earlier(at, value - since))
    if began is not None:
        age = max(0.0, at.snapshot.observed_at.timestamp() - began)

        def started(value: float) -> DecisionInputs:
            return replace(at, state=state._replace(run_since=began - (value - age)))

        yield DecisionInput("the start of the run", "s ago", age, 0.0, HOURS, started)


def _limits(at: DecisionInputs) -> Iterator[DecisionInput]:
    scaling, cores = at.spec.scaling, at.spec.application.executor_cores
    objective, low, high = scaling.lag_objective_seconds, scaling.min_parallelism, scaling.max_parallelism
    yield DecisionInput(
        "lag_objective_seconds",
        "s",
        objective,
        min(1.0, objective),
        MOST * objective,
        lambda value: at.of_spec(lag_objective_seconds=value),
    )
    yield DecisionInput(
        "max_parallelism",
        "slots",
        high,
        max(low, cores),
        high + SLOTS * cores,
        lambda value: at.of_spec(max_parallelism=int(value)),
        step=cores,
    )
    yield DecisionInput(
        "min_parallelism",
        "slots",
        low,
        min(low, cores),
        high,
        lambda value: at.of_spec(min_parallelism=int(value)),
        step=cores,
    )


def _whole(snapshot: MetricSnapshot) -> int:
    """Return the number of partitions if all their offsets are known, else 0."""
    offsets = [(*source.end_offsets, *source.committed_offsets) for source in snapshot.sources]
    return sum(len(row) for row in offsets) // 2 if offsets and all(None not in row for row in offsets) else 0
