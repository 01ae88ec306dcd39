"""A stateful job on a real YARN, changed in every way: sizes as ordered or granted, one writer, every row once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from services.actuator.backends import BackendRefused, DriverState, Submission
from tests.support.counting import change, check_that_a_stale_driver_writes_nothing, stop
from tests.support.hadoop import CORES, MEMORY_MB
from tests.support.yarn_job import YarnInfo, YarnJob
from tidegate.events.command import CommandKind
from tidegate.events.result import Phase
from tidegate.events.way import Way
from tidegate.launcher.control.files import Token
from tidegate.runtime.poll import wait_until

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def job(yarn: YarnInfo, tmp_path: Path) -> Iterator[YarnJob]:
    """A job that has not started."""
    with closing(YarnJob(yarn, tmp_path)) as job:
        yield job


def test_a_job_is_changed_in_every_way(job: YarnJob) -> None:
    """Start, grow and shrink in place, hand over, restart, stop; the pool is seen all the time."""
    job.order(CommandKind.START, 2)
    assert job.wait_for_batches(2, 300)
    assert job.granted() == 2
    for size, way in ((4, Way.IN_PLACE), (1, Way.IN_PLACE), (3, Way.HANDOVER), (2, Way.RESTART)):
        end = change(job, size, way)
        view = job.seen()
        (app,) = view.active.values()
        assert (app.name, app.cores, view.slots_used) == (job.spec.job_id, size, size)
        assert view.slots_total is not None
        assert size < view.slots_total <= CORES
        if way is Way.IN_PLACE:
            assert end.details["tasks_failed"] == 0
    stop(job)
    assert job.seen().active == {}


def test_a_queue_without_room_grants_fewer(yarn: YarnInfo, tmp_path: Path) -> None:
    """Executors of 1,984 MB: three fit next to the driver; the job keeps those."""
    with closing(YarnJob(yarn, tmp_path, executor_memory_mb=1600, rescale=(Way.IN_PLACE,))) as job:
        job.order(CommandKind.START, 1)
        assert job.wait_for_batches(1, 300)
        fits = (MEMORY_MB - 896) // 1984
        assert job.seen().slots_total == fits
        end = job.carry_out(CommandKind.RESCALE, 6)
        assert (end.phase, end.code, end.parallelism) == (Phase.VERIFIED, "GRANTED_FEWER", fits), end
        assert job.wait_for_batches(2)
        stop(job)


def test_a_stale_driver_writes_nothing(job: YarnJob) -> None:
    """A driver with an older token finds the fence before its first write, and ends; the job goes on undisturbed."""
    job.order(CommandKind.START, 1)
    assert job.wait_for_batches(2, 300)
    job.order(CommandKind.RESCALE, 2, Way.IN_PLACE)
    check_that_a_stale_driver_writes_nothing(job)


def test_a_driver_that_the_cluster_has_killed_is_seen_to_have_ended(job: YarnJob) -> None:
    """It is neither alive nor a foreign application, and the job starts again where it was."""
    job.order(CommandKind.START, 2)
    assert job.wait_for_batches(2, 300)
    (driver,) = job.backend.live_drivers(job.spec)
    job.backend.kill(job.spec, driver)
    assert wait_until(lambda: job.backend.state(job.spec, driver) is DriverState.ENDED, 60)
    job.order(CommandKind.START, 1)
    assert job.wait_for_batches(2, 300)
    stop(job)


def test_spark_submit_says_what_is_missing(yarn: YarnInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the cluster's settings nothing is started, and the text names the variable."""
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    job = YarnJob(yarn, tmp_path, env={})
    with pytest.raises(BackendRefused, match=r"HADOOP_CONF_DIR.*application\.env"):
        job.backend.submit(Submission(job.spec, Token(1, 1), 1))
    job.close()
