"""A stateful job with shuffles, changed in place on real Spark: the queries go on and every row is counted once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bench.counting import CountingJob, StandaloneCountingJob
from tests.support.counting import stop
from tests.support.provider import ProcessProvider, StackProvider
from tidegate.events.command import CommandKind
from tidegate.events.result import Phase
from tidegate.events.way import Way
from tidegate.launcher.control.files import Token
from tidegate.runtime.poll import wait_until

pytestmark = pytest.mark.spark

MEMORY_MB, GRANTED = 1600, 4
"""The worker has 8 GB, less the driver's: room for four executors of that size, although it has eight slots."""


@pytest.fixture
def job(stack: StackProvider, tmp_path: Path) -> Iterator[CountingJob]:
    """A job of two slots that has committed; a restart is not allowed, so a fault cannot hide behind one."""
    if not isinstance(stack, ProcessProvider):
        pytest.skip("the job's script and checkpoint are files of this machine, which containers do not see")
    info = stack.need(spark=True)
    with closing(
        StandaloneCountingJob(
            info, tmp_path, most=8, trigger="3 seconds", rescale=(Way.IN_PLACE,), executor_memory_mb=MEMORY_MB
        )
    ) as job:
        job.order(CommandKind.START, 2)
        assert wait_until(lambda: job.granted() == 2, 30), "the ordered size, although the application may have more"
        yield job


@pytest.mark.timeout(600)
def test_a_stateful_job_grows_and_shrinks_without_a_stop(job: CountingJob) -> None:
    """2 to 4, 4 to 1 and to more than there is: sizes as ordered or granted, no failed task, every row once."""
    assert job.wait_for_batches(2)
    ends = []
    for size, granted in ((4, 4), (1, 1), (8, GRANTED)):
        end = job.carry_out(CommandKind.RESCALE, size)
        print(size, end.delay_seconds, end.outage_seconds, end.details)
        assert (end.phase, end.parallelism, end.way) == (Phase.VERIFIED, granted, Way.IN_PLACE), end
        assert wait_until(lambda: job.granted() == granted, 30)  # noqa: B023 - the master hears of it from the workers
        assert end.details["tasks_failed"] == 0, end
        ends.append(end)
        assert job.wait_for_batches(2)
    assert [end.code for end in ends] == ["OK", "OK", "GRANTED_FEWER"]
    assert {end.incarnation for end in ends} == {job.results[-1].incarnation}, "one application all the time"
    stop(job)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_dead_executor_is_replaced_while_the_size_changes(job: CountingJob) -> None:
    """An executor that is killed while others come is replaced, and so is one that dies later: the size holds."""
    assert job.wait_for_batches(2)
    run = Token(1, 1)
    killer = threading.Thread(target=_kill_a_newcomer, args=(job, run), daemon=True)
    killer.start()
    end = job.carry_out(CommandKind.RESCALE, 4)
    killer.join(10)
    assert not killer.is_alive()
    assert (end.phase, end.parallelism, end.code) == (Phase.VERIFIED, 4, "OK"), end
    assert end.details["executors_lost"] == 1
    assert wait_until(lambda: job.granted() == 4, 30)
    first = min(_alive(job, run), key=int)
    assert _kill(job, first)
    assert wait_until(lambda: first not in _alive(job, run) and len(_alive(job, run)) == 4, 60)
    assert job.wait_for_batches(3)
    stop(job)


def _alive(job: CountingJob, run: Token) -> dict[str, object]:
    """Return the executors that the driver has, by id."""
    told = job.control.sized(run) or {}
    return dict(told.get("executors", {}))


def _kill_a_newcomer(job: CountingJob, run: Token) -> None:
    assert wait_until(lambda: len(_alive(job, run)) > 2, 120)
    _kill(job, max(_alive(job, run), key=int))


def _kill(job: CountingJob, executor: str) -> bool:
    """End the process of an executor as a crash would; return whether there was one."""
    (application,) = [app for app, name in job.cluster.applications(job.spec).items() if name == job.spec.job_id]
    wanted = (b"CoarseGrainedExecutorBackend", application.encode(), executor.encode())
    for entry in Path("/proc").iterdir():
        words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
        if b"--executor-id" not in words or not any(wanted[0] in word for word in words):
            continue
        if words[words.index(b"--executor-id") + 1] == wanted[2] and wanted[1] in words:
            os.kill(int(entry.name), signal.SIGKILL)
            return True
    return False
