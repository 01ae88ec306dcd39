"""From evidence to a size: the workload, the bounds, the expected effect, and the reasons that policies share."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tidegate.engine.case import Case, Proposal
from tidegate.engine.memory import M
from tidegate.engine.reasons import Reason
from tidegate.engine.ways import PlannedChange, assumed, measured, way_to
from tidegate.events.decision import Evidence, Expectation
from tidegate.events.way import Way

EVIDENCE_MISSING = Reason("the policy needs values that are not known yet: {missing}")

IDLE = Reason("no records arrive and none are waiting, so a size of {size} is enough")


@dataclass(frozen=True, slots=True)
class Workload:
    """What a rule calculates a capacity from; rates in records/s."""

    arrival: float
    lag: int
    """Records that are waiting, at least 0."""
    capacity: float
    """What the current size can process if it is never idle."""
    per_slot: float


def measure(case: Case, memory: M) -> Workload | Proposal[M]:
    """Return the workload, or the proposal without one: the minimum size if idle, the current one if unknown."""
    e = case.evidence
    if e.arrival_rate == 0 and e.processing_rate == 0 and e.lag_records == 0:
        size = clamp(case, 1)
        return Proposal(size, "IDLE", {"size": size}, memory=memory)
    if e.arrival_rate is None or e.lag_records is None or not e.true_processing_rate:
        missing = unknown(e, "arrival_rate", "lag_records", "true_processing_rate")
        return Proposal(case.current, "EVIDENCE_MISSING", {"missing": missing}, memory=memory)
    capacity = e.true_processing_rate
    return Workload(max(0.0, e.arrival_rate), max(0, e.lag_records), capacity, capacity / case.current)


def unknown(evidence: Evidence, *names: str) -> str:
    """Return which of the named values of the evidence are unknown, in words; "" if all are known."""
    return ", ".join(name.replace("_", " ") for name in names if getattr(evidence, name) is None)


def clamp(case: Case, size: int) -> int:
    """Return `size` within the bounds of the spec for a running job: most rules do not stop one."""
    return max(case.spec.smallest_size, min(size, case.spec.scaling.max_parallelism))


def clamp_to_zero(case: Case, size: int) -> int:
    """Return `size` within the bounds of the spec, 0 included where the spec allows it."""
    return 0 if size <= 0 == case.spec.scaling.min_parallelism else clamp(case, size)


def step_to(case: Case, size: int) -> int:
    """Return where a step towards a size leads, in whole executors: less than an executor down is one executor down.

    Sizes are rounded up to whole executors later, so a smaller step down would lead back to where it began.
    """
    if not 0 < size < case.current:
        return size
    cores = case.spec.application.executor_cores
    return max(cores, min(-(-size // cores), (case.current - 1) // cores) * cores)


def change_to(case: Case, size: int, restart_seconds: float) -> PlannedChange:
    """Return the way of a change and the longest of its last three measured costs, or what is assumed."""
    way = way_to(case, size) or Way.RESTART
    kept = measured(case.state, way)[-3:]
    if not kept:
        return assumed(case.spec, way, restart_seconds)
    return PlannedChange(way, max(cost.outage for cost in kept), max(cost.delay for cost in kept))


def expect(case: Case, size: int, change: PlannedChange) -> Expectation | None:
    """Return the effect of `size` by the evidence; None while the capacity is unknown, and for no slot at all."""
    e = case.evidence
    if not size or not e.true_processing_rate or e.arrival_rate is None or e.lag_records is None or not case.current:
        return None
    return effect(case.current, size, e.true_processing_rate, e.arrival_rate, max(0, e.lag_records), change)


def effect(
    current: int, size: int, capacity_now: float, arrival: float, lag: int, change: PlannedChange
) -> Expectation:
    """Return the effect of `size` if the capacity is linear in it; rates in records/s."""
    capacity = capacity_now / current * size
    changes, (way, outage, delay) = size != current, change
    pause = outage if changes else 0.0
    waiting = lag + arrival * pause
    spare = capacity - arrival
    return Expectation(
        processing_rate=capacity,
        lag_seconds=waiting / capacity,
        catch_up_seconds=waiting / spare if spare > 0 else None,
        restart_seconds=pause if way is Way.RESTART else 0.0,
        way=way if changes else None,
        outage_seconds=pause if changes else None,
        delay_seconds=delay if changes else None,
    )


def ceil_at(value: float) -> int:
    """Return the smallest whole number not below `value`, ignoring rounding errors of a float division."""
    return math.ceil(min(value, 1e9) - 1e-9)
