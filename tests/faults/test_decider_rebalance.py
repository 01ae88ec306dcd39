"""Deciders that start, stop and pause while there is a backlog on every partition."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.decider import Flow, ServiceProcess, number_now, wait_for
from tests.support.events import job, snapshot
from tidegate.events.decision import Decision
from tidegate.events.snapshot import MetricSnapshot

JOBS = tuple(f"job-{number}" for number in range(8))
EACH = 300


@pytest.fixture
def flow(kafka: str, redis_url: str) -> Iterator[Flow]:
    """A separate Tidegate with jobs, each its own pipeline, on all four partitions."""
    flow = Flow(f"rebalance-{uuid.uuid4().hex[:8]}", kafka, redis_url)
    flow.send(*[job(job_id) for job_id in JOBS])
    yield flow
    flow.close()


def send_backlog(flow: Flow) -> list[MetricSnapshot]:
    """Send `count` snapshots of every job; return them in each job's order."""
    base = number_now() - EACH
    shots = [snapshot(base + n, job_id=job_id, arrived=n, committed=n) for n in range(EACH) for job_id in JOBS]
    flow.send(*shots)
    return shots


def check(flow: Flow, shots: Sequence[MetricSnapshot], decisions: Sequence[Decision]) -> None:
    """Check that every snapshot was decided, in each job's order, and that repeats have the same id."""
    ids = {decision.snapshot_id: decision.decision_id for decision in decisions}
    assert ids.keys() == {shot.snapshot_id for shot in shots}
    assert all(ids[decision.snapshot_id] == decision.decision_id for decision in decisions)
    for job_id in JOBS:
        first = list(dict.fromkeys(d.sequence for d in decisions if d.job_id == job_id))
        assert first == sorted(first)


def test_a_backlog_changes_hands_with_nothing_lost_or_decided_twice(flow: Flow, tmp_path: Path) -> None:
    """F14 (I1): partitions move away and back during the work; each snapshot is decided once."""
    shots = send_backlog(flow)
    with ServiceProcess(flow.settings, tmp_path / "1.log") as first:
        flow.wait_read(Decision, 200, 60)
        with ServiceProcess(flow.settings, tmp_path / "2.log") as second:
            flow.wait_read(Decision, 1200, 60)
            assert first.stop() == 0, first.text()
            decisions = flow.wait_read(Decision, len(shots), 60)
            wait_for("all offsets committed", flow.committed_to_the_end)
            assert second.stop() == 0, second.text()
    check(flow, shots, decisions)
    assert len(flow.read(Decision)) == len(shots)


def test_a_decider_killed_with_work_in_every_lane_loses_nothing(flow: Flow, tmp_path: Path) -> None:
    """F2 (I1, I9): the next decider repeats unfinished and queued records with the same ids."""
    shots = send_backlog(flow)
    with ServiceProcess(flow.settings, tmp_path / "1.log") as first:
        flow.wait_read(Decision, 200, 60)
        first.signal(signal.SIGKILL)
    assert len(flow.read(Decision)) < len(shots)
    with ServiceProcess(flow.settings, tmp_path / "2.log") as second:
        flow.wait_read(Decision, len(shots), 60)
        wait_for("all offsets committed", flow.committed_to_the_end)
        assert second.stop() == 0, second.text()
    check(flow, shots, flow.read(Decision))


def test_a_paused_decider_that_goes_on_repeats_only_the_same_ids(flow: Flow, tmp_path: Path) -> None:
    """F5 (I1, I3): the records it was working on when it was declared dead get the same ids as from its successor."""
    shots = send_backlog(flow)
    with ServiceProcess(flow.settings, tmp_path / "1.log") as first:
        flow.wait_read(Decision, 200, 60)
        first.signal(signal.SIGSTOP)
        with ServiceProcess(flow.settings, tmp_path / "2.log"):
            flow.wait_read(Decision, 1500, 60)
            first.signal(signal.SIGCONT)
            flow.wait_read(Decision, len(shots), 60)
            wait_for("all offsets committed", flow.committed_to_the_end, 60)
        check(flow, shots, flow.read(Decision))
