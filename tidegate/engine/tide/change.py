"""The change that `tide` plans with: in which way the job would get another size, and what that costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidegate.engine.case import Case
from tidegate.engine.ways import PlannedChange, assumed, measured, way_to
from tidegate.events.way import Way

MANY: Final = 5
"""So many measured costs of a way that the longest may be an outlier."""


def planned_change(case: Case, restart_seconds: float, outages: Sequence[float]) -> PlannedChange:
    """Return the change to plan for, at the longest costs measured, or the second longest of many.

    `outages` are those of past restarts without their first batches. A restart is over when its first batch begins.
    """
    # Where no way is possible a guard stops the change, whatever it would cost.
    way = way_to(case, case.current) or Way.RESTART
    if way is Way.RESTART and outages:
        outage = _long(outages)
        return PlannedChange(way, outage, outage)
    kept = measured(case.state, way)
    if not kept:
        return assumed(case.spec, way, restart_seconds)
    return PlannedChange(way, _long([each.outage for each in kept]), _long([each.delay for each in kept]))


def _long(seconds: Sequence[float]) -> float:
    """Return the longest of some times, or the second longest of many."""
    return sorted(seconds)[-2 if len(seconds) >= MANY else -1]
