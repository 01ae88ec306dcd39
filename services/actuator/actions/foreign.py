"""Refuses to act while a foreign driver runs the job: two drivers must not write to one checkpoint."""

from __future__ import annotations

from services.actuator.drivers import JobDrivers
from services.actuator.machine import ActionEvent
from services.actuator.task import ActionOutcome, Task
from tidegate.events.command import CommandKind

LINGER_SECONDS = 10.0
"""How long a cluster may go on listing the application of a driver that has just ended."""
ASK_SECONDS = 0.5


def refuse_foreign(task: Task, drivers: JobDrivers, *, allowed: int = 0) -> ActionOutcome | None:
    """Return Refused if more than `allowed` foreign applications have the job's name, else None.

    An application that goes away within `LINGER_SECONDS` does not count. Raises `NO_ANSWER` if the cluster does not
    say which applications run.
    """
    found: list[str] = []

    def only_allowed() -> bool:
        found[:] = drivers.foreign()
        return len(found) <= allowed

    if task.until(only_allowed, LINGER_SECONDS, ASK_SECONDS):
        return None
    sentence = f"The job runs as {', '.join(found)}, which Tidegate did not start"
    if task.command.kind is CommandKind.STOP:
        sentence += ". Stop it by hand."
    else:
        sentence += (
            "; two drivers must not write to one checkpoint. Stop it by hand: a job in mode active is then started"
            " from its checkpoint at the next snapshot."
        )
    return ActionOutcome(ActionEvent.REFUSED, sentence, "FOREIGN_DRIVER")
