"""VERIFY: has the new run committed its first batch? If there is no data, it is enough that its queries are idle.

What was there before is in the result of the stop: the newest commit of each query, and its id. Results written by a
version of Tidegate that did not record it so cannot be verified against. Then the attempt counts as failed, which
leads to an orderly stop and a start that can be verified.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from services.actuator.checkpoint import read_checkpoints
from services.actuator.drivers import NO_ANSWER, JobDrivers
from services.actuator.machine import ActionEvent
from services.actuator.task import ActionOutcome, Task
from tidegate.events.result import ActionResult, CheckpointMark, QueryCommit
from tidegate.events.wire import Scalar
from tidegate.launcher.control import Token
from tidegate.runtime.clock import Clock

LOOK_SECONDS = 0.05
"""Between two looks at the control directory and the checkpoint."""
ASK_SECONDS = 0.5
"""Between two questions to the cluster."""
NO_ANSWER_SECONDS = 60.0
"""How long the cluster may fail to answer before the attempt is given up."""


def verify(
    task: Task, drivers: JobDrivers, *, accepted: ActionResult, stopped: ActionResult, running: ActionResult
) -> ActionOutcome:
    """Wait for the first commit of the new run; the three results are those of the command's earlier phases."""
    outcome = _wait_for_commit(task, drivers, stopped.checkpoint, running)
    now = task.clock.now()
    details: dict[str, Scalar] = outcome.details | {
        "verify_seconds": _seconds(running.at, now),
        "restart_seconds": _seconds(accepted.at, now),
    }
    for result, name in ((stopped, "stop_seconds"), (stopped, "clean"), (running, "submit_seconds")):
        if name in result.details:
            details[name] = result.details[name]
    return replace(outcome, details=details, submission_id=running.submission_id)


def _wait_for_commit(
    task: Task, drivers: JobDrivers, before: CheckpointMark | None, running: ActionResult
) -> ActionOutcome:
    if before is None or running.run is None:
        sentence = "An older version of Tidegate stopped the job and did not record what to compare the new run with."
        return ActionOutcome(ActionEvent.SILENT, sentence, "NOT_VERIFIED")
    token = Token(task.command.epoch, running.run)
    check = _DriverCheck(drivers, task.clock)

    def look() -> ActionOutcome | None:
        facts = drivers.facts(token)
        application_id = facts.get("application_id")
        if application_id is not None:
            committed = _first_commit(task.spec.application.checkpoint_location, before)
            if committed is not None:
                return replace(committed, incarnation=application_id)
            if "idle_at" in facts:
                sentence = "The queries run and have no data to process."
                return ActionOutcome(ActionEvent.COMMITTED, sentence, incarnation=application_id)
        failure = check.failure(facts.get("submission_id") or running.submission_id)
        return None if failure is None else ActionOutcome(ActionEvent.SILENT, failure, "NOT_VERIFIED")

    limit = task.spec.application.start_deadline_seconds
    return task.until(look, limit - _seconds(running.at, task.clock.now()), LOOK_SECONDS) or ActionOutcome(
        ActionEvent.SILENT, f"The new driver committed no batch within {limit:g} s.", "NOT_VERIFIED"
    )


def _first_commit(checkpoint_location: str, before: CheckpointMark) -> ActionOutcome | None:
    """Return what the checkpoint says about the new run, or None while it has committed nothing."""
    for checkpoint in read_checkpoints(checkpoint_location):
        known = before.queries.get(checkpoint.path.name, QueryCommit())
        if known.query_id is not None and checkpoint.query_id != known.query_id:
            sentence = f"{checkpoint.path} belongs to query {checkpoint.query_id}; before, it was {known.query_id}."
            return ActionOutcome(ActionEvent.SILENT, sentence, "OTHER_QUERY")
        first = checkpoint.first_commit_after(known.batch_id)
        if first is None:
            continue
        batch_id, at = first
        downtime, after = None, ""
        if before.last_commit_at is not None:
            downtime = round(max(0.0, at - before.last_commit_at.timestamp()), 3)
            after = f" {downtime:.1f} s after the last commit of the old one"
        return ActionOutcome(
            ActionEvent.COMMITTED,
            f"The new driver committed batch {batch_id}{after}.",
            details={"first_batch_id": batch_id, "first_commit_at": at},
            downtime_seconds=downtime,
        )
    return None


class _DriverCheck:
    """Asks the cluster now and then whether the new driver still runs."""

    def __init__(self, drivers: JobDrivers, clock: Clock) -> None:
        self._drivers = drivers
        self._clock = clock
        self._ask_at = clock.monotonic()
        self._silent_since: float | None = None

    def failure(self, submission_id: str | None) -> str | None:
        """Return why waiting any longer is pointless, or None."""
        now = self._clock.monotonic()
        if submission_id is None or now < self._ask_at:
            return None
        self._ask_at = now + ASK_SECONDS
        try:
            ended = self._drivers.has_ended(submission_id)
        except NO_ANSWER:
            self._silent_since = now if self._silent_since is None else self._silent_since
            silent = now - self._silent_since > NO_ANSWER_SECONDS
            return f"The cluster has not answered for {NO_ANSWER_SECONDS:g} s." if silent else None
        self._silent_since = None
        return "The new driver ended before its first batch." if ended else None


def _seconds(start: datetime, end: datetime) -> float:
    return round((end - start).total_seconds(), 3)
