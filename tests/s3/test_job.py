"""A stateful job with everything on S3, changed in every way: one writer, every row once, and its log is seen live.

Nothing is shared with the cluster: checkpoint, event logs and control files are in one bucket. Only the counts, by
which the test sees what was processed, are files of this machine.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.counting import StandaloneCountingJob
from demo.environment import LIGHT_JVMS
from services.actuator.backends import DriverState
from tests.s3.conftest import S3Server, history_server
from tests.support.counting import change, check_that_a_stale_driver_writes_nothing, stop
from tests.support.provider import ProcessProvider, StackProvider
from tidegate.events.command import CommandKind
from tidegate.events.result import Phase
from tidegate.events.way import Way
from tidegate.launcher.control.files import Token
from tidegate.remote.files import Files, names
from tidegate.runtime.poll import wait_until
from tidegate.sparklog.application_run import Interval
from tidegate.sparklog.log_directory import JobReading, LogDirectory
from tidegate.stack import StackInfo

pytestmark = pytest.mark.timeout(900)

_EPOCHS = count(100, 100)


class S3Job(StandaloneCountingJob):
    """The job, with a folder of its own in the bucket."""

    def __init__(self, info: StackInfo, s3: S3Server, folder: Path, **application: Any) -> None:
        self.root = f"{s3.root}/{uuid.uuid4().hex[:8]}"
        settings: dict[str, Any] = {
            "checkpoint_location": f"{self.root}/ck",
            "event_log_dir": f"{self.root}/events",
            "control_dir": f"{self.root}/control",
            "conf": {**LIGHT_JVMS, **s3.spark_conf, "spark.sql.shuffle.partitions": "8"},
        }
        super().__init__(info, folder, most=6, files=Files(), **(settings | application))
        self._epoch = next(_EPOCHS)
        self._logs = LogDirectory(self.files.place(self.spec.application.event_log_dir), limit_bytes=50_000_000)

    def reading(self, seconds: float = 10.0) -> JobReading | None:
        """Return what the collector sees of the last `seconds`."""
        now = datetime.now(UTC)
        interval = Interval(now - timedelta(seconds=seconds), now)
        try:
            return self._logs.read({self.spec.job_id: interval}).get(self.spec.job_id)
        except FileNotFoundError:
            return None


@pytest.fixture
def info(s3: S3Server, stack: StackProvider) -> StackInfo:
    """A standalone cluster that finds the server by its environment: `s3` comes first."""
    del s3
    assert isinstance(stack, ProcessProvider)
    return stack.need(spark=True)


@pytest.fixture
def job(info: StackInfo, s3: S3Server, tmp_path: Path) -> Iterator[S3Job]:
    """A job that has not started."""
    with closing(S3Job(info, s3, tmp_path)) as job:
        yield job


def test_a_job_is_changed_and_its_logs_are_spark_s(job: S3Job, s3: S3Server) -> None:
    """Start, grow in place, restart, stop: no folder of this machine has any of the job's files, and no log is cut."""
    job.order(CommandKind.START, 2)
    assert job.wait_for_batches(2, 120)
    change(job, 3, Way.IN_PLACE, seconds=60)
    change(job, 1, Way.RESTART, seconds=60)
    stop(job)
    assert sorted(path.name for path in job.folder.iterdir()) == ["counts"]
    logs = job.files.place(f"{job.root}/events")
    assert len(names(logs)) == 2, "one log for each application"
    for log in names(logs):
        (status,) = [name for name in names(logs / log) if name.startswith("appstatus_")]
        assert not status.endswith(".inprogress"), "each driver shipped the end of its log"
    with history_server(s3, f"{job.root}/events") as url:
        assert wait_until(lambda: len(_history(url)) == 2, 60, 1.0)
        assert all(app["attempts"][0]["completed"] for app in _history(url))


def test_a_job_is_handed_over(job: S3Job) -> None:
    """A second driver warms up from the checkpoint on S3, and takes the turn that only one can create."""
    job.order(CommandKind.START, 2)
    assert job.wait_for_batches(2, 120)
    change(job, 1, Way.HANDOVER, seconds=60)
    stop(job)


def _history(url: str) -> list[dict[str, Any]]:
    return list(httpx.get(f"{url}/api/v1/applications", timeout=10).json())


