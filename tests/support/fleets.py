"""Fleets for tests: jobs whose events the engine and the twin made, moved so that the last is from just now."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from tests.support.events import job
from tidegate.events.decision import Decision, Evidence, Expectation, Observed, Status, TrailEntry, decision_id
from tidegate.events.job import JobSpec
from tidegate.events.snapshot import snapshot_id


def spec(number: int) -> JobSpec:
    """Return the spec of a job in a large fleet."""
    return job(f"job-{number:04}", max_parallelism=32)


def decision(of: JobSpec, at: datetime, **evidence: float | None) -> Decision:
    """Return a small decision of usual shape: it explains itself, and has no keyframe."""
    sequence = int(at.timestamp())
    seen = {"arrival_rate": 500.0, "true_processing_rate": 800.0, "delay_seconds": 4.0, "lag_records": 2000} | evidence
    snapshot = snapshot_id(of.job_id, sequence)
    return Decision(
        decision_id=decision_id(of.job_id, snapshot, of.version, "7"),
        job_id=of.job_id,
        pipeline_id=of.pipeline_id,
        snapshot_id=snapshot,
        sequence=sequence,
        decided_at=at,
        engine_version="7",
        spec_version=of.version,
        policy=of.scaling.policy,
        status=Status.FINE,
        current_parallelism=4,
        proposed_parallelism=4,
        final_parallelism=4,
        sentence=f"{of.job_id} keeps 4 slots: they process 800 records/s, and 500 arrive.",
        trail=(
            TrailEntry(
                by=of.scaling.policy,
                code="KEEPS_UP",
                before=4,
                after=4,
                sentence="The size keeps up with the load.",
                numbers={"capacity": 800.0, "arrival_rate": 500.0},
            ),
        ),
        evidence=Evidence(window_seconds=60.0, snapshots=6, **seen),  # type: ignore[arg-type]
        expectation=Expectation(processing_rate=800.0, lag_seconds=2.5),
        observed=Observed(at=at),
    )


def hour_of(specs: list[JobSpec], end: datetime, seconds: int = 3600, interval: int = 10) -> Iterator[Decision]:
    """Yield a decision per job and interval, in the order of time, up to `end`."""
    for step in range(seconds // interval, -1, -1):
        at = end - timedelta(seconds=step * interval)
        for place, each in enumerate(specs):
            yield decision(each, at, lag_records=2000 + (step * 37 + place) % 900)
