"""What `tide` keeps of a job across snapshots and restarts.

Values are replaced, never changed in place: the state before a decision must stay what it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

from tidegate.engine.case import Case
from tidegate.engine.state import Slice
from tidegate.engine.tide.capacity import Row, learn, learn_overhead, learn_stages
from tidegate.engine.tide.forecast import UNSEEN, Forecast, Smoothing
from tidegate.engine.tide.hindsight import NO_HINDSIGHT, Hindsight, Shadow, Vain
from tidegate.engine.tide.pace import UNBOUND, Pace


@dataclass(slots=True)
class Memory:
    """A job's memory. Times are epoch seconds."""

    forecast: Forecast = UNSEEN
    pace: Pace = UNBOUND
    rows: tuple[Row, ...] = ()
    """Sums over the batches of each size."""
    stages: tuple[tuple[int, float], ...] = ()
    """(tasks, slot-seconds) of the busiest stages."""
    overhead: float | None = None
    incarnation: str | None = None
    batches: int = 0
    """Batches of the present run; -1 until its first ones are in."""
    wasted: float = 0.0
    """Slot-seconds that a smaller size would have spared so far."""
    patience: float | None = None
    shrunk: tuple[float, int] | None = None
    """(when, slots freed) of the last reduction, until it has paid for itself."""
    trial: tuple[float, int, int, float] | None = None
    """(when, from, to, capacity before) of the last growth, until it was judged."""
    hindsight: Hindsight = NO_HINDSIGHT
    useless: tuple[tuple[int, float], ...] = ()
    """(size, until when) of sizes that brought nothing."""

    @staticmethod
    def of(kept: Memory | Mapping[str, Any]) -> Memory:
        """Return a memory of its own with what was kept, whether as it was or as `wire` wrote it."""
        if isinstance(kept, Memory):
            return Memory(*_VALUES(kept))
        known = {name: kept[name] for name in _NAMES if name in kept}
        for name, read in _NESTED.items():
            if name in known:
                known[name] = read(known[name])
        return Memory(**known)

    def learn(self, case: Case, smoothing: Smoothing) -> None:
        """Take the newest snapshot into forecast and capacity."""
        rate = newest_rate(case.state.window)
        if rate is not None:
            self.forecast = self.forecast.update(case.measured_at, rate, smoothing)
        fresh = case.snapshot.batches
        if fresh:
            self.pace = self.pace.learned(fresh, case.evidence.lag_records)
        if self.incarnation != case.state.incarnation:
            # The first batches of a run load code, state and backlog: they do not show its capacity.
            self.incarnation = case.state.incarnation
            self.batches = -1
        elif fresh and case.current and self.batches < 0:
            self.batches = 0
        elif fresh and case.current and case.newest is not None:
            self.batches = min(self.batches + len(fresh), 1000)
            self.overhead = learn_overhead(self.overhead, fresh)
            self.rows = learn(self.rows, case.current, case.newest, self.overhead or 0.0)
        if case.snapshot.stages:
            self.stages = learn_stages(self.stages, case.snapshot.stages)

    def wire(self) -> dict[str, Any]:
        """Return the memory as JSON values, without what is as in a new one."""
        pairs = zip(_NAMES, _VALUES(self), _VALUES(_NEW), strict=True)
        return {name: _listed(value) for name, value, new in pairs if value != new}


def newest_rate(window: tuple[Slice, ...]) -> float | None:
    """Return the arrival rate of the newest stretch of the window."""
    if len(window) < 2 or window[-1].arrived is None or window[-2].arrived is None:
        return None
    gap = window[-1].at - window[-2].at
    return (window[-1].arrived - window[-2].arrived) / gap if gap > 0 else None


def _listed(value: Any) -> Any:
    return [_listed(item) for item in value] if isinstance(value, tuple) else value


_NAMES = tuple(f.name for f in fields(Memory))
_VALUES = attrgetter(*_NAMES)
_NEW = Memory()
_NESTED: dict[str, Callable[[list[Any]], object]] = {
    "forecast": lambda wire: Forecast(*wire),
    "pace": lambda wire: Pace(*wire),
    "rows": lambda wire: tuple(Row(*row) for row in wire),
    "stages": lambda wire: tuple(map(tuple, wire)),
    "shrunk": tuple,
    "trial": tuple,
    "hindsight": lambda wire: Hindsight(
        tuple(Shadow(*shadow) for shadow in wire[0]), tuple(Vain(*found) for found in wire[1])
    ),
    "useless": lambda wire: tuple(map(tuple, wire)),
}
