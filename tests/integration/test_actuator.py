from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from services.actuator.checkpoint import read_checkpoints
from tests.support.actuator import ActuatorRig
from tests.support.provider import StackProvider
from tidegate.events.command import CommandKind
from tidegate.events.result import Phase
from tidegate.events.way import Way
from tidegate.runtime.poll import wait_until

pytestmark = pytest.mark.spark


@pytest.fixture
def rig(stack: StackProvider, tmp_path: Path) -> Iterator[ActuatorRig]:
    """A job of its own with load, and no actuator yet."""
    with closing(ActuatorRig(stack.need(kafka=True, redis=True, spark=True), tmp_path, rescale=(Way.RESTART,))) as rig:
        rig.load()
        yield rig


@pytest.mark.timeout(900)
def test_start_rescale_stop(rig: ActuatorRig) -> None:
    """A job is started, rescaled at a batch boundary and stopped; no record is lost or processed twice.

    One actuator is killed when the new driver may have been submitted or not: its successor ends the command (F7).
    """
    actuator = rig.start_actuator()
    start = rig.command(CommandKind.START, 2)
    end = rig.wait_for_end(start)
    assert (end.phase, end.parallelism) == (Phase.VERIFIED, 2), end
    assert rig.phases(start) == ["accepted", "stopped", "starting", "running", "verified"]
    assert end.downtime_seconds is None, "a first start has no downtime"

    rescale = rig.command(CommandKind.RESCALE, 4, before=2)
    end = rig.wait_for_end(rescale)
    assert (end.phase, end.parallelism) == (Phase.VERIFIED, 4), end
    assert rig.phases(rescale) == ["accepted", "stopping", "stopped", "starting", "running", "verified"]
    assert end.details["clean"] is True
    assert end.downtime_seconds is not None
    assert end.downtime_seconds > 0
    granted = [app["cores"] for app in rig.master()["activeapps"] if app["id"] == end.incarnation]
    assert granted == [4]
    print("rescale", end.downtime_seconds, end.details)

    assert actuator.stop() == 0
    victim = rig.start_actuator(kill="after:starting")
    back = rig.command(CommandKind.RESCALE, 2, before=4)
    assert victim.wait(300) == -9, "the actuator should die by SIGKILL"
    actuator = rig.start_actuator()
    end = rig.wait_for_end(back)
    assert (end.phase, end.parallelism) == (Phase.VERIFIED, 2), end
    assert [r.phase for r in rig.results(back.command_id) if r.phase.terminal] == [Phase.VERIFIED], "I2: one end"
    assert [driver for driver, state in rig.drivers().items() if state == "RUNNING"] == [end.submission_id]

    rig.stop_load()
    wait_until(lambda: sum(rig.outputs().values()) >= rig.records, 60, every=1)
    stop = rig.command(CommandKind.STOP, 0, before=2)
    end = rig.wait_for_end(stop)
    assert (end.phase, end.parallelism) == (Phase.VERIFIED, 0), end
    assert rig.phases(stop) == ["accepted", "stopping", "stopped", "verified"]
    assert rig.most_at_once() == 1, "I4: one application at a time"
    assert len(rig.drivers()) == 3, "I3: one driver for each command that starts one"
    assert set(rig.drivers().values()) == {"FINISHED"}
    counts = rig.outputs()
    assert len(counts) == rig.records
    assert set(counts.values()) == {1}
    assert actuator.stop() == 0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_job_submitted_by_hand_is_not_started_twice(stack: StackProvider, tmp_path: Path) -> None:
    """While a foreign driver runs the job, no driver is started; once it has ended, one is (I4)."""
    # as its script names its application
    with closing(ActuatorRig(stack.need(kafka=True, redis=True, spark=True), tmp_path, job_id="rates")) as rig:
        rig.load()
        by_hand = rig.submit_by_hand()
        rig.start_actuator()
        committed = wait_until(lambda: _commits(rig), 120)
        assert committed, "the driver submitted by hand commits nothing"
        (theirs,) = (app["id"] for app in rig.master()["activeapps"] if app["name"] == "rates")

        rescale = rig.command(CommandKind.RESCALE, 4, before=2)
        end = rig.wait_for_end(rescale)
        assert (end.phase, end.code) == (Phase.REJECTED, "FOREIGN_DRIVER"), end
        assert theirs in end.sentence
        assert rig.phases(rescale) == ["accepted", "rejected"]
        assert not rig.drivers()
        assert theirs in {app["id"] for app in rig.master()["activeapps"]}
        assert wait_until(lambda: _commits(rig) > committed, 60), "the driver submitted by hand was disturbed"

        rig.kill_driver(by_hand)
        end = rig.wait_for_end(
            rig.command(CommandKind.START, 2)
        )  # at once: the master may still list the old application
        assert (end.phase, end.parallelism) == (Phase.VERIFIED, 2), end


def test_a_driver_that_ends_before_it_arrives_leaves_its_reason_in_its_log(
    stack: StackProvider, tmp_path: Path
) -> None:
    """The actuator reads the log from the worker: a script that is not there is named in the result."""
    with closing(
        ActuatorRig(stack.need(kafka=True, redis=True, spark=True), tmp_path, script="/no/such/script.py")
    ) as rig:
        rig.start_actuator()
        end = rig.wait_for_end(rig.command(CommandKind.START, 2))
        assert (end.phase, end.code) == (Phase.FAILED, "NOT_VERIFIED"), end
        assert "script '/no/such/script.py': there is no such file on this machine" in end.sentence


def _commits(rig: ActuatorRig) -> int:
    """Return the newest batch committed to the job's checkpoint; 0 before the second batch."""
    return max((c.newest_commit or 0 for c in read_checkpoints(rig.spec.application.checkpoint_location)), default=0)
