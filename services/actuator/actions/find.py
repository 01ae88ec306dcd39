"""FIND: which drivers of the job run, and may the command go on? Only what a handover has left waiting is ended.

A command may have expired since it was accepted, because the actuator was down, or since the cluster was asked, because
that did not answer for long: then it ends here.
"""

from __future__ import annotations

from services.actuator.actions.foreign import refuse_foreign, refuse_writer
from services.actuator.actions.moved import refuse_moved
from services.actuator.actions.pair import without_left
from services.actuator.actions.waits import RETRY_SECONDS
from services.actuator.admission import expired
from services.actuator.checkpoint import CheckpointError, read_mark
from services.actuator.drivers import NO_ANSWER, JobDrivers
from services.actuator.machine import ActionEvent
from services.actuator.task import ActionOutcome, Task
from services.actuator.ways import choose_way
from tidegate.events.command import CommandKind
from tidegate.events.result import CheckpointMark
from tidegate.launcher.control.json_files import ControlError

_CANNOT_TELL = (*NO_ANSWER, CheckpointError, ControlError)


def find(task: Task, drivers: JobDrivers) -> ActionOutcome:
    """Find what runs; try for as long as a driver may take to stop."""
    seconds = task.spec.application.stop_deadline_seconds

    def look() -> ActionOutcome:
        return _late(task) or _look(task, drivers)

    try:
        found = task.answer(look, seconds, RETRY_SECONDS, retry_on=_CANNOT_TELL)
    except _CANNOT_TELL as error:
        return ActionOutcome(ActionEvent.UNKNOWN, f"Cannot tell what runs: {error}.", "STOP_FAILED")
    return found if found.event is ActionEvent.REFUSED else _late(task) or found


def _late(task: Task) -> ActionOutcome | None:
    """Return Refused if the command has expired."""
    if (late := expired(task.command, task.clock.now())) is None:
        return None
    code, sentence = late
    return ActionOutcome(ActionEvent.REFUSED, sentence, code)


def _look(task: Task, drivers: JobDrivers) -> ActionOutcome:
    moved = refuse_moved(drivers)
    if moved is not None:
        return moved
    kind, live = task.command.kind, without_left(task, drivers, drivers.live())
    mark, clean = read_mark(task.spec.application.checkpoint_location, task.files)
    newest = live[-1].submission_id if live else None
    if live and kind is CommandKind.START:
        sentence = f"Driver {newest} of the job runs or is not certainly gone; nothing was changed."
        return ActionOutcome(ActionEvent.REFUSED, sentence, "ALREADY_RUNNING", submission_id=newest)
    if not (live and kind is CommandKind.STOP):
        # a driver of ours that has not named its application yet looks foreign
        refused = refuse_foreign(task, drivers, allowed=sum("application_id" not in driver.facts for driver in live))
        if refused is None and not live and kind is not CommandKind.STOP:
            refused = refuse_writer(task, watched=_rested_seconds(task, drivers, mark) if clean else 0.0)
        if refused is not None:
            return refused
    if live and kind is CommandKind.RESCALE:
        return choose_way(task, live)
    if live:
        return ActionOutcome(ActionEvent.FOUND, f"The job runs as {newest}.", submission_id=newest)
    return ActionOutcome(ActionEvent.NOTHING_RUNS, "The job does not run.", details={"clean": clean}, checkpoint=mark)


def _rested_seconds(task: Task, drivers: JobDrivers, mark: CheckpointMark) -> float:
    """Return for how long the checkpoint has stood where it stood when our last driver had ended; 0 if it has moved.

    So a job that was scaled to zero starts at once.
    """
    stopped = drivers.log.job(task.spec.job_id).stopped
    if stopped is None or stopped.checkpoint is None or mark.queries != stopped.checkpoint.queries:
        return 0.0
    return task.seconds_since(stopped.at)
