"""Reservations in memory behind the decider's port, for tests without servers."""

from __future__ import annotations

from tidegate.engine.reservations import Answer, Hold, ReservationView
from tidegate.events.decision import RedisView
from tidegate.lab.reservations import MemoryReservations
from tidegate.runtime.clock import Clock


class FakeLedger:
    """The `Ledger` in memory. `condition` can be set, as an outage would."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.condition = RedisView.REBUILDING
        self.table = MemoryReservations()

    async def view(self, job_id: str, pool_id: str) -> ReservationView:
        """Return what is held now by the job, and by others in the pool."""
        if self.condition is not RedisView.OK:
            return ReservationView(self.condition)
        return self.table.view(job_id, pool_id, self._now())

    async def reserve(self, hold: Hold, free: int | None) -> Answer:
        """Take a hold whole or not at all."""
        return self.table.reserve(hold, free, self._now()) if self.condition is RedisView.OK else Answer.NOT_NOW

    async def settle(self, job_id: str, pool_id: str, decision_id: str, slots: int | None) -> None:
        """Set the slots of a hold, or give them back."""
        if self.condition is RedisView.OK:
            self.table.settle(job_id, pool_id, decision_id, slots)

    async def restore(self, holds: list[Hold]) -> bool:
        """Replace everything by `holds` and be readable again."""
        if self.condition is not RedisView.REBUILDING:
            return False
        self.table = MemoryReservations()
        for hold in holds:
            self.table.reserve(hold, None, self._now())
        self.condition = RedisView.OK
        return True

    def glance(self, job_id: str, pool_id: str) -> ReservationView | None:  # noqa: ARG002 - the port's shape
        """Never has a cached view: every look is a fresh one."""
        return None

    async def refresh(self) -> RedisView:
        """Return whether it can be read."""
        return self.condition

    async def close(self) -> None:
        """Nothing to give back."""

    def _now(self) -> float:
        return self._clock.now().timestamp()
