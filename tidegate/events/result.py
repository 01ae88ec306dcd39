"""ActionResult: one phase of a command's execution. The results topic is the truth about what was done."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from tidegate.events.command import CommandKind
from tidegate.events.way import Way
from tidegate.events.wire import Count, Identifier, Instant, Scalar, Seconds, Wire, identity


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
    attempt: Annotated[int, Field(ge=1)] = 1
    """1 for the ordered size, 2 for the rollback to the last good one, 3 if the ordered one proved itself meanwhile."""
    epoch: Count
    at: Instant
    parallelism: Count
    """The size this phase aims at or has reached; 0 while the job is meant to be stopped."""
    code: str = "OK"
    """Reason code of a rejection, failure or rollback; `OK` otherwise."""
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
    """With `stopped`."""
    run: Count | None = None
    """With `starting` and `running`: the number of the new run under the command's epoch."""


def result_id(command_id: str, phase: Phase, attempt: int = 1) -> str:
    """Return the id of a phase of a command."""
    return identity("result", command_id, phase.value, attempt)
