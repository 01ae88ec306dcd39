"""STOP: end every driver of the job, at a batch boundary if possible, by force if not.

First a marker in the control directory asks the drivers to stop at a batch boundary. Whatever is alive after the stop
deadline and a grace period is killed. If that does not help either, the command fails. A driver whose batch is nearly
done at the deadline says so, and the stop waits for half the deadline longer.

A run that is stopped because it seemed to fail may commit a batch before it ends. Then its size works after all.
"""

from __future__ import annotations

import contextlib
import logging

from services.actuator.actions.elsewhere import first_elsewhere
from services.actuator.actions.waits import GRACE_SECONDS, KILL_SECONDS, LOOK_SECONDS, RETRY_SECONDS, answer
from services.actuator.checkpoint import committed_since, read_mark
from services.actuator.drivers import NO_ANSWER, JobDrivers
from services.actuator.machine import ActionEvent
from services.actuator.task import ActionOutcome, Task
from tidegate.events.command import CommandKind
from tidegate.events.result import CHECKPOINT_ELSEWHERE, CheckpointMark
from tidegate.events.wire import Scalar
from tidegate.launcher.control.files import STOP_EXTENSION

log = logging.getLogger(__name__)


def stop(
    task: Task, drivers: JobDrivers, failed_from: CheckpointMark | None = None, *, may_refuse: bool = False
) -> ActionOutcome:
    """Take the fence for a new run, then end every older one.

    `failed_from` is where the checkpoint stood when the run started that now seems to have failed. `may_refuse` says
    that nothing has been changed yet: a rescale, or a stop of a job that is to start again, then leaves a job alone
    that would not go on where it stopped, or of which nobody could tell that it has ended.
    """
    refused = _refused(task, drivers) if may_refuse and _goes_on(task) else None
    if refused is not None:
        return refused
    started = task.clock.monotonic()
    drivers.request_stop(task.fence.take(), task.command.command_id)
    seconds = task.spec.application.stop_deadline_seconds + GRACE_SECONDS
    extended = 0.0
    with contextlib.suppress(*NO_ANSWER):
        if not task.until(lambda: _none_will_obey(drivers), seconds, LOOK_SECONDS, retry_on=NO_ANSWER):
            extended = _extension(task, drivers)
        if extended:
            log.info("job %s: the running batch is nearly done; the stop waits %g s longer", task.spec.job_id, extended)
            task.until(lambda: _none_will_obey(drivers), extended, LOOK_SECONDS, retry_on=NO_ANSWER)
            seconds += extended

    killed: set[str] = set()
    seconds -= task.clock.monotonic() - started
    trouble = ""
    try:
        ended = task.until(
            lambda: _kill_all(drivers, killed), seconds + KILL_SECONDS, RETRY_SECONDS, retry_on=NO_ANSWER
        )
    except NO_ANSWER as error:
        ended, trouble = False, f" ({error})"
    took = round(task.clock.monotonic() - started, 3)
    if not ended:
        although = ", although it was killed" if killed else ""
        sentence = f"The old driver did not end within {took:.0f} s{although}{trouble}."
        return ActionOutcome(ActionEvent.WOULD_NOT_STOP, sentence, "STOP_FAILED")

    mark, clean = read_mark(task.spec.application.checkpoint_location, task.files)
    how = (
        "was killed"
        if killed
        else "stopped at a batch boundary"
        if clean
        else "stopped inside a batch, which will run again"
    )
    details: dict[str, Scalar] = {"clean": clean, "stop_seconds": took, "killed": bool(killed)}
    if extended:
        details["extended_seconds"] = extended
    event, sentence = ActionEvent.GONE, f"The old driver {how} after {took} s."
    batch_id = None if failed_from is None else committed_since(failed_from, mark)
    if batch_id is not None:
        event = ActionEvent.GONE_AFTER_COMMIT
        sentence += f" It had committed batch {batch_id} after all, so its size works and is started again."
    return ActionOutcome(event, sentence, details=details, checkpoint=mark)


def _goes_on(task: Task) -> bool:
    """Return whether the job is to go on from its checkpoint: it gets another size, or sleeps until records wait."""
    scaled_to_zero = task.spec.running and task.spec.scaling.min_parallelism == 0
    return task.command.kind is CommandKind.RESCALE or (task.command.kind is CommandKind.STOP and scaled_to_zero)


def _refused(task: Task, drivers: JobDrivers) -> ActionOutcome | None:
    """Return that the job is left alone: a live driver keeps a checkpoint elsewhere, or the cluster does not answer."""
    marker = drivers.control.stop_marker()
    if marker is not None and marker[0].epoch >= task.command.epoch:
        return None  # the drivers have been asked to stop
    code = CHECKPOINT_ELSEWHERE
    try:
        why = first_elsewhere(task.spec, answer(task, drivers.live))
    except NO_ANSWER as error:
        why, code = f"Cannot tell what runs: {error}.", "STOP_FAILED"
    sentence = f"{why} The job runs on as it was."
    return None if why is None else ActionOutcome(ActionEvent.WOULD_NOT_STOP, sentence, code)


def _extension(task: Task, drivers: JobDrivers) -> float:
    """Return how many more seconds the live drivers have given their running batches."""
    said = [float(driver.facts.get("stop_extended_seconds", 0.0)) for driver in drivers.live()]
    return min(max(said, default=0.0), task.spec.application.stop_deadline_seconds * STOP_EXTENSION)


def _none_will_obey(drivers: JobDrivers) -> bool:
    """Return whether no live driver can read the marker: one that has not arrived cannot, and has written nothing."""
    return not any(driver.facts for driver in drivers.live())


def _kill_all(drivers: JobDrivers, killed: set[str]) -> bool:
    """Kill every live driver; return whether there was none."""
    live = drivers.live()
    for driver in live:
        drivers.kill(driver.submission_id)
        killed.add(driver.submission_id)
    return not live
