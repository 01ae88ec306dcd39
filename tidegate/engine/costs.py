"""What is remembered of the ways to change a job's size: what each has cost, and which turned out to be impossible.

Part of the job's state, so times are whole seconds.
"""

from __future__ import annotations

from typing import NamedTuple

from tidegate.events.way import Way

COSTS_KEPT = 5
"""Costs remembered of each way."""

FELL_BACK, CHECKPOINT_ELSEWHERE = "FELL_BACK", "CHECKPOINT_ELSEWHERE"


class MeasuredCost(NamedTuple):
    """What one change of size has cost."""

    way: Way
    at: int
    """Epoch seconds."""
    outage: float
    delay: float


class ClosedWay(NamedTuple):
    """A way that a result has shown to be impossible."""

    way: Way
    code: str
    """FELL_BACK or CHECKPOINT_ELSEWHERE."""
    at: int
    """Epoch seconds."""
    incarnation: str | None
    """The run it is known of."""
    location: int = 0
    """Checksum of the spec's checkpoint location: another location opens the way again."""


def note_cost(costs: tuple[MeasuredCost, ...], new: MeasuredCost) -> tuple[MeasuredCost, ...]:
    """Return the costs with a new one; of each way the newest are kept."""
    of_way = [cost for cost in costs if cost.way is new.way]
    dropped = of_way[: max(0, len(of_way) - COSTS_KEPT + 1)]
    return (*(cost for cost in costs if cost not in dropped), new)


def note_closed(closed: tuple[ClosedWay, ...], new: ClosedWay) -> tuple[ClosedWay, ...]:
    """Return the closed ways with a new one, which replaces what was known of the same way for the same reason."""
    return (*(each for each in closed if (each.way, each.code) != (new.way, new.code)), new)
