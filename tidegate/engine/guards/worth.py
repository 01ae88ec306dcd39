"""Whether a change is worth what it costs, and within the job's budget of restarts and quota of slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from tidegate.engine.case import Case
from tidegate.engine.guard import STARTS_AND_RESCALES, Guard, Verdict
from tidegate.engine.history import DAY_SECONDS, ORDERS_KEPT, restarts_of_the_day
from tidegate.engine.options import option
from tidegate.engine.reasons import Reason
from tidegate.engine.ways import CHANGES, measured, way_to
from tidegate.events.decision import Figure
from tidegate.events.way import Way

BURST: Final = 1 / 3
"""Share of the restarts for scale-downs that may come one after the other."""

LEAST_BURST: Final = 4.0
"""But at least two scale-downs, each with the growth before it."""

CHANGES_JUDGED = 3
"""A change is assumed to cost as much as the dearest of this many newest ones in the same way."""


@dataclass(frozen=True, slots=True)
class RestartWorth(Guard):
    """Stops a change that costs more than it brings, once a change in the same way has been measured.

        scale-up     stopped when  lag / (C - A) <= D  and  C >= `headroom` · A
        scale-down   stopped when  R · n >= slots freed · `horizon_seconds`; never in place

    C: capacity, records/s. A: arrival rate, or the highest announced by jobs upstream, records/s. n: current slots.
    D and R: longest delay (until the new size works) and longest outage (without commits) of the last three changes in
    the same way, s.
    """

    name: ClassVar = "restart_worth"
    judges_worth: ClassVar = True
    waits: ClassVar = True
    reasons: ClassVar[Mapping[str, Reason]] = {
        "DRAINS_SOONER": Reason(
            "at this size the lag is gone in {drain_seconds:.0f} s, and {change} takes {delay_seconds:.0f} s"
        ),
        "SAVES_TOO_LITTLE": Reason(
            "{change} of {outage_seconds:.0f} s costs {cost:.0f} slot-seconds, "
            "and {freed} slots fewer save only {saving:.0f} in {horizon:.0f} s"
        ),
    }

    horizon_seconds: float = option(
        3600.0, "time in which a scale-down must save what its outage costs", unit="s", gt=0
    )
    headroom: float = option(
        1.5,
        "capacity over arrivals from which lag that drains before the change has worked is no reason to grow",
        ge=1,
    )

    def dispose(self, size: int, case: Case) -> Verdict | None:
        """Weigh the cost of the change against the gain."""
        way = way_to(case, size)
        kept = measured(case.state, way)[-CHANGES_JUDGED:] if way is not None else []
        if way is None or not kept:
            return None
        if size > case.current:
            return self._scale_up(case, way, max(max(cost.delay, cost.outage) for cost in kept))
        return self._scale_down(size, case, way, max(cost.outage for cost in kept))

    def _scale_up(self, case: Case, way: Way, delay: float) -> Verdict | None:
        e = case.evidence
        capacity, arrival, lag = e.true_processing_rate, e.arrival_rate, e.lag_records
        if not capacity or arrival is None or lag is None:
            return None
        if (announced := case.announced) is not None:
            arrival = max(arrival, announced.highest)
        if capacity < self.headroom * arrival or capacity <= arrival:
            return None
        drain = max(0, lag) / (capacity - arrival)
        if drain > delay:
            return None
        values: dict[str, Figure] = {"drain_seconds": drain, "delay_seconds": delay, "change": CHANGES[way]}
        return Verdict(case.current, "DRAINS_SOONER", values)

    def _scale_down(self, size: int, case: Case, way: Way, outage: float) -> Verdict | None:
        horizon, freed = self.horizon_seconds, case.current - size
        cost, saving = outage * case.current, freed * horizon
        if way is Way.IN_PLACE or cost < saving:
            return None
        return Verdict(
            case.current,
            "SAVES_TOO_LITTLE",
            {
                "change": CHANGES[way],
                "outage_seconds": outage,
                "cost": cost,
                "freed": freed,
                "saving": saving,
                "horizon": horizon,
            },
        )


@dataclass(frozen=True, slots=True)
class RestartBudget(Guard):
    """Stops restarts once those of the last 24 hours are used up; some are reserved for growth.

    A third of those for scale-downs may come one after the other, and the rest evenly over the day (a token bucket).
    Otherwise a busy hour would use them all, and the job would then keep its largest size for most of a day.

        tokens    at most T = S / 3, or 4 if that is more; one less with each restart, and S - T more per day

    S: restarts a day that scale-downs may use.

    Changes in place and by handover are no restarts. One that fell back to a restart counts, and so does a stop for
    want of records, which a start follows.
    """

    name: ClassVar = "restart_budget"
    waits: ClassVar = True
    reasons: ClassVar[Mapping[str, Reason]] = {
        "RESTART_BUDGET": Reason(
            "{used} of {limit} restarts of the last 24 hours are used up",
            "raise `guards.restart_budget.per_day`, or check in the decisions why the size keeps changing",
        ),
        "RESTART_PACE": Reason(
            "{used} of {limit} restarts of the last 24 hours are used up, and so that they last for the day, the next"
            " scale-down may follow in {wait_seconds:.0f} s",
            "raise `guards.restart_budget.per_day`, or check in the decisions why the size keeps changing",
        ),
    }

    per_day: int = option(72, "changes of size by restart in any 24 hours", ge=1, le=ORDERS_KEPT)
    reserved_for_growth: int = option(18, "how many of these only growth may use", ge=0)

    def dispose(self, size: int, case: Case) -> Verdict | None:
        """Count the restarts of the last 24 hours, and see when a scale-down may follow."""
        if way_to(case, size) is not Way.RESTART:
            return None
        is_growth = size > case.current
        limit = self.per_day if is_growth else max(0, self.per_day - self.reserved_for_growth)
        ordered = restarts_of_the_day(case.state.history, case.decided_at)
        values: dict[str, Figure] = {"used": len(ordered), "limit": limit}
        if len(ordered) >= limit:
            return Verdict(case.current, "RESTART_BUDGET", values)
        wait = 0.0 if is_growth else _seconds_to_next(ordered, limit, case.decided_at)
        return Verdict(case.current, "RESTART_PACE", values | {"wait_seconds": wait}) if wait > 0 else None


def _seconds_to_next(ordered: Sequence[int], limit: int, at: float) -> float:
    """Return how long after `at` the bucket holds a token again, if restarts were `ordered` in the 24 hours before."""
    most = min(float(limit), max(LEAST_BURST, BURST * limit))
    pace = max(1.0, limit - most) / DAY_SECONDS
    tokens, last = most, at - DAY_SECONDS
    for now in (*ordered, at):
        tokens = min(most, tokens + (now - last) * pace) - 1.0
        last = now
    return max(0.0, -tokens / pace)


@dataclass(frozen=True, slots=True)
class Quota(Guard):
    """Caps growth at the job's quota of slots and executor memory.

    Only whole executors count (Flink's autoscaler rounds workers down).
    """

    name: ClassVar = "quota"
    covers: ClassVar = STARTS_AND_RESCALES
    binds_manual: ClassVar = True
    reasons: ClassVar[Mapping[str, Reason]] = {
        "QUOTA": Reason("the job's quota allows {limit} slots", "raise `guards.quota` if the job may use more"),
    }

    slots: int | None = option(None, "slots the job may use; no limit when absent", unit="slots", ge=1)
    memory_gb: float | None = option(
        None, "executor memory the job may use; no limit when absent", unit="GB", gt=0, le=1e12
    )

    def dispose(self, size: int, case: Case) -> Verdict | None:
        """Return the largest size of whole executors within the quota."""
        application = case.spec.application
        if size <= case.current or (self.slots is None and self.memory_gb is None):
            return None
        cores = application.executor_cores
        limit = size if self.slots is None else self.slots // cores * cores
        if self.memory_gb is not None:
            limit = min(limit, int(self.memory_gb * 1000 // (application.executor_memory_mb * 1.048576)) * cores)
        return Verdict(max(case.current, limit), "QUOTA", {"limit": limit}) if size > limit else None
