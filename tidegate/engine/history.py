"""What the guards remember of a job: restarts, the last scale-up, a pending scale-down, a halt, failures.

It is part of the state. Only what is set goes on the wire, so the state of a quiet job stays small.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pydantic import JsonValue

from tidegate.engine.records import known

DAY_SECONDS: Final = 86_400.0
ORDERS_KEPT: Final = 72
"""How many restarts of one day are remembered; a daily budget cannot be larger."""

WORKED: Final = 0.5
"""Share of the expected gain from which a scale-up has worked. If the capacity falls later, the job became slower."""

STOPPED, FAILED, RESUMED = "STOPPED", "FAILED", "RESUMED"


@dataclass(frozen=True, slots=True)
class Growth:
    """An ordered scale-up, and what the job could do before it."""

    at: float
    before: int
    after: int
    rate: float | None
    """True processing rate at `before` slots, records/s; None when it was unknown."""
    worked: bool = False
    """Whether it has brought `WORKED` of the expected gain at some time since."""
    repeated: bool = False
    """Whether it was ordered after a scale-up that had not worked."""

    def gain(self, size: int, rate: float | None) -> float | None:
        """Return the share of the expected gain that the scale-up has brought.

        gain = (C - C0) / (C0 · n / n0 - C0)

        C and n: true processing rate (records/s) and size now; C0 and n0: before the scale-up. Linear scaling gives 1.
        None if a rate is not known, the job had no slots before, or its size has changed since.
        """
        if self.rate is None or rate is None or not self.before or size != self.after:
            return None
        return (rate - self.rate) / (self.rate * self.after / self.before - self.rate)


@dataclass(frozen=True, slots=True)
class History:
    """The guards' memory of one job."""

    ordered_at: tuple[int, ...] = ()
    """When restarts were ordered, whole epoch seconds, oldest first; at most a day and `ORDERS_KEPT` of them."""
    growth: Growth | None = None
    """The last scale-up, until a scale-down is ordered."""
    shrink: tuple[float, int] | None = None
    """Since when smaller sizes have been proposed without a break, and the largest of them."""
    halt: str | None = None
    """STOPPED or FAILED at a state limit; RESUMED when a person let a stopped job continue."""
    failed: tuple[bool, int] | None = None
    """Whether the change of size that failed last was a scale-up, and how many of those have failed in a row."""


EMPTY = History()


def note_proposal(history: History, proposed: int, current: int, at: float) -> History:
    """Return the history after a policy's proposal."""
    if proposed >= current:
        return history if history.shrink is None else replace(history, shrink=None)
    since, largest = history.shrink or (at, proposed)
    noted = (since, max(largest, proposed))
    return history if noted == history.shrink else replace(history, shrink=noted)


def note_order(history: History, at: float, before: int, after: int, rate: float | None) -> History:
    """Return the history after a rescale was ordered."""
    last = history.growth
    repeated = last is not None and last.after == before and not last.worked
    growth = Growth(at, before, after, rate, repeated=repeated) if after > before else None
    return replace(history, growth=growth, shrink=None)


def note_gain(history: History, size: int, rate: float | None) -> History:
    """Return the history after a measured true processing rate, records/s."""
    growth = history.growth
    if growth is None or growth.worked:
        return history
    gain = growth.gain(size, rate)
    return history if gain is None or gain < WORKED else replace(history, growth=replace(growth, worked=True))


def note_restart(history: History, at: float) -> History:
    """Return the history after a change of size by restart, ordered or fallen back to."""
    return replace(history, ordered_at=(*restarts_of_the_day(history, at), int(at))[-ORDERS_KEPT:])


def take_back(history: History, at: float) -> History:
    """Return the history without a change that was ordered at an instant, and was refused or never taken up."""
    growth = None if history.growth is not None and history.growth.at == at else history.growth
    kept = tuple([ordered for ordered in history.ordered_at if ordered != int(at)])
    return replace(history, ordered_at=kept, growth=growth)


def restarts_of_the_day(history: History, at: float) -> list[int]:
    """Return when restarts were ordered in the 24 hours before `at`, oldest first."""
    return [ordered for ordered in history.ordered_at if ordered > at - DAY_SECONDS]


def note_outcome(history: History, *, worked: bool) -> History:
    """Return the history after the change of size that was ordered last has worked, or failed."""
    grew = history.growth is not None
    before = history.failed[1] if history.failed is not None and history.failed[0] is grew else 0
    if worked:
        return replace(history, failed=None) if before else history
    return replace(history, failed=(grew, before + 1))


def resumed(history: History, *, active: bool) -> History:
    """Return the history after a person changed the spec: a stopped job may continue, a failed one may not.

    A spec that is not active, as after `tidegate pause`, lets nothing continue. What failed may work now.
    """
    return replace(history, halt=RESUMED if history.halt == STOPPED and active else history.halt, failed=None)


def history_to_wire(history: History) -> dict[str, JsonValue]:
    """Return what is set, as JSON values."""
    wire: dict[str, JsonValue] = {}
    if history.ordered_at:
        wire["ordered_at"] = list(history.ordered_at)
    if history.growth is not None:
        g = history.growth
        more = [g.worked, g.repeated] if g.worked or g.repeated else []
        wire["growth"] = [g.at, g.before, g.after, g.rate, *more]
    if history.shrink is not None:
        wire["shrink"] = list(history.shrink)
    if history.halt is not None:
        wire["halt"] = history.halt
    if history.failed is not None:
        wire["failed"] = list(history.failed)
    return wire


def history_from_wire(wire: Mapping[str, Any]) -> History:
    """Return the history that `history_to_wire` wrote, without what only a newer engine knows."""
    growth, shrink, failed = wire.get("growth"), wire.get("shrink"), wire.get("failed")
    return History(
        ordered_at=tuple(wire.get("ordered_at", ())),
        growth=Growth(*known(Growth, growth)) if growth else None,
        shrink=(shrink[0], shrink[1]) if shrink else None,
        halt=wire.get("halt"),
        failed=(failed[0], failed[1]) if failed else None,
    )
