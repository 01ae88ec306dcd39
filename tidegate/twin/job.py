"""One job in simulated time: triggers, micro-batches, commits, stop at a batch boundary, start, death.

                start                first trigger            stop, at a batch boundary or its deadline
    STOPPED ----------> STARTING ------------------> RUNNING -------------------> LEAVING ------> STOPPED
                                                        | dies                              exit
                                                        v
                                                     FAILED ------> STARTING

The job moves from event to event: `next_at` says when the next one is due, `act` executes it and returns it. Times
are seconds since the world started.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass, field, replace
from enum import Enum

from tidegate.twin.model import JobModel, StageModel
from tidegate.twin.noise import Noise
from tidegate.twin.pool import SlotPool
from tidegate.twin.schedule import SlotChange, TaskRun, changing_makespan, even_makespan, makespan, task_runs
from tidegate.twin.topic import TwinTopic

IDLE_SECONDS = 1.0
"""How often an idle query, or one whose sink is full, polls. Spark polls every 10 ms; a whole second changes no
decision and makes idle hours cheap to simulate."""

KEPT_BATCHES = 4_000


class Life(Enum):
    """The job's state in its life cycle."""

    STOPPED = "stopped"
    STARTING = "starting"
    RUNNING = "running"
    LEAVING = "leaving"
    FAILED = "failed"


class JobEvent(Enum):
    """What happened to the job."""

    RUNNING = "running"
    COMMITTED = "committed"
    STOPPED = "stopped"
    DIED = "died"


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


@dataclass(slots=True)
class StageSums:
    """Sums over the tasks of one stage since the last snapshot."""

    tasks: int = 0
    runs: int = 0
    busy_seconds: float = 0.0
    median_seconds: float = 0.0
    slowest_seconds: float = 0.0
    slowest_place: int = 0
    """How many tasks began before the slowest one, in the newest run."""


@dataclass(slots=True)
class Incarnation:
    """One run between two restarts."""

    ordinal: int
    started_at: float
    commits: int = 0
    stop_by: float | None = None
    """Deadline of a requested stop."""


