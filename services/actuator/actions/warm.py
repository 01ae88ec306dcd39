"""WARM: start a second driver next to the first one, and wait until it is warm. The first one is not touched.

The second driver runs the script, waits for its executors, rehearses the queries and says that it is ready (see
`tidegate/launcher/handover/`). It may not write before SWITCH names it. If it fails, it is ended, and the job goes on
as it was. If the cluster has no room for both drivers, the job must be restarted instead.

After a crash, or without an answer, nobody knows whether the second driver was submitted; one that shows up is adopted,
as SUBMIT does.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Any

from services.actuator.actions.driver_check import DriverCheck
from services.actuator.actions.pair import end_driver
from services.actuator.actions.start_deadline import StartDeadline, StartProgress
from services.actuator.actions.waits import START_LOOK_SECONDS, await_arrival
from services.actuator.backends import BackendRefused, BackendUnreachable
from services.actuator.drivers import NO_ANSWER, JobDrivers
from services.actuator.machine import ActionEvent
from services.actuator.task import ActionOutcome, Task
from tidegate.events.way import Way
from tidegate.launcher.control.claims import Claims
from tidegate.launcher.control.files import Token

log = logging.getLogger(__name__)


def warm(task: Task, drivers: JobDrivers, parallelism: int, *, maybe_submitted: bool) -> ActionOutcome:
    """Start a second driver of size `parallelism` and wait until it is ready.

    `maybe_submitted` says that an earlier try, perhaps of another process, may have submitted it already.
    """
    with contextlib.suppress(*NO_ANSWER):  # first: each handover that fails leaves two runs
        drivers.tidy()
    second = _adopt(task, drivers) if maybe_submitted else None
    if second is None:
        token = Claims(drivers.control).next_token(task.command.epoch)
        try:
            second = token, drivers.submit(token, parallelism, task.check, handover=True)
        except BackendRefused as error:
            sentence = f"The cluster did not accept a second driver: {error}. The first one goes on."
            return ActionOutcome(ActionEvent.NOT_WARM, sentence, "NOT_SUBMITTED")
        except BackendUnreachable as error:
            second = _adopt(task, drivers)  # the request may have arrived although the answer did not
            if second is None:  # should it come later, the next command ends it, or it ends by itself
                sentence = f"The cluster does not answer: {error}. The first driver goes on."
                return ActionOutcome(ActionEvent.NOT_WARM, sentence, "NOT_SUBMITTED")
    token, submission_id = second
    watch = _WarmWatch(task, drivers, token, submission_id, parallelism)
    outcome = task.follow(watch.look, START_LOOK_SECONDS)
    if outcome.event is ActionEvent.WARM:
        return outcome
    if not end_driver(task, drivers, watch.submission_id):
        log.warning("job %s: %s cannot be ended; it ends by itself", task.spec.job_id, watch.submission_id)
    return outcome


class _WarmWatch:
    """Looks at the second driver until it is ready or has failed."""

    def __init__(self, task: Task, drivers: JobDrivers, token: Token, submission_id: str, parallelism: int) -> None:
        self._task = task
        self._drivers = drivers
        self._token = token
        self.submission_id = submission_id
        """The driver: of two that were submitted as one run, the first that has arrived, because the other one ends."""
        self._parallelism = parallelism
        self._check = DriverCheck(drivers, task.clock)
        self._started = task.clock.monotonic()
        self._deadline = StartDeadline(
            task.spec.application.start_deadline_seconds, None, now=self._started, elapsed=0.0
        )

    def look(self) -> ActionOutcome | None:
        """Return how the warm-up has ended, or None if it is still under way."""
        facts = self._drivers.facts(self._token)
        self.submission_id = str(facts.get("submission_id", self.submission_id))
        ready = self._drivers.control.ready(self._token)
        if ready is not None and ready.get("submission_id") == self.submission_id:
            return self._ready(ready)
        progress = StartProgress.of(facts, self._drivers.control.progress(self._token))
        ended = self._check.failure(self.submission_id, arrived=bool(facts))
        if ended is not None:
            return self._failure("ended before it was ready")
        now, most = self._task.clock.monotonic(), self._deadline.most_seconds
        if now - self._started > most:
            return self._failure(f"was not ready within {most:g} s, although it made progress: {progress.text}")
        if self._deadline.see(progress, now) is not None:
            return self._failure(
                f"made no progress for {self._task.spec.application.start_deadline_seconds:g} s: {progress.text}."
                " If it needs longer, raise application.start_deadline_seconds"
            )
        return None

    def _failure(self, what: str) -> ActionOutcome:
        """Return that the second driver did not get ready."""
        reason = self._drivers.reason(self._token, self.submission_id)
        sentence = f"The second driver {what}. The first one goes on."
        sentence += f" The reason: {reason}" if reason else ""
        return ActionOutcome(ActionEvent.NOT_WARM, sentence, "NOT_WARM")

    def _ready(self, ready: dict[str, Any]) -> ActionOutcome:
        took = round(self._task.clock.monotonic() - self._started, 3)
        slots = int(ready.get("slots", 0))
        if slots < self._parallelism:
            sentence = f"The cluster has room for {slots} of {self._parallelism} slots next to the running driver."
            if Way.RESTART in self._task.spec.application.ways:
                return ActionOutcome(ActionEvent.FALLS_BACK, f"{sentence} The job is restarted instead.", "NO_ROOM")
            sentence += " Allow a restart in application.rescale, or add slots."
            return ActionOutcome(ActionEvent.CANNOT_GO_ON, sentence, "NO_ROOM")
        cold = f", but not warm ({ready['error']})" if "error" in ready else ""
        return ActionOutcome(
            ActionEvent.WARM,
            f"The second driver, {self.submission_id}, is ready after {took:.0f} s{cold}.",
            details={
                "warm_seconds": took,
                "rehearsed_batches": int(ready.get("batches", 0)),
                "loaded_state_partitions": int(ready.get("state_partitions", 0)),
            },
            submission_id=self.submission_id,
            run=self._token.run,
        )


def _adopt(task: Task, drivers: JobDrivers) -> tuple[Token, str] | None:
    """Return the run and the id of a second driver that has arrived, or arrives now; None if it will not come."""
    await_arrival(task, drivers, lambda: drivers.newest_run(task.command.epoch))
    token = drivers.newest_run(task.command.epoch)
    return None if token is None else (token, str(drivers.facts(token)["submission_id"]))
