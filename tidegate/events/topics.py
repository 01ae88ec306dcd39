"""The table of topics: name, key, cleanup, content. Code, docs, AsyncAPI and deploy files all come from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tidegate.events.command import ScalingCommand
from tidegate.events.dead_letter import DeadLetter
from tidegate.events.decision import Decision
from tidegate.events.job import JobSpec
from tidegate.events.result import ActionResult
from tidegate.events.snapshot import MetricSnapshot
from tidegate.events.wire import Wire

PREFIX = "tidegate."


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic of the flow."""

    suffix: str
    model: type[Wire]
    event_type: str
    """CloudEvents type; its last part is the major version."""
    key: Literal["job_id", "pipeline_id", "original"]
    cleanup: Literal["compact", "delete"]
    retention_days: int | None
    """None: kept for ever (compacted)."""
    what: str

    @property
    def name(self) -> str:
        """The topic's name with the default prefix."""
        return PREFIX + self.suffix

    def named(self, prefix: str) -> str:
        """Return the topic's name under another prefix, as tests and shared brokers use."""
        return prefix + self.suffix


JOBS = Topic(
    "jobs", JobSpec, "tidegate.job.v1", "job_id", "compact", None, "JobSpec, versioned; a tombstone removes a job"
)
SNAPSHOTS = Topic(
    "snapshots",
    MetricSnapshot,
    "tidegate.snapshot.v1",
    "pipeline_id",
    "delete",
    14,
    "what was measured of one job over one interval",
)
DECISIONS = Topic(
    "decisions", Decision, "tidegate.decision.v1", "pipeline_id", "delete", 30, "the outcome of one snapshot, always"
)
COMMANDS = Topic(
    "commands", ScalingCommand, "tidegate.command.v1", "pipeline_id", "delete", 30, "only what must be done"
)
RESULTS = Topic(
    "results", ActionResult, "tidegate.result.v1", "pipeline_id", "delete", 30, "one phase of a command's execution"
)
DEAD_LETTERS = Topic(
    "dead-letters",
    DeadLetter,
    "tidegate.dead-letter.v1",
    "original",
    "delete",
    30,
    "what could not be read, with its bytes",
)

TOPICS = (JOBS, SNAPSHOTS, DECISIONS, COMMANDS, RESULTS, DEAD_LETTERS)

BY_MODEL: dict[type[Wire], Topic] = {topic.model: topic for topic in TOPICS}
