"""The change that `tide` plans with: in which way the job would get another size, and what that costs."""

from __future__ import annotations

from tidegate.engine.case import Case
from tidegate.engine.ways import PlannedChange, assumed, measured, way_to
from tidegate.events.way import Way

MANY = 5
"""So many measured costs of a way that the longest may be an outlier."""


def planned_way(case: Case) -> Way:
    """Return the way to plan with; where none is possible a guard stops the change, whatever it would cost."""
    return way_to(case, case.current) or Way.RESTART


def planned_change(case: Case, restart_seconds: float) -> PlannedChange:
    """Return the change to plan for, at the longest costs measured, or the second longest of many."""
    way = planned_way(case)
    kept = measured(case.state, way)
    if not kept:
        return assumed(case.spec, way, restart_seconds)
    place = -2 if len(kept) >= MANY else -1
    return PlannedChange(
        way, sorted([each.outage for each in kept])[place], sorted([each.delay for each in kept])[place]
    )
