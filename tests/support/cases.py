"""Builders for tests of policies and guards: a case made by hand, and a run of snapshots through `step`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from tests.support.engine import step
from tests.support.events import START, job, snapshot
from tidegate.engine.case import Case, Policy, Proposal
from tidegate.engine.state import JobState, Slice
from tidegate.events.decision import Decision, Evidence, Neighbour, Observed
from tidegate.events.job import JobSpec
from tidegate.events.snapshot import MetricSnapshot
from tidegate.installed import engine

AT = START.timestamp()
BUSY: dict[str, Any] = {
    "window_seconds": 60.0,
    "snapshots": 7,
    "arrival_rate": 300.0,
    "processing_rate": 300.0,
    "true_processing_rate": 400.0,
    "utilization": 0.75,
    "lag_records": 0,
    "lag_trend": 0.0,
    "lag_seconds": 0.0,
    "batch_seconds": 2.0,
    "partitions": 64,
    "slots_granted": 4,
}
"""A job of 4 slots that gets 300/s and can do 400/s."""


def evidence(**figures: Any) -> Evidence:
    """Return evidence of the busy job with other figures; lag in seconds follows from lag and capacity."""
    merged = BUSY | figures
    if "lag_seconds" not in figures:
        lag, rate = merged["lag_records"], merged["true_processing_rate"]
        merged["lag_seconds"] = 0.0 if lag == 0 else lag / rate if lag is not None and rate else None
    return Evidence(**merged)


def case(
    seen: Evidence | None = None,
    *,
    spec: JobSpec | None = None,
    current: int = 4,
    after: float = 0.0,
    window: Sequence[Slice] | None = None,
    neighbours: Sequence[Neighbour] = (),
    shot: MetricSnapshot | None = None,
    **state: Any,
) -> Case:
    """Return a case `after` seconds from the start; further arguments go to the state.

    The window, unless given, has the evidence's lag and processing rate at every ten seconds of ten minutes.
    """
    seen = seen or evidence()
    at = START + timedelta(seconds=after)
    if window is None:
        rate, lag = seen.processing_rate or 0.0, seen.lag_records or 0
        done = [int(1_000_000 + rate * 10 * step) for step in range(61)]
        window = [Slice(AT + after - 600 + 10 * step, done[step] + lag, done[step]) for step in range(61)]
    shot = shot or snapshot(0, arrived=1_000_000 + (seen.lag_records or 0), committed=1_000_000, slots=current)
    return Case(
        snapshot=shot.model_copy(update={"observed_at": at}),
        spec=spec or job(),
        observed=Observed(at=at, neighbours=tuple(neighbours)),
        state=JobState(parallelism=current, window=tuple(window), **state),
        evidence=seen,
        current=current,
        measured_at=at.timestamp(),
        decided_at=at.timestamp(),
        newest=window[-1] if window else None,
    )


def policy(name: str, **options: Any) -> Policy[Any]:
    """Return a policy with options."""
    return engine().plan(job(policy=name, policy_options=options)).policy


def propose(name: str, of: Case, memory: object = None, **options: Any) -> Proposal[Any]:
    """Return what a policy proposes, without memory of the job unless one is given."""
    rule = policy(name, **options)
    return rule.propose(of, rule.Memory() if memory is None else memory)


def decide(
    spec: JobSpec,
    shots: Sequence[MetricSnapshot],
    *,
    state: JobState | None = None,
    late: float = 1.0,
    **seen: Any,
) -> tuple[JobState, Decision]:
    """Return state and decision of the last of some snapshots; `late` seconds pass and `seen` holds at the last."""
    state = state or JobState.new()
    for shot in shots[:-1]:
        state, _ = step(state, shot, spec, Observed(at=shot.observed_at + timedelta(seconds=1)))
    last = shots[-1]
    return step(state, last, spec, Observed(at=last.observed_at + timedelta(seconds=late), **seen))
