"""What the console needs of Kafka, and how it gets it."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from tidegate.events.decision import Decision
from tidegate.events.job import JobSpec
from tidegate.events.result import ActionResult
from tidegate.fleet.feed import Feed, decision_on, results_of
from tidegate.fleet.fleet import LiveFleet
from tidegate.operate import publish_change
from tidegate.whatif.recorded import RecordedJob
from tidegate.whatif.topics import received_job


class ConsoleTopics(LiveFleet, Protocol):
    """The topics, as far as the console uses them. The methods below may take seconds."""

    def recall(self, job_id: str) -> None:
        """Have the fleet know a job's last hours."""

    def decision(self, job_id: str, sequence: int) -> Decision | None:
        """Return a decision; None if it is not on its topic any more."""

    def results(self, decision: Decision) -> list[ActionResult]:
        """Return the results of a decision's command."""

    def recorded(self, job_id: str, since: datetime, until: int | None = None) -> RecordedJob:
        """Return a job's events, up to the sequence `until`; raises `CannotTry` if there are none."""

    def publish(self, spec: JobSpec) -> None:
        """Publish a version of a spec, and wait for the acknowledgement."""


class KafkaTopics(Feed):
    """The topics of a broker."""

    def decision(self, job_id: str, sequence: int) -> Decision | None:
        """See `ConsoleTopics`."""
        return decision_on(self._settings, job_id, sequence)

    def results(self, decision: Decision) -> list[ActionResult]:
        """See `ConsoleTopics`."""
        return results_of(self._settings, decision)

    def recorded(self, job_id: str, since: datetime, until: int | None = None) -> RecordedJob:
        """See `ConsoleTopics`."""
        return received_job(self._settings, job_id, since, until)

    def publish(self, spec: JobSpec) -> None:
        """See `ConsoleTopics`."""
        publish_change(self._settings, spec)
