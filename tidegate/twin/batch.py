"""A micro-batch in simulated time: its records, its tasks, and how long they take while the slots change."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tidegate.twin.model import JobModel, StageModel
from tidegate.twin.schedule import SlotChange, changing_makespan


@dataclass(slots=True)
class Batch:
    """One micro-batch, running or finished."""

    batch_id: int
    started_at: float
    ends_at: float
    takes: list[list[int]]
    """Records per source and partition."""
    records: int
    outputs: int
    overhead_seconds: float
    work_seconds: float
    """The part that processes records, at the end of the batch."""
    factor: float
    """The batch's noise."""
    slots: list[SlotChange]
    """The slots of its tasks: those at its start, then each change."""
    left_to_write: int = 0

    @property
    def tasks_start_at(self) -> float:
        """When its first task can start."""
        return self.started_at + self.overhead_seconds

    @property
    def tasks_end_at(self) -> float:
        """When its last task ends; output may be written for longer."""
        return self.tasks_start_at + self.work_seconds

    def replan(self, at: float, change: SlotChange, model: JobModel) -> float:
        """Give its waiting tasks to other slots from second `at` on, while tasks run.

        Return when new slots finish their first task of it; infinite if they get none.
        """
        self.slots.append(replace(change, at=max(0.0, at - self.tasks_start_at)))
        stages = [
            task_costs(stage, self.takes, self.records, stage.record_cost_seconds * self.factor)
            for stage in model.stages
        ]
        self.work_seconds, worked = changing_makespan(stages, self.slots, model.slowdown)
        self.ends_at = max(at, self.tasks_end_at)
        return self.tasks_start_at + worked


@dataclass(slots=True)
class StageSums:
    """Sums over the tasks of one stage since the last snapshot."""

    tasks: int = 0
    runs: int = 0
    busy_seconds: float = 0.0
    median_seconds: float = 0.0
    slowest_seconds: float = 0.0


def task_costs(stage: StageModel, takes: list[list[int]], records: int, record_seconds: float) -> list[float]:
    """Return the seconds of each task of a stage, in the order of the tasks."""
    if stage.tasks is None:
        return [count * record_seconds for counts in takes for count in counts if count]
    return [weight * record_seconds * records for weight in stage.weights(())]
