"""Deciders that start, stop and pause while there is a backlog on every partition, also of two versions."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.decider import Flow, ServiceProcess, number_now, wait_for
from tests.support.events import START, job, snapshot
from tests.support.newer_decider import NEWER
from tests.support.verified import verified
from tidegate.events.command import ScalingCommand
from tidegate.events.decision import Decision
from tidegate.events.envelope import decode
from tidegate.events.job import ManualScale
from tidegate.events.snapshot import MetricSnapshot
from tidegate.replay.verify import JobTally

JOBS = tuple(f"job-{number}" for number in range(8))
EACH = 300


@pytest.fixture
def flow(kafka: str, redis_url: str) -> Iterator[Flow]:
    """A separate Tidegate with jobs, each its own pipeline, on all four partitions."""
    flow = Flow(f"rebalance-{uuid.uuid4().hex[:8]}", kafka, redis_url)
    flow.send(*[job(job_id) for job_id in JOBS])
    yield flow
    flow.close()


def backlog() -> list[MetricSnapshot]:
    """Return `EACH` snapshots of every job, up to now, in each job's order."""
    base = number_now() - EACH
    return [snapshot(base + n, job_id=job_id, arrived=n, committed=n) for n in range(EACH) for job_id in JOBS]


def send_backlog(flow: Flow) -> list[MetricSnapshot]:
    """Send the snapshots, and return them."""
    shots = backlog()
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


def test_deciders_of_two_versions_share_the_work(flow: Flow, tmp_path: Path) -> None:
    """I1, I9: jobs move to a newer decider and back. Each snapshot is decided once, each request is served once.

    What this version has decided is recomputed, before and after.
    """
    by_hand = ManualScale(request_id="once", parallelism=2, reason="launch day", requested_at=START)
    flow.send(*[job(job_id, version=2, manual=by_hand) for job_id in JOBS])
    shots = backlog()
    quarters = [shots[part * len(shots) // 4 : (part + 1) * len(shots) // 4] for part in range(4)]
    newer = ("-m", "tests.support.newer_decider")
    with ServiceProcess(flow.settings, tmp_path / "1.log") as first:
        flow.send(*quarters[0])
        flow.wait_read(Decision, len(shots) // 4, 60)
        with ServiceProcess(flow.settings, tmp_path / "2.log", args=newer) as second:
            wait_for("the newer decider runs", lambda: "decides with engine" in second.text())
            flow.send(*quarters[1])
            flow.wait_read(Decision, len(shots) // 2, 60)
            assert first.stop() == 0, first.text()
            flow.send(*quarters[2])
            flow.wait_read(Decision, 3 * len(shots) // 4, 60)
            with ServiceProcess(flow.settings, tmp_path / "3.log") as third:
                wait_for("the older decider runs", lambda: "decides with engine" in third.text())
                assert second.stop() == 0, second.text()
                flow.send(*quarters[3])
                decisions = flow.wait_read(Decision, len(shots), 60)
                wait_for("all offsets committed", flow.committed_to_the_end)
                assert third.stop() == 0, third.text()
    check(flow, shots, decisions)
    assert len(decisions) == len(shots)
    assert sorted(command.job_id for command in flow.read(ScalingCommand)) == sorted(JOBS)
    assert "from scratch" not in "".join(process.text() for process in (first, second, third))
    theirs = [decision.job_id for decision in decisions if decision.engine_version == NEWER]
    assert len(theirs) >= len(quarters[2])
    for job_id in JOBS:
        others = theirs.count(job_id)
        assert recomputed(flow, job_id) == JobTally(job_id, identical=EACH - others, other_version=others)


def recomputed(flow: Flow, job_id: str) -> JobTally:
    """Make the decisions on a job again, from the topics."""
    models: tuple[type[MetricSnapshot | Decision], ...] = (MetricSnapshot, Decision)
    records = []
    for kind, model in enumerate(models):
        for message in flow.messages(model):
            event = decode(model, message.value())
            if event.job_id == job_id:
                records.append((event.sequence, kind, message.offset(), message.value() or b""))
    return verified(records, job_id)
