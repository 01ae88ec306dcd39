"""The actuator, or the driver, is killed while a size changes in place (F7).

On real Kafka, Redis and Spark.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.actuator import ActuatorRig, running_job
from tests.support.provider import StackProvider
from tidegate.events.command import CommandKind
from tidegate.events.result import Phase
from tidegate.events.way import Way
from tidegate.runtime.poll import wait_until

POINTS = ["after:accepted", "after:resizing", "before:verified"]


@pytest.fixture(scope="module")
def rig(stack: StackProvider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ActuatorRig]:
    """A job that runs at size 2 under load; its actuator has ended."""
    info = stack.need(kafka=True, redis=True, spark=True)
    with running_job(info, tmp_path_factory.mktemp("resize"), rescale=(Way.IN_PLACE, Way.RESTART)) as rig:
        yield rig


@pytest.mark.timeout(900)
@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_a_successor_ends_the_change_in_place(rig: ActuatorRig, point: str) -> None:
    """The successor orders the same size again: one end, the same driver, no record lost or processed twice."""
    before = rig.drivers()
    size = rig.results()[-1].parallelism
    other = 4 if size == 2 else 2
    records = rig.records
    victim = rig.start_actuator(kill=point)
    command = rig.command(CommandKind.RESCALE, other, before=size)
    assert victim.wait(300) == -9, "the actuator should die by SIGKILL"
    successor = rig.start_actuator()
    end = rig.wait_for_end(command)
    assert (end.phase, end.parallelism, end.way) == (Phase.VERIFIED, other, Way.IN_PLACE), end
    assert wait_until(lambda: _granted(rig) == {other}, 30)
    assert rig.drivers() == before, "I3, I4: no other driver"
    assert [r.phase for r in rig.results(command.command_id) if r.phase.terminal] == [Phase.VERIFIED], "I2"
    assert wait_until(lambda: len(rig.outputs()) >= records, 120, every=1), "I10: every record has its output"
    assert max(rig.outputs().values()) == 1, "a change in place repeats nothing"
    assert successor.stop(30) == 0


@pytest.mark.timeout(900)
@pytest.mark.slow
def test_a_driver_killed_during_a_change_in_place_is_restarted(rig: ActuatorRig) -> None:
    """The command goes on as a restart with the ordered size: one end, one driver, no record lost."""
    before = set(rig.drivers())
    size = rig.results()[-1].parallelism
    (running,) = [driver for driver, state in rig.drivers().items() if state == "RUNNING"]
    actuator = rig.start_actuator()
    command = rig.command(CommandKind.RESCALE, 6, before=size)
    assert wait_until(lambda: rig.phases(command)[-1:] == ["resizing"], 60)
    rig.kill_driver(running)
    end = rig.wait_for_end(command)
    assert (end.phase, end.parallelism, end.way) == (Phase.VERIFIED, 6, Way.RESTART), end
    assert wait_until(lambda: _granted(rig) == {6}, 30)
    (new,) = set(rig.drivers()) - before
    assert [driver for driver, state in rig.drivers().items() if state == "RUNNING"] == [new]
    records = rig.records
    assert wait_until(lambda: len(rig.outputs()) >= records, 120, every=1), "I10: every record has its output"
    assert actuator.stop(30) == 0


def _granted(rig: ActuatorRig) -> set[int]:
    """Return the slots that the master has granted to the job's live applications."""
    return {app["cores"] for app in rig.master()["activeapps"] if app["id"] in rig.applications()}
