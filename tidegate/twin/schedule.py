"""Scheduling: how long a stage's tasks take on the available slots, and a job's capacity at a given size.

Spark assigns tasks to free slots in partition order, so a stage lasts as long as its slowest chain: at least as long
as its slowest task, and at least its work divided by the slots. That is why a size curve has steps: 8 even partitions
are as slow on 7 slots as on 4.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from tidegate.twin.model import JobModel


def makespan(costs: Sequence[float], slots: int) -> float:
    """Return the seconds that tasks of `costs` seconds take on `slots` slots when assigned in order."""
    if slots >= len(costs):
        return max(costs, default=0.0)
    if slots == 1:
        return math.fsum(costs)
    ends = list(costs[:slots])
    heapq.heapify(ends)
    for cost in costs[slots:]:
        heapq.heapreplace(ends, ends[0] + cost)
    return max(ends)


@dataclass(frozen=True, slots=True)
class SlotChange:
    """A change of the slots that a running batch may use."""

    at: float
    """Seconds since the batch's first task could start."""
    slots: int
    cold_seconds: float = 0.0
    """How long new slots warm up before they take their first task."""
    at_once: bool = False
    """Whether they warm up in their first task instead, which lasts so much longer."""


class TaskRun(NamedTuple):
    """One task of a running batch."""

    finished: float
    """Seconds since the batch's first task could start."""
    seconds: float
    new: bool
    """Whether a slot of the last change ran it."""


def changing_makespan(
    stages: Sequence[Sequence[float]], changes: Sequence[SlotChange], slowdown: Callable[[int], float]
) -> tuple[float, float]:
    """Return the seconds that stages of tasks take, one stage after another, while the slots change.

    The second figure says when a slot of the last change first finishes a task; infinite: none does.
    """
    tasks = [task for stage in task_runs(stages, changes, slowdown) for task in stage]
    worked = min((task.finished for task in tasks if task.new), default=math.inf)
    return max((task.finished for task in tasks), default=0.0), worked


def task_runs(
    stages: Sequence[Sequence[float]], changes: Sequence[SlotChange], slowdown: Callable[[int], float]
) -> list[list[TaskRun]]:
    """Return the runs of all tasks, by stage, in their order, while the slots change.

    The first change is at 0. Added slots take tasks that wait; a removed slot finishes its task first. Idle slots go
    before busy ones. `slowdown` is the factor on a task's cost when so many slots are busy.
    """
    slots, later = changes[0].slots, deque(changes[1:])
    free = [(0.0, False, 0.0)] * slots  # when each slot is free, whether the last change added it, how cold it is
    start, runs = 0.0, []
    for costs in stages:
        stage = []
        end = start
        for cost in costs:
            while later and later[0].at <= free[0][0]:
                change = later.popleft()
                for _ in range(slots - change.slots):
                    end = max(end, heapq.heappop(free)[0])
                waits, cold = (0.0, change.cold_seconds) if change.at_once else (change.cold_seconds, 0.0)
                for _ in range(change.slots - slots):
                    heapq.heappush(free, (max(start, change.at) + waits, not later, cold))
                slots = change.slots
            at, new, cold = free[0]
            seconds = cost * slowdown(min(slots, len(costs))) + cold
            heapq.heapreplace(free, (at + seconds, new, 0.0))
            stage.append(TaskRun(at + seconds, seconds, new))
            end = max(end, at + seconds)
        runs.append(stage)
        start = end
        free = sorted((max(start, at), new, cold) for at, new, cold in free)
    return runs


def even_makespan(cost: float, tasks: int, slots: int) -> float:
    """Return the seconds that `tasks` tasks of `cost` seconds each take, in as many waves as needed."""
    return math.ceil(tasks / slots) * cost


@lru_cache(maxsize=4096)
def record_seconds(model: JobModel, partitions: tuple[float, ...], slots: int) -> float:
    """Return the seconds of batch time that one more record costs at a size.

    `partitions` are the shares of the records on each source partition, summing to 1.
    """
    if slots < 1:
        return math.inf
    total = 0.0
    for stage in model.stages:
        weights = stage.weights(partitions)
        total += stage.record_cost_seconds * makespan(weights, slots) * model.slowdown(min(slots, len(weights)))
    return total


@lru_cache(maxsize=4096)
def capacity(model: JobModel, partitions: tuple[float, ...], slots: int, batch_seconds: float) -> float:
    """Return the arrival rate, records/s, that a size keeps up with when a micro-batch may last `batch_seconds`.

    A longer batch spreads its overhead over more records, so capacity is defined only for a bounded batch. The lag
    objective sets the bound.
    """
    cost = record_seconds(model, partitions, slots)
    if math.isinf(cost):
        return 0.0
    if cost == 0.0:
        return math.inf
    records = max(0.0, batch_seconds - model.overhead_seconds) / cost
    if model.max_records_per_trigger is not None:
        records = min(records, float(model.max_records_per_trigger))
    duration = max(model.overhead_seconds + records * cost, model.trigger_interval_seconds)
    return records / duration if duration > 0 else 1.0 / cost


def demand(
    model: JobModel, partitions: tuple[float, ...], rate: float, batch_seconds: float, sizes: Sequence[int]
) -> int:
    """Return the smallest of `sizes` (ascending) that keeps up with `rate`, else the one with most capacity."""
    best, most = sizes[0], -1.0
    for size in sizes:
        able = capacity(model, partitions, size, batch_seconds)
        if able >= rate:
            return size
        if able > most * (1 + 1e-12):
            best, most = size, able
    return best
