"""Settings of the collector."""

from __future__ import annotations

from pydantic import Field
from typing_extensions import override

from tidegate.events.wire import Identifier
from tidegate.runtime.settings import KafkaConnection, ServiceSettings


class CollectorSettings(ServiceSettings):
    """Settings of the collector. Every source has its own time limit within an interval."""

    kafka_clusters: dict[Identifier, KafkaConnection] = Field(default_factory=dict)
    """Other Kafka clusters that jobs read from, as JSON by the name that specs give as `kafka_cluster`. For example
    `{"payments": {"bootstrap_servers": "kafka-p1:9092"}}`; each can have the security settings that services have. With
    a password, better a secret file."""
    kafka_timeout_seconds: float = Field(default=3.0, gt=0, le=60)
    """Longest wait for the end offsets of all jobs' topics on one Kafka cluster; after that they are missing from the
    snapshot."""
    master_timeout_seconds: float = Field(default=2.0, gt=0, le=60)
    """Longest wait for one Spark master, or the API of Kubernetes; after that capacity and job state are missing."""
    log_timeout_seconds: float = Field(default=3.0, gt=0, le=60)
    """Longest wait for one directory of event logs; after that progress, tasks and committed offsets are missing. Also
    for the checkpoints that are asked where logs do not tell."""
    log_poll_seconds: float = Field(default=1.0, gt=0, le=60)
    """How often the collector reads logs on its machine between snapshots, so that little is left for a snapshot."""
    log_bytes_per_poll: int = Field(default=16_000_000, ge=65_536)
    """Most bytes (as stored) read at once from one job's log, so that one job's backlog never delays the others."""
    silence_seconds: float = Field(default=60.0, gt=0)
    """After this long without a query, a driver that still runs counts as stopped or failed: its program may have been
    about to start one again. For a job without a master: after this long without a log line its state is unknown. Spark
    writes an idle event every 10 s (`spark.sql.streaming.noDataProgressEventInterval`), but not more often than the
    job's trigger comes: set more than the interval of the longest one."""
    publish_backlog: int = Field(default=20_000, ge=1)
    """Most snapshots that may wait for a slow broker; further ones are dropped, logged, and leave a gap."""

    @override
    def redacted(self) -> dict[str, str]:
        found = (f"{name} ({each.bootstrap_servers})" for name, each in sorted(self.kafka_clusters.items()))
        return super().redacted() | {"kafka_clusters": "; ".join(found)}
