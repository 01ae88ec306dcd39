"""Settings of the collector."""

from __future__ import annotations

from pydantic import Field

from tidegate.runtime.settings import ServiceSettings


class CollectorSettings(ServiceSettings):
    """Read from `TIDEGATE_…` variables; every source has its own limit of time inside an interval."""

    kafka_timeout_seconds: float = Field(default=3.0, gt=0, le=60)
    """Longest wait for the end offsets of all jobs' topics; past it they are missing from this interval."""
    master_timeout_seconds: float = Field(default=2.0, gt=0, le=60)
    """Longest wait for one Spark master; past it capacity and job state are missing."""
    log_timeout_seconds: float = Field(default=3.0, gt=0, le=60)
    """Longest wait for one directory of event logs; past it progress, tasks and committed offsets are missing."""
    log_poll_seconds: float = Field(default=1.0, gt=0, le=60)
    """How often the logs are followed between snapshots, so that little is left to read when one is due."""
    log_bytes_per_poll: int = Field(default=16_000_000, ge=65_536)
    """Most bytes (as stored) read of one job's log in one go: a long backlog of one job never holds up the others."""
    silence_seconds: float = Field(default=60.0, gt=0)
    """For a job without a master to ask: how long its log may be silent before its state is unknown. Spark writes an
    idle event every 10 s (`spark.sql.streaming.noDataProgressEventInterval`)."""
    publish_backlog: int = Field(default=20_000, ge=1)
    """Most snapshots waiting for a slow broker; what comes on top is dropped, named in the log, and is a gap."""
