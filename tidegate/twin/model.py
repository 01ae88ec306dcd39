"""The model of a twin job: the figures that decide how long micro-batches and changes of size last.

    batch    = overhead + sum over stages of makespan(tasks, slots) * slowdown(slots), times noise
    slowdown = 1 + contention (n - 1) + coherency n (n - 1)          n: busy slots
    restart  = exit + start + start per slot * slots + state bytes / load rate, all without a commit
    handover = warm-up + warm-up per slot * slots, while the first driver goes on,
               then switch + state bytes / load rate without a commit
    in place = registration + seconds until new executors work, while all others go on

The slowdown is the universal scalability law (Gunther, "Guerrilla Capacity Planning", 2007): contention for shared
resources flattens the curve, the cost of coherency makes it fall. Both are 0 for a job that scales linearly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

from tidegate.events.job import JobSpec
from tidegate.events.way import ALL_WAYS, Way


class BadModel(ValueError):
    """An invalid model; the text names the field and its value."""


@dataclass(frozen=True, slots=True)
class StageModel:
    """One stage of every micro-batch."""

    name: str
    record_cost_seconds: float
    """Slot-seconds per input record of the batch."""
    tasks: int | None = None
    """Fixed number of tasks: state partitions, or 1 for a global aggregation. None: one per source partition."""
    skew: float = 1.0
    """For a stage with fixed tasks: the hottest task's share over the mean share; 1 is even."""

    def weights(self, partitions: tuple[float, ...]) -> tuple[float, ...]:
        """Return each task's share of the records, given the shares of the source partitions."""
        if self.tasks is None:
            return partitions
        if self.tasks == 1:
            return (1.0,)
        hot = min(1.0, self.skew / self.tasks)
        return (hot, *([(1.0 - hot) / (self.tasks - 1)] * (self.tasks - 1)))


@dataclass(frozen=True, slots=True)
class RestartCosts:
    """How long a restart takes."""

    exit_seconds: float = 2.0
    """From the last commit until the driver, its JVM and its application are gone."""
    start_seconds: float = 20.0
    """From submission to the first trigger."""
    start_slot_seconds: float = 0.0
    """Extra start time per slot: all executors start at once and share the machines' cores."""
    start_jitter_seconds: float = 0.0
    """The start takes up to this much longer; the seed decides how much."""
    first_batch_seconds: float = 3.0
    """Extra time of a run's first batch, when everything is cold."""
    first_batch_slot_seconds: float = 0.0
    """The same, per slot: each slot warms up its own interpreter and code."""
    load_bytes_per_second: float = 200e6
    """Rate at which state is read back; more slots help little, so the time is roughly linear in the state's size."""


@dataclass(frozen=True, slots=True)
class InPlaceCosts:
    """How long executors take to come and go under the running query. Measured on Spark 4.2."""

    register_seconds: float = 8.0
    """From the order until new executors have registered; 3 to 14 s were measured."""
    register_jitter_seconds: float = 0.0
    """Registration takes up to this much longer; the seed decides how much."""
    working_seconds: float = 1.0
    """From registration until new executors are offered tasks."""
    first_batch_seconds: float = 4.0
    """Extra time of a new executor's first tasks, when its code and Python workers are cold."""
    cold_takes_tasks: bool = False
    """Whether a cold executor takes a task at once, and its batch waits for that, as on real Spark. Otherwise it takes
    none until it is warm, and if that is after the running batch, the next batch lasts longer."""
    shrink_seconds: float = 1.2
    """How long decommissioned executors take to leave."""
    boundary_seconds: float = 5.0
    """How long a shrink waits for a batch boundary before executors leave in the middle of a batch."""


@dataclass(frozen=True, slots=True)
class HandoverCosts:
    """How long a handover takes, in addition to the exit and the state load of a restart."""

    warm_seconds: float = 30.0
    """From the order until the second driver has started and has exercised its sources, code and Python workers."""
    warm_slot_seconds: float = 0.0
    """The same, per slot."""
    switch_seconds: float = 1.0
    """From the first driver's batch boundary until the second driver's queries have started."""
    first_batch_seconds: float = 0.5
    """Extra time of the second driver's first batch, when most is warm."""


@dataclass(frozen=True, slots=True)
class State:
    """The state of a stateful job, spread over the number of partitions fixed in its checkpoint."""

    partitions: int
    bytes_per_record: float
    ttl_seconds: float = math.inf
    """The watermark drops state older than this; infinite: state only grows."""
    initial_bytes: float = 0.0
    bytes_per_row: float = 100.0


