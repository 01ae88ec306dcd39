"""ScalingCommand: a decision to be carried out. It carries a size, never code."""

from __future__ import annotations

from enum import StrEnum

from tidegate.events.way import Way
from tidegate.events.wire import Count, Identifier, Instant, Positive, Seconds, Wire


class CommandKind(StrEnum):
    """What to do with the job."""

    START = "start"
    RESCALE = "rescale"
    STOP = "stop"


class ScalingCommand(Wire):
    """What the actuator must do, once, in order per job, if the epoch is the newest and the time has not passed."""

    command_id: str
    """The id of the decision that ordered it."""
    job_id: Identifier
    pipeline_id: Identifier
    snapshot_id: str
    spec_version: Positive
    kind: CommandKind
    from_parallelism: Count
    """The size the decision saw; 0 when the job was not running, or had no slots that anybody knew of."""
    to_parallelism: Count
    """The size to reach; 0 for `stop`, otherwise at least 1."""
    epoch: Count
    """Fencing token: the sequence of the deciding snapshot, so it rises with every decision of a job."""
    issued_at: Instant
    expires_at: Instant
    reason: str
    way: Way | None = None
    """With `rescale`: the way that the decision assumes; without it, the first way of the spec that is possible."""
    first_batch_seconds: Seconds | None = None
    """Expected duration of the first batch at the new size: the records that wait over its capacity."""
    manual: bool = False

    @property
    def adds_slots(self) -> bool:
        """Whether it leads to more slots."""
        return self.to_parallelism > self.from_parallelism
