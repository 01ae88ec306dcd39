"""Reservations in memory behind the decider's port, for tests without servers."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.engine.reservations import Answer, Hold, ReservationView
from tidegate.events.decision import RedisView
from tidegate.events.job import JobSpec
from tidegate.lab.reservations import MemoryReservations
from tidegate.runtime.clock import Clock


class FakeReservations:
    """The `Reservations` in memory. Tests set `condition` to simulate an outage."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.condition = RedisView.REBUILDING
        self.table = MemoryReservations()
        self.forgotten: list[str] = []

    async def view(self, job_id: str, pool_id: str) -> ReservationView:
        """Return what the job holds now, and what others hold in the pool."""
        if self.condition is not RedisView.OK:
            return ReservationView(self.condition)
        return self.table.view(job_id, pool_id, self._now())

    async def reserve(self, hold: Hold, free: int | None) -> Answer:
        """Take a hold completely or not at all."""
        return self.table.reserve(hold, free, self._now()) if self.condition is RedisView.OK else Answer.NOT_NOW

    async def adjust(self, job_id: str, pool_id: str, decision_id: str, slots: int) -> None:
        """Change the slots of a hold."""
        if self.condition is RedisView.OK:
            self.table.adjust(job_id, pool_id, decision_id, slots)

    async def release(self, job_id: str, pool_id: str, decision_id: str) -> None:
        """Release the slots of a hold."""
        if self.condition is RedisView.OK:
            self.table.release(job_id, pool_id, decision_id)

    async def restore(self, holds: list[Hold], specs: Iterable[JobSpec] = ()) -> bool:  # noqa: ARG002 - the port's shape
        """Replace everything with `holds`."""
        if self.condition is not RedisView.REBUILDING:
            return False
        self.table = MemoryReservations()
        for hold in holds:
            self.table.reserve(hold, None, self._now())
        self.condition = RedisView.OK
        return True

    def cached_view(self, job_id: str, pool_id: str) -> ReservationView | None:  # noqa: ARG002 - the port's shape
        """Return None: nothing is cached, so every view is fresh."""
        return None

    async def refresh(self) -> RedisView:
        """Return whether it can be used."""
        return self.condition

    def forget(self, job_id: str) -> None:
        """Note it; nothing is cached."""
        self.forgotten.append(job_id)

    def _now(self) -> float:
        return self._clock.now().timestamp()
