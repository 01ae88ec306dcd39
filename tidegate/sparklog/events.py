"""The Spark events that Tidegate uses, as small values; `parse` reads them from the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

PartitionOffsets = Mapping[str, Mapping[int, int]]
"""Topic to partition to offset."""


@dataclass(frozen=True, slots=True)
class ApplicationProperties:
    """SparkListenerEnvironmentUpdate: which job the application runs."""

    job_id: str | None
    app_name: str | None
    spark: Mapping[str, str] = field(default_factory=dict)
    """All Spark properties; Spark has redacted secrets."""
    command: str | None = None
    """The driver's command line, such as `org.apache.spark.deploy.SparkSubmit --master … job.py`."""


@dataclass(frozen=True, slots=True)
class ApplicationStarted:
    """SparkListenerApplicationStart."""

    app_id: str
    app_name: str
    at: datetime


@dataclass(frozen=True, slots=True)
class ApplicationEnded:
    """SparkListenerApplicationEnd: the driver closed its session."""

    at: datetime
    failed: bool
    """Spark gave an exit code other than 0."""


@dataclass(frozen=True, slots=True)
class LocalCores:
    """The driver is its own executor (`local[n]`)."""

    cores: int


@dataclass(frozen=True, slots=True)
class ExecutorAdded:
    """An executor has registered."""

    executor_id: str
    cores: int
    at: datetime


@dataclass(frozen=True, slots=True)
class ExecutorRemoved:
    """An executor is gone."""

    executor_id: str
    at: datetime


@dataclass(frozen=True, slots=True)
class QueryStarted:
    """A streaming query started; after a restart it has the same id."""

    query_id: str
    at: datetime
    name: str | None = None


@dataclass(frozen=True, slots=True)
class QueryIdle:
    """A running query found no new data; at most every 10 s."""

    query_id: str
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class QueryTerminated:
    """A query ended: by itself, through `stop()`, or by a failure."""

    query_id: str
    failure: str | None


@dataclass(frozen=True, slots=True)
class OperatorState:
    """State of one stateful operator."""

    name: str
    rows: int | None
    """None if the state store does not count them."""
    memory_bytes: int
    partitions: int


@dataclass(frozen=True, slots=True)
class QueryProgress:
    """QueryProgressEvent; a trigger without a batch has no `add_batch_seconds` and no input."""

    query_id: str
    batch_id: int
    started_at: datetime
    duration_seconds: float
    add_batch_seconds: float | None
    input_records: int
    output_records: int | None
    committed: PartitionOffsets
    operators: tuple[OperatorState, ...]
    start: PartitionOffsets = field(default_factory=dict)
    """The offsets at which the batch began; empty for a query's first batch."""
    latest: PartitionOffsets = field(default_factory=dict)
    """The topics' end offsets when the batch was planned, as far as the source told them."""
    sources: tuple[str, ...] = ()
    """What Spark calls the sources, such as `KafkaV2[Subscribe[orders]]`."""
    real_time: bool = False
    """Whether the batch went on reading what arrived after it was planned: it has a real-time trigger."""
    assigned: frozenset[str] = frozenset()
    """Topics of which the query reads only the partitions that its option `assign` names."""
    limited: frozenset[str] = frozenset()
    """Topics of which the batch left records although another source had no more: a limit of their own source binds."""
    run_id: str = ""
    """Which run of the query it is: each start has an id of its own."""

    @property
    def finished_at(self) -> datetime:
        """When the trigger ended."""
        return self.started_at + timedelta(seconds=self.duration_seconds)


@dataclass(frozen=True, slots=True)
class JobStarted:
    """A micro-batch, or one of its Spark jobs, started."""

    query_id: str
    batch_id: int
    at: datetime
    continuous: bool = False
    """Whether it is the job of a query with a continuous trigger, which has no batches: Spark tells nothing more."""


@dataclass(frozen=True, slots=True)
class StageStarted:
    """SparkListenerStageSubmitted: a stage of a micro-batch, or another attempt of it."""

    query_id: str
    batch_id: int
    stage: tuple[int, int]
    """Stage id and attempt."""
    tasks: int
    """All of its tasks at the first attempt; at a later one those that must run again."""
    scans: frozenset[int]
    """Ids of the RDDs that read a streaming source; empty for a stage that reads a shuffle."""
    real_time: bool = False
    """Whether it reads a source until its batch is over: the query has a real-time trigger."""


@dataclass(frozen=True, slots=True)
class TaskEnded:
    """A task succeeded."""

    stage: tuple[int, int]
    """Stage id and attempt."""
    task_id: int
    """Tasks are numbered as they are launched."""
    partition: int
    """What it worked on; the same in every attempt."""
    run_seconds: float
    gc_seconds: float
    records_read: int
    """From sources, not from shuffles."""


@dataclass(frozen=True, slots=True)
class StageEnded:
    """SparkListenerStageCompleted."""

    stage: tuple[int, int]
    name: str
    tasks: int
    at: datetime
    failed: bool


SparkEvent = (
    ApplicationProperties
    | ApplicationStarted
    | ApplicationEnded
    | LocalCores
    | ExecutorAdded
    | ExecutorRemoved
    | QueryStarted
    | QueryIdle
    | QueryTerminated
    | QueryProgress
    | JobStarted
    | StageStarted
    | TaskEnded
    | StageEnded
)
