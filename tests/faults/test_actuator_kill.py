"""kill -9 of the actuator in each phase of a restart, on real Kafka, Redis and Spark: F7 of the fault list."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from schemas.command import CommandKind
from schemas.result import Phase
from tests.support.actuator import Rig
from tests.support.provider import StackProvider

DELICATE = "after:starting"
"""The driver may have been submitted and may not: in every `make test`; the other instants are in `make faults`."""

POINTS = ["after:accepted", "after:stopping", "before:stopped", DELICATE, "before:running", "after:running"]


@pytest.fixture(scope="module")
def rig(stack: StackProvider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A job that runs at size 2 under load; its actuator has gone."""
    rig = Rig(stack.need(kafka=True, redis=True, spark=True), tmp_path_factory.mktemp("kill"))
    try:
        rig.load()
        actuator = rig.start_actuator()
        end = rig.wait_for_end(rig.command(CommandKind.START, 2))
        assert end.phase is Phase.VERIFIED, end
        actuator.terminate()
        assert actuator.wait(20) == 0
        yield rig
    finally:
        rig.close()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("point", [pytest.param(p, marks=() if p == DELICATE else pytest.mark.slow) for p in POINTS])
def test_a_successor_ends_the_command(rig: Rig, point: str) -> None:
    """The successor ends the restart: one start at the cluster, never two writers, no record lost or doubled."""
    before = rig.drivers()
    size = rig.results()[-1].parallelism
    records = rig.records
    with rig.watched() as samples:
        victim = rig.start_actuator(kill=point)
        command = rig.command(CommandKind.RESCALE, 6 - size, before=size)
        assert victim.wait(300) == -9, "the actuator was to die by SIGKILL"
        successor = rig.start_actuator()
        end = rig.wait_for_end(command)
        assert end.phase is Phase.VERIFIED, end  # I2: one terminal result
        assert end.parallelism == 6 - size
        deadline = time.monotonic() + 120
        while len(rig.outputs()) < records and time.monotonic() < deadline:
            time.sleep(1)
    results = rig.results(command.command_id)
    assert [r.phase for r in results if r.phase.terminal] == [Phase.VERIFIED]
    new = set(rig.drivers()) - set(before)
    assert len(new) == 1, f"I3: one driver for one command, the master lists {new}"
    assert rig.most_at_once(samples) == 1, "I4: one application at a time"
    alive = [driver for driver, state in rig.drivers().items() if state == "RUNNING"]
    assert alive == list(new)
    counts = rig.outputs()
    assert len(counts) >= records, "I10: every record has its output"
    assert max(counts.values()) == 1, "a stop at a batch boundary repeats nothing"
    successor.terminate()
    assert successor.wait(30) == 0
