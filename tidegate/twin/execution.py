"""Execution of one command on a twin job: the actuator's protocol, one result event per phase.

    accepted -> stopping -> stopped -> starting -> running -> verified
                                          |            no commit in time: try once more with the last good size
                                          +----------> rolled_back, or failed

A change in place has no stop: accepted -> running -> verified once the first batch on the new size has committed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime

from tidegate.events.command import CommandKind, ScalingCommand
from tidegate.events.result import ActionResult, Phase, result_id
from tidegate.events.wire import Scalar
from tidegate.twin.job import Job, JobEvent, Life

Report = Callable[[ActionResult], None]


class Execution:
    """One command in progress on one job. Times are seconds since the world started."""

    def __init__(self, command: ScalingCommand, job: Job, epoch: float, report: Report) -> None:
        self.command = command
        self.job = job
        self.done = False
        self.due_at = math.inf
        """When the execution itself must act next: at a deadline, or when executors are up."""
        self._epoch = epoch
        self._report = report
        self._attempt = 1
        self._size = command.to_parallelism
        self._last_commit_at: float | None = None
        self._in_place = False

    def begin(self, at: float) -> None:
        """Accept the command, or reject it if it has expired."""
        command, job = self.command, self.job
        if at + self._epoch > command.expires_at.timestamp():
            self._end(Phase.REJECTED, at, code="EXPIRED", sentence="the command expired before it was started")
            return
        running = job.life is Life.RUNNING
        if command.kind is CommandKind.START and job.life not in (Life.STOPPED, Life.FAILED):
            self._end(Phase.REJECTED, at, code="ALREADY_RUNNING", sentence="the job is already running")
            return
        if command.kind is not CommandKind.START and not running:
            self._end(Phase.REJECTED, at, code="NOT_RUNNING", sentence=f"the job is {job.life.value}")
            return
        self._emit(Phase.ACCEPTED, at)
        self._last_commit_at = job.last_commit_at
        if command.kind is CommandKind.START:
            self._start(at)
        elif command.kind is CommandKind.RESCALE and job.model.restart.in_place:
            self._in_place = True
            growing = self._size > job.slots
            job.resize(at, self._size, job.slots if growing else self._size)
            self.due_at = at + (job.model.restart.executor_seconds if growing else 0.0)
        else:
            self._emit(Phase.STOPPING, at)
            job.stop(at, at + job.model.stop_deadline_seconds)

    def act(self, at: float) -> None:
        """Act on what is due: executors are up, or a start took too long."""
        job = self.job
        self.due_at = math.inf
        if self._in_place:
            job.resize(at, self._size, None)
            self._emit(Phase.RUNNING, at, incarnation=incarnation(job))
        elif self._attempt == 1 and self.command.from_parallelism:
            self._attempt, self._size = 2, self.command.from_parallelism
            job.stop(at, at)
        else:
            self._end(Phase.FAILED, at, code="START_DEADLINE", sentence="no batch was committed in time")
            job.stop(at, at)

    def on(self, event: JobEvent, at: float) -> None:
        """React to a job event."""
        job = self.job
        if event is JobEvent.COMMITTED:
            self._last_commit_at = self._last_commit_at if job.run.commits == 1 else job.last_commit_at
            if self._in_place and math.isinf(self.due_at):
                self._end(Phase.VERIFIED, at, incarnation=incarnation(job), downtime_seconds=0.0)
            elif not self._in_place and job.run.commits == 1 and job.run.stop_by is None:
                self._verified(at)
        elif event is JobEvent.STOPPED:
            self._stopped(at)
        elif event is JobEvent.RUNNING:
            self._emit(Phase.RUNNING, at, incarnation=incarnation(job))
        elif event is JobEvent.DIED:
            self._end(Phase.FAILED, at, code="JOB_DIED", sentence="the job ended without being stopped")

    def _stopped(self, at: float) -> None:
        self._emit(Phase.STOPPED, at)
        if self.command.kind is CommandKind.STOP:
            self._end(Phase.VERIFIED, at)
        else:
            self._start(at)

    def _start(self, at: float) -> None:
        self._emit(Phase.STARTING, at)
        self.job.start(at, self._size)
        self.due_at = at + self.job.model.start_deadline_seconds

    def _verified(self, at: float) -> None:
        downtime = None
        if self.command.kind is CommandKind.RESCALE and self._last_commit_at is not None:
            downtime = at - self._last_commit_at
        rolled_back = self._attempt > 1
        self._end(
            Phase.ROLLED_BACK if rolled_back else Phase.VERIFIED,
            at,
            incarnation=incarnation(self.job),
            downtime_seconds=downtime,
            code="START_DEADLINE" if rolled_back else "OK",
            sentence="the new size committed no batch in time" if rolled_back else "",
        )

    def _end(self, phase: Phase, at: float, **more: object) -> None:
        self.done, self.due_at = True, math.inf
        self._emit(phase, at, **more)

    def _emit(self, phase: Phase, at: float, **more: object) -> None:
        command = self.command
        details: dict[str, Scalar] = {"twin": True}
        self._report(
            ActionResult(
                result_id=result_id(command.command_id, phase, self._attempt),
                command_id=command.command_id,
                job_id=command.job_id,
                pipeline_id=command.pipeline_id,
                kind=command.kind,
                phase=phase,
                attempt=self._attempt,
                epoch=command.epoch,
                at=datetime.fromtimestamp(self._epoch + at, UTC),
                parallelism=self._size,
                details=details,
                **more,  # type: ignore[arg-type]
            )
        )


def incarnation(job: Job) -> str:
    """Return the application id of the job's current run."""
    return f"app-{job.model.job_id}-{job.run.ordinal:04d}"
