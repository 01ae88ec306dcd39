"""How far a run has come: finished tasks, those of the running batches, and which queries have committed.

A batch may take minutes, and only its end is visible in the checkpoint. But Spark counts tasks as they finish. The
actuator judges a start by that (`progress-<token>.json`), and a stop gives a batch that is nearly done more time.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any

from tidegate.launcher.control.files import Control, Token

_FIRST_SECONDS = 1.0
"""Between two looks until every query has committed a batch."""
_LATER_SECONDS = 5.0
"""Between two looks after that."""
MANY_QUERIES = 100
"""With so many, those that have ended are forgotten: a program may start ever new ones."""
_MAX_JOBS = 100
"""Of a batch with more Spark jobs, only the newest ones count."""
_BATCH = re.compile(r"batch = (\d+)")


@dataclass(frozen=True)
class BatchTasks:
    """The tasks of a running batch. Spark learns of a batch's jobs one after the other, so the total may grow."""

    query_id: str
    batch_id: int
    done: int
    tasks: int
    since: float
    """When its first job was submitted, in seconds since 1970 by the driver's clock."""

    def remaining_seconds(self, now: float) -> float | None:
        """Return the expected time to the end at the pace so far; None before the first task has finished."""
        return (self.tasks - self.done) * max(0.0, now - self.since) / self.done if self.done else None


class RunProgress:
    """Looks at the queries of a run now and then, and writes what has changed into the control directory."""

    def __init__(self, control: Control, token: Token, wall: Callable[[], float] = time.time) -> None:
        self._control = control
        self.token = token
        self._wall = wall
        self._look_at = 0.0
        self._finished = 0
        self._committed: dict[str, int] = {}
        self._written: dict[str, Any] = {}

    @property
    def due(self) -> bool:
        """Whether it is time for another look."""
        return time.monotonic() >= self._look_at

    def look(self, context: Any, queries: Sequence[Any]) -> None:
        """Write what has changed since the last look."""
        for query in queries:
            if query.id not in self._committed and (batch_id := _committed(query)) is not None:
                self._committed[query.id] = batch_id
        if len(self._committed) >= MANY_QUERIES:
            known = {query.id for query in queries}
            self._committed = {id_: batch for id_, batch in self._committed.items() if id_ in known}
        first = len(self._committed) < len(queries)
        self._look_at = time.monotonic() + (_FIRST_SECONDS if first else _LATER_SECONDS)
        # Spark forgets executors that are long gone, with their tasks
        self._finished = max(self._finished, finished_tasks(context))
        facts = {
            "finished_tasks": self._finished,
            "committed": self._committed.copy(),
            "batches": [asdict(batch) for query in queries if (batch := running_batch(context, query)) is not None],
        }
        if facts != self._written:
            at = datetime.fromtimestamp(self._wall(), timezone.utc).isoformat()  # noqa: UP017 - Python 3.10
            self._control.write_progress(self.token, {**facts, "at": at})
            self._written = facts


def last_batch(query: Any) -> int | None:
    """Return the id of the newest batch that a query has ended; None before the first."""
    progress = query.lastProgress
    return None if progress is None else int(progress["batchId"])


def is_idle(query: Any) -> bool:
    """Whether a query waits for data or for its next trigger."""
    return bool(query.status["message"].startswith("Waiting for"))


def finished_tasks(context: Any) -> int:
    """Return how many tasks the application has finished."""
    active_only = False
    executors = context._jsc.sc().statusStore().executorList(active_only)
    return sum(executors.apply(number).completedTasks() for number in range(executors.size()))


def running_batch(context: Any, query: Any) -> BatchTasks | None:
    """Return the tasks of the batch that a query is working on; None if it has not submitted any."""
    if not query.status["isTriggerActive"]:
        return None
    spark = context._jsc.sc()
    # the execution sets its run id as the job group
    numbers = spark.statusTracker().getJobIdsForGroup(query.runId)
    store, found, batch_id = spark.statusStore(), [], None
    for job in (store.job(number) for number in _newest(numbers)):
        of = _BATCH.search(job.description().get()) if job.description().isDefined() else None
        if of is None or batch_id not in (None, int(of[1])):
            break
        batch_id = int(of[1])
        found.append(job)
    if batch_id is None:
        return None
    starts = [job.submissionTime().get().getTime() / 1000 for job in found if job.submissionTime().isDefined()]
    finished = _finished_now(store)
    done = sum(max(job.numCompletedTasks(), _of_stages(job, finished)) for job in found)
    tasks = sum(job.numTasks() - job.numSkippedTasks() for job in found)
    return BatchTasks(query.id, batch_id, done, max(done, tasks), min(starts, default=time.time()))


def _finished_now(store: Any) -> dict[int, int]:
    """Return how many tasks of each running stage have finished.

    Spark may write a task's end to the store of jobs only with the next heartbeat of an executor, up to 10 s later: not
    while the start of the next task was written less than 100 ms ago (`AppStatusListener.maybeUpdate`).
    """
    stages = store.activeStages()
    running = [stages.apply(number) for number in range(stages.size())]
    return {int(stage.stageId()): int(stage.numCompleteTasks()) for stage in running}


def _of_stages(job: Any, finished: dict[int, int]) -> int:
    """Return how many tasks of a job's running stages have finished."""
    stages = job.stageIds()
    return sum(finished.get(int(stages.apply(number)), 0) for number in range(stages.size()))


def _newest(numbers: Any) -> Iterator[int]:
    """Yield the newest jobs of a Java array, newest first; each access asks the JVM, and there may be a thousand."""
    count = len(numbers)
    falls = count > 0 and numbers[0] >= numbers[count - 1]
    for index in range(min(count, _MAX_JOBS)):
        yield numbers[index if falls else count - 1 - index]


def _committed(query: Any) -> int | None:
    """Return the batch that a query has committed last; None before its first one."""
    last = query.lastProgress
    # an event without this was sent while the query was idle
    return int(last["batchId"]) if last is not None and "addBatch" in last["durationMs"] else None
