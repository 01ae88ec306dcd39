"""The world: all jobs, topics and pools of one simulation. Time moves from event to event, in one global order.

    world = World(models, topics, pools, sizes={"orders": 2})
    results = world.advance(world.epoch + 10)
    snapshot = world.snapshot("orders", world.epoch + 10)
    world.order(command)

Callers use epoch seconds, as on the wire; inside the world, times are seconds since its start.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidegate.events.command import ScalingCommand
from tidegate.events.result import ActionResult
from tidegate.events.snapshot import MetricSnapshot
from tidegate.twin import measure
from tidegate.twin.execution import Execution
from tidegate.twin.job import Job, Life
from tidegate.twin.model import JobModel
from tidegate.twin.noise import Noise
from tidegate.twin.pool import SlotPool
from tidegate.twin.topic import TwinTopic
from tidegate.twin.ways import execute

EPOCH = 1_767_225_600
"""2026-01-01T00:00:00Z: where simulated time starts by default."""


@dataclass(frozen=True, slots=True)
class Truth:
    """The true state of a job at one moment, independent of what was measured; times are seconds since the start."""

    at: float
    arrived: float
    """Records that have arrived in the job's sources so far."""
    lag_records: int
    age_seconds: float
    """Age of the oldest record not committed."""
    slots: int
    """The job's size: slots granted, without those of a handover's other driver."""
    running: bool
    core_seconds: float
    """Slot-seconds held so far, including those during changes of size."""
    state_bytes: float


class World:
    """Simulated jobs. Deterministic: the same arguments and calls give the same bytes."""

    def __init__(
        self,
        models: Sequence[JobModel],
        topics: Sequence[TwinTopic],
        pools: Sequence[SlotPool],
        *,
        sizes: Mapping[str, int],
        seed: int = 0,
        epoch: int = EPOCH,
    ) -> None:
        """Start at `epoch` with each job of `sizes` running. A job that is not listed, or has size 0, does not run.

        Raises `ValueError` if a model names an unknown topic or pool.
        """
        by_topic = {topic.name: topic for topic in topics}
        by_pool = {pool.pool_id: pool for pool in pools}
        self.epoch = epoch
        self.now = 0.0
        self._jobs: dict[str, Job] = {}
        self._executions: dict[str, Execution] = {}
        self._waiting: dict[str, deque[ScalingCommand]] = {}
        self._seen: set[str] = set()
        self._results: list[ActionResult] = []
        for model in models:
            for name in (*model.sources, *([model.sink] if model.sink else [])):
                if name not in by_topic:
                    raise ValueError(f"job {model.job_id}: topic {name!r} is not in the world")
            if model.pool_id not in by_pool:
                raise ValueError(f"job {model.job_id}: pool {model.pool_id!r} is not in the world")
            self._jobs[model.job_id] = Job(
                model,
                [by_topic[name] for name in model.sources],
                by_topic[model.sink] if model.sink else None,
                by_pool[model.pool_id],
                Noise(seed, model.job_id),
                epoch,
            )
        for job_id, size in sizes.items():
            if size:
                self.job(job_id).start(0.0, size, warm=True)

    def job(self, job_id: str) -> Job:
        """Return a job, or raise `ValueError`."""
        if job_id not in self._jobs:
            raise ValueError(f"job {job_id!r} is not in the world, known are {', '.join(self._jobs)}")
        return self._jobs[job_id]

    def order(self, command: ScalingCommand) -> None:
        """Execute a command. The same id given twice is one command; a second command waits for the first."""
        self.job(command.job_id)
        if command.command_id in self._seen:
            return
        self._seen.add(command.command_id)
        self._waiting.setdefault(command.job_id, deque()).append(command)
        self._next_command(command.job_id)

    def advance(self, until: float) -> list[ActionResult]:
        """Advance to epoch second `until`; return the results since the last call, oldest first."""
        end = until - self.epoch
        jobs = list(self._jobs.values())
        while True:
            job = min(jobs, key=_due) if len(jobs) > 1 else jobs[0]
            due, execution = job.due_at, None
            for other in self._executions.values():
                if other.due_at < due:
                    due, execution = other.due_at, other
            if due > end:
                break
            self.now = max(self.now, due)
            if execution is not None:
                execution.act(self.now)
                self._finish_command(execution.command.job_id)
                continue
            event = job.act(self.now)
            mine = self._executions.get(job.model.job_id) if event is not None else None
            if mine is not None and event is not None:
                mine.on(event, self.now)
                self._finish_command(job.model.job_id)
        self.now = max(self.now, end)
        results = list(self._results)
        self._results.clear()  # executions in progress hold a reference to this list
        return results

    def snapshot(self, job_id: str, sequence: int, interval_seconds: int = 10) -> MetricSnapshot | None:
        """Return the snapshot of the interval ending at `sequence`; advance the world to that point first.

        None if that interval's measurement was lost.
        """
        job = self.job(job_id)
        if measure.lost(job, sequence):
            return None
        return measure.measured(job, sequence, interval_seconds, self.epoch)

    def delay_seconds(self, job_id: str, sequence: int) -> float:
        """Return that snapshot's delivery delay."""
        return measure.delay_seconds(self.job(job_id), sequence)

    def changing(self, job_id: str) -> bool:
        """Whether a command for the job is in progress."""
        return job_id in self._executions

    def truth(self, job_id: str) -> Truth:
        """Return a job's true state now."""
        job = self.job(job_id)
        return Truth(
            at=self.now,
            arrived=sum(topic.arrived(self.now) for topic in job.sources),
            lag_records=job.lag(self.now),
            age_seconds=job.age_seconds(self.now),
            slots=job.size,
            running=job.life is Life.RUNNING,
            core_seconds=job.pool.core_seconds(job_id, self.now),
            state_bytes=job.state_bytes,
        )

    def _finish_command(self, job_id: str) -> None:
        """Start the next command once the previous one has ended."""
        if self._executions[job_id].done:
            del self._executions[job_id]
            self._next_command(job_id)

    def _next_command(self, job_id: str) -> None:
        waiting = self._waiting.get(job_id)
        while waiting and job_id not in self._executions:
            execution = execute(waiting.popleft(), self._jobs[job_id], self.epoch, self._results.append, self.now)
            if not execution.done:
                self._executions[job_id] = execution


def _due(job: Job) -> float:
    return job.due_at
