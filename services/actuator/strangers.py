"""Applications of a job's name that Tidegate did not start: beside one of them nothing may be started.

Whoever puts a job that runs already under Tidegate has a driver on its checkpoint that neither ledger nor control
directory knows of. The cluster does, by name, and by name the collector takes it for the job. What is ours is known by
its id: each run writes its application's into the control directory, and `verified` results carry it.
"""

from __future__ import annotations

from services.actuator.restart import RestartEvent
from services.actuator.task import ActionOutcome, Task
from tidegate.events.command import CommandKind

LINGER_SECONDS = 10.0
"""How long a cluster may go on listing an application whose driver has just ended."""
ASK_SECONDS = 0.5


def refusal(task: Task, unsaid: int = 0) -> ActionOutcome | None:
    """Return Refused if the job runs in an application that is not ours, else None.

    `unsaid` runs of ours live and have not said yet which application is theirs. One that goes away within
    `LINGER_SECONDS` is waited for. Raises `BackendUnreachable` or `BackendRefused` when the cluster does not say.
    """
    deadline = task.clock.monotonic() + LINGER_SECONDS
    while len(found := _strangers(task)) > unsaid:
        if task.clock.monotonic() > deadline:
            return ActionOutcome(RestartEvent.REFUSED, _sentence(task, found), "FOREIGN_DRIVER")
        task.wait(ASK_SECONDS)
    return None


def _strangers(task: Task) -> list[str]:
    said = [(task.control.running(token) or {}).get("application_id") for token in task.control.runs()]
    named = [key for key, name in task.backend.applications(task.spec).items() if name == task.spec.job_id]
    return sorted(set(named) - task.claimed_applications - set(said))


def _sentence(task: Task, found: list[str]) -> str:
    runs = f"The job runs as {', '.join(found)}, found by its name and not started by Tidegate"
    if task.command.kind is CommandKind.STOP:
        return f"{runs}: end it by hand."
    return (
        f"{runs}; two drivers must not write to one checkpoint. End it by hand: then, in mode active, the job is"
        " started from its checkpoint at the next snapshot."
    )
