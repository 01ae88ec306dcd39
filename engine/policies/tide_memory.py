"""What `tide` keeps of a job across snapshots and restarts, in the form it has on the wire.

Values are replaced, never changed in place: the state before a decision must stay what it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any

from engine.policies.tide_capacity import Row
from engine.policies.tide_forecast import Forecast


@dataclass(slots=True)
class Memory:
    """A job's memory. Times are epoch seconds."""

    forecast: Forecast = field(default_factory=Forecast)
    rows: list[Row] = field(default_factory=list)
    """Sums over the batches of each size."""
    stages: list[list[float]] = field(default_factory=list)
    pace: list[Any] = field(default_factory=list)
    overhead: float | None = None
    incarnation: str | None = None
    batches: int = 0
    """Batches of the present run; -1 until its first ones are in."""
    wasted: float = 0.0
    """Slot-seconds that a smaller size would have spared so far."""
    patience: float | None = None
    shrunk: list[float] | None = None
    """(when, slots freed) of the last reduction, until it has paid for itself."""
    trial: list[float] | None = None
    """(when, from, to, capacity before) of the last growth, until it was judged."""
    useless: list[list[float]] = field(default_factory=list)
    """(size, until when) of sizes that brought nothing."""

    @staticmethod
    def of(wire: Mapping[str, Any]) -> Memory:
        """Return the memory that `wire` wrote."""
        if not wire:
            return Memory()
        known = {name: wire[name] for name in _PLAIN if name in wire}
        return Memory(Forecast.of(wire.get("forecast")), **known)

    def wire(self) -> dict[str, Any]:
        """Return the memory as JSON values, without what is empty."""
        kept = {name: value for name, value in zip(_PLAIN, _VALUES(self), strict=True) if value}
        kept["forecast"] = self.forecast.wire()
        return kept


_PLAIN = tuple(f.name for f in fields(Memory) if f.name != "forecast")
_VALUES = attrgetter(*_PLAIN)
