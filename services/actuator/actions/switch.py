"""SWITCH: have the first driver pause its queries, then let the second one start them from the same checkpoint.

The fence is taken before anything else. The second driver is let go only when the first one has said that its queries
have ended, or is certainly gone. If the first one reaches no batch boundary in time, its queries go on, no batch is
broken, and the second driver is given up. A job that can only be handed over is given more time, but not if it has
several queries: those that end a batch early are paused until the last one does. If the second driver ends meanwhile,
the first one is told to go on at once.

A successor repeats all of it with a newer token: a driver that has paused says so again, and one that was let go takes
the newer token.
"""

from __future__ import annotations

from enum import Enum

from services.actuator.actions.pair import has_ended, others
from services.actuator.actions.waits import ASK_SECONDS, BOUNDARY_LOOK_SECONDS, GRACE_SECONDS
from services.actuator.backends import DriverState
from services.actuator.checkpoint import read_mark
from services.actuator.drivers import NO_ANSWER, JobDrivers, LiveDriver
from services.actuator.machine import ActionEvent
from services.actuator.task import ActionOutcome, Task
from tidegate.events.result import ActionResult
from tidegate.events.way import boundary_seconds
from tidegate.launcher.control.files import HandoverOrder, Token


def switch(task: Task, drivers: JobDrivers, second: ActionResult) -> ActionOutcome:
    """Let the driver of the result `second` take over."""
    token = task.fence.take()
    if second.submission_id is None:
        raise RuntimeError(f"command {task.command.command_id}: the result of the warm-up names no driver")
    try:
        if has_ended(task, drivers, second.submission_id):
            return _not_switched("The second driver has ended.")
        first = others(task, drivers, second.submission_id)
    except NO_ANSWER as error:  # nor could the second driver be ended, and a restart would stop the first one
        left = "The job is left as it is, and the driver that waits ends by itself."
        return ActionOutcome(ActionEvent.CANNOT_GO_ON, f"Cannot tell what runs: {error}. {left}", "NO_ANSWER")
    if len(first) > 1:
        ids = ", ".join(driver.submission_id for driver in first)
        return _not_switched(f"More than one driver runs: {ids}.")
    started = task.clock.monotonic()
    how = "had ended"
    if first:
        refused = _pause(task, drivers, token, first[0], second.submission_id)
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


def _pause(task: Task, drivers: JobDrivers, token: Token, first: LiveDriver, second_id: str) -> ActionOutcome | None:
    """Have a driver pause its queries; return None if it has, or is gone."""
    application, first_id = task.spec.application, first.submission_id
    has_one_query = len(first.facts.get("queries", ())) == 1
    seconds = application.stop_deadline_seconds
    if has_one_query:
        seconds = boundary_seconds(application.ways, seconds)
    drivers.control.request_hold(HandoverOrder(token, first_id, seconds))
    watch = _PauseWatch(task, drivers, token, first_id, second_id)
    answer = task.until(watch.look, seconds + GRACE_SECONDS, BOUNDARY_LOOK_SECONDS)
    if answer is None:
        return _not_switched(f"The first driver did not answer within {seconds + GRACE_SECONDS:g} s.")
    if answer is _Answer.GOES_ON:
        return _not_switched(
            f"No batch of the first driver ended within {seconds:g} s. If its batches take longer, raise"
            " application.stop_deadline_seconds."
        )
    if answer is _Answer.IS_ALONE:
        return _not_switched("The second driver ended while the first one finished its batch.")
    return None


def _not_switched(sentence: str) -> ActionOutcome:
    return ActionOutcome(ActionEvent.NOT_SWITCHED, sentence, "NOT_SWITCHED")


class _Answer(Enum):
    """What has become of an order to pause."""

    PAUSED = "the first driver has paused, or is certainly gone"
    GOES_ON = "no batch of the first driver ended in time"
    IS_ALONE = "the second driver has ended"


class _PauseWatch:
    """Waits for the first driver's answer, and asks the cluster now and then whether both drivers are still there."""

    def __init__(self, task: Task, drivers: JobDrivers, token: Token, first_id: str, second_id: str) -> None:
        self._task = task
        self._drivers = drivers
        self._token = token
        self._first_id = first_id
        self._second_id = second_id
        self._ask_at = task.clock.monotonic() + ASK_SECONDS

    def look(self) -> _Answer | None:
        """Return what has become of the order; None while that is open."""
        answer = self._drivers.control.paused(self._token)
        if answer is not None:
            return _Answer.PAUSED if answer["paused"] else _Answer.GOES_ON
        if self._task.clock.monotonic() < self._ask_at:
            return None
        self._ask_at = self._task.clock.monotonic() + ASK_SECONDS
        try:
            if all(driver.submission_id != self._first_id for driver in self._drivers.live()):
                return _Answer.PAUSED
            ended = self._drivers.state(self._second_id) is DriverState.ENDED
        except NO_ANSWER:
            return None
        return _Answer.IS_ALONE if ended else None
