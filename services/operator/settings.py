"""Settings of the operator."""

from __future__ import annotations

from pydantic import Field

from tidegate.runtime.settings import ServiceSettings


class OperatorSettings(ServiceSettings):
    """Where the operator looks for StreamingJobs, and how often."""

    operator_namespace: str | None = Field(default=None, pattern="^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")
    """The namespace whose StreamingJobs it looks after; its own when unset. An object's name is the job's id, so two
    operators with the same topics must not look after two namespaces."""
    operator_allowed_places: tuple[str, ...] = ()
    """What StreamingJobs may name besides this Kubernetes cluster, as a JSON list: masters, REST addresses, web pages
    and file systems, such as `["s3a://my-bucket", "hdfs://namenode:8020"]`. The services ask there, with their
    credentials. `local` allows programs in the actuator's own pod."""
    operator_poll_seconds: float = Field(default=2.0, ge=0.2, le=20)
    """How often it goes through the StreamingJobs, which it watches: the longest time until a change of theirs is on
    the jobs topic."""
    operator_timeout_seconds: float = Field(default=5.0, gt=0, le=20)
    """Longest wait for one answer of the API server."""
    operator_history_hours: float = Field(default=1.0, gt=0, le=48)
    """How far back to read decisions and results at the start."""
