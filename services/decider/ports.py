"""What the handler needs from outside, as ports: ledger (Redis), outbox (Kafka), specs (the jobs topic).

The ledger keeps what must be taken atomically across deciders. A *hold* is what one command takes: its job's cooldown
and slots of a pool. Holds are owned by decision id, so the same decision asked twice gets the same yes.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Protocol

from tidegate.engine.guards.timing import hold_seconds
from tidegate.engine.links import Link
from tidegate.events.command import CommandKind, ScalingCommand
from tidegate.events.decision import RedisView
from tidegate.events.job import JobSpec
from tidegate.events.wire import Wire


@dataclass(frozen=True, slots=True)
class View:
    """What could be seen of the ledger for one job."""

    redis: RedisView
    cooldown_until: datetime | None = None
    cooldown_owner: str | None = None
    pool_reserved: int = 0
    """Slots of the pool held by other jobs."""


@dataclass(frozen=True, slots=True)
class Hold:
    """What a command takes. Instants are epoch seconds by the log's time, never a key's time to live."""

    job_id: str
    pool_id: str
    decision_id: str
    slots: int
    """Slots promised and not yet visible at the master."""
    slots_until: float
    """When the promise lapses, should no result ever end it; 0 for a command that needs no slots."""
    cooldown_until: float
    """0 for a command that holds no cooldown."""


class Answer(StrEnum):
    """What became of a reservation."""

    TAKEN = "taken"
    COOLDOWN = "cooldown"
    POOL = "pool"
    NOT_NOW = "not_now"
    """The ledger is unreachable or being rebuilt."""


class Ledger(Protocol):
    """Cooldowns and pool reservations. No method raises on an outage: it answers that it cannot see."""

    async def view(self, job_id: str, pool_id: str) -> View:
        """Return what is held now by the job, and by others in the pool."""
        ...

    async def reserve(self, hold: Hold, free: int | None) -> Answer:
        """Take a hold whole or not at all; `free` is the pool's free slots as measured, None where unknown."""
        ...

    async def settle(self, job_id: str, pool_id: str, decision_id: str, slots: int | None) -> None:
        """Set the slots of a hold, or (None) give them back; nothing if the decision does not own them."""
        ...

    async def restore(self, holds: list[Hold]) -> bool:
        """Replace everything by `holds` and be readable again; False if it already was, or cannot be reached."""
        ...

    def glance(self, job_id: str, pool_id: str) -> View | None:
        """Return what `refresh` saw for the job, without asking again; None if it did not look, or too long ago."""
        ...

    async def refresh(self) -> RedisView:
        """Look at all jobs that have been asked for; return whether the ledger can be read at all."""
        ...

    async def close(self) -> None:
        """Give the connection back."""
        ...


class Outbox(Protocol):
    """Where the handler's effects go. Each method returns when the broker has acknowledged, and raises otherwise."""

    async def publish(self, event: Wire, *, trace_id: str | None = None, key: bytes | None = None) -> None:
        """Publish an event to its topic; `key` only for dead letters."""
        ...

    async def keep(self, partition: int, key: bytes, value: bytes) -> None:
        """Write a state to the changelog, in the partition its events come from."""
        ...

    def kept(self, key: bytes) -> bytes | None:
        """Return the state last kept under the key."""
        ...


class TooLargeToPublish(RuntimeError):
    """The broker takes no event of this size."""


class Specs(Protocol):
    """The specs in force."""

    def get(self, job_id: str) -> JobSpec | None:
        """Return the job's spec, or None."""
        ...

    async def caught_up(self) -> None:
        """Return when all that was on the jobs topic when this was called is in force (or a bounded wait is over)."""
        ...

    def links(self, job_id: str) -> tuple[Link, ...]:
        """Return the jobs linked to this one, in the order of their ids."""
        ...


def hold_for(spec: JobSpec, command: ScalingCommand, granted: int) -> Hold:
    """Return what a command takes, given the slots the job holds already.

    The slots lapse when the command can no longer be under way: not begun before it expires, then one stop and two
    starts (the ordered size and the roll-back), each with its deadline.
    """
    held = hold_seconds(spec, command)
    application = spec.application
    longest = application.stop_deadline_seconds + 2 * application.start_deadline_seconds
    return Hold(
        job_id=spec.job_id,
        pool_id=spec.pool_id,
        decision_id=command.command_id,
        slots=max(0, command.to_parallelism - granted),
        slots_until=0.0 if command.kind is CommandKind.STOP else command.expires_at.timestamp() + longest,
        cooldown_until=command.issued_at.timestamp() + held if held > 0 else 0.0,
    )


def instant(epoch_seconds: float) -> datetime:
    """Return the UTC instant of epoch seconds."""
    return datetime.fromtimestamp(epoch_seconds, UTC)
