"""RETIRE: end the first driver of a handover, which has paused its queries. The second one runs the job by now.

Its other queries may still work on their first batch. They are given some time for that, because drivers and executors
that end take the processor from those that start.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

from services.actuator.actions.pair import end_driver, others
from services.actuator.actions.waits import LEAVE_SECONDS, LOOK_SECONDS, OTHERS_SECONDS
from services.actuator.drivers import NO_ANSWER, JobDrivers
from services.actuator.machine import ActionEvent
from services.actuator.task import ActionOutcome, Task
from tidegate.events.result import ActionResult
from tidegate.launcher.control.files import Token


def retire(task: Task, drivers: JobDrivers, *, running: ActionResult, verified: ActionResult) -> ActionOutcome:
    """End every driver but the one of `running`; report what the result `verified` has measured."""
    if running.run is None or running.submission_id is None:
        raise RuntimeError(f"command {task.command.command_id}: the result of the switch names no run")
    token, keep = Token(task.command.epoch, running.run), running.submission_id

    def all_at_work() -> bool:
        facts, progress = drivers.facts(token), drivers.control.progress(token) or {}
        queries = {query["id"] for query in facts.get("queries", ())}
        return "idle_at" in facts or queries <= progress.get("committed", {}).keys()

    task.until(all_at_work, OTHERS_SECONDS, LOOK_SECONDS)
    drivers.request_stop(token, task.command.command_id)

    def alone() -> bool:
        return all(driver.submission_id == keep for driver in drivers.live())

    left: list[str] = []
    with contextlib.suppress(*NO_ANSWER):
        task.until(alone, LEAVE_SECONDS, LOOK_SECONDS, retry_on=NO_ANSWER)
    with contextlib.suppress(*NO_ANSWER):  # a cluster that was silent at the end of that time is asked on
        left = [driver.submission_id for driver in others(task, drivers, keep)]
    stuck = [submission_id for submission_id in left if not end_driver(task, drivers, submission_id)]
    outcome = ActionOutcome(
        ActionEvent.GONE,
        verified.sentence,
        verified.code,
        details=verified.details,
        submission_id=keep,
        incarnation=verified.incarnation,
        downtime_seconds=verified.downtime_seconds,
        outage_seconds=verified.outage_seconds,
        delay_seconds=verified.delay_seconds,
        application=verified.application,
        run=running.run,
    )
    if not stuck:
        return outcome
    sentence = (
        f"{verified.sentence} The first driver, {', '.join(stuck)}, could not be ended. It writes nothing any more, but"
        " holds its slots: end it by hand."
    )
    return replace(outcome, event=ActionEvent.WOULD_NOT_STOP, sentence=sentence, code="STOP_FAILED")
