"""What a change needs from outside: Redis, to keep jobs apart, and slots in the pool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from tidegate.engine.case import Case
from tidegate.engine.guard import ALL_CHANGES, STARTS_AND_RESCALES, Guard, Verdict
from tidegate.engine.options import option
from tidegate.engine.reasons import Reason
from tidegate.engine.ways import free_slots, way_to
from tidegate.events.decision import Figure, RedisView, Status
from tidegate.events.snapshot import Pool
from tidegate.events.way import Way


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
    """Caps growth at the free slots of the pool (the cluster), less those promised to other jobs.

    A handover needs all slots of the new size next to those of the old one. After a change for which the pool gave
    fewer slots than it showed as free, the job does not ask for more than it got until the pool shows more, or for
    `retry_seconds`.
    """

    name: ClassVar = "pool"
    covers: ClassVar = STARTS_AND_RESCALES
    waits: ClassVar = True
    binds_manual: ClassVar = True
    reasons: ClassVar[Mapping[str, Reason]] = {
        "POOL_EXHAUSTED": Reason(
            "that takes {wanted} more slots, and pool {pool} has {free} of {total} free",
            "add workers to the pool, or stop or shrink other jobs in it; if a node autoscaler adds workers, set "
            "`pool_max_slots`",
        ),
        "POOL_UNKNOWN": Reason(
            "the pool's free slots are unknown, so nothing is added",
            "check that the cluster answers the collector: "
            "the Spark master on its web port, the Kubernetes API server, or YARN",
        ),
        "POOL_GAVE_FEWER": Reason(
            "pool {pool} gave only {granted} slots {age_seconds:.0f} s ago although it shows {free} free",
            "check the workers' free memory and the master's log: an executor may fit on no worker",
        ),
    }

    retry_seconds: float = option(
        600.0, "time for which the job asks for no more slots than the pool gave it last", unit="s", ge=0
    )

    def dispose(self, size: int, case: Case) -> Verdict | None:
        """Compare the slots needed beyond those granted with the pool's free ones."""
        both = case.current > 0 and way_to(case, size) is Way.HANDOVER
        if size <= case.current and not both:
            return None
        pool = case.snapshot.pool
        if pool is None:
            return Verdict(case.current, "POOL_UNKNOWN")
        held = 0 if both else case.snapshot.slots_granted or 0
        free, wanted = free_slots(case), size - held
        if wanted <= free:
            return self._as_last_time(size, case, pool)
        cores = case.spec.application.executor_cores
        left = max(case.current, (held + free) // cores * cores)
        values: dict[str, Figure] = {"pool": pool.pool_id, "free": free, "total": pool.slots_total, "wanted": wanted}
        if size < case.current:
            left = case.current
        return Verdict(left, "POOL_EXHAUSTED", values, status=Status.POOL_EXHAUSTED)

    def _as_last_time(self, size: int, case: Case, pool: Pool) -> Verdict | None:
        """Ask for no more than the pool gave last time, unless it has more free slots than then."""
        last, free = case.state.changes.shortfall, pool.slots_total - pool.slots_used
        if last is None or size <= max(last.granted, case.current) or free > (last.free or 0):
            return None
        age = case.decided_at - last.at
        if age >= self.retry_seconds:
            return None
        values: dict[str, Figure] = {
            "pool": pool.pool_id,
            "granted": last.granted,
            "age_seconds": max(0.0, age),
            "free": free,
        }
        return Verdict(max(last.granted, case.current), "POOL_GAVE_FEWER", values, status=Status.POOL_EXHAUSTED)


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