@dataclass(slots=True)
class Job:
    """One job of the world; `world.World` creates and advances it."""

    model: JobModel
    sources: list[TwinTopic]
    sink: TwinTopic | None
    pool: SlotPool
    noise: Noise
    epoch: float = 0.0
    """Epoch second at which the world starts."""
    life: Life = Life.STOPPED
    next_at: float = math.inf
    run: Incarnation = field(default_factory=lambda: Incarnation(0, 0.0))
    batch: Batch | None = None
    batches: int = 0
    committed: list[list[int]] = field(default_factory=list)
    finished: deque[Batch] = field(default_factory=lambda: deque(maxlen=KEPT_BATCHES))
    stage_sums: dict[str, StageSums] = field(default_factory=dict)
    last_commit_at: float | None = None
    state_bytes: float = 0.0
    usable_slots: int | None = None
    """Below the size while executors of a change in place come or go; None: all of it."""
    spare_slots: int = 0
    """Held during a handover by the driver that processes nothing."""
    runs: int = 0
    """Drivers that have started the job."""
    resizes: int = 0
    """Growths in place so far."""
    cold_seconds: float = 0.0
    """Extra time of the next batch."""
    cold_slots: int = 0
    """So many of the slots are cold when the next batch begins, and take tasks nevertheless."""
    commits: list[tuple[float, float]] = field(default_factory=list)
    """(second of a commit, when the oldest record arrived that was not committed until then)."""
    waits: deque[float] = field(default_factory=lambda: deque(maxlen=9))
    """From a commit to the start of the next batch, in one run."""
    _reader: list[int] = field(default_factory=list)
    _deaths: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Start reading every source at offset 0."""
        self.committed = [[0] * len(topic.shares) for topic in self.sources]
        self.state_bytes = self.model.state.initial_bytes if self.model.state else 0.0
        self._deaths = sorted(self.model.faults.deaths)
        for topic in self.sources:
            self._reader.append(len(topic.readers))
            topic.readers.append(0)

    # ---- what the world may ask

    @property
    def size(self) -> int:
        """Slots of the driver that processes records."""
        return max(0, self.pool.granted(self.model.job_id) - self.spare_slots)

    @property
    def slots(self) -> int:
        """Slots that take tasks now."""
        return self.size if self.usable_slots is None else min(self.size, self.usable_slots)

    @property
    def usual_wait_seconds(self) -> float:
        """The job's usual time from a commit to the start of the next batch."""
        return statistics.median(self.waits) if self.waits else 0.0

    @property
    def load_seconds(self) -> float:
        """How long a new run takes to read its state back."""
        return self.state_bytes / self.model.restart.load_bytes_per_second if self.state_bytes else 0.0

    @property
    def due_at(self) -> float:
        """When the next event, including a death, is due."""
        return min(self.next_at, self._deaths[0]) if self._deaths else self.next_at

    def lag(self, at: float) -> int:
        """Return how many records have arrived but are not committed."""
        return sum(
            sum(topic.end_offsets(at)) - sum(offsets)
            for topic, offsets in zip(self.sources, self.committed, strict=True)
        )

    def age_seconds(self, at: float) -> float:
        """Return the age of the oldest record that has arrived but is not committed; 0 if there is none."""
        return max(0.0, at - self.oldest_at())

    def oldest_at(self) -> float:
        """Return when the oldest record arrived, or will, that is not committed; infinite if that is not known."""
        return min(topic.oldest_at(offsets) for topic, offsets in zip(self.sources, self.committed, strict=True))

    def start(self, at: float, slots: int, *, warm: bool = False) -> None:
        """Submit the job with a size. A `warm` job has already been running for a long time when the world starts."""
        self.pool.ask(self.model.job_id, slots, at)
        self.usable_slots, self.spare_slots, self.batch, self.cold_seconds, self.cold_slots = None, 0, None, 0.0, 0
        self.runs += 1
        self.run = Incarnation(self.runs, at, commits=1 if warm else 0)
        if warm:
            self.life, self.next_at = Life.RUNNING, at
            return
        restart = self.model.restart
        jitter = restart.start_jitter_seconds * self.noise.uniform(1, self.runs)
        started = restart.start_seconds + restart.start_slot_seconds * slots + jitter + self.load_seconds
        self.cold_seconds = restart.first_batch_seconds + restart.first_batch_slot_seconds * slots
        self.life, self.next_at = Life.STARTING, at + started

    def stop(self, at: float, deadline: float) -> None:
        """Request a stop at the next batch boundary, at `deadline` at the latest."""
        if self.life is Life.RUNNING and self.batch is not None:
            self.run.stop_by = deadline
            self.next_at = min(self.next_at, deadline)
        else:
            self._leave(at)

    # ---- a change in place

    def resize(self, at: float, slots: int, usable: int | None = None) -> float:
        """Change the size under the running query.

        Return when new slots finish their first task in the running batch; infinite if they get none of it. Only
        `usable` slots take tasks for now; None: all of them. New slots are cold.
        """
        before = self.slots
        self.pool.ask(self.model.job_id, slots, at)
        self.usable_slots = usable
        if self.slots == before:
            return math.inf
        costs = self.model.in_place
        cold = costs.first_batch_seconds if self.slots > before else 0.0
        worked_at = self._replan(at, SlotChange(0.0, self.slots, cold, costs.cold_takes_tasks))
        if not math.isinf(worked_at):
            return worked_at
        if costs.cold_takes_tasks:
            self.cold_slots = max(0, self.cold_slots + self.slots - before)
        else:
            self.cold_seconds += cold
        return worked_at

    def _replan(self, at: float, change: SlotChange) -> float:
        """Give the waiting tasks of the running batch to the changed slots; return when a new one finishes a task."""
        batch = self.batch
        work_ends_at = batch.started_at + batch.overhead_seconds + batch.work_seconds if batch is not None else at
        if batch is None or at >= work_ends_at:
            return math.inf
        since = max(0.0, at - batch.started_at - batch.overhead_seconds)
        batch.slots.append(replace(change, at=since))
        batch.work_seconds, worked = changing_makespan(self._stage_costs(batch), batch.slots, self.model.slowdown)
        batch.ends_at = max(at, batch.started_at + batch.overhead_seconds + batch.work_seconds)
        self.next_at = min(batch.ends_at, self.run.stop_by or math.inf)
        return batch.started_at + batch.overhead_seconds + worked

    def task_runs(self, batch: Batch) -> list[list[TaskRun]]:
        """Return the runs of all tasks of the running batch, by stage."""
        return task_runs(self._stage_costs(batch), batch.slots, self.model.slowdown)

    def _stage_costs(self, batch: Batch) -> list[list[float]]:
        return [
            _costs(stage, batch.takes, batch.records, stage.record_cost_seconds * batch.factor)
            for stage in self.model.stages
        ]

    # ---- a handover

    def warm_up(self, at: float, slots: int) -> Incarnation:
        """Start a second driver of `slots` slots while the first goes on; return its run."""
        self.pool.ask(self.model.job_id, self.size + slots, at)
        self.spare_slots = slots
        self.runs += 1
        return Incarnation(self.runs, at)

    def pause(self) -> None:
        """Keep the query from starting its next batch."""
        self.next_at = math.inf

    def switch(self, at: float, run: Incarnation) -> None:
        """Let the other driver of the handover, whose run is given, process from now on."""
        self.spare_slots = self.size
        self.run, self.batch = run, None
        if not run.commits:
            self.cold_seconds = self.model.handover.first_batch_seconds
        self.next_at = math.inf if run.ordinal in self.model.faults.failed_starts else at

    def retire(self, at: float) -> None:
        """Give back the slots of the driver that processes nothing."""
        self.pool.ask(self.model.job_id, self.size, at)
        self.spare_slots = 0

    # ---- events

    def act(self, at: float) -> JobEvent | None:
        """Execute the event due at `at`; return it if others need to know."""
        if self._deaths and at >= self._deaths[0]:
            self._deaths.pop(0)
            return self._die(at)
        if self.life is Life.STARTING:
            self.life = Life.RUNNING
            # A start that never commits hangs here until it is ended.
            self.next_at = math.inf if self.run.ordinal in self.model.faults.failed_starts else at
            return JobEvent.RUNNING
        if self.life is Life.RUNNING:
            return self._begin(at) if self.batch is None else self._finish(at, self.batch)
        if self.life is Life.LEAVING:
            self.life, self.next_at = Life.STOPPED, math.inf
            self.pool.ask(self.model.job_id, 0, at)
            return JobEvent.STOPPED
        self.next_at = math.inf
        return None

    def _die(self, at: float) -> JobEvent | None:
        if self.life not in (Life.RUNNING, Life.STARTING):
            return None
        self.life, self.next_at, self.batch, self.spare_slots = Life.FAILED, math.inf, None, 0
        self.pool.ask(self.model.job_id, 0, at)
        return JobEvent.DIED

    def _leave(self, at: float) -> None:
        self.batch = None
        self.life, self.next_at = Life.LEAVING, at + self.model.restart.exit_seconds

    def _begin(self, at: float) -> JobEvent | None:
        slots = self.slots
        takes, records = self._take(at)
        if slots == 0 or records == 0:
            self.next_at = self._trigger_after(at) if self.model.trigger_interval_seconds else at + IDLE_SECONDS
            if slots and not self.run.commits:
                self.run.commits = 1  # an idle query shows that it is running by its idle event
                self.cold_seconds = 0.0
                return JobEvent.COMMITTED
            return None
        wobble = self.model.noise_share
        factor = math.exp(wobble * self.noise.normal(2, self.batches) - wobble * wobble / 2) if wobble else 1.0
        work = self._work(takes, records, slots) * factor
        overhead = self.model.overhead_seconds * factor + self.cold_seconds
        self.cold_seconds = 0.0
        if self.run.commits and self.last_commit_at is not None:
            self.waits.append(at - self.last_commit_at)
        self.batch = Batch(
            batch_id=self.batches,
            started_at=at,
            ends_at=at + overhead + work,
            takes=takes,
            records=records,
            outputs=int(records * self.model.output_ratio),
            overhead_seconds=overhead,
            work_seconds=work,
            factor=factor,
            slots=[SlotChange(0.0, slots)],
        )
        if self.cold_slots:
            self._warm_up_slots(self.batch)
        self.batch.left_to_write = self.batch.outputs if self.sink is not None else 0
        self.next_at = self.batch.ends_at
        return None

    def _warm_up_slots(self, batch: Batch) -> None:
        """Let the cold slots warm up in their first tasks of the batch."""
        slots, cold = batch.slots[0].slots, self.model.in_place.first_batch_seconds
        warm = max(1, slots - self.cold_slots)
        batch.slots = [SlotChange(0.0, warm), SlotChange(0.0, slots, cold, at_once=True)]
        batch.work_seconds, _ = changing_makespan(self._stage_costs(batch), batch.slots, self.model.slowdown)
        batch.ends_at = batch.started_at + batch.overhead_seconds + batch.work_seconds
        self.cold_slots = 0

    def _take(self, at: float) -> tuple[list[list[int]], int]:
        """Return the next batch's records; a batch limit is split in proportion to each partition's backlog."""
        takes = [
            [end - done for end, done in zip(topic.end_offsets(at), offsets, strict=True)]
            for topic, offsets in zip(self.sources, self.committed, strict=True)
        ]
        stuck_at = self.model.faults.stuck_at
        if stuck_at is not None and at >= stuck_at:
            takes[0][0] = 0
        records = sum(map(sum, takes))
        limit = self.model.max_records_per_trigger
        if limit is not None and records > limit:
            takes = [[max(1, count * limit // records) if count else 0 for count in counts] for counts in takes]
            records = sum(map(sum, takes))
        return takes, records

    def _work(self, takes: list[list[int]], records: int, slots: int) -> float:
        """Return how many seconds the stages take, and add their tasks to the sums."""
        model, total = self.model, 0.0
        for stage in model.stages:
            tasks = stage.tasks or sum(1 for counts in takes for count in counts if count)
            cost = stage.record_cost_seconds * model.slowdown(min(slots, tasks))
            if stage.tasks is not None and stage.skew == 1.0:
                each, place = cost * records / tasks, 0
                seconds, busy, median, slowest = even_makespan(each, tasks, slots), each * tasks, each, each
            else:
                costs = _costs(stage, takes, records, cost)
                ordered = sorted(costs)
                seconds, busy = makespan(costs, slots), math.fsum(costs)
                median, slowest = ordered[len(ordered) // 2], ordered[-1]
                place = costs.index(slowest)
            total += seconds
            sums = self.stage_sums.setdefault(stage.name, StageSums())
            sums.tasks = max(sums.tasks, tasks)
            sums.runs += 1
            sums.busy_seconds += busy
            sums.median_seconds += median
            sums.slowest_seconds += slowest
            sums.slowest_place = place
        return total

    def _finish(self, at: float, batch: Batch) -> JobEvent | None:
        if self.run.stop_by is not None and at >= self.run.stop_by and at < batch.ends_at:
            self._leave(at)  # the deadline has passed: the batch stays uncommitted and runs again after the restart
            return None
        if self.sink is not None and batch.left_to_write:
            written = int(min(batch.left_to_write, max(0.0, self.sink.room(at))))
            self.sink.write(written, at)
            batch.left_to_write -= written
            if batch.left_to_write:  # back pressure: the batch lasts until its output is written
                batch.ends_at = at + IDLE_SECONDS
                self.next_at = min(batch.ends_at, self.run.stop_by or math.inf)
                return None
        self._commit(at, batch)
        if self.run.stop_by is not None:
            self._leave(at)
        else:
            self.next_at = max(at, self._trigger_after(batch.started_at))
        return JobEvent.COMMITTED

    def _commit(self, at: float, batch: Batch) -> None:
        self.commits.append((at, self.oldest_at()))
        for topic, offsets, takes, reader in zip(self.sources, self.committed, batch.takes, self._reader, strict=True):
            for partition, count in enumerate(takes):
                offsets[partition] += count
            topic.readers[reader] = sum(offsets)
        state = self.model.state
        if state is not None:
            kept = math.exp(-(at - (self.last_commit_at or at)) / state.ttl_seconds)
            self.state_bytes = self.state_bytes * kept + batch.records * state.bytes_per_record
        batch.ends_at = at
        self.finished.append(batch)
        self.batch = None
        self.batches += 1
        self.run.commits += 1
        self.last_commit_at = at

    def _trigger_after(self, at: float) -> float:
        """Return the next trigger after `at`, on multiples of the interval of the clock, as in Spark."""
        interval = self.model.trigger_interval_seconds
        phase = self.epoch % interval if interval else 0.0
        return at if interval == 0 else (math.floor((at + phase) / interval + 1e-9) + 1) * interval - phase


def _costs(stage: StageModel, takes: list[list[int]], records: int, record_seconds: float) -> list[float]:
    """Return the seconds of each task of a stage, in the order of the tasks."""
    if stage.tasks is None:
        return [count * record_seconds for counts in takes for count in counts if count]
    return [weight * record_seconds * records for weight in stage.weights(())]
