"""MetricSnapshot: what was measured of one job over one interval, and what could not be measured."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, StringConstraints, model_validator

from tidegate.events.wire import Count, Identifier, Instant, Positive, Seconds, Slots, TopicName, Wire, identity


class ClusterState(StrEnum):
    """What the cluster says of the job. Silence of the metrics alone never means `stopped`."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPED = "stopped"
    FAILED = "failed"
    UNKNOWN = "unknown"


_PLAUSIBLE_SECONDS = (86_400, 2**33)

ALIVE = (ClusterState.RUNNING, ClusterState.STARTING)
DEAD = (ClusterState.STOPPED, ClusterState.FAILED)


class Part(StrEnum):
    """A part of a snapshot that can be missing; a missing part is named, never written as zero."""

    END_OFFSETS = "end_offsets"
    COMMITTED_OFFSETS = "committed_offsets"
    PROGRESS = "progress"
    TASKS = "tasks"
    CAPACITY = "capacity"
    JOB_STATE = "job_state"


class WarningCode(StrEnum):
    """What somebody should look at, although the job can be measured, or to find out why it cannot."""

    TOPIC_UNKNOWN = "topic_unknown"
    """The spec names topics, or the job reads some, that Kafka does not have or does not let the collector describe."""
    TOPIC_NOT_READ = "topic_not_read"
    """The spec names topics that no query of the job reads."""
    TOPIC_NOT_LISTED = "topic_not_listed"
    """The job reads topics that the spec does not name. They are measured, too."""
    QUERY_FAILED = "query_failed"
    """A query of the job has failed, and the driver goes on with others. What it reads waits: of these topics, if it
    has told any."""
    KAFKA_UNKNOWN = "kafka_unknown"
    """The collector's settings do not name the Kafka cluster of the spec, so no offsets are known."""
    REAL_TIME = "real_time"
    """A query has a real-time trigger. Its batches do not show how busy it is, so progress is missing."""
    SOURCE_WAITS = "source_waits"
    """The job takes no batch although records wait: its source holds them back, as with `minOffsetsPerTrigger`."""
    SOURCE_LIMITED = "source_limited"
    """A batch left records of these topics and none of another one: a limit such as `maxOffsetsPerTrigger` binds."""
    CLOCK_APART = "clock_apart"
    """Batches are left out, because the driver's clock is too far from the collector's, or its log is read late."""


class SnapshotWarning(Wire):
    """A warning about how a job is observed."""

    code: Annotated[
        WarningCode | Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]{1,64}$")], Field(union_mode="left_to_right")
    ]
    """A newer collector may give one that the reader does not know: no reason to refuse what was measured."""
    topics: tuple[TopicName, ...] = ()
    seconds: float | None = None
    """How far the driver's clock is ahead of the collector's, negative if it is behind, to about an interval."""


class SourceOffsets(Wire):
    """Offsets of one source topic; the index is the partition. Unknown offsets are null.

    A partition that the job does not read, because its option `assign` names others, has 0 in both rows.
    """

    topic: TopicName
    end_offsets: tuple[Count | None, ...]
    """The broker's log end offsets, read at the interval's end."""
    committed_offsets: tuple[Count | None, ...]
    """The end offsets of the query's newest committed micro-batch."""
    first_offsets: tuple[Count | None, ...] | None = None
    """The lowest offsets that the broker still has. Absent unless one of them is above the committed offset, or above 0
    where nothing is committed: retention or somebody's request has removed records that the job has not read."""

    @property
    def next_offsets(self) -> tuple[int | None, ...]:
        """The offsets at which the job would go on reading: the committed ones, or the lowest that there still are."""
        if self.first_offsets is None:
            return self.committed_offsets
        pairs = zip(self.committed_offsets, self.first_offsets, strict=True)
        return tuple(done if done is None or first is None else max(done, first) for done, first in pairs)

    @model_validator(mode="after")
    def _same_partitions(self) -> Self:
        if len(self.end_offsets) != len(self.committed_offsets):
            raise ValueError(
                f"topic {self.topic}: {len(self.end_offsets)} end offsets, {len(self.committed_offsets)} committed"
            )
        if self.first_offsets is not None and len(self.first_offsets) != len(self.end_offsets):
            raise ValueError(
                f"topic {self.topic}: {len(self.end_offsets)} end offsets, {len(self.first_offsets)} first ones"
            )
        return self


class MicroBatch(Wire):
    """One finished micro-batch, from Spark's QueryProgressEvent.

    Batches of queries that read the same topics are taken together: such a one ends when the job's lowest committed
    offsets rise, its records count once, and so does time in which several queries were in a batch.
    """

    batch_id: Count
    started_at: Instant
    duration_seconds: Seconds
    """`durationMs.triggerExecution`: the whole trigger, planning and commits included."""
    add_batch_seconds: Seconds | None = None
    """`durationMs.addBatch`: the part that processes records."""
    input_records: Count
    output_records: Count | None = None


