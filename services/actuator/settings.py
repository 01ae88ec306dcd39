"""Settings of the actuator."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from tidegate.runtime.settings import RedisSettings


class ActuatorSettings(RedisSettings):
    """Settings of the actuator, with those of Kafka and Redis that all services share."""

    actuator_group: str = "tidegate-actuator"
    """Consumer group of the commands topic; its members share the pipelines. Another one for each Tidegate on the
    broker."""
    session_timeout_seconds: float = Field(default=10.0, ge=6, le=3600)
    """A member that is silent for this long loses its pipelines to another member. The broker's minimum is 6."""
    concurrent_commands: int = Field(default=32, ge=1)
    """How many commands are carried out at the same time, of each job at most one. If they take long, as on a cluster
    that does not answer, up to as many again are carried out for other clusters."""
    leave_seconds: float = Field(default=10.0, gt=0)
    """How long shutdown waits for actions in progress to reach a point where they can be left."""
    driver_log_dir: Path | None = None
    """Where the `local` backend writes the logs of its drivers, and the `yarn` backend keeps the launcher's archive; by
    default the system's temporary folder, and a new one in it."""
