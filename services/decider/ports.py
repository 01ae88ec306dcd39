"""What the handler needs from outside, as ports: reservations (Redis), outbox (Kafka), specs (the jobs topic).

Reservations hold what several deciders must not take twice. A *hold* is what one command takes: its job's cooldown and
slots of a pool. A hold belongs to a decision id, so the same decision gets the same answer again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Protocol

from tidegate.engine.links import Link
from tidegate.engine.reservations import Answer, Hold, ReservationView
from tidegate.events.decision import RedisView
from tidegate.events.job import JobSpec
from tidegate.events.wire import Wire


class Reservations(Protocol):
    """Cooldowns and pool reservations. No method raises during an outage: it answers that Redis is unreachable."""

    async def view(self, job_id: str, pool_id: str) -> ReservationView:
        """Return what the job holds now, and what others hold in the pool."""

    async def reserve(self, hold: Hold, free: int | None) -> Answer:
        """Take a hold completely or not at all; `free` is the pool's measured free slots, None if unknown."""

    async def adjust(self, job_id: str, pool_id: str, decision_id: str, slots: int) -> None:
        """Change the slots of a hold, if the decision owns it."""

    async def release(self, job_id: str, pool_id: str, decision_id: str) -> None:
        """Release the slots of a hold, if the decision owns it; the cooldown stays."""

    async def restore(self, holds: list[Hold], specs: Iterable[JobSpec] = ()) -> bool:
        """Replace what the jobs of `specs`, all that there are, hold with `holds`.

        Returns False if nothing needed it or Redis is unreachable.
        """

    def cached_view(self, job_id: str, pool_id: str) -> ReservationView | None:
        """Return the view from the newest `refresh`; None if that is too old or did not cover the job."""

    async def refresh(self) -> RedisView:
        """Read the reservations of all known jobs into the cache; return whether Redis can be used."""

    def forget(self, job_id: str) -> None:
        """Read a job's reservations no more, until its next view. What it holds ends by itself."""


class Outbox(Protocol):
    """Where the handler's effects go. Each method returns when the broker has acknowledged, and raises otherwise."""

    async def publish(self, event: Wire, *, trace_id: str | None = None, key: bytes | None = None) -> None:
        """Publish an event to its topic; `key` is for dead letters only."""

    async def keep(self, partition: int, key: bytes, value: bytes) -> None:
        """Write a state to the changelog, to the partition that its events come from."""

    def kept(self, key: bytes) -> bytes | None:
        """Return the newest state under the key."""

    def keys(self) -> Collection[bytes]:
        """Return the keys of all states, those that belong to other deciders included."""

    async def drop(self, key: bytes) -> None:
        """Remove a state from memory and, if it is this decider's, from the changelog."""


class Specs(Protocol):
    """The current specs."""

    def get(self, job_id: str) -> JobSpec | None:
        """Return the job's spec, or None."""

    def has(self, pipeline_id: str, job_id: str) -> bool:
        """Return whether the job is on the jobs topic, in this pipeline. One whose spec cannot be used counts too."""

    def removal(self, job_id: str) -> int:
        """Return the offset of the newest record that removed the job; -1 if the jobs topic has none."""

    async def caught_up(self) -> None:
        """Return when every spec that was on the jobs topic at the call applies, or after a bounded wait."""

    def links(self, job_id: str) -> tuple[Link, ...]:
        """Return the jobs linked to this one, ordered by id."""

    def __iter__(self) -> Iterator[JobSpec]:
        """Iterate over the specs of all jobs."""
