"""Spark's events as far as the collector has a use for them: small values, read from the log by `parse`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

Offsets = Mapping[str, Mapping[int, int]]
"""Topic to partition to offset."""


@dataclass(frozen=True, slots=True)
class Properties:
    """SparkListenerEnvironmentUpdate: who the application is for."""

    job_id: str | None
    app_name: str | None


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
class QueryStarted:
    """A streaming query began; after a restart with the id it had."""

    query_id: str
    at: datetime


@dataclass(frozen=True, slots=True)
class QueryIdle:
    """A query that runs and finds nothing new; every 10 s at most."""

    query_id: str


@dataclass(frozen=True, slots=True)
class QueryTerminated:
    """A query ended, by itself, by `stop()` or by a failure."""

    query_id: str
    failure: str | None


@dataclass(frozen=True, slots=True)
class OperatorState:
    """State of one stateful operator."""

    name: str
    rows: int
    memory_bytes: int
    partitions: int


@dataclass(frozen=True, slots=True)
class Progress:
    """QueryProgressEvent; a trigger that ran no batch has no `add_batch_seconds` and no input."""

    query_id: str
    batch_id: int
    started_at: datetime
    duration_seconds: float
    add_batch_seconds: float | None
    input_records: int
    output_records: int | None
    committed: Offsets
    operators: tuple[OperatorState, ...]

    @property
    def finished_at(self) -> datetime:
        """When the trigger ended."""
        return self.started_at + timedelta(seconds=self.duration_seconds)


@dataclass(frozen=True, slots=True)
class JobStarted:
    """A Spark job of a micro-batch began."""

    query_id: str
    batch_id: int
    at: datetime


@dataclass(frozen=True, slots=True)
class TaskEnded:
    """A task ended well."""

    stage: tuple[int, int]
    """Stage id and attempt."""
    run_seconds: float
    gc_seconds: float


@dataclass(frozen=True, slots=True)
class StageEnded:
    """SparkListenerStageCompleted."""

    stage: tuple[int, int]
    name: str
    tasks: int
    at: datetime
    failed: bool


Event = (
    Properties
    | ApplicationStarted
    | ApplicationEnded
    | LocalCores
    | QueryStarted
    | QueryIdle
    | QueryTerminated
    | Progress
    | JobStarted
    | TaskEnded
    | StageEnded
)
