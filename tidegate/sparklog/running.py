"""What the finished tasks of one running micro-batch say.

Spark may try a task again, start a second copy of a slow one, and run a whole stage again. So a task is known by its
stage and its partition, and only its first success counts. A batch may also read its source more than once, for example
when `foreachBatch` runs two actions. Only one stage that reads a source counts as reading: the first one of those with
the most records, as `isEmpty()` looks at one record of a partition. What the others do is work on the same records.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from tidegate.events.snapshot import RunningBatch
from tidegate.sparklog import events


@dataclass(slots=True)
class _Stage:
    tasks: int
    scans: frozenset[int]
    finished: set[int] = field(default_factory=set)
    """Partitions."""
    busy_seconds: float = 0.0
    slowest_seconds: float = 0.0
    records_read: int = 0


@dataclass(slots=True)
class BatchInProgress:
    """A micro-batch that runs."""

    batch_id: int
    started_at: datetime
    _stages: dict[int, _Stage] = field(default_factory=dict)

    def stage_started(self, event: events.StageStarted) -> None:
        """Add a stage; another attempt of one changes nothing."""
        stage_id = event.stage[0]
        if stage_id not in self._stages:
            self._stages[stage_id] = _Stage(event.tasks, event.scans)

    def task_ended(self, event: events.TaskEnded) -> None:
        """Count a task if it is one of this batch."""
        stage = self._stages.get(event.stage[0])
        if stage is not None and event.partition not in stage.finished:
            stage.finished.add(event.partition)
            stage.busy_seconds += event.run_seconds
            stage.slowest_seconds = max(stage.slowest_seconds, event.run_seconds)
            stage.records_read += event.records_read

    @property
    def tasks_finished(self) -> int:
        """How many of its tasks have finished."""
        return sum(len(stage.finished) for stage in self._stages.values())

    def figures(self) -> RunningBatch:
        """Return the figures so far."""
        stages = self._stages.values()
        reading: list[_Stage] = []
        for stage in sorted(stages, key=lambda stage: -stage.records_read):
            if stage.scans and not any(stage.scans & other.scans for other in reading):
                reading.append(stage)
        return RunningBatch(
            batch_id=self.batch_id,
            started_at=self.started_at,
            tasks=sum(stage.tasks for stage in stages),
            tasks_finished=self.tasks_finished,
            busy_seconds=sum(stage.busy_seconds for stage in stages),
            read_tasks=sum(stage.tasks for stage in reading),
            read_tasks_finished=sum(len(stage.finished) for stage in reading),
            records_read=sum(stage.records_read for stage in reading),
            read_seconds=sum(stage.busy_seconds for stage in reading),
            slowest_read_seconds=max((stage.slowest_seconds for stage in reading), default=0.0),
        )
