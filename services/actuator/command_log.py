"""What was done for each command and each job, as the results topic tells it. The topic is the source of truth.

Of a command that has ended, only the id is kept: its results are not needed any more, and memory is limited. A job that
was removed is forgotten when its newest result is as old as Kafka lets one become, so an actuator that has run for a
year knows what one does that has just started.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from tidegate.events.command import CommandKind, ScalingCommand
from tidegate.events.job import CLUSTER_FIELDS
from tidegate.events.result import ActionResult, CheckpointMark, Phase, QueryCommit
from tidegate.events.topics import RESULTS
from tidegate.events.way import Way

_GOOD = frozenset({Phase.VERIFIED, Phase.ROLLED_BACK})
_SUBMITTED = frozenset({Phase.RUNNING, Phase.SWITCHING})
_ON_ITS_CLUSTER = frozenset({Phase.STARTING, Phase.RESIZING, Phase.WARMING})
"""Phases whose results tell on which cluster the job runs from then on."""
REMOVED_KEPT = timedelta(days=RESULTS.retention_days or 0)
ENDED_KEPT = 100_000
"""How many ended commands are remembered. An older one has expired and is refused for that reason."""


@dataclass(slots=True)
class JobLog:
    """What was done to one job."""

    epoch: int = -1
    """The highest epoch of an accepted command."""
    last_good: int | None = None
    """The newest size at which the job committed a batch, or was at work on its first one."""
    incarnation: str | None = None
    submissions: list[str] = field(default_factory=list)
    """Driver ids submitted since the job was last known to be stopped or handed over, oldest first."""
    cluster: dict[str, str] | None = None
    """Where it was started or resized last, as `Application.cluster`; None if it was stopped since, or unknown."""
    stopped: ActionResult | None = None
    """The newest result of phase `stopped`, until another driver is submitted."""
    at: datetime | None = None
    """When the newest result was written."""


@dataclass(slots=True)
class _Unreadable:
    """The newest record that cannot be read, of those that may belong to the same commands."""

    epoch: int = -1
    """A command of a higher one was ordered later than the record was written."""
    went_on: set[str] = field(default_factory=set)
    """Commands with a result that came later: the newest result of a command tells how far it has come."""


class CommandLog:
    """Results by command and by job. Adding one twice changes nothing; of two runs, the newer counts. Thread-safe."""

    def __init__(self) -> None:
        self._commands: dict[str, dict[str, ActionResult]] = {}
        self._ended: dict[str, None] = {}
        """Command ids, newest last."""
        self._jobs: dict[str, JobLog] = {}
        self._unreadable: dict[tuple[str | None, str | None], _Unreadable] = {}
        """By job and pipeline; None where the record names none."""
        self._lock = threading.Lock()
        """Held by whoever adds: a command's thread, and the main loop that reads the topic again."""

    def add(self, result: ActionResult) -> None:
        """Add a result, read from the topic or just published."""
        with self._lock:
            self._add(result)

    def add_unreadable(self, job_id: str | None, pipeline_id: str | None, epoch: int) -> None:
        """Add that a record on the topic cannot be read: a result of that job, or of any, in that pipeline, or in any.

        No command with a higher epoch can have had a result when it was written.
        """
        with self._lock:
            before = self._unreadable.get((job_id, pipeline_id), _Unreadable())
            self._unreadable[job_id, pipeline_id] = _Unreadable(max(epoch, before.epoch))

    def forget(self, is_removed: Callable[[str], bool], now: datetime) -> None:
        """Forget the jobs that were removed, and of which nothing was heard for as long as results are kept."""
        with self._lock:
            old = [job_id for job_id, job in self._jobs.items() if job.at is None or job.at < now - REMOVED_KEPT]
            for job_id in filter(is_removed, old):
                del self._jobs[job_id]

    def is_doubtful(self, command: ScalingCommand) -> bool:
        """Whether a record that cannot be read may be the newest result of a command that has not ended."""
        return any(command.command_id not in record.went_on for record in self._may_hide(command))

    def results(self, command_id: str) -> list[ActionResult]:
        """Return the results of a command that has not ended, oldest first; none if nothing was done yet."""
        return list(self._commands.get(command_id, {}).values())

    def newest(self, command_id: str, phase: Phase) -> ActionResult:
        """Return the newest result of a phase of a command; raise `LookupError` if there is none."""
        for result in reversed(self.results(command_id)):
            if result.phase is phase:
                return result
        raise LookupError(f"command {command_id} has no result of phase {phase}")

    def ended(self, command_id: str) -> bool:
        """Whether a command has had its last result."""
        return command_id in self._ended

    def job(self, job_id: str) -> JobLog:
        """Return what was done to a job; an empty history if nothing was."""
        return self._jobs.get(job_id, JobLog())

    def submissions(self) -> frozenset[str]:
        """Return the ids of all drivers that Tidegate is known to have submitted, of any job."""
        return frozenset(submission for job in list(self._jobs.values()) for submission in job.submissions)

    def incarnations(self) -> frozenset[str]:
        """Return the ids of the applications in which jobs were last verified to run."""
        return frozenset(job.incarnation for job in list(self._jobs.values()) if job.incarnation is not None)

    def _may_hide(self, of: ScalingCommand | ActionResult) -> list[_Unreadable]:
        """Return the unreadable records that may be results of a command."""
        if not self._unreadable:
            return []
        places = [(job_id, pipeline_id) for job_id in (of.job_id, None) for pipeline_id in (of.pipeline_id, None)]
        records = [self._unreadable[place] for place in places if place in self._unreadable]
        return [record for record in records if of.epoch <= record.epoch]

    def _add(self, result: ActionResult) -> None:
        result = _with_fields(result)
        known = self._commands.get(result.command_id, {}).get(result.result_id)
        if result.command_id in self._ended or (known is not None and _run(result) <= _run(known)):
            return
        for record in self._may_hide(result):
            record.went_on.add(result.command_id)
        if result.phase.terminal:
            self._commands.pop(result.command_id, None)
            self._ended[result.command_id] = None
            if len(self._ended) > ENDED_KEPT:
                del self._ended[next(iter(self._ended))]
        else:
            self._commands.setdefault(result.command_id, {})[result.result_id] = result
        job = self._jobs.setdefault(result.job_id, JobLog())
        job.at = result.at if job.at is None else max(job.at, result.at)
        if result.epoch < job.epoch:
            return  # of a command that ended so long ago that its id is forgotten: it is read again
        if result.phase is not Phase.REJECTED:
            job.epoch = max(job.epoch, result.epoch)
        if result.phase is Phase.STOPPED:
            job.submissions.clear()
            job.stopped = result
            job.cluster = None
        elif result.phase in _SUBMITTED and result.submission_id and result.submission_id not in job.submissions:
            job.submissions.append(result.submission_id)
            job.stopped = None
        elif result.phase in _GOOD and result.way is Way.HANDOVER and result.submission_id:
            job.submissions[:] = [result.submission_id]  # the other one has ended
        if result.phase in _ON_ITS_CLUSTER:
            where = {name: str(result.details[name]) for name in CLUSTER_FIELDS if name in result.details}
            job.cluster = where or job.cluster
        if result.phase in _GOOD and result.kind is not CommandKind.STOP:
            job.last_good = result.parallelism
            job.incarnation = result.incarnation or job.incarnation


def _run(result: ActionResult) -> int:
    """Return the run that a result names: an actuator that was overtaken may publish one of an older run, late."""
    return result.run or 0


def _with_fields(result: ActionResult) -> ActionResult:
    """Return a result with what 0.1.0 wrote into its `details` instead, as far as that can be read."""
    said, fields = result.details, dict[str, Any]()
    if result.run is None and type(run := said.get("run")) is int and run >= 0:
        fields["run"] = run
    if result.checkpoint is None and "last_batches" in said:
        with contextlib.suppress(ValueError, TypeError, AttributeError, OverflowError, OSError, RecursionError):
            newest = json.loads(str(said["last_batches"])).items()
            at = said.get("last_commit_at")
            fields["checkpoint"] = CheckpointMark(
                queries={name: QueryCommit(query_id=query, batch_id=batch) for name, (query, batch) in newest},
                last_commit_at=None if at is None else datetime.fromtimestamp(float(at), UTC),
            )
    return result.model_copy(update=fields) if fields else result
