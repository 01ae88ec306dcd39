"""VERIFY: has the new run committed its first batch? `start_watch.py` looks.

What was there before is in the result of the stop: the newest commit of each query, and its id. If it is not, because
what 0.1.0 wrote there cannot be read, the attempt counts as failed, which leads to an orderly stop and a start that can
be verified.

If nothing is tried after a failed attempt, a driver that has not arrived is ended, as it has written nothing: a pod
whose image is not there would make the job look as if it started, and nothing else could be started. One that waits
for room in the cluster stays, because room may come, and so does one that has arrived, because it may only be slow.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

from services.actuator.actions.pair import end_driver
from services.actuator.actions.start_deadline import going_back_could_help
from services.actuator.actions.start_watch import StartWatch
from services.actuator.backends import DriverState
from services.actuator.drivers import NO_ANSWER, JobDrivers
from services.actuator.machine import ActionEvent
from services.actuator.task import ActionOutcome, Task
from tidegate.events.result import ActionResult
from tidegate.events.wire import Scalar
from tidegate.launcher.control.files import Token


def verify(
    task: Task,
    drivers: JobDrivers,
    *,
    accepted: ActionResult,
    stopped: ActionResult,
    running: ActionResult,
    last: bool,
) -> ActionOutcome:
    """Wait for the first commit of the new run; the three results are those of the command's earlier phases.

    `last` says that nothing is tried after this attempt.
    """
    if stopped.checkpoint is None or running.run is None:
        sentence = "The results of the stop and the start do not say what to compare the new run with."
        outcome = ActionOutcome(ActionEvent.SILENT, sentence, "NOT_VERIFIED")
    else:
        token = Token(task.command.epoch, running.run)
        limited = going_back_could_help(task.command, running.attempt)
        outcome = StartWatch(
            task,
            drivers,
            before=stopped.checkpoint,
            token=token,
            submission_id=running.submission_id,
            since=running.at,
            limited=limited,
        ).wait()
    delay = task.seconds_since(accepted.at)
    details: dict[str, Scalar] = {
        **outcome.details,
        "verify_seconds": task.seconds_since(running.at),
        "restart_seconds": delay,
    }
    for result, name in ((stopped, "stop_seconds"), (stopped, "clean"), (running, "submit_seconds")):
        if name in result.details:
            details[name] = result.details[name]
    works = outcome.event is not ActionEvent.SILENT
    if not works and last and running.submission_id is not None and _end_absent(task, drivers, running.submission_id):
        outcome = replace(outcome, sentence=f"{outcome.sentence.rstrip('.')}. The driver was ended.")
    return replace(
        outcome, details=details, submission_id=running.submission_id, delay_seconds=delay if works else None
    )


def _end_absent(task: Task, drivers: JobDrivers, submission_id: str) -> bool:
    """End a driver that has a place and has not arrived; return whether there was one, and it is gone."""
    with contextlib.suppress(*NO_ANSWER):
        if any(driver.submission_id == submission_id and not driver.facts for driver in drivers.live()):
            waits = drivers.state(submission_id) is DriverState.PENDING
            return not waits and end_driver(task, drivers, submission_id)
    return False
