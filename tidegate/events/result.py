"""ActionResult: one phase of a command's execution. The results topic is the truth about what was done."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from pydantic import Field

from tidegate.events.command import CommandKind
from tidegate.events.way import Way
from tidegate.events.wire import Count, Identifier, Instant, Positive, Scalar, Seconds, Wire, identity


class Phase(StrEnum):
    """Phases of a command; see `services/actuator/machine.py`. The last four end it."""

    ACCEPTED = "accepted"
    RESIZING = "resizing"
    WARMING = "warming"
    SWITCHING = "switching"
    STOPPING = "stopping"
    STOPPED = "stopped"
    STARTING = "starting"
    RUNNING = "running"
    RETIRING = "retiring"
    RESUMING = "resuming"
    VERIFIED = "verified"
    ROLLED_BACK = "rolled_back"
    FAILED = "failed"
    REJECTED = "rejected"

    @property
    def terminal(self) -> bool:
        """Whether no further result of the same command can follow."""
        return self in TERMINAL


TERMINAL = frozenset({Phase.VERIFIED, Phase.ROLLED_BACK, Phase.FAILED, Phase.REJECTED})

SUCCESSIONS: dict[Phase | None, frozenset[Phase]] = {
    None: frozenset({Phase.ACCEPTED, Phase.REJECTED}),
    Phase.ACCEPTED: frozenset(
        {Phase.RESIZING, Phase.WARMING, Phase.STOPPING, Phase.STOPPED, Phase.REJECTED, Phase.FAILED}
    ),
    Phase.RESIZING: frozenset({Phase.VERIFIED, Phase.ROLLED_BACK, Phase.RESIZING, Phase.STOPPING, Phase.FAILED}),
    Phase.WARMING: frozenset({Phase.SWITCHING, Phase.ROLLED_BACK, Phase.STOPPING, Phase.FAILED}),
    Phase.SWITCHING: frozenset({Phase.RUNNING, Phase.RESUMING, Phase.FAILED}),
    Phase.STOPPING: frozenset({Phase.STOPPED, Phase.FAILED}),
    Phase.STOPPED: frozenset({Phase.STARTING, Phase.VERIFIED, Phase.FAILED}),
    Phase.STARTING: frozenset({Phase.RUNNING, Phase.STOPPING, Phase.FAILED}),
    Phase.RUNNING: frozenset(
        {Phase.VERIFIED, Phase.ROLLED_BACK, Phase.STOPPING, Phase.RETIRING, Phase.RESUMING, Phase.FAILED}
    ),
    Phase.RETIRING: frozenset({Phase.VERIFIED, Phase.FAILED}),
    Phase.RESUMING: frozenset({Phase.ROLLED_BACK, Phase.STOPPING, Phase.FAILED}),
}
"""The phases that may follow each phase of one command; None stands before its first result.

