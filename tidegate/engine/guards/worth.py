"""Whether a change is worth its restart, and within the job's budget of restarts and quota of slots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidegate.engine.case import Case, Verdict
from tidegate.engine.history import DAY_SECONDS, ORDERS_KEPT
from tidegate.engine.options import option
from tidegate.events.decision import Figure

RESTARTS_JUDGED = 3
"""The longest of this many newest restarts is reckoned with."""


@dataclass(frozen=True, slots=True)
class RestartWorthOptions:
    """What a restart must bring."""

    horizon_seconds: float = option(
        3600.0, "time in which a reduction must save what its restart costs", unit="s", gt=0
    )
    headroom: float = option(
        1.5,
        "capacity over arrivals from which lag that drains within a restart is no reason to grow",
        ge=1,
    )


class RestartWorth:
    """Stops a change whose restart costs more than it brings. Silent until a restart of this job was measured.

        growth      not when  lag / (C - A) <= R  and  C >= `headroom` · A
        reduction   not when  R · n >= slots freed · `horizon_seconds`

    C: capacity, records/s. A: arrival rate, records/s. R: longest of the last three restarts, s. n: present slots.
    """

    name: ClassVar[str] = "restart_worth"
    Options: ClassVar[type] = RestartWorthOptions
    waits: ClassVar[bool] = True
    binds_manual: ClassVar[bool] = False
    covers: ClassVar[frozenset[str]] = frozenset({"rescale"})

    def __init__(self, options: RestartWorthOptions) -> None:
        self.options = options

    def dispose(self, wish: int, case: Case) -> Verdict | None:
        """Weigh the restart against the gain."""
        kept = case.state.restarts[-RESTARTS_JUDGED:]
        if not kept:
            return None
        restart = max(seconds for _, seconds in kept)
        return self._growth(case, restart) if wish > case.current else self._reduction(wish, case, restart)

    def _growth(self, case: Case, restart: float) -> Verdict | None:
        capacity, arrival, lag = (
            case.evidence.true_processing_rate,
            case.evidence.arrival_rate,
            case.evidence.lag_records,
        )
        if not capacity or arrival is None or lag is None:
            return None
        if capacity < self.options.headroom * arrival or capacity <= arrival:
            return None
        drain = max(0, lag) / (capacity - arrival)
        if drain > restart:
            return None
        return Verdict(case.current, "DRAINS_SOONER", {"drain_seconds": drain, "restart_seconds": restart})

    def _reduction(self, wish: int, case: Case, restart: float) -> Verdict | None:
        horizon, freed = self.options.horizon_seconds, case.current - wish
        cost, saving = restart * case.current, freed * horizon
        if cost < saving:
            return None
        numbers: dict[str, Figure] = {
            "restart_seconds": restart,
            "cost": cost,
            "freed": freed,
            "saving": saving,
            "horizon": horizon,
        }
        return Verdict(case.current, "SAVES_TOO_LITTLE", numbers)


@dataclass(frozen=True, slots=True)
class RestartBudgetOptions:
    """How often a job may be changed."""

    per_day: int = option(48, "changes in any 24 hours", ge=1, le=ORDERS_KEPT)
    reserved_for_growth: int = option(12, "how many of these only growth may use", ge=0)


class RestartBudget:
    """Stops changes once those of the last 24 hours are used up; some are kept for growth."""

    name: ClassVar[str] = "restart_budget"
    Options: ClassVar[type] = RestartBudgetOptions
    waits: ClassVar[bool] = True
    binds_manual: ClassVar[bool] = False
    covers: ClassVar[frozenset[str]] = frozenset({"rescale"})

    def __init__(self, options: RestartBudgetOptions) -> None:
        self.options = options

    def dispose(self, wish: int, case: Case) -> Verdict | None:
        """Count the orders of the last 24 hours."""
        o = self.options
        limit = o.per_day if wish > case.current else max(0, o.per_day - o.reserved_for_growth)
        used = sum(1 for at in case.state.history.ordered_at if at > case.decided_at - DAY_SECONDS)
        if used < limit:
            return None
        return Verdict(case.current, "RESTART_BUDGET", {"used": used, "limit": limit})


@dataclass(frozen=True, slots=True)
class QuotaOptions:
    """What a job may use of its pool."""

    slots: int | None = option(None, "slots the job may use; no limit when absent", unit="slots", ge=1)
    memory_gb: float | None = option(None, "executor memory the job may use; no limit when absent", unit="GB", gt=0)


class Quota:
    """Caps growth at the job's quota of slots and executor memory.

    Executors are counted in full (Flink's autoscaler rounds workers down).
    """

    name: ClassVar[str] = "quota"
    Options: ClassVar[type] = QuotaOptions
    waits: ClassVar[bool] = False
    binds_manual: ClassVar[bool] = True
    covers: ClassVar[frozenset[str]] = frozenset({"start", "rescale"})

    def __init__(self, options: QuotaOptions) -> None:
        self.options = options

    def dispose(self, wish: int, case: Case) -> Verdict | None:
        """Return the largest size of whole executors within the quota."""
        o, application = self.options, case.spec.application
        if wish <= case.current or (o.slots is None and o.memory_gb is None):
            return None
        cores = application.executor_cores
        limit = wish if o.slots is None else o.slots // cores * cores
        if o.memory_gb is not None:
            limit = min(limit, int(o.memory_gb * 1000 // (application.executor_memory_mb * 1.048576)) * cores)
        return Verdict(max(case.current, limit), "QUOTA", {"limit": limit}) if wish > limit else None
