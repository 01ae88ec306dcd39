"""SUBMIT: start a new driver from the checkpoint, unless one that was already submitted shows up.

After a crash nobody knows whether the driver was submitted, and the cluster cannot be asked: its list of drivers has
no arguments. But a driver writes who it is into the control directory as the first thing it does. So the action waits
for it, for as long as the cluster has a live driver that belongs to no known job. If the run does not show up, the
fence is taken for another run, so that the first one ends without a write should it come later.
"""

from __future__ import annotations

from services.actuator.actions.foreign import refuse_foreign, refuse_writer
from services.actuator.actions.waits import answer, await_arrival
from services.actuator.backends import BackendRefused, BackendUnreachable
from services.actuator.checkpoint import committed_since, read_mark
from services.actuator.drivers import NO_ANSWER, JobDrivers
from services.actuator.machine import ActionEvent
from services.actuator.task import ActionOutcome, Task
from tidegate.events.result import CheckpointMark


def submit(
    task: Task, drivers: JobDrivers, parallelism: int, before: CheckpointMark | None, *, maybe_submitted: bool
) -> ActionOutcome:
    """Submit a run of size `parallelism`.

    `before` is where the checkpoint stood when our last driver had ended; if it has moved, somebody else writes.
    `maybe_submitted` says that an earlier try, perhaps of another process, may have submitted it already.
    """
    if maybe_submitted:
        adopted = _adopt(task, drivers)
        if adopted is not None:
            return adopted
    token = task.fence.take() if maybe_submitted else task.fence.hold()
    try:
        refused = answer(task, lambda: refuse_foreign(task, drivers))
    except NO_ANSWER as error:
        return ActionOutcome(ActionEvent.NOT_SUBMITTED, f"Cannot tell what runs: {error}.", "NOT_SUBMITTED")
    if refused is None and before is not None:
        mark, _ = read_mark(task.spec.application.checkpoint_location, task.files)
        refused = refuse_writer(task) if committed_since(before, mark) is not None else None
    if refused is not None:
        return refused
    task.check()
    started = task.clock.monotonic()
    try:
        submission_id = drivers.submit(token, parallelism, task.check)
    except BackendRefused as error:
        sentence = f"The cluster did not accept the new driver: {error}."
        return ActionOutcome(ActionEvent.NOT_SUBMITTED, sentence, "NOT_SUBMITTED")
    except BackendUnreachable as error:
        # the request may have arrived although the answer did not
        sentence = f"The cluster does not answer: {error}."
        return _adopt(task, drivers) or ActionOutcome(ActionEvent.NOT_SUBMITTED, sentence, "NOT_SUBMITTED")
    return ActionOutcome(
        ActionEvent.SUBMITTED,
        f"Submitted as {submission_id}.",
        details={"submit_seconds": round(task.clock.monotonic() - started, 3)},
        submission_id=submission_id,
        run=token.run,
    )


def _adopt(task: Task, drivers: JobDrivers) -> ActionOutcome | None:
    """Return Submitted if the run that holds the fence has arrived or arrives now; None if it will not come."""
    token = task.fence.newest()
    if token is None or token.epoch != task.command.epoch:
        return None
    await_arrival(task, drivers, lambda: drivers.facts(token))
    facts = drivers.facts(token)
    if not facts:
        return None
    return ActionOutcome(
        ActionEvent.SUBMITTED,
        "The driver had been submitted before.",
        details={"adopted": True},
        submission_id=facts.get("submission_id"),
        run=token.run,
    )
