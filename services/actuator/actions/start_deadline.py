"""How long a new run may take to commit its first batch: as long as it makes progress, within reason.

A sign of progress is anything that happens for the first time: the driver arrives, its application registers, a query
starts, a task finishes. `start_deadline_seconds` counts from the last sign. While a batch runs, the command's
`first_batch_seconds` are added, because a batch with no more tasks than slots shows nothing until it ends.

Where going back could help, a start may take, all in all,

    start_deadline_seconds + 3 * first_batch_seconds    the expectation may be off, and a first batch is a slow one
    10 * start_deadline_seconds                         if the command has no expectation

It could help against fewer slots, or another application. After growth, the last good size would need even longer, and
a second attempt has nothing to go back to. So these may take a day, or longer if the first line above says so: while a
run is verified, nobody can stop or scale the job, and one that finishes tasks may never finish a batch.

All times are this actuator's own, so the clocks of other machines do not matter. An actuator that takes over a command
sees what happened so far as one sign of progress.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tidegate.events.command import ScalingCommand
from tidegate.events.wire import Scalar

_EXPECTATION_FACTOR = 3
_NO_EXPECTATION_FACTOR = 10
_UNLIMITED_SECONDS = 86_400.0
"""How long a start may take at least where going back could not help."""


def going_back_could_help(command: ScalingCommand, attempt: int) -> bool:
    """Whether the last good size could commit a batch that takes this attempt long."""
    return attempt == 1 and not command.adds_slots


@dataclass(frozen=True, slots=True)
class StartProgress:
    """What a run has written about itself, in the figures by which its start is judged."""

    arrived: bool = False
    registered: bool = False
    queries: int = 0
    finished_tasks: int = 0
    committed: bool = False
    """Whether a query has committed a batch, as the driver says."""
    batches: int = 0
    """How many queries are working on a batch."""
    tasks_done: int = 0
    """Of the running batches."""
    tasks: int = 0

    @classmethod
    def of(cls, facts: dict[str, Any], progress: dict[str, Any] | None) -> StartProgress:
        """Return the progress that a run's two files show."""
        told = progress or {}
        batches = told.get("batches", [])
        return cls(
            arrived=bool(facts),
            registered="application_id" in facts,
            queries=len(facts.get("queries", [])),
            finished_tasks=int(told.get("finished_tasks", 0)),
            committed=bool(told.get("committed")),
            batches=len(batches),
            tasks_done=sum(int(batch.get("done", 0)) for batch in batches),
            tasks=sum(int(batch.get("tasks", 0)) for batch in batches),
        )

    @property
    def sign(self) -> tuple[int, ...]:
        """What has happened so far; it differs after each sign of progress."""
        return (self.arrived, self.registered, self.queries, self.batches > 0, self.finished_tasks)

    @property
    def waits_for(self) -> str:
        """What comes next."""
        if not self.arrived:
            return "the driver"
        if not self.registered:
            return "the application"
        if not self.batches:
            return "the first batch"
        return "a finished task"

    @property
    def text(self) -> str:
        """How far the run has come."""
        if self.tasks:
            return f"{self.tasks_done:,} of {self.tasks:,} tasks of the first batch have finished"
        if self.batches or self.queries:
            return "the query has started, but no task has"
        if self.registered:
            return "the application has registered, but no query has started"
        return "the driver has arrived, but has not started a query" if self.arrived else "the driver has not arrived"

    @property
    def details(self) -> dict[str, Scalar]:
        """The figures for a result."""
        found: dict[str, Scalar] = {"waits_for": self.waits_for}
        return found | (
            {"first_batch_tasks": self.tasks, "first_batch_tasks_done": self.tasks_done} if self.tasks else {}
        )


class StartDeadline:
    """Watches one start. All times are in seconds of a monotonic clock."""

    def __init__(
        self, start_deadline: float, first_batch: float | None, *, now: float, elapsed: float, limited: bool = True
    ) -> None:
        self._quiet = start_deadline
        self._first_batch = first_batch
        self._sign_at = now - elapsed
        self._submitted_at = now - elapsed
        self.progress = StartProgress()
        """What was seen last."""
        self.most_seconds = (
            start_deadline * _NO_EXPECTATION_FACTOR
            if first_batch is None
            else start_deadline + first_batch * _EXPECTATION_FACTOR
        )
        """How long the start may take in all."""
        if not limited:
            self.most_seconds = max(self.most_seconds, _UNLIMITED_SECONDS)

    def see(self, progress: StartProgress, now: float) -> str | None:
        """Take note of a run's progress; return why waiting any longer is pointless, or None."""
        if progress.sign != self.progress.sign:
            self._sign_at = now
        self.progress = progress
        quiet = self._quiet + (self._first_batch or 0.0) * (progress.batches > 0)
        if now - self._sign_at > quiet:
            return (
                f"The new driver committed no batch and made no progress within {quiet:g} s: {progress.text}. If it"
                " needs longer, raise application.start_deadline_seconds."
            )
        if now - self._submitted_at > self.most_seconds:
            expected = (
                "no duration was expected"
                if self._first_batch is None
                else f"{self._first_batch:.0f} s were expected for the first batch"
            )
            return (
                f"The new driver committed no batch within {self.most_seconds:g} s, although it made progress:"
                f" {progress.text}; {expected}. If it needs longer, raise application.start_deadline_seconds."
            )
        return None
