from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas.command import CommandKind
from schemas.result import Phase
from tests.support.actuator import Rig
from tests.support.provider import StackProvider


@pytest.fixture
def rig(stack: StackProvider, tmp_path: Path) -> Iterator[Rig]:
    """A job of its own on the stack, with load, and no actuator yet."""
    rig = Rig(stack.need(kafka=True, redis=True, spark=True), tmp_path)
    try:
        rig.load()
        yield rig
    finally:
        rig.close()


@pytest.mark.timeout(900)
def test_start_rescale_stop(rig: Rig) -> None:
    """A job is started, rescaled from its checkpoint at a batch boundary and stopped; nothing is lost or doubled."""
    actuator = rig.start_actuator()
    with rig.watched() as samples:
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

        rig.stop_load()
        deadline = time.monotonic() + 60
        while sum(rig.outputs().values()) < rig.records and time.monotonic() < deadline:
            time.sleep(1)
        stop = rig.command(CommandKind.STOP, 0, before=4)
        end = rig.wait_for_end(stop)
        assert (end.phase, end.parallelism) == (Phase.VERIFIED, 0), end
        assert rig.phases(stop) == ["accepted", "stopping", "stopped", "verified"]
    assert rig.most_at_once(samples) == 1
    assert len(rig.drivers()) == 2
    assert set(rig.drivers().values()) == {"FINISHED"}
    counts = rig.outputs()
    assert len(counts) == rig.records
    assert set(counts.values()) == {1}
    actuator.terminate()
    assert actuator.wait(20) == 0
