"""What is remembered of the ways to change a job's size: what each has cost, and which turned out to be impossible.

Part of the job's state, so times are whole seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from pydantic import JsonValue

from tidegate.engine.records import known
from tidegate.events.way import ALL_WAYS, Way

COSTS_KEPT: Final = 8
"""Costs remembered of each way."""

FELL_BACK: Final = "FELL_BACK"


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


class Shortfall(NamedTuple):
    """A change for which the pool gave fewer slots than ordered."""

    at: float
    granted: int
    free: int | None = None
    """What the pool showed as free afterwards; None until a snapshot has told it."""


class ChangeMemory(NamedTuple):
    """What past changes of a job's size have shown."""

    costs: tuple[MeasuredCost, ...] = ()
    """What the newest changes have cost, oldest first."""
    closed: tuple[ClosedWay, ...] = ()
    shortfall: Shortfall | None = None
    resized_at: float = 0.0
    """When the last change in place had ended: batches that began before show neither size."""


NO_CHANGES = ChangeMemory()


def note_cost(costs: tuple[MeasuredCost, ...], new: MeasuredCost) -> tuple[MeasuredCost, ...]:
    """Return the costs with a new one; of each way the newest are kept."""
    of_way = [cost for cost in costs if cost.way is new.way]
    dropped = of_way[: max(0, len(of_way) - COSTS_KEPT + 1)]
    return (*(cost for cost in costs if cost not in dropped), new)


def note_closed(closed: tuple[ClosedWay, ...], new: ClosedWay) -> tuple[ClosedWay, ...]:
    """Return the closed ways with a new one, which replaces what was known of the same way for the same reason."""
    return (*(each for each in closed if (each.way, each.code) != (new.way, new.code)), new)


def changes_to_wire(changes: ChangeMemory) -> dict[str, JsonValue]:
    """Return what is set, as JSON values."""
    wire: dict[str, JsonValue] = {"costs": [list(cost) for cost in changes.costs]}
    if changes.closed:
        wire["closed"] = [list(closed) for closed in changes.closed]
    if changes.shortfall is not None:
        wire["shortfall"] = list(changes.shortfall)
    if changes.resized_at:
        wire["resized_at"] = changes.resized_at
    return wire


def changes_from_wire(wire: Mapping[str, Any], restarts: Iterable[Sequence[float]] = ()) -> ChangeMemory:
    """Return what `changes_to_wire` wrote, without what only a newer engine knows.

    `restarts` are (when, downtime) as older engines wrote them.
    """
    shortfall = wire.get("shortfall")
    costs = [row for row in wire.get("costs", ()) if row[0] in ALL_WAYS]
    costs = costs or [(Way.RESTART, at, seconds, seconds) for at, seconds in restarts]
    closed = [known(ClosedWay, row) for row in wire.get("closed", ()) if row[0] in ALL_WAYS]
    return ChangeMemory(
        costs=tuple([MeasuredCost(Way(way), int(at), outage, delay) for way, at, outage, delay, *_ in costs]),
        closed=tuple([ClosedWay(Way(way), *rest) for way, *rest in closed]),
        shortfall=Shortfall(*known(Shortfall, shortfall)) if shortfall else None,
        resized_at=wire.get("resized_at", 0.0),
    )