They are what `services/actuator/machine.py` allows: its property test compares the two.
"""


CHECKPOINT_ELSEWHERE: Final = "CHECKPOINT_ELSEWHERE"
OTHER_CLUSTER: Final = "OTHER_CLUSTER"
FIRST_BATCH: Final = "FIRST_BATCH"
GRANTED_FEWER: Final = "GRANTED_FEWER"

CODES: dict[str, str] = {
    "NO_SUCH_JOB": "there is no job of that id",
    "OLD_SPEC": "the command was decided on a newer version of the spec than the actuator knows",
    "OTHER_PIPELINE": "the command names another pipeline than the job",
    "UNREADABLE_RESULT": "a record among the results cannot be read, and may tell that the command was carried out",
    "STALE_EPOCH": "a command with the same or a newer epoch has already been accepted",
    "EXPIRED": "the command expired before it could start",
    "PAUSED": "the job is in mode paused or advise, and the command was not given by hand",
    "NOT_MEANT_TO_RUN": "the job's spec says that it should not run",
    "INVALID_SIZE": "the size is outside the spec's bounds, or not a whole number of executors",
    "NO_BACKEND": "this actuator has no backend of the kind that the spec names",
    "ALREADY_RUNNING": "the command is a start, and the job already runs",
    "FOREIGN_DRIVER": "the job runs in an application that Tidegate did not start",
    OTHER_CLUSTER: "the job runs, or the command began, on another cluster than the spec names",
    "UNREADABLE_CHECKPOINT": "the actuator cannot read the job's checkpoint location or control directory",
    "BROKEN_FILES": "the job's control directory or checkpoint cannot be used",
    "UNEXPECTED": "something failed that Tidegate does not expect, such as a setting that nothing can be started with",
    "OUTFENCED": "a newer command holds the job's fence",
    "STOP_FAILED": "the old driver could not be stopped, or nobody can tell what runs; nothing was started",
    "NOT_SUBMITTED": "the cluster did not accept the new driver",
    "NOT_VERIFIED": "the new driver ended, or committed no batch in time",
    FIRST_BATCH: "the new run is at work on its first batch, whose commit is still to come",
    CHECKPOINT_ELSEWHERE: "a query keeps its checkpoint elsewhere than the spec says; the job is not restarted",
    "NOT_WARM": "a second driver failed before it could take over; the first one was not touched",
    "NO_ROOM": "the cluster has no room for a second driver next to the first one",
    "NOT_SWITCHED": "the first driver did not pause in time, or the second one ended; the first one goes on",
    "NOT_RESUMED": "after a failed handover the first driver did not go on, so the job is restarted",
    "NO_WAY": "none of the ways that the spec allows can change the size of the running job",
    GRANTED_FEWER: "the cluster had fewer slots than ordered; the job runs at the size that was granted",
    "EXECUTORS_DIED": "new executors died as they came; the job keeps the size that worked last",
    "NOT_WORKING": "the ordered executors did not come, or did no work, in time",
    "NO_ANSWER": "the running driver did not obey the order for a size, or nobody can tell what runs",
    "DRIVER_ENDED": "the driver ended while its executors were being changed",
    "OTHER_QUERY": "the checkpoint belongs to another query than before",
}
"""Why a command was rejected, failed, was taken back, or ended in another way than ordered."""


class QueryCommit(Wire):
    """The newest batch that one streaming query has committed, as its checkpoint says."""

    query_id: str | None = None
    """Absent before the query has written its metadata."""
    batch_id: Count | None = None
    """Absent before the first commit."""


class CheckpointMark(Wire):
    """Where the job's checkpoint stood after the old run had ended. A new run is verified against it."""

    queries: dict[str, QueryCommit] = Field(default_factory=dict)
    """By the name of the query's checkpoint directory; empty before the job's first run."""
    last_commit_at: Instant | None = None
    """When the newest of these batches was committed."""


class ActionResult(Wire):
    """One phase reached by one command. `result_id` is a function of command, phase and attempt."""

    result_id: str
    command_id: str
    job_id: Identifier
    pipeline_id: Identifier
    kind: CommandKind
    phase: Phase
    attempt: Positive = 1
    """1 for the ordered size, 2 for the rollback to the last good one, 3 if the ordered one proved itself meanwhile."""
    epoch: Count
    at: Instant
    parallelism: Count
    """The size this phase aims at or has reached; 0 while the job is meant to be stopped."""
    code: str = "OK"
    """`OK`, or why the command was rejected, failed, was taken back, or ended in another way than ordered."""
    sentence: str = ""
    incarnation: str | None = None
    """Spark application id, once known."""
    submission_id: str | None = None
    """Driver id of the cluster, once submitted."""
    downtime_seconds: Seconds | None = None
    """With `verified` and `rolled_back`: last commit before the stop to first commit after the start."""
    way: Way | None = None
    """How the size is changed, from the phase after `accepted` on; may differ from the command's."""
    outage_seconds: Seconds | None = None
    """With `verified` and `rolled_back`: time without commits beyond the job's normal pace, first batch not counted."""
    delay_seconds: Seconds | None = None
    """With `verified` and `rolled_back`: from the order until the new size did its first work."""
    application: str | None = None
    """With `verified` and `rolled_back`: the digest of the application that runs now, if a new run was started."""
    details: dict[str, Scalar] = Field(default_factory=dict)
    """Measured figures of the phase, such as `stop_seconds` or `last_batch_id`. Nothing is read back from them."""
    checkpoint: CheckpointMark | None = None
    """With `stopped`, and with `running` in a handover."""
    run: Count | None = None
    """The number of the new run under the command's epoch, from the phase in which there is one."""


def result_id(command_id: str, phase: Phase, attempt: int = 1) -> str:
    """Return the id of a phase of a command."""
    return identity("result", command_id, phase.value, attempt)
