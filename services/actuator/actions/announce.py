"""ANNOUNCE: take the fence for the new run before the cluster hears of it. A `stop` is done at this point.

It takes the fence, too: if nothing ran, an older command may be about to start the job. Another actuator carries that
out if the job's pipeline has changed between the two.

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
    token = task.fence.hold()
    drivers.request_stop(token, task.command.command_id)
    drivers.control.tidy()
    if task.command.kind is CommandKind.STOP:
        return ActionOutcome(ActionEvent.DONE, "The job is stopped.")
    return ActionOutcome(
        ActionEvent.ANNOUNCED, f"Run {token} may start.", details=task.spec.application.cluster, run=token.run
    )