class RunningBatch(Wire):
    """One micro-batch that has not finished, as its finished tasks tell it.

    Each task counts once, however often it was tried. Nothing of it is committed yet.
    """

    batch_id: Count
    started_at: Instant
    """When Spark began to run its plan."""
    tasks: Count
    """Tasks of the stages that have started; those of later stages are not known yet."""
    tasks_finished: Count
    busy_seconds: Seconds
    """Executor run time of the finished tasks."""
    read_tasks: Count
    """The tasks among them that read the sources."""
    read_tasks_finished: Count
    records_read: Count
    """By the finished tasks."""
    read_seconds: Seconds
    """Executor run time of the finished tasks that read the sources."""
    slowest_read_seconds: Seconds
    """The longest of them."""


class StageTasks(Wire):
    """Finished tasks of one stage over the interval, from SparkListenerTaskEnd."""

    name: str
    tasks: Positive
    """Tasks per run of the stage."""
    runs: Positive = 1
    busy_seconds: Seconds
    """Executor run time summed over tasks."""
    median_task_seconds: Seconds
    slowest_task_seconds: Seconds
    """Both averaged over the runs of the stage in this interval."""
    slowest_task_place: Count | None = None
    """How many tasks of the stage were launched before the slowest one, in the newest run of the stage."""


class StateOperator(Wire):
    """State of one stateful operator, from `stateOperators[]` of the newest progress."""

    name: str
    rows: Count | None = None
    """Absent if RocksDB does not count them (`trackTotalNumberOfRows`)."""
    memory_bytes: Count
    partitions: Positive
    """`numShufflePartitions`: fixed in the checkpoint."""


class Pool(Wire):
    """The cluster's slots as its master tells them, drivers left out."""

    pool_id: Identifier
    slots_total: Slots
    slots_used: Slots
    workers_alive: Count


class MetricSnapshot(Wire):
    """One job over one interval. `snapshot_id` is a function of job and sequence: twice measured is one snapshot."""

    snapshot_id: str
    job_id: Identifier
    pipeline_id: Identifier
    sequence: Count
    """The interval's scheduled end in whole seconds since the epoch: rises strictly, the same for any collector."""
    interval_seconds: Annotated[int, Field(ge=1, le=3600)]
    observed_at: Instant
    """When the end offsets were read (or would have been)."""
    state: ClusterState
    incarnation: str | None = None
    """The Spark application id of the run the figures belong to."""
    incarnation_started_at: Instant | None = None
    query_id: str | None = None
    sources: tuple[SourceOffsets, ...] = ()
    """The topics that the spec names, then others that the job reads."""
    batches: tuple[MicroBatch, ...] = Field(default=(), max_length=200)
    """Micro-batches that finished in the interval, oldest first; the newest 200 when there were more."""
    batches_left_out: Count = 0
    """Micro-batches that were read and are not in `batches`: there were more than 200, or the clock of the driver is so
    far behind or ahead that they are of another interval."""
    current_batch_started_at: Instant | None = None
    """Start of the micro-batch still running at `observed_at`, if one is."""
    running: Annotated[tuple[RunningBatch, ...], Field(max_length=50)] | None = None
    """The micro-batches still running, the oldest first: at most one per query. Absent if none is known."""
    stages: tuple[StageTasks, ...] = ()
    state_operators: tuple[StateOperator, ...] = ()
    slots_granted: Slots | None = None
    """Cores the master has really given to the application."""
    gc_ratio: Annotated[float, Field(ge=0, le=1)] | None = None
    """Share of executor run time spent in garbage collection."""
    pool: Pool | None = None
    missing: tuple[Part, ...] = ()
    warnings: tuple[SnapshotWarning, ...] | None = None
    """Absent without any."""

    @model_validator(mode="after")
    def _identity_holds(self) -> Self:
        if self.snapshot_id != snapshot_id(self.job_id, self.sequence):
            raise ValueError(f"snapshot_id {self.snapshot_id!r} is not the id of ({self.job_id}, {self.sequence})")
        return self


def is_plausible(sequence: int) -> bool:
    """Whether a sequence is a second at which something may have been measured."""
    return _PLAUSIBLE_SECONDS[0] < sequence < _PLAUSIBLE_SECONDS[1]


def snapshot_id(job_id: str, sequence: int) -> str:
    """Return the id of a job's snapshot for one interval."""
    return identity("snapshot", job_id, sequence)