def test_a_live_log_is_seen(job: S3Job) -> None:
    """While the driver runs, the collector sees its batches and executors some seconds later, and few requests do."""
    job.order(CommandKind.START, 2)
    assert job.wait_for_batches(3, 120)

    def seen() -> bool:
        reading = job.reading(20)
        return bool(reading and reading.complete and reading.runs and reading.runs[-1].batches)

    assert wait_until(seen, 30, 1.0)
    batch, at = max(job.batches()), time.monotonic()
    assert wait_until(lambda: _newest_batch(job) >= batch, 30, 0.5)
    print(f"batch {batch} was in the log {time.monotonic() - at:.1f} s later")
    folder = job.files.place(f"{job.root}/events")
    (log,) = names(folder)
    assert len([name for name in names(folder / log) if name.startswith("events_")]) == 1
    job.order(CommandKind.STOP, 0)


def _newest_batch(job: S3Job) -> int:
    reading = job.reading(60)
    batches = [batch.batch_id for run in (reading.runs if reading else ()) for batch in run.batches]
    return max(batches, default=-1)


def test_a_stale_driver_writes_nothing(job: S3Job) -> None:
    """A driver with an older token finds the fence before its first write, and ends; the job goes on undisturbed."""
    job.order(CommandKind.START, 1)
    assert job.wait_for_batches(2, 120)
    check_that_a_stale_driver_writes_nothing(job)


def test_a_log_ends_with_its_driver(job: S3Job) -> None:
    """After SIGTERM all of the log is there; after SIGKILL all but the last seconds. The job goes on where it was."""
    job.order(CommandKind.START, 2)
    assert job.wait_for_batches(8, 120)
    newest = max(job.batches())
    _signal(job, signal.SIGKILL)
    assert _newest_batch(job) >= newest - 7
    _go_on(job)
    _signal(job, signal.SIGTERM)
    logs = job.files.place(f"{job.root}/events")
    status = [name for log in sorted(names(logs)) for name in names(logs / log) if name.startswith("appstatus_")]
    assert [name.endswith(".inprogress") for name in status[:2]] == [True, False]
    _go_on(job)
    stop(job)


def _go_on(job: S3Job) -> None:
    """Start the job again; the start is refused as long as a process of the killed driver is still there."""

    def started() -> bool:
        end = job.carry_out(CommandKind.START, 1)
        assert end.phase is Phase.VERIFIED or end.code == "ALREADY_RUNNING", end
        return end.phase is Phase.VERIFIED

    assert wait_until(started, 60, 1)
    assert job.wait_for_batches(2, 120)


def _signal(job: S3Job, number: int) -> None:
    """Send a signal to the job's driver, and wait until it has ended."""
    (driver,) = job.cluster.live_drivers(job.spec)
    running = job.control.running(job.control.runs()[-1])
    assert running is not None
    os.kill(int(running["jvm_pid"]), number)
    assert wait_until(lambda: job.cluster.state(job.spec, driver) is DriverState.ENDED, 60)


def test_a_server_that_is_away_loses_nothing(job: S3Job, s3: S3Server) -> None:
    """Away for 30 s while the job runs, and while a command runs: the job waits, and every row is counted once."""
    job.order(CommandKind.START, 2)
    assert job.wait_for_batches(2, 120)
    away = threading.Thread(target=s3.pause, args=(30.0,), daemon=True)
    away.start()
    with pytest.raises(OSError, match=r"s3a://.*AWS_ENDPOINT_URL") as told:
        wait_until(lambda: job.control.running(Token(0, 0)) and False, 20)
    print(told.value)
    away.join(60)
    assert job.wait_for_batches(3, 120)
    away = threading.Thread(target=s3.pause, args=(30.0,), daemon=True)
    away.start()
    end = job.carry_out(CommandKind.RESCALE, 3, Way.IN_PLACE)
    away.join(60)
    print(end.phase, end.code, end.sentence)
    assert job.wait_for_batches(3, 120)
    end = job.carry_out(CommandKind.RESCALE, 1, Way.RESTART)
    assert end.phase is Phase.VERIFIED, end
    assert job.wait_for_batches(2, 120)
    stop(job)
