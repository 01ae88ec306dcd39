"""A stateful job on a real YARN, changed in every way: sizes as ordered or granted, one writer, every row once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from bench.counting import CountingJob
from services.actuator.backends import BackendRefused, DriverState, Submission
from services.actuator.backends.yarn import Yarn
from services.collector.view import ClusterView
from services.collector.yarn import YarnClusters
from tests.yarn.conftest import CORES, MEMORY_MB, YarnInfo, environment, spark_conf
from tidegate.events.command import CommandKind
from tidegate.events.result import Phase
from tidegate.events.way import Way
from tidegate.launcher.control.files import Token
from tidegate.runtime.poll import wait_until

pytestmark = pytest.mark.timeout(900)

_EPOCHS = count(100, 100)
"""Each job starts at an epoch of its own: the cluster remembers the runs of those before it."""


class YarnJob(CountingJob):
    """The job on YARN."""

    def __init__(self, yarn: YarnInfo, folder: Path, **application: Any) -> None:
        self._yarn = yarn
        settings: dict[str, Any] = {
            "backend": "yarn",
            "rest_url": yarn.url,
            "control_dir": str(folder / "control"),
            "conf": spark_conf(folder),
            "env": environment(yarn),
        }
        self.backend = Yarn(folder)
        super().__init__(folder, self.backend, most=CORES, **(settings | application))
        self._epoch = next(_EPOCHS)

    def seen(self) -> ClusterView:
        """Return what the collector sees."""

        async def ask() -> ClusterView:
            with closing(YarnClusters(10.0)) as clusters:
                return (await clusters.view(self._yarn.url)).of(self.spec)

        return asyncio.run(ask())

    def close(self) -> None:
        """End the drivers that still run, and the connections."""
        super().close()
        self.backend.close()


def _has(job: YarnJob, slots: int) -> bool:
    return job.granted() == slots


@pytest.fixture
def job(yarn: YarnInfo, tmp_path: Path) -> Iterator[YarnJob]:
    """A job that has not started."""
    with closing(YarnJob(yarn, tmp_path)) as job:
        yield job


def test_a_job_is_changed_in_every_way(job: YarnJob) -> None:
    """Start, grow and shrink in place, hand over, restart, stop; the pool is seen all the time."""
    assert job.carry_out(CommandKind.START, 2).phase is Phase.VERIFIED
    assert job.wait_for_batches(2, 300)
    assert job.granted() == 2
    for size, way in ((4, Way.IN_PLACE), (1, Way.IN_PLACE), (3, Way.HANDOVER), (2, Way.RESTART)):
        end = job.carry_out(CommandKind.RESCALE, size, way)
        print(size, way, end.delay_seconds, end.outage_seconds, end.details)
        assert (end.phase, end.code, end.parallelism, end.way) == (Phase.VERIFIED, "OK", size, way), end
        assert wait_until(partial(_has, job, size), 30)
        view = job.seen()
        (app,) = view.active.values()
        assert (app.name, app.cores, view.slots_used) == (job.spec.job_id, size, size)
        assert view.slots_total is not None
        assert size < view.slots_total <= CORES
        assert job.wait_for_batches(2)
        if way is Way.IN_PLACE:
            assert end.details["tasks_failed"] == 0
    assert job.carry_out(CommandKind.STOP, 0).phase is Phase.VERIFIED
    assert job.seen().active == {}
    assert job.wrong_batches() == []


def test_a_queue_without_room_grants_fewer(yarn: YarnInfo, tmp_path: Path) -> None:
    """Executors of 1,984 MB: three fit next to the driver; the job keeps those."""
    with closing(YarnJob(yarn, tmp_path, executor_memory_mb=1600, rescale=(Way.IN_PLACE,))) as job:
        assert job.carry_out(CommandKind.START, 1).phase is Phase.VERIFIED
        assert job.wait_for_batches(1, 300)
        fits = (MEMORY_MB - 896) // 1984
        assert job.seen().slots_total == fits
        end = job.carry_out(CommandKind.RESCALE, 6)
        assert (end.phase, end.code, end.parallelism) == (Phase.VERIFIED, "GRANTED_FEWER", fits), end
        assert job.wait_for_batches(2)
        assert job.carry_out(CommandKind.STOP, 0).phase is Phase.VERIFIED
        assert job.wrong_batches() == []


def test_a_stale_driver_writes_nothing(job: YarnJob) -> None:
    """A driver with an older token finds the fence before its first write, and ends; the job goes on undisturbed."""
    assert job.carry_out(CommandKind.START, 1).phase is Phase.VERIFIED
    assert job.wait_for_batches(2, 300)
    assert job.carry_out(CommandKind.RESCALE, 2, Way.IN_PLACE).phase is Phase.VERIFIED
    late = job.backend.submit(Submission(job.spec, Token(0, 1), 1))
    assert wait_until(lambda: job.backend.state(job.spec, late) is DriverState.ENDED, 120, 0.5)
    assert "must not start a query" in job.backend.log_tail(job.spec, late, Token(0, 1))
    assert job.wait_for_batches(2)
    assert job.carry_out(CommandKind.STOP, 0).phase is Phase.VERIFIED
    assert job.wrong_batches() == []


def test_a_driver_that_the_cluster_has_killed_is_seen_to_have_ended(job: YarnJob) -> None:
    """It is neither alive nor a foreign application, and the job starts again where it was."""
    assert job.carry_out(CommandKind.START, 2).phase is Phase.VERIFIED
    assert job.wait_for_batches(2, 300)
    (driver,) = job.backend.live_drivers(job.spec)
    job.backend.kill(job.spec, driver)
    assert wait_until(lambda: job.backend.state(job.spec, driver) is DriverState.ENDED, 60)
    assert job.carry_out(CommandKind.START, 1).phase is Phase.VERIFIED
    assert job.wait_for_batches(2, 300)
    assert job.carry_out(CommandKind.STOP, 0).phase is Phase.VERIFIED
    assert job.wrong_batches() == []


def test_spark_submit_says_what_is_missing(yarn: YarnInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the cluster's settings nothing is started, and the text names the variable."""
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    job = YarnJob(yarn, tmp_path, env={})
    with pytest.raises(BackendRefused, match=r"HADOOP_CONF_DIR.*application\.env"):
        job.backend.submit(Submission(job.spec, Token(1, 1), 1))
    job.close()
