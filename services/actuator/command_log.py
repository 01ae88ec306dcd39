"""What has been done, per command and per job, as the results topic tells it. The topic is the truth.

Of a command that has ended only that is kept: its results are of no more use, and would fill the memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tidegate.events.command import CommandKind
from tidegate.events.result import ActionResult, Phase

_GOOD = frozenset({Phase.VERIFIED, Phase.ROLLED_BACK})
ENDED_KEPT = 100_000
"""Commands remembered to have ended; one that is older has expired, and is refused for that."""


@dataclass(slots=True)
class JobHistory:
    """What was done to one job."""

    epoch: int = -1
    """The highest epoch of a command that was accepted."""
    last_good: int | None = None
    """The newest size at which the job committed a batch."""
    incarnation: str | None = None
    submissions: list[str] = field(default_factory=list)
    """Cluster ids of the drivers submitted since the job was last known to be stopped, oldest first."""


class CommandLog:
    """Results by command and by job. Taking a result in twice changes nothing."""

    def __init__(self, results: Iterable[ActionResult] = ()) -> None:
        self._commands: dict[str, dict[str, ActionResult]] = {}
        self._ended: dict[str, None] = {}
        """Ids of commands, the newest last."""
        self._jobs: dict[str, JobHistory] = {}
        for result in results:
            self.take(result)

    def take(self, result: ActionResult) -> None:
        """Take in a result, from the topic or just produced."""
        if result.command_id in self._ended or result.result_id in self._commands.get(result.command_id, {}):
            return
        if result.phase.terminal:
            self._commands.pop(result.command_id, None)
            self._ended[result.command_id] = None
            if len(self._ended) > ENDED_KEPT:
                del self._ended[next(iter(self._ended))]
        else:
            self._commands.setdefault(result.command_id, {})[result.result_id] = result
        job = self._jobs.setdefault(result.job_id, JobHistory())
        if result.phase is not Phase.REJECTED:
            job.epoch = max(job.epoch, result.epoch)
        if result.phase is Phase.STOPPED:
            job.submissions.clear()
        elif result.phase is Phase.RUNNING and result.submission_id and result.submission_id not in job.submissions:
            job.submissions.append(result.submission_id)
        if result.phase in _GOOD and result.kind is not CommandKind.STOP:
            job.last_good = result.parallelism
            job.incarnation = result.incarnation or job.incarnation

    def results(self, command_id: str) -> list[ActionResult]:
        """Return the results of a command under way, oldest first; none if nothing was done, or it has ended."""
        return list(self._commands.get(command_id, {}).values())

    def ended(self, command_id: str) -> bool:
        """Whether nothing more is to be done for a command."""
        return command_id in self._ended

    def find(self, command_id: str, phase: Phase, attempt: int | None = None) -> ActionResult | None:
        """Return a command's newest result of a phase (of an attempt), or None."""
        for result in reversed(self.results(command_id)):
            if result.phase is phase and attempt in (None, result.attempt):
                return result
        return None

    def submissions(self) -> frozenset[str]:
        """Return the cluster ids of the drivers that Tidegate knows to be some job's."""
        return frozenset(submission for job in list(self._jobs.values()) for submission in job.submissions)

    def applications(self) -> frozenset[str]:
        """Return the ids of the applications that Tidegate knows to be some job's newest."""
        return frozenset(job.incarnation for job in list(self._jobs.values()) if job.incarnation is not None)

    def job(self, job_id: str) -> JobHistory:
        """Return what was done to a job; an empty record if nothing was."""
        return self._jobs.get(job_id, JobHistory())
