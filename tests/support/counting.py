"""What tests on every cluster and file system ask of a counting job."""

from __future__ import annotations

from bench.counting import CountingJob
from services.actuator.backends import DriverState, Submission
from tidegate.events.command import CommandKind
from tidegate.events.result import ActionResult, Phase
from tidegate.events.way import Way
from tidegate.launcher.control.files import Token
from tidegate.runtime.poll import wait_until


def change(job: CountingJob, size: int, way: Way, seconds: float = 120.0) -> ActionResult:
    """Change a job's size: it ends as ordered, and two batches more end within `seconds`."""
    end = job.carry_out(CommandKind.RESCALE, size, way)
    print(size, way, end.delay_seconds, end.outage_seconds, end.downtime_seconds, end.details)
    assert (end.phase, end.code, end.parallelism, end.way) == (Phase.VERIFIED, "OK", size, way), end
    assert wait_until(lambda: job.granted() == size, 30)
    assert job.wait_for_batches(2, seconds)
    return end


def stop(job: CountingJob) -> None:
    """Stop a job: every row was counted once."""
    job.order(CommandKind.STOP, 0)
    assert job.wrong_batches() == []


def check_that_a_stale_driver_writes_nothing(job: CountingJob, said: str = "must not start a query") -> None:
    """A driver with an older token finds the fence before its first write, and ends; the job goes on undisturbed."""
    late = job.cluster.submit(Submission(job.spec, Token(0, 1), 1))
    assert wait_until(lambda: job.cluster.state(job.spec, late) is DriverState.ENDED, 120, 0.5)
    assert said in job.cluster.log_tail(job.spec, late, Token(0, 1))
    assert job.wait_for_batches(2)
    stop(job)
