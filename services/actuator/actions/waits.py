"""How long the actions wait for the cluster and for drivers that it may have started, and how often they look."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from services.actuator.drivers import NO_ANSWER, JobDrivers
from services.actuator.task import Task

ASK_SECONDS = 0.5
"""Between two questions to the cluster, or looks at a checkpoint that is not on this machine."""
NO_ANSWER_SECONDS = 60.0
"""How long the cluster may fail to answer before the attempt is given up."""
ARRIVAL_SECONDS = 60.0
"""How long a driver that may be ours has to write who it is."""
KILL_SECONDS = 30.0
"""How long a driver that is killed may live on before the action gives up."""
KILL_AGAIN_SECONDS = 1.0


def await_arrival(task: Task, drivers: JobDrivers, arrived: Callable[[], object], every_seconds: float) -> None:
    """Wait until a run has arrived, or the cluster has no driver left that belongs to no known job."""
    with contextlib.suppress(*NO_ANSWER):
        task.until(lambda: arrived() or not drivers.unclaimed(), ARRIVAL_SECONDS, every_seconds, retry_on=NO_ANSWER)
