"""Which way the size of a running job is changed: the first allowed one that is possible.

The command's own way comes first, because the decision assumed it; then those of the spec, in its order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from services.actuator.actions.elsewhere import first_elsewhere
from services.actuator.actions.pair import handover_obstacle, order_obstacle
from services.actuator.drivers import LiveDriver
from services.actuator.machine import ActionEvent
from services.actuator.task import ActionOutcome, Task
from tidegate.events.result import CHECKPOINT_ELSEWHERE
from tidegate.events.way import Way

EVENTS = {
    Way.IN_PLACE: ActionEvent.RESIZABLE,
    Way.HANDOVER: ActionEvent.REPLACEABLE,
    Way.RESTART: ActionEvent.FOUND,
}


def choose_way(task: Task, live: Sequence[LiveDriver]) -> ActionOutcome:
    """Return the event of the way to go, or Refused with what stands in the way of each."""
    ways = task.spec.application.ways
    first = [way for way in ways if way is task.command.way]
    newest = live[-1].submission_id
    obstacles: list[str] = []
    for way in dict.fromkeys([*first, *ways]):
        obstacle = _OBSTACLES[way](task, live)
        if obstacle is None:
            sentence = f"The job runs as {newest}." + "".join(f" Not {text}." for text in obstacles)
            cluster = task.spec.application.cluster
            return ActionOutcome(EVENTS[way], sentence, details=cluster, submission_id=newest)
        obstacles.append(f"{way}: {obstacle}")
    astray = first_elsewhere(task.spec, live)
    if astray is not None:
        return ActionOutcome(ActionEvent.REFUSED, astray, CHECKPOINT_ELSEWHERE, submission_id=newest)
    sentence = (
        f"The size of the running job cannot be changed: {'; '.join(obstacles)}."
        " Allow a restart in application.rescale, or stop the job and start it again."
    )
    return ActionOutcome(ActionEvent.REFUSED, sentence, "NO_WAY", submission_id=newest)


def _in_place(task: Task, live: Sequence[LiveDriver]) -> str | None:
    """Return what stands in the way of changing the executors of the running driver."""
    if (obstacle := order_obstacle(live)) is not None:
        return obstacle
    facts = live[0].facts
    if "max_parallelism" not in facts:
        return "its application was not started so that its executors can be changed"
    limit, cores, target = facts["max_parallelism"], facts["executor_cores"], task.command.to_parallelism
    if cores != task.spec.application.executor_cores:
        return f"its executors have {cores} cores, and the spec says {task.spec.application.executor_cores}"
    digest = task.spec.application.digest
    if facts.get("application", digest) not in (None, digest):
        return "the spec names another application than the one that runs"
    if target > limit:
        return f"its application can have at most {limit} slots, and {target} are ordered"
    return None


def _handover(task: Task, live: Sequence[LiveDriver]) -> str | None:
    """Return what stands in the way of a second driver that goes on from the checkpoint."""
    return _restart(task, live) or handover_obstacle(live)


def _restart(task: Task, live: Sequence[LiveDriver]) -> str | None:
    """Return what stands in the way of a start from the checkpoint."""
    return "a query keeps its checkpoint elsewhere" if first_elsewhere(task.spec, live) else None


_OBSTACLES: dict[Way, Callable[[Task, Sequence[LiveDriver]], str | None]] = {
    Way.IN_PLACE: _in_place,
    Way.HANDOVER: _handover,
    Way.RESTART: _restart,
}
