"""ANNOUNCE: take the fence for the new run before the cluster hears of it. A `stop` is done at this point."""

from __future__ import annotations

from services.actuator.machine import ActionEvent
from services.actuator.task import ActionOutcome, Task
from tidegate.events.command import CommandKind


def announce(task: Task) -> ActionOutcome:
    """Take the fence, unless STOP has taken it already."""
    if task.command.kind is CommandKind.STOP:
        return ActionOutcome(ActionEvent.DONE, "The job is stopped.")
    token = task.fence.hold()
    return ActionOutcome(ActionEvent.ANNOUNCED, f"Run {token} may start.", run=token.run)
