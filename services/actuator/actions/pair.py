"""The two drivers of a handover: the first one runs the job, the second one is to take over."""

from __future__ import annotations

from collections.abc import Sequence

from services.actuator.actions.waits import KILL_SECONDS, RETRY_SECONDS, answer
from services.actuator.backends import DriverState
from services.actuator.drivers import NO_ANSWER, JobDrivers, LiveDriver
from services.actuator.task import Task


def order_obstacle(live: Sequence[LiveDriver]) -> str | None:
    """Return what stands in the way of an order to the running driver; None if one driver runs and can be given one."""
    if len(live) != 1:
        return f"{len(live)} drivers of the job run"
    if "application_id" not in live[0].facts:
        return "its driver has not started a query yet"
    return None


def handover_obstacle(live: Sequence[LiveDriver]) -> str | None:
    """Return what stands in the way of a handover, given the job's live drivers; None if nothing does."""
    if (obstacle := order_obstacle(live)) is not None:
        return obstacle
    if "hands_over" not in live[0].facts:
        return "its driver cannot hand over: it runs a main class, or an old version of Tidegate started it"
    return None


def others(task: Task, drivers: JobDrivers, submission_id: str | None) -> list[LiveDriver]:
    """Return the live drivers but one, and `without_left`; raise `NO_ANSWER` if the cluster does not say which live."""
    live = [driver for driver in answer(task, drivers.live) if driver.submission_id != submission_id]
    return without_left(task, drivers, live)


def without_left(task: Task, drivers: JobDrivers, live: Sequence[LiveDriver]) -> list[LiveDriver]:
    """Return drivers without those that wait for a handover that is over, after ending these.

    Such a driver came after it was given up, or could not be ended then. It would wait for a quarter of an hour, and
    until then the job could not be handed over, nor changed in place. It was not let go, so it has written nothing.
    """
    go = drivers.control.go()
    let_go = None if go is None else go.submission_id
    waiting = [driver for driver in live if "waits" in driver.facts and driver.facts["epoch"] <= task.command.epoch]
    left = [driver for driver in waiting if driver.submission_id != let_go]
    return [driver for driver in live if driver not in left or not end_driver(task, drivers, driver.submission_id)]


def has_ended(task: Task, drivers: JobDrivers, submission_id: str) -> bool:
    """Return whether a driver has ended, whatever is left of it; raise `NO_ANSWER` if the cluster does not say."""
    return answer(task, lambda: drivers.state(submission_id)) is DriverState.ENDED


def end_driver(task: Task, drivers: JobDrivers, submission_id: str) -> bool:
    """Kill a driver; return whether it is certainly gone."""

    def gone() -> bool:
        drivers.kill(submission_id)
        return all(driver.submission_id != submission_id for driver in drivers.live())

    try:
        return task.until(gone, KILL_SECONDS, RETRY_SECONDS, retry_on=NO_ANSWER)
    except NO_ANSWER:
        return False
