"""Execution of one command on a twin job: what all ways to change a size share. One result event per phase.

`tidegate.twin.ways` has one subclass per way; the phases are those of the actuator (services/actuator/machine.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime

from tidegate.events.command import CommandKind, ScalingCommand
from tidegate.events.result import ActionResult, Phase, result_id
from tidegate.events.way import Way
from tidegate.events.wire import Scalar
from tidegate.twin.job import Job, JobEvent

Report = Callable[[ActionResult], None]


class Execution:
    """One command in progress on one job. Times are seconds since the world started."""

    way: Way

    def __init__(self, command: ScalingCommand, job: Job, epoch: float, report: Report) -> None:
        self.command = command
        self.job = job
        self.done = False
        self.due_at = math.inf
        """When the execution itself must act next, such as at a deadline."""
        self.phase: Phase | None = None
        """The newest phase."""
        self.attempt = 1
        self.size = command.to_parallelism
        self.details: dict[str, Scalar] = {"twin": True}
        self._epoch = epoch
        self._report = report
        self._ordered_at = 0.0
        self._last_commit_at: float | None = None
        """When the last batch before the change was committed."""
        self._usual_wait = 0.0

    def accept(self, at: float) -> None:
        """Accept the command and begin."""
        self._ordered_at = at
        self._last_commit_at = self.job.last_commit_at
        self._usual_wait = self.job.usual_wait_seconds
        self.emit(Phase.ACCEPTED, at)
        self.begin(at)

    def reject(self, at: float, code: str, sentence: str) -> None:
        """Reject the command."""
        self.end(Phase.REJECTED, at, code=code, sentence=sentence)

    def begin(self, at: float) -> None:
        """Take the first step after the command was accepted."""
        raise NotImplementedError

    def act(self, at: float) -> None:
        """Take the step that was due at `due_at`."""
        raise NotImplementedError

    def on(self, event: JobEvent, at: float) -> None:
        """React to a job event."""
        if event is JobEvent.DIED:
            self.end(Phase.FAILED, at, code="JOB_DIED", sentence="the job ended without being stopped")

    def since_order(self, at: float) -> float:
        """Return the seconds since the command was accepted."""
        return at - self._ordered_at

    def longest_start_seconds(self) -> float:
        """Return how long a start may take whose first batch is at work, as the actuator's start_deadline.py says."""
        seconds, expected = self.job.model.start_deadline_seconds, self.command.first_batch_seconds
        if self.attempt > 1 or self.command.adds_slots:
            return math.inf
        return 10.0 * seconds if expected is None else seconds + 3.0 * expected

    def remember_commit(self) -> None:
        """Take the job's newest commit as the last one before the change."""
        self._last_commit_at = self.job.last_commit_at

    def first_commit(self, at: float) -> dict[str, object]:
        """Return the result's figures at the first commit after the change.

        The delay ends with that commit, as the actuator sees it. The outage leaves out the first batch itself.
        """
        if self.command.kind is not CommandKind.RESCALE:
            return {"delay_seconds": self.since_order(at)}
        first = self.job.finished[-1].started_at if self.job.last_commit_at == at else at
        found: dict[str, object] = {"delay_seconds": self.since_order(at)}
        if self._last_commit_at is not None:
            found["downtime_seconds"] = at - self._last_commit_at
            found["outage_seconds"] = max(0.0, first - self._last_commit_at - self._usual_wait)
        return found

    def end(self, phase: Phase, at: float, **more: object) -> None:
        """Emit the last result."""
        self.done, self.due_at = True, math.inf
        self.emit(phase, at, **more)

    def emit(self, phase: Phase, at: float, **more: object) -> None:
        """Emit the result of a phase."""
        self.phase = phase
        command = self.command
        named = command.kind is CommandKind.RESCALE and phase not in (Phase.ACCEPTED, Phase.REJECTED)
        self._report(
            ActionResult(
                result_id=result_id(command.command_id, phase, self.attempt),
                command_id=command.command_id,
                job_id=command.job_id,
                pipeline_id=command.pipeline_id,
                kind=command.kind,
                phase=phase,
                attempt=self.attempt,
                epoch=command.epoch,
                at=datetime.fromtimestamp(self._epoch + at, UTC),
                parallelism=self.size,
                way=self.way if named else None,
                details=dict(self.details),
                **more,  # type: ignore[arg-type]
            )
        )


def incarnation(job: Job) -> str:
    """Return the application id of the job's current run."""
    return f"app-{job.model.job_id}-{job.run.ordinal:04d}"
