"""Looks at a new run: has it committed its first batch? If there is no data, it is enough that its queries are idle.

Of a `start`, it is enough that tasks of its first batch have finished and the batch goes on for half an interval more.
Then the job can be measured, and grow, before that batch ends.

A run that keeps its checkpoint elsewhere is verified by what its driver says, and the result has a code of its own.
`start_deadline.py` says how long a start may take.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from services.actuator.actions.driver_check import DriverCheck
from services.actuator.actions.elsewhere import elsewhere
from services.actuator.actions.start_deadline import StartDeadline, StartProgress
from services.actuator.actions.waits import ASK_SECONDS, START_LOOK_SECONDS
from services.actuator.checkpoint import QueryCheckpoint, read_checkpoints
from services.actuator.drivers import JobDrivers
from services.actuator.machine import ActionEvent
from services.actuator.task import ActionOutcome, Task
from tidegate.events.command import CommandKind
from tidegate.events.result import CHECKPOINT_ELSEWHERE, FIRST_BATCH, CheckpointMark, QueryCommit
from tidegate.launcher.control.files import Token

log = logging.getLogger(__name__)

SAY_SECONDS = 15.0
"""Between two log lines about the same start."""


class StartWatch:
    """Looks at one new run until it has worked or failed."""

    def __init__(
        self,
        task: Task,
        drivers: JobDrivers,
        *,
        before: CheckpointMark,
        token: Token,
        submission_id: str | None,
        since: datetime,
        limited: bool,
    ) -> None:
        self._task = task
        self._drivers = drivers
        self._before = before
        self._submission_id = submission_id
        self._token = token
        self._check = DriverCheck(drivers, task.clock)
        self._say_at = task.clock.monotonic() + SAY_SECONDS
        self._at_work_since: float | None = None
        self._deadline = StartDeadline(
            task.spec.application.start_deadline_seconds,
            task.command.first_batch_seconds,
            now=task.clock.monotonic(),
            elapsed=task.seconds_since(since),
            limited=limited,
        )

    def wait(self) -> ActionOutcome:
        """Wait until the run has worked or failed."""
        near = self._task.files.near(self._task.spec.application.checkpoint_location)
        return self._task.follow(self.look, START_LOOK_SECONDS if near else ASK_SECONDS)

    def look(self) -> ActionOutcome | None:
        """Return how the start has ended, or None if it is still under way."""
        facts = self._drivers.facts(self._token)
        progress = StartProgress.of(facts, self._drivers.control.progress(self._token))
        application_id = facts.get("application_id")
        if application_id is not None:
            works = self._committed(facts, progress) or self._working(facts, progress)
            if works is not None:
                return replace(works, incarnation=application_id, application=facts.get("application"))
        submission_id = facts.get("submission_id") or self._submission_id
        ended = self._check.failure(submission_id, arrived=bool(facts))
        late = self._deadline.see(progress, self._task.clock.monotonic())
        self._say(progress, submission_id)
        if ended is None and late is None:
            return None
        reason = self._drivers.reason(self._token, submission_id)
        sentence = f"{ended or late} The reason: {reason}" if reason else ended or late or ""
        return ActionOutcome(ActionEvent.SILENT, sentence, "NOT_VERIFIED", details=progress.details)

    def _committed(self, facts: dict[str, Any], progress: StartProgress) -> ActionOutcome | None:
        """Return that the run works, if it does, or that its checkpoint is another query's."""
        spec = self._task.spec
        astray = elsewhere(spec, facts)
        found = _first_commit(read_checkpoints(spec.application.checkpoint_location, self._task.files), self._before)
        if found is None and astray is not None and progress.committed:
            found = ActionOutcome(ActionEvent.COMMITTED, "The new driver has committed a batch.")
        if found is None and "idle_at" in facts:
            found = ActionOutcome(ActionEvent.COMMITTED, "The queries run and have no data to process.")
        if found is None or found.event is not ActionEvent.COMMITTED or astray is None:
            return found
        return replace(found, sentence=f"{found.sentence} {astray}", code=CHECKPOINT_ELSEWHERE)

    def _working(self, facts: dict[str, Any], progress: StartProgress) -> ActionOutcome | None:
        """Return that the first batch of a start is at work and will not end at once, if that is so."""
        if self._task.command.kind is not CommandKind.START or not progress.tasks_done:
            return None
        now = self._task.clock.monotonic()
        self._at_work_since = now if self._at_work_since is None else self._at_work_since
        if now < self._at_work_since + self._task.spec.interval_seconds / 2:
            return None
        sentence, astray = f"The new driver works: {progress.text}.", elsewhere(self._task.spec, facts)
        sentence, code = (sentence, FIRST_BATCH) if astray is None else (f"{sentence} {astray}", CHECKPOINT_ELSEWHERE)
        return ActionOutcome(ActionEvent.WORKING, sentence, code, details=progress.details)

    def _say(self, progress: StartProgress, submission_id: str | None) -> None:
        """Log now and then how far the run has come, and what hinders a driver that has not arrived."""
        now = self._task.clock.monotonic()
        if now < self._say_at:
            return
        self._say_at = now + SAY_SECONDS
        reason = "" if progress.arrived else self._drivers.reason(self._token, submission_id)
        log.log(
            logging.WARNING if reason else logging.INFO,
            "job %s: run %s starts: %s%s",
            self._task.spec.job_id,
            self._token,
            progress.text,
            f". The reason: {reason}" if reason else "",
        )


def _first_commit(now: Sequence[QueryCheckpoint], before: CheckpointMark) -> ActionOutcome | None:
    """Return what the checkpoint says about the new run, or None while it has committed nothing."""
    for checkpoint in now:
        known = before.queries.get(checkpoint.name, QueryCommit())
        if known.query_id is not None and checkpoint.query_id != known.query_id:
            sentence = f"{checkpoint.path} belongs to query {checkpoint.query_id}; before, it was {known.query_id}."
            return ActionOutcome(ActionEvent.SILENT, sentence, "OTHER_QUERY")
        first = checkpoint.first_commit_after(known.batch_id)
        if first is None:
            continue
        batch_id, at = first
        downtime, outage, after = None, None, ""
        if before.last_commit_at is not None:
            downtime = round(max(0.0, at - before.last_commit_at.timestamp()), 3)
            outage = round(max(0.0, downtime - checkpoint.pace(batch_id)), 3)
            after = f" {downtime:.1f} s after the last commit of the old one"
        return ActionOutcome(
            ActionEvent.COMMITTED,
            f"The new driver committed batch {batch_id}{after}.",
            details={"first_batch_id": batch_id, "first_commit_at": at},
            downtime_seconds=downtime,
            outage_seconds=outage,
        )
    return None
