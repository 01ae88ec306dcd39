"""What a change needs from outside: Redis, to keep jobs apart, and slots in the pool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from tidegate.engine.case import Case
from tidegate.engine.guard import ALL_CHANGES, STARTS_AND_RESCALES, Guard, Verdict
from tidegate.engine.reasons import Reason
from tidegate.events.decision import Figure, RedisView, Status


@dataclass(frozen=True, slots=True)
class RedisAnswers(Guard):
    """Stops every change while Redis does not answer or is being rebuilt: cooldown and pool cannot be checked."""

    name: ClassVar = "redis"
    covers: ClassVar = ALL_CHANGES
    waits: ClassVar = True
    binds_manual: ClassVar = True
    reasons: ClassVar[Mapping[str, Reason]] = {
        "REDIS_UNREACHABLE": Reason(
            "Redis cannot be used, so the cooldown and the pool cannot be checked and nothing changes",
            "bring Redis back, or correct its address or password: the decider's log shows the error",
        ),
        "REDIS_REBUILDING": Reason(
            "Redis was emptied and is being rebuilt from the topics, and nothing changes until that is done"
        ),
    }

    def dispose(self, size: int, case: Case) -> Verdict | None:
        """Check what the decider saw of Redis."""
        if case.observed.redis is RedisView.OK:
            return None
        code = "REDIS_UNREACHABLE" if case.observed.redis is RedisView.UNREACHABLE else "REDIS_REBUILDING"
        return Verdict(case.current, code)


@dataclass(frozen=True, slots=True)
class PoolSlots(Guard):
    """Caps growth at the free slots of the pool (the cluster), less those promised to other jobs."""

    name: ClassVar = "pool"
    covers: ClassVar = STARTS_AND_RESCALES
    waits: ClassVar = True
    binds_manual: ClassVar = True
    reasons: ClassVar[Mapping[str, Reason]] = {
        "POOL_EXHAUSTED": Reason(
            "that takes {wanted} more slots, and pool {pool} has {free} of {total} free",
            "add workers to the pool, or stop or shrink other jobs in it",
        ),
        "POOL_UNKNOWN": Reason(
            "the pool's free slots are unknown, so nothing is added",
            "check that the Spark master answers on its web port",
        ),
    }

    def dispose(self, size: int, case: Case) -> Verdict | None:
        """Compare the slots needed beyond those granted with the pool's free ones."""
        if size <= case.current:
            return None
        pool = case.snapshot.pool
        if pool is None:
            return Verdict(case.current, "POOL_UNKNOWN")
        held = case.snapshot.slots_granted or 0
        free = max(0, pool.slots_total - pool.slots_used - case.observed.pool_reserved)
        wanted = size - held
        if wanted <= free:
            return None
        cores = case.spec.application.executor_cores
        left = max(case.current, (held + free) // cores * cores)
        values: dict[str, Figure] = {"pool": pool.pool_id, "free": free, "total": pool.slots_total, "wanted": wanted}
        return Verdict(left, "POOL_EXHAUSTED", values, status=Status.POOL_EXHAUSTED)


@dataclass(frozen=True, slots=True)
class ReservationHeld(Guard):
    """Stops a change whose reservation was refused: another decision was faster."""

    name: ClassVar = "reservation"
    covers: ClassVar = ALL_CHANGES
    waits: ClassVar = True
    binds_manual: ClassVar = True
    reasons: ClassVar[Mapping[str, Reason]] = {
        "RESERVATION_LOST": Reason(
            "another decision reserved the slots or the cooldown first, so the next snapshot tries again"
        ),
    }

    def dispose(self, size: int, case: Case) -> Verdict | None:
        """Check whether the atomic reservation was refused."""
        return Verdict(case.current, "RESERVATION_LOST") if case.observed.reservation_refused else None
