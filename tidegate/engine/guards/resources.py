"""What a change needs from outside: Redis to keep it apart from others, and slots in the pool."""

from __future__ import annotations

from typing import ClassVar

from tidegate.engine.case import Case, Verdict
from tidegate.engine.options import NoOptions
from tidegate.events.decision import Figure, RedisView, Status


class RedisAnswers:
    """Stops every change while Redis does not answer or is being rebuilt: cooldown and pool cannot be checked."""

    name: ClassVar[str] = "redis"
    Options: ClassVar[type] = NoOptions
    waits: ClassVar[bool] = True
    binds_manual: ClassVar[bool] = True
    covers: ClassVar[frozenset[str]] = frozenset({"start", "rescale", "stop"})

    def __init__(self, options: NoOptions) -> None:
        self.options = options

    def dispose(self, wish: int, case: Case) -> Verdict | None:
        """Ask what the decider saw of Redis."""
        if case.observed.redis is RedisView.OK:
            return None
        code = "REDIS_UNREACHABLE" if case.observed.redis is RedisView.UNREACHABLE else "REDIS_REBUILDING"
        return Verdict(case.current, code)


class PoolSlots:
    """Caps growth at the free slots of the pool (the cluster), less those promised to other jobs."""

    name: ClassVar[str] = "pool"
    Options: ClassVar[type] = NoOptions
    waits: ClassVar[bool] = True
    binds_manual: ClassVar[bool] = True
    covers: ClassVar[frozenset[str]] = frozenset({"start", "rescale"})

    def __init__(self, options: NoOptions) -> None:
        self.options = options

    def dispose(self, wish: int, case: Case) -> Verdict | None:
        """Compare the slots wanted beyond those granted with the pool's free ones."""
        if wish <= case.current:
            return None
        pool = case.snapshot.pool
        if pool is None:
            return Verdict(case.current, "POOL_UNKNOWN")
        held = case.snapshot.slots_granted or 0
        free = max(0, pool.slots_total - pool.slots_used - case.observed.pool_reserved)
        wanted = wish - held
        if wanted <= free:
            return None
        cores = case.spec.application.executor_cores
        size = max(case.current, (held + free) // cores * cores)
        numbers: dict[str, Figure] = {"pool": pool.pool_id, "free": free, "total": pool.slots_total, "wanted": wanted}
        return Verdict(size, "POOL_EXHAUSTED", numbers, status=Status.POOL_EXHAUSTED)


class ReservationHeld:
    """Stops a change whose slots another job reserved between looking and taking."""

    name: ClassVar[str] = "reservation"
    Options: ClassVar[type] = NoOptions
    waits: ClassVar[bool] = True
    binds_manual: ClassVar[bool] = True
    covers: ClassVar[frozenset[str]] = frozenset({"start", "rescale", "stop"})

    def __init__(self, options: NoOptions) -> None:
        self.options = options

    def dispose(self, wish: int, case: Case) -> Verdict | None:
        """Ask whether the atomic reservation was refused."""
        return Verdict(case.current, "RESERVATION_LOST") if case.observed.reservation_refused else None
