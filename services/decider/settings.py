"""Settings of the decider."""

from __future__ import annotations

from pydantic import Field

from tidegate.runtime.settings import RedisSettings


class DeciderSettings(RedisSettings):
    """Settings of the decider, beside those of every service that speaks to Redis."""

    redis_retry_seconds: float = Field(default=2.0, gt=0)
    """After a failure Redis is left alone for this long, so that an outage costs one timeout and not one a message."""
    jobs_poll_seconds: float = Field(default=0.2, gt=0)
    """How often changed job specs are looked for."""
    session_timeout_seconds: float = Field(default=10.0, ge=6)
    """A decider not heard of for this long is given up and another takes its pipelines; 6 is the broker's minimum."""
    stall_seconds: float = Field(default=60.0, gt=0)
    """Without progress for this long while there is lag the process ends, so that its supervisor starts it anew."""
    replication_factor: int = Field(default=1, ge=1)
    """Of the state's changelog topic, when it has to be created."""

    @property
    def group(self) -> str:
        """The consumer group, which is also the Faust app's id."""
        return f"{self.topic_prefix}decider"

    @property
    def changelog(self) -> str:
        """The compacted topic that keeps the state."""
        return f"{self.group}-state-changelog"
