"""The actuator is killed in each phase of a restart, or paused until its session is over: faults F7 and F6.

On real Kafka, Redis and Spark.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests.support.actuator import ActuatorRig, running_job
from tests.support.provider import StackProvider
from tidegate.events.command import CommandKind
from tidegate.events.result import Phase
from tidegate.events.way import Way
from tidegate.runtime.poll import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

POINTS = ["after:accepted", "after:stopping", "before:stopped", "after:starting", "before:running", "after:running"]
"""At `after:starting` the driver may have been submitted or not; `test_start_rescale_stop` has that one too."""


@pytest.fixture(scope="module")
def rig(stack: StackProvider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ActuatorRig]:
    """A job that runs at size 2 under load; its actuator has ended."""
    info = stack.need(kafka=True, redis=True, spark=True)
    with running_job(info, tmp_path_factory.mktemp("kill"), rescale=(Way.RESTART,)) as rig:
        yield rig


@pytest.mark.parametrize("point", POINTS)
def test_a_successor_ends_the_command(rig: ActuatorRig, point: str) -> None:
    """The successor completes the restart: one start, never two writers, no record lost or processed twice."""
    before = rig.drivers()
    size = rig.results()[-1].parallelism
    records = rig.records
    victim = rig.start_actuator(kill=point)
    command = rig.command(CommandKind.RESCALE, 6 - size, before=size)
    assert victim.wait(300) == -9, "the actuator should die by SIGKILL"
    successor = rig.start_actuator()
    end = rig.wait_for_end(command)
    assert end.phase is Phase.VERIFIED, end  # I2: one terminal result
    assert end.parallelism == 6 - size
    wait_until(lambda: len(rig.outputs()) >= records, 120, every=1)
    results = rig.results(command.command_id)
    assert [r.phase for r in results if r.phase.terminal] == [Phase.VERIFIED]
    new = set(rig.drivers()) - set(before)
    assert len(new) == 1, f"I3: one driver for one command, the master lists {new}"
    assert rig.most_at_once() == 1, "I4: one application at a time"
    alive = [driver for driver, state in rig.drivers().items() if state == "RUNNING"]
    assert alive == list(new)
    counts = rig.outputs()
    assert len(counts) >= records, "I10: every record has its output"
    assert max(counts.values()) == 1, "a stop at a batch boundary repeats nothing"
    assert successor.stop(30) == 0


@pytest.mark.parametrize("point", ["after:accepted", "after:starting"])
def test_a_paused_actuator_that_goes_on_changes_nothing(rig: ActuatorRig, point: str) -> None:
    """It is paused before the stop, or between fence and submission, until its successor is done."""
    size = rig.results()[-1].parallelism
    records = rig.records
    paused = rig.start_actuator(pause=point)
    command = rig.command(CommandKind.RESCALE, 6 - size, before=size)
    phase = Phase(point.partition(":")[2])
    assert wait_until(lambda: f"{phase}" in rig.phases(command), 120), rig.results(command.command_id)
    successor = rig.start_actuator()
    assert rig.wait_for_end(command).phase is Phase.VERIFIED
    (good,) = [driver for driver, state in rig.drivers().items() if state == "RUNNING"]
    paused.signal(signal.SIGCONT)
    time.sleep(30)  # it would act at once, and a driver that it submits would have started by then
    wait_until(lambda: len(rig.outputs()) >= records, 120, every=1)
    ends = [r.phase for r in rig.results(command.command_id) if r.phase.terminal]
    assert ends == [Phase.VERIFIED], "I2: one end, which nothing changes"
    assert [driver for driver, state in rig.drivers().items() if state == "RUNNING"] == [good], "I3, I5"
    assert rig.most_at_once() == 1, "I4: one application at a time"
    counts = rig.outputs()
    assert len(counts) >= records, "I10: every record has its output"
    assert max(counts.values()) == 1, "I4: nobody else has written"
    for actuator in (paused, successor):
        assert actuator.stop(30) in (0, os.EX_TEMPFAIL), "stopped, or ended by itself because it was overtaken"
