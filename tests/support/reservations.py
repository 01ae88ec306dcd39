"""Reservations in memory: what Redis does for the decider, for tests without servers."""

from __future__ import annotations

from services.decider.ports import Answer, Hold, ReservationView, instant
from tidegate.events.decision import RedisView
from tidegate.runtime.clock import Clock


class FakeReservations:
    """The `Reservations` in memory. Tests set `condition` to simulate an outage."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.condition = RedisView.REBUILDING
        self.cooldowns: dict[str, tuple[str, float]] = {}
        self.pools: dict[str, dict[str, tuple[int, str, float]]] = {}

    async def view(self, job_id: str, pool_id: str) -> ReservationView:
        """Return what the job holds now, and what others hold in the pool."""
        if self.condition is not RedisView.OK:
            return ReservationView(self.condition)
        now = self._now()
        reserved = self._others(pool_id, job_id)
        owner, until = self.cooldowns.get(job_id, ("", 0.0))
        return (
            ReservationView(RedisView.OK, instant(until), owner, reserved)
            if until > now
            else ReservationView(RedisView.OK, None, None, reserved)
        )

    async def reserve(self, hold: Hold, free: int | None) -> Answer:
        """Take a hold completely or not at all."""
        if self.condition is not RedisView.OK:
            return Answer.NOT_NOW
        now = self._now()
        owner, until = self.cooldowns.get(hold.job_id, ("", 0.0))
        if hold.cooldown_until and until > now and owner != hold.decision_id:
            return Answer.COOLDOWN
        own = self.pools.get(hold.pool_id, {}).get(hold.job_id)
        again = own is not None and own[1] == hold.decision_id
        if (
            hold.slots
            and free is not None
            and not again
            and self._others(hold.pool_id, hold.job_id) + hold.slots > free
        ):
            return Answer.POOL
        if hold.cooldown_until > now:
            self.cooldowns[hold.job_id] = (hold.decision_id, hold.cooldown_until)
        if hold.slots_until > now and not again:
            self.pools.setdefault(hold.pool_id, {})[hold.job_id] = (hold.slots, hold.decision_id, hold.slots_until)
        return Answer.TAKEN

    async def adjust(self, job_id: str, pool_id: str, decision_id: str, slots: int) -> None:
        """Change the slots of a hold."""
        own = self.pools.get(pool_id, {}).get(job_id)
        if self.condition is RedisView.OK and own is not None and own[1] == decision_id:
            self.pools[pool_id][job_id] = (slots, own[1], own[2])

    async def release(self, job_id: str, pool_id: str, decision_id: str) -> None:
        """Release the slots of a hold."""
        own = self.pools.get(pool_id, {}).get(job_id)
        if self.condition is RedisView.OK and own is not None and own[1] == decision_id:
            del self.pools[pool_id][job_id]

    async def restore(self, holds: list[Hold]) -> bool:
        """Replace everything with `holds`."""
        if self.condition is not RedisView.REBUILDING:
            return False
        self.cooldowns = {h.job_id: (h.decision_id, h.cooldown_until) for h in holds if h.cooldown_until > self._now()}
        self.pools = {}
        for h in holds:
            if h.slots_until > self._now():
                self.pools.setdefault(h.pool_id, {})[h.job_id] = (h.slots, h.decision_id, h.slots_until)
        self.condition = RedisView.OK
        return True

    def cached_view(self, job_id: str, pool_id: str) -> ReservationView | None:  # noqa: ARG002 - the port's shape
        """Return None: nothing is cached, so every view is fresh."""
        return None

    async def refresh(self) -> RedisView:
        """Return whether it can be used."""
        return self.condition

    async def close(self) -> None:
        """Nothing to close."""

    def _now(self) -> float:
        return self._clock.now().timestamp()

    def _others(self, pool_id: str, job_id: str) -> int:
        entries = self.pools.get(pool_id, {})
        return sum(slots for job, (slots, _, until) in entries.items() if job != job_id and until > self._now())
