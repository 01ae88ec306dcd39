"""A stateful job whose checkpoint, event log and control files are in a real HDFS: nothing is shared.

The services see nothing of it but URIs: the folders that other tests share do not exist here.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from bench.counting import StandaloneCountingJob
from tests.hdfs.conftest import Hdfs
from tests.support.counting import change, check_that_a_stale_driver_writes_nothing, stop
from tests.support.provider import ProcessProvider, StackProvider
from tidegate.events.command import CommandKind
from tidegate.events.result import ActionResult, Phase
from tidegate.events.way import Way
from tidegate.launcher.control.files import Token
from tidegate.runtime.poll import wait_until
from tidegate.sparklog.application_run import Interval
from tidegate.sparklog.log_directory import JobReading, LogDirectory

pytestmark = pytest.mark.timeout(900)

AWAY_SECONDS = 30.0


class HdfsJob(StandaloneCountingJob):
    """The job on a standalone cluster; only its output is on this machine."""

    def __init__(self, hdfs: Hdfs, provider: ProcessProvider, folder: Path, **application: Any) -> None:
        self.hdfs = hdfs
        self.uri = f"{hdfs.uri}/{uuid.uuid4().hex[:8]}"
        (hdfs.files().remote(self.uri) / "events" / ".made").replace(b"")  # Spark makes no folder for its logs
        settings: dict[str, Any] = {
            "checkpoint_location": f"{self.uri}/ck",
            "event_log_dir": f"{self.uri}/events",
            "control_dir": None,
            "stop_deadline_seconds": 90.0,
        }
        info = provider.need(spark=True)
        super().__init__(info, folder, most=6, files=hdfs.files(), **(settings | application))
        self.logs = LogDirectory(self.files.place(f"{self.uri}/events"), limit_bytes=16_000_000)

    def reading(self, seconds: float = 30.0) -> JobReading:
        """Return what the collector reads of the last seconds."""
        now = datetime.now(UTC)
        return self.logs.read({"counts": Interval(now - timedelta(seconds=seconds), now)})["counts"]

    def in_background(self, size: int, way: Way) -> tuple[threading.Thread, list[ActionResult]]:
        """Change the size in a thread; return it, and where the last result will be."""
        ends: list[ActionResult] = []
        rescale = CommandKind.RESCALE
        thread = threading.Thread(target=lambda: ends.append(self.carry_out(rescale, size, way)), daemon=True)
        thread.start()
        return thread, ends


@pytest.fixture
def job(hdfs: Hdfs, stack: StackProvider, tmp_path: Path) -> Iterator[HdfsJob]:
    """A job of two slots that has committed."""
    assert isinstance(stack, ProcessProvider)
    job = HdfsJob(hdfs, stack, tmp_path)
    try:
        job.order(CommandKind.START, 2)
        assert job.wait_for_batches(2)
        yield job
    finally:
        job.close()
        assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["counts"], "nothing is shared"


def test_a_job_is_changed_in_every_way(job: HdfsJob) -> None:
    """In place, by handover, by restart, and stopped: sizes as ordered, the log is followed, every row counted once."""
    for size, way in ((4, Way.IN_PLACE), (1, Way.IN_PLACE), (3, Way.HANDOVER), (2, Way.RESTART)):
        change(job, size, way)
        assert job.wait_for_batches(1)
        reading = job.reading()
        newest = reading.runs[-1]
        print(reading.complete, reading.grown_at, len(newest.batches))
        assert reading.complete
        assert newest.app_id == job.results[-1].incarnation
        assert newest.batches
        assert reading.grown_at is not None
        assert datetime.now(UTC) - reading.grown_at < timedelta(seconds=15)
    stop(job)


def test_a_stale_driver_writes_nothing(job: HdfsJob) -> None:
    """A driver with an older token finds the fence in HDFS before its first write; the job goes on undisturbed."""
    job.order(CommandKind.RESCALE, 3, Way.IN_PLACE)
    check_that_a_stale_driver_writes_nothing(job, f"{job.uri}/tidegate-control/counts allows only run")


@pytest.mark.parametrize("victim", ["old", "new"])
def test_a_driver_that_is_killed_in_a_restart_loses_nothing(job: HdfsJob, victim: str) -> None:
    """Killed while it stops, or before its first commit: the job ends at a size that works, with every row once."""
    before = job.control.runs()[-1]
    thread, ends = job.in_background(4, Way.RESTART)
    token = before if victim == "old" else Token(2, 1)
    assert wait_until(lambda: job.control.stop_marker() is not None, 60, 0.05)
    facts = wait_until(lambda: job.control.running(token), 120, 0.05)
    assert facts
    os.kill(facts["jvm_pid"], signal.SIGKILL)
    thread.join(300)
    print(ends)
    assert ends[0].phase in (Phase.VERIFIED, Phase.ROLLED_BACK), ends
    assert job.wait_for_batches(2)
    stop(job)


def test_a_name_node_that_is_away_is_waited_for(job: HdfsJob, caplog: pytest.LogCaptureFixture) -> None:
    """The job and a command go on when it is back; until then the collector has no figures, and nobody guesses."""
    assert job.reading().complete
    name_node = job.hdfs.daemons.processes["NameNode"]
    os.kill(name_node.pid, signal.SIGSTOP)
    try:
        started = time.monotonic()
        with pytest.raises(OSError, match=r"hdfs://.*/events: http://.* does not answer .*TIDEGATE_FILES") as told:
            job.reading()
        print("the collector is told:", told.value)
        thread, ends = job.in_background(4, Way.IN_PLACE)
        time.sleep(max(0.0, started + AWAY_SECONDS - time.monotonic()))
    finally:
        os.kill(name_node.pid, signal.SIGCONT)
    thread.join(300)
    print("the operator reads:", *(record.getMessage() for record in caplog.records), *ends, sep="\n  ")
    assert (ends[0].phase, ends[0].parallelism) == (Phase.VERIFIED, 4), ends
    assert job.wait_for_batches(3)
    assert wait_until(lambda: job.reading().complete, 30)
    stop(job)
