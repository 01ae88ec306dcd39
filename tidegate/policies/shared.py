"""What several policies share: reason codes that mean the same in each, figures for the trail, what is expected."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tidegate.engine.case import Case, Proposal
from tidegate.engine.memory import M
from tidegate.engine.reasons import Reason
from tidegate.events.decision import Evidence, Expectation

EVIDENCE_MISSING = Reason("the policy cannot judge, for this is not known yet: {missing}")

IDLE = Reason("nothing arrives and nothing waits; {size} slots will do")


@dataclass(frozen=True, slots=True)
class Load:
    """What a rule of capacity reckons with; rates in records/s."""

    arrival: float
    lag: int
    """Records waiting, at least 0."""
    capacity: float
    """What the present size can do, never idle."""
    per_slot: float


def measure(case: Case, memory: M) -> Load | Proposal[M]:
    """Return the load, or the proposal to make instead: the least size when idle, the present one while unknown."""
    e = case.evidence
    if e.arrival_rate == 0 and e.processing_rate == 0 and e.lag_records == 0:
        size = clamp(case, 1)
        return Proposal(size, "IDLE", {"size": size}, memory=memory)
    if e.arrival_rate is None or e.lag_records is None or not e.true_processing_rate:
        missing = unknown(e, "arrival_rate", "lag_records", "true_processing_rate")
        return Proposal(case.current, "EVIDENCE_MISSING", {"missing": missing}, memory=memory)
    capacity = e.true_processing_rate
    return Load(max(0.0, e.arrival_rate), max(0, e.lag_records), capacity, capacity / case.current)


def unknown(evidence: Evidence, *names: str) -> str:
    """Return which of the named figures of the evidence are unknown, as words; "" when all are known."""
    return ", ".join(name.replace("_", " ") for name in names if getattr(evidence, name) is None)


def clamp(case: Case, size: int) -> int:
    """Return `size` within the spec's bounds, and never below one slot: a policy does not stop a job."""
    scaling = case.spec.scaling
    return max(1, scaling.min_parallelism, min(size, scaling.max_parallelism))


def restart_seconds(case: Case, assumed: float) -> float:
    """Return the longest of the last three measured restarts, or the assumed time when none was measured."""
    kept = case.state.restarts[-3:]
    return max(seconds for _, seconds in kept) if kept else assumed


def expect(case: Case, size: int, restart: float) -> Expectation | None:
    """Return what linear scaling lets one expect of `size`; None while the capacity is unknown."""
    evidence = case.evidence
    rate, arrival, lag = evidence.true_processing_rate, evidence.arrival_rate, evidence.lag_records
    if not rate or arrival is None or lag is None or not case.current:
        return None
    capacity = rate / case.current * size
    pause = restart if size != case.current else 0.0
    waiting = max(0, lag) + arrival * pause
    spare = capacity - arrival
    return Expectation(
        processing_rate=capacity,
        lag_seconds=waiting / capacity,
        catch_up_seconds=waiting / spare if spare > 0 else None,
        restart_seconds=pause,
    )


def ceil_at(value: float) -> int:
    """Return the smallest whole number not below `value`, forgiving the last bits of a float division."""
    return math.ceil(min(value, 1e9) - 1e-9)
