"""`cost`: the size whose slots, lag and change cost least over a horizon.

The policy calculates what each size n within the bounds would cost. During the outage of the change, which the current
size does not need, nothing is processed. Then n slots work at the capacity measured per slot:

    cost(n) = slot price · n · H  +  lag price · ∫₀ᴴ lag(t) / capacity now dt  +  change price · [n is not current]
    lag(t)  = max(0, lag + a · t - done(t))
    a       = arrival rate / `target_utilization`

- H: `horizon_seconds`. t: s from now. lag: records. a: the load to be ready for, records/s. done(t): records processed
  by then. `[…]`: 1 if true, else 0.

The lag counts in seconds of work at the current capacity, so one price fits every job: `lag_price` is what one second
of work costs that waits for one second. If the job has prices in money (`scaling.prices`), a lag of as many seconds of
work as the lag objective costs as much as missing the objective. If two sizes cost the same, the current size wins,
then the smaller one.

When to choose it: You know what a slot costs and what lag costs.

Set first: `lag_price`, `restart_price`.

Source: H. Ghanbari et al., "Optimal autoscaling in a IaaS cloud", ICAC 2012 (cost of resources against penalties).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from tidegate.engine.case import Case, Proposal
from tidegate.engine.memory import NoMemory
from tidegate.engine.options import option
from tidegate.engine.reasons import Reason
from tidegate.events.decision import Figure
from tidegate.policies.rule import Rule
from tidegate.policies.sizing import EVIDENCE_MISSING, IDLE, Workload, change_to, clamp, measure


def lag_integral(lag: float, growth: float, seconds: float) -> float:
    """Return ∫ max(0, lag + growth · t) dt over `seconds`, in record-seconds."""
    if seconds <= 0:
        return 0.0
    end = lag + growth * seconds
    if end >= 0:
        return (lag + end) / 2 * seconds
    return lag * lag / (-2 * growth)  # it is empty after lag / -growth, and stays empty


@dataclass(frozen=True, slots=True)
class CostOptions:
    """Options of `cost`."""

    window_seconds: float = option(120.0, "window of rates and capacity", unit="s", gt=0)
    horizon_seconds: float = option(1800.0, "time over which costs add up", unit="s", gt=0)
    slot_price: float = option(1.0, "price of one slot for one second", unit="slot-seconds", gt=0, price="slot")
    lag_price: float = option(
        1.0, "price of one second of work that waits for one second", unit="slot-seconds", ge=0, price="lag"
    )
    restart_price: float = option(
        60.0,
        "price of a change of size, in addition to the lag it causes",
        unit="slot-seconds",
        ge=0,
        price="change",
    )
    target_utilization: float = option(
        0.8, "the arrival rate is divided by this, to be ready for more", unit="share", gt=0, le=1
    )
    assumed_restart_seconds: float = option(30.0, "assumed restart time until one is measured", unit="s", ge=0)
    sizes: int = option(64, "number of sizes to compare, around the current one", ge=3, le=1024)


class Cost(Rule[CostOptions, NoMemory]):
    """The size whose slots, lag and change cost least over a horizon."""

    name: ClassVar[str] = "cost"
    Options: ClassVar[type] = CostOptions
    Memory: ClassVar[type] = NoMemory
    reasons: ClassVar[Mapping[str, Reason]] = {
        "EVIDENCE_MISSING": EVIDENCE_MISSING,
        "IDLE": IDLE,
        "COST_CHEAPER": Reason(
            "over the next {horizon:.0f} s a size of {size} costs {cost:.0f} slot-seconds, lag and change included, "
            "and the current size of {current} would cost {stay:.0f}"
        ),
        "COST_LEAST": Reason("over the next {horizon:.0f} s no other size costs less than the current {current} slots"),
    }

    def propose(self, case: Case, memory: NoMemory) -> Proposal[NoMemory]:
        """Return the cheapest size."""
        o, current = self.options, case.current
        found = measure(case, memory)
        if isinstance(found, Proposal):
            return found
        start = clamp(case, current)
        low, high = clamp(case, start - (o.sizes - 1) // 2), clamp(case, start + o.sizes // 2)
        # With handover first, sizes that the pool has no room for next to the present one take a restart.
        outages = {size: change_to(case, size, o.assumed_restart_seconds).outage for size in range(low, high + 1)}
        costs = {size: self.cost(size, current, found, outage) for size, outage in outages.items()}
        stay = self.cost(current, current, found, 0.0)
        best = min(costs, key=lambda size: (costs[size], size))
        if costs[best] >= stay:
            best = current
        numbers: dict[str, Figure] = {
            "horizon": o.horizon_seconds,
            "size": best,
            "current": current,
            "cost": costs.get(best, stay),
            "stay": stay,
            "outage": 0.0 if best == current else outages[best],
        }
        code = "COST_LEAST" if best == current else "COST_CHEAPER"
        return self._proposal(case, best, code, numbers)

    def cost(self, size: int, current: int, work: Workload, outage: float) -> float:
        """Return what a size costs over the horizon, in slot-seconds."""
        o, lag, arriving = self.options, float(work.lag), work.arrival / self.options.target_utilization
        pause = min(outage, o.horizon_seconds) if size != current else 0.0
        waiting = lag_integral(lag, arriving, pause)
        waiting += lag_integral(lag + arriving * pause, arriving - work.per_slot * size, o.horizon_seconds - pause)
        penalty = o.lag_price * waiting / (work.per_slot * current)
        return o.slot_price * size * o.horizon_seconds + penalty + (o.restart_price if size != current else 0.0)
