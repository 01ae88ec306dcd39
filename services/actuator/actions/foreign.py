"""Refuses to act while a foreign driver runs the job: two drivers must not write to one checkpoint."""

from __future__ import annotations

from services.actuator.actions.waits import ASK_SECONDS, LINGER_SECONDS
from services.actuator.checkpoint import read_checkpoints
from services.actuator.drivers import JobDrivers
from services.actuator.machine import ActionEvent
from services.actuator.task import ActionOutcome, Task
from tidegate.events.command import CommandKind

SHORTEST_WATCH_SECONDS = 1.0
LONGEST_WATCH_SECONDS = 10.0
"""How long a checkpoint is watched at least and at most; in between, twice as long as its batches have taken."""


def refuse_foreign(task: Task, drivers: JobDrivers, *, allowed: int = 0) -> ActionOutcome | None:
    """Return Refused if more than `allowed` foreign applications run the job, else None.

    An application that goes away within `LINGER_SECONDS` does not count. Raises `NO_ANSWER` if the cluster does not
    say which applications run.
    """
    found: list[str] = []

    def only_allowed() -> bool:
        found[:] = drivers.foreign()
        return len(found) <= allowed

    if task.until(only_allowed, LINGER_SECONDS, ASK_SECONDS):
        return None
    return _refused(task, f"The job runs as {', '.join(found)}, which Tidegate did not start")


def refuse_writer(task: Task, *, watched: float = 0.0) -> ActionOutcome | None:
    """Return Refused if the job's checkpoint changes; no driver of ours may be alive.

    It is known that nothing has changed for the last `watched` seconds.

    A driver of ours that has just been killed may live on for a moment. So a change counts only if there is another one
    `LINGER_SECONDS` later. A foreign driver that is idle, or whose batches are longer than the watch, is not seen.
    """
    if not _changes(task, watched):
        return None
    task.wait(LINGER_SECONDS)
    if not _changes(task):
        return None
    location = task.spec.application.checkpoint_location
    return _refused(task, f"The checkpoint {location} changes, although no driver that Tidegate started is alive")


def _changes(task: Task, watched: float = 0.0) -> bool:
    """Return whether somebody works on the checkpoint, by two looks at its newest batches."""
    location = task.spec.application.checkpoint_location
    before = read_checkpoints(location, task.files)
    if not before:
        return False
    pace = max(checkpoint.pace() for checkpoint in before)
    seconds = min(max(2 * pace, SHORTEST_WATCH_SECONDS), LONGEST_WATCH_SECONDS) - watched
    if seconds <= 0.0:
        return False
    positions = [checkpoint.position for checkpoint in before]
    return task.until(
        lambda: [c.position for c in read_checkpoints(location, task.files)] != positions, seconds, ASK_SECONDS
    )


def _refused(task: Task, sentence: str) -> ActionOutcome:
    if task.command.kind is CommandKind.STOP:
        sentence += ". Stop it by hand."
    else:
        sentence += (
            "; two drivers must not write to one checkpoint. Stop it by hand: a job in mode active is then started"
            " from its checkpoint at the next snapshot."
        )
    return ActionOutcome(ActionEvent.REFUSED, sentence, "FOREIGN_DRIVER")
