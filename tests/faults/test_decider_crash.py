"""The decider killed at every step, and stopped in the middle of a message."""

from __future__ import annotations

import signal
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.decider import Flow, ServiceProcess, overloaded_now, wait_for
from tests.support.events import job
from tidegate.events.command import ScalingCommand
from tidegate.events.decision import Decision


@pytest.fixture
def flow(kafka: str, redis_url: str) -> Iterator[Flow]:
    """A separate Tidegate on the shared servers, with one overloaded job that has a cooldown."""
    flow = Flow(f"crash-{uuid.uuid4().hex[:8]}", kafka, redis_url)
    cooldown = {"cooldown": {"up_seconds": 120, "down_seconds": 120, "in_place": 1}, "stabilization": {"seconds": 0}}
    flow.send(job("a", guards=cooldown))
    yield flow
    flow.close()


@pytest.mark.parametrize(
    "step", ["before:Decision", "after:Decision", "before:ScalingCommand", "after:ScalingCommand", "after:state"]
)
def test_a_killed_decider_repeats_the_same_ids(flow: Flow, tmp_path: Path, step: str) -> None:
    """F2, F3 (I1, I3): after a kill at any step, every snapshot is decided in the end, with one command id."""
    shots = overloaded_now("a", count=7)
    flow.send(*shots)
    with ServiceProcess(flow.settings, tmp_path / "1.log", args=("-m", "tests.support.dying_decider", step)) as first:
        assert first.wait(90) == -signal.SIGKILL, first.text()
    with ServiceProcess(flow.settings, tmp_path / "2.log") as second:
        command_ids = {command.command_id for command in flow.wait_read(ScalingCommand, 1, 90)}
        wait_for("all offsets committed", flow.committed_to_the_end, 90)
        assert second.stop() == 0, second.text()
    decisions = flow.read(Decision)
    assert {d.snapshot_id for d in decisions} == {s.snapshot_id for s in shots}
    ordered = {d.decision_id for d in decisions if d.command is not None}
    assert command_ids == {c.command_id for c in flow.read(ScalingCommand)} == ordered
    assert len(ordered) == 1
    by_snapshot = Counter((d.snapshot_id, d.decision_id) for d in decisions)
    assert len(by_snapshot) == len(shots)  # a repeated decision has the same id
    assert ordered.pop() in str(flow.redis.get(f"{flow.settings.redis_prefix}cooldown:a"))


def test_sigterm_in_the_middle_of_a_message_loses_nothing(flow: Flow, tmp_path: Path) -> None:
    """F4 (I1): a stop waits for the current message; after the next start every snapshot is decided exactly once."""
    shots = overloaded_now("a", count=9)
    flow.send(*shots)
    slow = ("-m", "tests.support.dying_decider", "after:Decision", "3")
    with ServiceProcess(flow.settings, tmp_path / "1.log", args=slow) as first:
        wait_for("it is in the middle", lambda: "AT after:Decision" in first.text(), 90)
        first.signal(signal.SIGTERM)
        assert first.wait(20) == 0, first.text()
    with ServiceProcess(flow.settings, tmp_path / "2.log"):
        decisions = flow.wait_read(Decision, len(shots), 90)
    assert [d.snapshot_id for d in decisions] == [s.snapshot_id for s in shots]
    assert len(flow.read(ScalingCommand)) == 1
