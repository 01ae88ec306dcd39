"""ANNOUNCE: take the fence for the new run before the cluster hears of it. A `stop` is done at this point.

No driver of the job is alive as far as anybody can tell. But the spec may name another cluster than the one on which a
driver runs, or a master may have lost its state. So every older run is asked to stop all the same: a driver looks for
that ten times a second, wherever it runs, and the new one needs seconds to arrive.

The result says on which cluster the run is started (`actions/moved.py`).
"""

from __future__ import annotations

from services.actuator.drivers import JobDrivers
from services.actuator.machine import ActionEvent
from services.actuator.task import ActionOutcome, Task
from tidegate.events.command import CommandKind


def announce(task: Task, drivers: JobDrivers) -> ActionOutcome:
    """Take the fence, unless STOP has taken it already, ask older runs to stop, and forget those of long ago."""
    if task.command.kind is CommandKind.STOP:
        return ActionOutcome(ActionEvent.DONE, "The job is stopped.")
    token = task.fence.hold()
    drivers.request_stop(token, task.command.command_id)
    drivers.control.tidy()
    return ActionOutcome(
        ActionEvent.ANNOUNCED, f"Run {token} may start.", details=task.spec.application.cluster, run=token.run
    )
