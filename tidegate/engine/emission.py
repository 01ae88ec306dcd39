"""Emission: what a job will write, said with each decision, so that the jobs that read it know before it arrives.

The job is a fluid queue with a lag of L records. λ(t) is what arrives, announced demand included, and C(t) what it can
process, both in records/s:

    C(t)      of the present size, 0 during the outage of a change, then of the planned size
    reads     C(t) while L > 0 or λ(t) > C(t), else λ(t)
    emits     reads · output ratio

The lag that micro-batches hold at all times, up to `USUAL_BATCHES` of arrivals, is no backlog. A decision during a
change says nothing new: the plan of the decision that ordered it goes on.
"""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any, Final

from tidegate.engine.announced import Path, rate_at
from tidegate.engine.case import Case, Proposal
from tidegate.engine.ways import assumed, measured, way_to
from tidegate.events.decision import Emission, EmissionStep
from tidegate.events.way import Way

USUAL_BATCHES: Final = 2.0
"""Just before a commit the lag is the batch's own records and those that came meanwhile: two batches of arrivals."""

RESTART_SECONDS: Final = 60.0
"""Outage of a restart, if neither the policy nor a measurement tells it."""

HORIZON_SECONDS: Final = 3600.0
"""Steps further ahead are left out: by then there is another plan."""

BRIEF_SECONDS: Final = 10.0
"""A backlog that is gone this soon makes no step: snapshots and batches come at such distances."""

SAME: Final = 0.02
"""Share within which two rates in a row are one step."""


def is_read(case: Case) -> bool:
    """Whether another job reads what the job writes."""
    return any(not each.upstream and each.distance is None for each in case.observed.neighbours)


def planned_emission(case: Case, proposal: Proposal[Any], final: int, *, withheld: bool) -> Emission | None:
    """Return what the job will emit under a decision for `final` slots; None if nobody reads it or nothing is known."""
    if not is_read(case) or not final:
        return None
    sinks, size = case.spec.sinks, case.current if withheld else final
    steps = _steps(case, proposal, size)
    target = proposal.arrival_rate if proposal.target_rate is None else proposal.target_rate
    if not steps and target is None:
        return None
    topic = sinks[0] if len(sinks) == 1 else None
    return Emission(steps, topic, target, proposal.catch_up_rate)


def _steps(case: Case, proposal: Proposal[Any], size: int) -> tuple[EmissionStep, ...]:
    """Return the steps of the plan; none if it is not known, or a change is under way."""
    evidence, expected, current = case.evidence, proposal.expectation, case.current
    ratio = evidence.output_ratio
    own = evidence.arrival_rate if proposal.arrival_rate is None else proposal.arrival_rate
    capacity = proposal.capacity
    if capacity is None and expected is not None and expected.processing_rate and proposal.size:
        capacity = expected.processing_rate * current / proposal.size
    if not current or case.state.in_flight is not None or ratio is None or own is None or not capacity:
        return ()
    capacities: Path = ((0.0, capacity),)
    if size != current:
        then = capacity * size / current
        if expected is not None and expected.processing_rate is not None and size == proposal.size:
            then = expected.processing_rate
        outage, delay = _cost(case, proposal, size)
        if outage:
            capacities = (*capacities, (max(0.0, delay - outage), 0.0))
        capacities = (*capacities, (delay, then))
    usual = own * USUAL_BATCHES * max(evidence.batch_seconds or 0.0, case.spec.interval_seconds)
    announced = case.announced
    arrivals = ((0.0, own),) if announced is None else announced.path(own)
    path = reads(arrivals, capacities, max(0.0, (evidence.lag_records or 0) - usual))
    since = case.snapshot.observed_at
    whole = {round(at): round(rate * ratio, 1) for at, rate in path}  # of several in one second the last one holds
    return tuple([EmissionStep(since + timedelta(seconds=at), rate) for at, rate in whole.items()])


def _cost(case: Case, proposal: Proposal[Any], size: int) -> tuple[float, float]:
    """Return outage and delay of the change to a size, in seconds."""
    expected = proposal.expectation
    if expected is not None and expected.outage_seconds is not None and expected.delay_seconds is not None:
        return expected.outage_seconds, expected.delay_seconds
    way = way_to(case, size) or Way.RESTART
    costs = measured(case.state, way)
    known = costs[-1] if costs else assumed(case.spec, way, RESTART_SECONDS)
    return known.outage, known.delay


def reads(arrivals: Path, capacities: Path, backlog: float) -> Path:
    """Return what a queue reads, records/s, given what arrives, what it can process, and the records that wait."""
    times = sorted({at for at, _ in (*arrivals, *capacities) if at < HORIZON_SECONDS})
    path: list[tuple[float, float]] = []
    for at, end in zip(times, [*times[1:], math.inf], strict=True):
        rate, capacity = rate_at(arrivals, at), rate_at(capacities, at)
        if backlog <= BRIEF_SECONDS * (capacity - rate):
            backlog = 0.0
        if backlog <= 0.0 and rate <= capacity:
            _add(path, at, rate)
            continue
        _add(path, at, capacity)
        drained = at + backlog / (capacity - rate) if capacity > rate else math.inf
        if drained < end:
            backlog = 0.0
            if drained < HORIZON_SECONDS:
                _add(path, drained, rate)
        elif end < math.inf:
            backlog += (rate - capacity) * (end - at)
    return tuple(path)


def _add(path: list[tuple[float, float]], at: float, rate: float) -> None:
    if not path or abs(rate - path[-1][1]) > SAME * max(rate, path[-1][1]):
        path.append((at, rate))
