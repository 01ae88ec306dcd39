"""Settings of the decider."""

from __future__ import annotations

from pydantic import Field

from tidegate.runtime.settings import RedisSettings


class DeciderSettings(RedisSettings):
    """Settings of the decider, in addition to those of every service that uses Redis."""

    redis_retry_seconds: float = Field(default=2.0, gt=0)
    """Pause after a failed call to Redis, so that an outage costs one timeout instead of one per message."""
    jobs_poll_seconds: float = Field(default=0.2, gt=0)
    """How often the decider looks for changed job specs."""
    session_timeout_seconds: float = Field(default=10.0, ge=6, le=3600)
    """Without a heartbeat for this long, another decider takes over the pipelines; 6 is the broker's minimum."""
    stall_seconds: float = Field(default=60.0, gt=0)
    """After this long with lag but no progress, the process exits so that its supervisor restarts it."""
    replication_factor: int = Field(default=1, ge=1)
    """Replication of the state's changelog topic when the decider creates it."""

    @property
    def group(self) -> str:
        """The consumer group, which is also the Faust app's id."""
        return f"{self.topic_prefix}decider"

    @property
    def changelog(self) -> str:
        """The compacted topic that stores the state."""
        return f"{self.group}-state-changelog"
