"""What the handler needs from outside, as ports: ledger (Redis), outbox (Kafka), specs (the jobs topic).

The ledger keeps what must be taken atomically across deciders. A *hold* is what one command takes: its job's cooldown
and slots of a pool. Holds are owned by decision id, so the same decision asked twice gets the same yes.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Protocol

from tidegate.engine.links import Link
from tidegate.engine.reservations import Answer, Hold, ReservationView
from tidegate.events.decision import RedisView
from tidegate.events.job import JobSpec
from tidegate.events.wire import Wire


class Ledger(Protocol):
    """Cooldowns and pool reservations. No method raises on an outage: it answers that it cannot see."""

    async def view(self, job_id: str, pool_id: str) -> ReservationView:
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

    def glance(self, job_id: str, pool_id: str) -> ReservationView | None:
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


def instant(epoch_seconds: float) -> datetime:
    """Return the UTC instant of epoch seconds."""
    return datetime.fromtimestamp(epoch_seconds, UTC)
