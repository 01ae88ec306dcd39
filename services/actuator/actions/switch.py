"""SWITCH: have the first driver pause its queries, then let the second one start them from the same checkpoint.

The fence is taken before anything else. The second driver is let go only when the first one has said that its queries
have ended, or is certainly gone. If the first one reaches no batch boundary in time, its queries go on, no batch is
broken, and the second driver is given up. A job that can only be handed over is given more time, but not if it has
several queries: those that end a batch early are paused until the last one does.

A successor repeats all of it with a newer token: a driver that has paused says so again, and one that was let go takes
the newer token.
"""

from __future__ import annotations

from typing import Any

from services.actuator.actions.pair import ASK_SECONDS, has_ended, others
from services.actuator.checkpoint import read_mark
from services.actuator.drivers import NO_ANSWER, JobDrivers, LiveDriver
from services.actuator.machine import ActionEvent
from services.actuator.task import ActionOutcome, Task
from tidegate.events.result import ActionResult
from tidegate.events.way import boundary_seconds
from tidegate.launcher.control import HandoverOrder, Token

LOOK_SECONDS = 0.02
"""Between two looks at the answer of the first driver: they add to the time without commits."""
GRACE_SECONDS = 8.0
"""From the deadline of the first driver until it counts as one that does not answer."""


def switch(task: Task, drivers: JobDrivers, second: ActionResult) -> ActionOutcome:
    """Let the driver of the result `second` take over."""
    token = task.fence.take()
    if second.submission_id is None:
        raise RuntimeError(f"command {task.command.command_id}: the result of the warm-up names no driver")
    try:
        if has_ended(task, drivers, second.submission_id):
            return ActionOutcome(ActionEvent.NOT_SWITCHED, "The second driver has ended.", "NOT_SWITCHED")
        first = others(task, drivers, second.submission_id)
    except NO_ANSWER as error:
        return ActionOutcome(ActionEvent.NOT_SWITCHED, f"Cannot tell what runs: {error}.", "NOT_SWITCHED")
    if len(first) > 1:
        ids = ", ".join(driver.submission_id for driver in first)
        return ActionOutcome(ActionEvent.NOT_SWITCHED, f"More than one driver runs: {ids}.", "NOT_SWITCHED")
    started = task.clock.monotonic()
    how = "had ended"
    if first:
        refused = _pause(task, drivers, token, first[0])
        if refused is not None:
            return refused
        how = "paused"
    mark, clean = read_mark(task.spec.application.checkpoint_location, task.files)
    task.check()
    drivers.control.let_go(HandoverOrder(token, second.submission_id))
    took = round(task.clock.monotonic() - started, 3)
    return ActionOutcome(
        ActionEvent.SWITCHED,
        f"The first driver {how} after {took} s, and {second.submission_id} takes over.",
        details={"stop_seconds": took, "clean": clean},
        submission_id=second.submission_id,
        checkpoint=mark,
        run=token.run,
    )


def _pause(task: Task, drivers: JobDrivers, token: Token, first: LiveDriver) -> ActionOutcome | None:
    """Have a driver pause its queries; return None if it has, or is gone."""
    application, submission_id = task.spec.application, first.submission_id
    has_one_query = len(first.facts.get("queries", ())) == 1
    seconds = application.stop_deadline_seconds
    if has_one_query:
        seconds = boundary_seconds(application.ways, seconds)
    drivers.control.request_hold(HandoverOrder(token, submission_id, seconds))
    watch = _PauseWatch(task, drivers, token, submission_id)
    answer = task.until(watch.look, seconds + GRACE_SECONDS, LOOK_SECONDS)
    if answer is None:
        sentence = f"The first driver did not answer within {seconds + GRACE_SECONDS:g} s."
        return ActionOutcome(ActionEvent.NOT_SWITCHED, sentence, "NOT_SWITCHED")
    if not answer["paused"]:
        sentence = (
            f"No batch of the first driver ended within {seconds:g} s. If its batches take longer, raise"
            " application.stop_deadline_seconds."
        )
        return ActionOutcome(ActionEvent.NOT_SWITCHED, sentence, "NOT_SWITCHED")
    return None


class _PauseWatch:
    """Waits for a driver's answer, and asks the cluster now and then whether the driver is still there."""

    def __init__(self, task: Task, drivers: JobDrivers, token: Token, submission_id: str) -> None:
        self._task = task
        self._drivers = drivers
        self._token = token
        self._submission_id = submission_id
        self._ask_at = task.clock.monotonic() + ASK_SECONDS

    def look(self) -> dict[str, Any] | None:
        """Return the driver's answer, or that it has paused if it is certainly gone; None if neither is so."""
        answer = self._drivers.control.paused(self._token)
        if answer is not None or self._task.clock.monotonic() < self._ask_at:
            return answer
        self._ask_at = self._task.clock.monotonic() + ASK_SECONDS
        try:
            alive = any(driver.submission_id == self._submission_id for driver in self._drivers.live())
        except NO_ANSWER:
            alive = True
        return None if alive else {"paused": True}
