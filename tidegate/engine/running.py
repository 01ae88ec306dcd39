"""What the running micro-batches say before they end, by their tasks that have finished.

A batch reads its sources in its first stages, so the records per slot-second of those tasks are an upper bound of the
capacity: the work of the stages after them is still to come.

    record seconds  =  Σ run time of the finished tasks that read / Σ records they read          slot-seconds per record
    seconds left    =  Σ tasks left · mean run time of a finished task / slots                   of the stages started

Queries of one application that read the same topic each do their own work on every record, so their record seconds add
up. With several topics it is not known which query reads which. Then they are taken together, which is again a bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tidegate.engine.total import total
from tidegate.events.snapshot import MetricSnapshot, RunningBatch


class RunningWork(NamedTuple):
    """Figures of all running batches together."""

    tasks: int
    tasks_finished: int
    read_seconds: float
    """Slot-seconds per record of the tasks that read."""
    record_seconds: float
    """The same, with those of the later stages once everything is read; the true figure is at least this."""
    records_done: float
    """Records whose reading is done although they are not committed, the mean over queries that read the same topic."""
    records: int
    """Records of the largest batch, with as many in the tasks to come as in those that have finished."""
    reading: int
    """Tasks that read of that batch."""
    slot_seconds_left: float | None
    """Work left in the stages that have started; None if a batch has not finished a task yet."""
    skew: float | None
    """Slowest task that reads over the mean of the others; None before three of a batch have finished."""


def long_work(snapshot: MetricSnapshot, topics: int) -> RunningWork | None:
    """Return the work of the running batches of a job that reads so many topics.

    None while the oldest is shorter than an interval, because finished batches say more, and before a task has read.
    """
    if not snapshot.running:
        return None
    age = (snapshot.observed_at - snapshot.running[0].started_at).total_seconds()
    return running_work(snapshot.running, topics) if age >= snapshot.interval_seconds else None


def running_work(batches: Sequence[RunningBatch], topics: int) -> RunningWork | None:
    """Return the work of some running batches; None before a task has read."""
    told = [b for b in batches if b.records_read and b.read_seconds > 0 and 0 < b.read_tasks_finished <= b.read_tasks]
    if not told:
        return None
    records = [b.records_read for b in told]
    if topics > 1:
        records = [sum(records)] * len(told)
    largest = max(told, key=lambda batch: batch.records_read * batch.read_tasks / batch.read_tasks_finished)
    return RunningWork(
        tasks=sum(batch.tasks for batch in batches),
        tasks_finished=sum(batch.tasks_finished for batch in batches),
        read_seconds=total([batch.read_seconds / read for batch, read in zip(told, records, strict=True)]),
        record_seconds=total([_work(batch) / read for batch, read in zip(told, records, strict=True)]),
        records_done=sum(b.records_read for b in told) / (len(batches) if topics == 1 else 1),
        records=int(largest.records_read * largest.read_tasks / largest.read_tasks_finished),
        reading=largest.read_tasks,
        slot_seconds_left=_left(batches),
        skew=_skew(largest),
    )


def _work(batch: RunningBatch) -> float:
    """Return the slot-seconds that belong to the records read: once all are, those of the later stages too."""
    whole = batch.read_tasks_finished == batch.read_tasks
    return max(batch.busy_seconds, batch.read_seconds) if whole else batch.read_seconds


def _left(batches: Sequence[RunningBatch]) -> float | None:
    left = 0.0
    for batch in batches:
        if not batch.tasks_finished:
            return None
        left += (batch.tasks - batch.tasks_finished) * batch.busy_seconds / batch.tasks_finished
    return left


def _skew(batch: RunningBatch) -> float | None:
    others, slowest = batch.read_tasks_finished - 1, batch.slowest_read_seconds
    rest = batch.read_seconds - slowest
    return slowest * others / rest if others > 1 and rest > 0 else None
