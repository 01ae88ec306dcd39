"""How the actions wait for the cluster and for drivers: how often they look, and for how long."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TypeVar

from services.actuator.drivers import NO_ANSWER, JobDrivers
from services.actuator.task import Task

T = TypeVar("T")

BOUNDARY_LOOK_SECONDS = 0.02
"""Between two looks at the answer of a driver that is to pause: they add to the time without commits."""
START_LOOK_SECONDS = 0.05
"""Between two looks at what a new driver reports, and at a checkpoint on this machine."""
LOOK_SECONDS = 0.2
"""Between two looks at any other driver. Of one that is stopping, each look adds to the downtime."""
ASK_SECONDS = 0.5
"""Between two questions to the cluster, or looks at a checkpoint that is not on this machine."""
RETRY_SECONDS = 1.0
"""Between two tries to find out what runs, or to kill a driver."""

NO_ANSWER_SECONDS = 60.0
"""How long the cluster may fail to answer before the attempt is given up. A run that has arrived needs no answer."""
UNKNOWN_SECONDS = 30.0
"""How long the cluster may not know a driver that has not arrived before the attempt is given up."""
ARRIVAL_SECONDS = 60.0
"""How long a driver that may be ours has to write who it is."""
OBEY_SECONDS = 60.0
"""How long a driver may take to obey an order for a size."""
GRANT_SECONDS = 15.0
"""How long a grant below the order must last. A cluster grants at once what it has, unless nodes are added for it."""
GRACE_SECONDS = 8.0
"""From a driver's own deadline until it is killed, or counts as one that does not answer: at a deadline to stop, the
launcher ends the driver itself, and its JVM takes a moment."""
KILL_SECONDS = 30.0
"""How long a driver that is killed may live on before the action gives up."""
OTHERS_SECONDS = 20.0
"""How long the first driver of a handover stays for the first commits of the second one's other queries."""
LEAVE_SECONDS = 20.0
"""How long the first driver of a handover may then take to end by itself: it has nothing left to do."""
LINGER_SECONDS = 10.0
"""How long a cluster may go on listing the application of a driver that has just ended."""


def answer(task: Task, question: Callable[[], T]) -> T:
    """Return the cluster's answer to a question; raise `NO_ANSWER` if it does not answer for a while."""
    return task.answer(question, NO_ANSWER_SECONDS, ASK_SECONDS, retry_on=NO_ANSWER)


def await_arrival(task: Task, drivers: JobDrivers, arrived: Callable[[], object]) -> None:
    """Wait until a run has arrived, or the cluster has no driver left that belongs to no known job."""
    with contextlib.suppress(*NO_ANSWER):
        task.until(lambda: arrived() or not drivers.unclaimed(), ARRIVAL_SECONDS, ASK_SECONDS, retry_on=NO_ANSWER)
