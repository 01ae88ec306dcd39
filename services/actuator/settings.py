"""Settings of the actuator."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from tidegate.runtime.settings import RedisSettings


class ActuatorSettings(RedisSettings):
    """Settings of the actuator; those of Kafka and Redis are shared with the other services."""

    actuator_group: str = "tidegate-actuator"
    """Consumer group of the commands topic; its members share the pipelines."""
    session_timeout_seconds: float = Field(default=10.0, ge=6)
    """After this long without a sign of life a member's pipelines go to another (the broker's minimum is 6)."""
    concurrent_commands: int = Field(default=8, ge=1)
    """Commands carried out at the same time; of one pipeline always only one."""
    leave_seconds: float = Field(default=10.0, gt=0)
    """At the end: how long a step that has begun may take to come to where it can be left."""
    driver_log_dir: Path | None = None
    """Where the `local` backend writes its drivers' logs; the system's temporary folder when absent."""