@dataclass(frozen=True, slots=True)
class Faults:
    """Injected faults."""

    deaths: tuple[float, ...] = ()
    """Seconds after the start at which the running job dies."""
    stuck_at: float | None = None
    """From this second on, the first partition of the first source is no longer read; the others are."""
    failed_starts: frozenset[int] = frozenset()
    """Ordinals of the runs, from 1, that never commit a batch."""
    failed_warm_ups: frozenset[int] = frozenset()
    """Ordinals of the runs that end while they warm up for a handover."""
    failed_growths: frozenset[int] = frozenset()
    """Ordinals of the changes in place, from 1, whose new executors die before they work."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """The quality of the job's measurements."""

    lost_share: float = 0.0
    """Share of intervals without any snapshot."""
    missing_share: float = 0.0
    """Share of snapshots that lack one part."""
    delay_seconds: float = 0.0
    """Time from a snapshot's interval end to its arrival at the decider."""
    delay_jitter_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class JobModel:
    """The model of one job."""

    job_id: str
    sources: tuple[str, ...]
    stages: tuple[StageModel, ...]
    pipeline_id: str = ""
    """The job's id if empty."""
    pool_id: str = "default"
    sink: str | None = None
    output_ratio: float = 1.0
    overhead_seconds: float = 0.5
    """Fixed part of every micro-batch: planning, offset log, commit."""
    max_records_per_trigger: int | None = None
    trigger_interval_seconds: float = 0.0
    """0: the next batch starts when the previous one ends."""
    contention: float = 0.0
    coherency: float = 0.0
    noise_share: float = 0.03
    """Relative standard deviation of a batch's duration."""
    state: State | None = None
    memory_bytes_per_slot: float = 1e9
    stop_deadline_seconds: float = 60.0
    start_deadline_seconds: float = 180.0
    ways: tuple[Way, ...] = ALL_WAYS
    """The ways in which the job can change its size, in order of preference."""
    restart: RestartCosts = RestartCosts()
    in_place: InPlaceCosts = InPlaceCosts()
    handover: HandoverCosts = HandoverCosts()
    faults: Faults = Faults()
    measurement: Measurement = Measurement()

    def __post_init__(self) -> None:
        """Raise `BadModel` if a figure is invalid."""
        if not self.sources:
            raise BadModel(f"job {self.job_id}: sources must name at least one topic")
        if not self.stages:
            raise BadModel(f"job {self.job_id}: stages must hold at least one stage")
        if self.max_records_per_trigger is not None and self.max_records_per_trigger < 1:
            raise BadModel(
                f"job {self.job_id}: max_records_per_trigger must be at least 1, found {self.max_records_per_trigger}"
            )
        if not self.ways:
            raise BadModel(f"job {self.job_id}: ways must hold at least one way")
        parts: list[JobModel | RestartCosts | InPlaceCosts | HandoverCosts | Measurement | StageModel | State] = [
            self,
            self.restart,
            self.in_place,
            self.handover,
            self.measurement,
            *self.stages,
        ]
        if self.state is not None:
            parts.append(self.state)
        for part in parts:
            for field in fields(part):
                value = getattr(part, field.name)
                if isinstance(value, int | float) and (math.isnan(value) or value < 0):
                    raise BadModel(f"job {self.job_id}: {field.name} must be at least 0, found {value}")

    @property
    def pipeline(self) -> str:
        """Key of the job's events."""
        return self.pipeline_id or self.job_id

    def as_specified(self, spec: JobSpec) -> JobModel:
        """Return the model with what a spec says: its names, its deadlines, and the ways in which its size changes."""
        application = spec.application
        return replace(
            self,
            job_id=spec.job_id,
            pipeline_id=spec.pipeline_id,
            pool_id=spec.pool_id,
            ways=application.ways,
            stop_deadline_seconds=application.stop_deadline_seconds,
            start_deadline_seconds=application.start_deadline_seconds,
        )

    def without_noise(self) -> JobModel:
        """Return the average job: batches without noise, starts and registrations at the middle of their jitter."""
        start = self.restart.start_seconds + self.restart.start_jitter_seconds / 2
        register = self.in_place.register_seconds + self.in_place.register_jitter_seconds / 2
        return replace(
            self,
            noise_share=0.0,
            restart=replace(self.restart, start_seconds=start, start_jitter_seconds=0.0),
            in_place=replace(self.in_place, register_seconds=register, register_jitter_seconds=0.0),
        )

    def slowdown(self, slots: int) -> float:
        """Return the factor by which each record costs more when `slots` slots are busy."""
        return 1.0 + self.contention * (slots - 1) + self.coherency * slots * (slots - 1)
