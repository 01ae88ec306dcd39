"""RESUME: end the second driver of a handover that has failed, for certain, and let the first one go on.

If the second driver was not let go, it cannot write, alive or not. Then nobody need know that it has ended: a cluster
that does not answer does not stop the job.
"""

from __future__ import annotations

from dataclasses import replace

from services.actuator.actions.pair import end_driver, others
from services.actuator.actions.start_watch import StartWatch
from services.actuator.checkpoint import read_mark
from services.actuator.drivers import NO_ANSWER, JobDrivers
from services.actuator.machine import ActionEvent
from services.actuator.task import ActionOutcome, Task
from tidegate.events.result import ActionResult
from tidegate.launcher.control.files import HandoverOrder


def resume(task: Task, drivers: JobDrivers, second: ActionResult) -> ActionOutcome:
    """End the driver of the result `second`; wait until the first one has committed a batch, or has nothing to do."""
    second_id = second.submission_id
    if second_id is not None and not end_driver(task, drivers, second_id):
        task.fence.take()  # from now on, whoever was not let go cannot be
        if not _cannot_write(drivers, second_id):
            sentence = f"The second driver, {second_id}, could not be ended."
            return ActionOutcome(ActionEvent.NOT_RESUMED, sentence, "NOT_RESUMED")
    try:
        first = {driver.submission_id for driver in others(task, drivers, second_id)}
    except NO_ANSWER as error:
        first = _known(task, drivers, second_id)
        if len(first) != 1:
            return ActionOutcome(ActionEvent.NOT_RESUMED, f"Cannot tell what runs: {error}.", "NOT_RESUMED")
    if len(first) != 1:
        what = "has ended" if not first else "is not the only one that is left"
        return ActionOutcome(ActionEvent.NOT_RESUMED, f"The first driver {what}.", "NOT_RESUMED")
    mark, _ = read_mark(task.spec.application.checkpoint_location, task.files)
    token = task.fence.take()
    (driver,) = first
    drivers.control.let_go(HandoverOrder(token, driver))
    outcome = StartWatch(
        task, drivers, before=mark, token=token, submission_id=driver, since=task.clock.now(), limited=False
    ).wait()
    if outcome.event is not ActionEvent.COMMITTED:
        sentence = f"The first driver did not go on: {outcome.sentence}"
        return replace(outcome, event=ActionEvent.NOT_RESUMED, sentence=sentence, code="NOT_RESUMED")
    batch = outcome.details.get("first_batch_id")
    does = "has no data to process" if batch is None else f"has committed batch {batch}"
    return replace(
        outcome,
        event=ActionEvent.RESUMED,
        sentence=f"The first driver goes on and {does}.",
        submission_id=driver,
        run=token.run,
    )


def _cannot_write(drivers: JobDrivers, second_id: str) -> bool:
    """Return whether a driver that may be alive was not let go, or had ended when this command let the first one go."""
    go = drivers.control.go()
    return go is None or go.submission_id != second_id


def _known(task: Task, drivers: JobDrivers, second_id: str | None) -> set[str]:
    """Return the first driver, without asking the cluster: the one that was told to pause, or that the log knows."""
    hold = drivers.control.hold()
    if hold is not None and hold.token.epoch == task.command.epoch:
        return {hold.submission_id}
    return {known for known in drivers.log.job(task.spec.job_id).submissions if known != second_id}
