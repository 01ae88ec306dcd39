"""The reservations of all jobs in memory, by the same rules as in Redis; one contract test holds both to them.

The caller says what time it is, so the table serves simulated time as well.
"""

from __future__ import annotations

from datetime import UTC, datetime

from tidegate.engine.reservations import Answer, Hold, ReservationView
from tidegate.engine.round import Look, Reply, Request, Round
from tidegate.engine.state import JobState
from tidegate.events.decision import Decision, RedisView


class MemoryReservations:
    """Cooldowns and promised slots. Instants are epoch seconds."""

    def __init__(self) -> None:
        self.cooldowns: dict[str, tuple[str, float]] = {}
        """(decision id, until) by job."""
        self.pools: dict[str, dict[str, tuple[int, str, float]]] = {}
        """(slots, decision id, until) by pool and job."""

    def view(self, job_id: str, pool_id: str, now: float) -> ReservationView:
        """Return what is held now by the job, and by others in the pool."""
        reserved = self._others(job_id, pool_id, now)
        owner, until = self.cooldowns.get(job_id, ("", 0.0))
        if until <= now:
            return ReservationView(RedisView.OK, pool_reserved=reserved)
        return ReservationView(RedisView.OK, datetime.fromtimestamp(until, UTC), owner, reserved)

    def reserve(self, hold: Hold, free: int | None, now: float) -> Answer:
        """Take a hold whole or not at all; `free` is the pool's free slots as measured, None where unknown."""
        owner, until = self.cooldowns.get(hold.job_id, ("", 0.0))
        if hold.cooldown_until and until > now and owner != hold.decision_id:
            return Answer.COOLDOWN
        again = self._owns(hold.job_id, hold.pool_id, hold.decision_id)
        wanted = 0 if again else hold.slots
        if wanted and free is not None and self._others(hold.job_id, hold.pool_id, now) + wanted > free:
            return Answer.POOL
        if hold.cooldown_until > now:
            self.cooldowns[hold.job_id] = (hold.decision_id, hold.cooldown_until)
        if hold.slots_until > now and not again:
            self.pools.setdefault(hold.pool_id, {})[hold.job_id] = (hold.slots, hold.decision_id, hold.slots_until)
        return Answer.TAKEN

    def adjust(self, job_id: str, pool_id: str, decision_id: str, slots: int) -> None:
        """Change the slots of a hold; nothing if the decision does not own them."""
        if self._owns(job_id, pool_id, decision_id):
            _, owner, until = self.pools[pool_id][job_id]
            self.pools[pool_id][job_id] = (slots, owner, until)

    def release(self, job_id: str, pool_id: str, decision_id: str) -> None:
        """Give back the slots of a hold; nothing if the decision does not own them."""
        if self._owns(job_id, pool_id, decision_id):
            del self.pools[pool_id][job_id]

    def _owns(self, job_id: str, pool_id: str, decision_id: str) -> bool:
        """Whether the decision owns the job's slots in the pool."""
        held = self.pools.get(pool_id, {}).get(job_id)
        return held is not None and held[1] == decision_id

    def finish(self, round_: Round, now: float) -> tuple[JobState, Decision]:
        """Answer a decision round until it ends; return the state to keep and the decision."""
        request = next(round_)
        while True:
            try:
                request = round_.send(self._reply(request, now))
            except StopIteration as ended:
                result: tuple[JobState, Decision] = ended.value
                return result

    def _reply(self, request: Request, now: float) -> Reply:
        if isinstance(request, Look):
            return self.view(request.job_id, request.pool_id, now)
        return self.reserve(request.hold, request.free, now) is Answer.TAKEN

    def _others(self, job_id: str, pool_id: str, now: float) -> int:
        entries = self.pools.get(pool_id, {})
        return sum(slots for job, (slots, _, until) in entries.items() if job != job_id and until > now)
