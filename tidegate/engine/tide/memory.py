"""What `tide` keeps of a job across snapshots and restarts."""

from __future__ import annotations

from typing import NamedTuple

from tidegate.engine.case import Case
from tidegate.engine.state import Slice
from tidegate.engine.tide.capacity import Row, learn, learn_overhead, learn_stages
from tidegate.engine.tide.forecast import UNSEEN, Forecast, Smoothing
from tidegate.engine.tide.hindsight import NO_HINDSIGHT, Hindsight
from tidegate.engine.tide.pace import UNBOUND, Pace


class TideMemory(NamedTuple):
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

    def learned(self, case: Case, smoothing: Smoothing) -> TideMemory:
        """Return the memory with the newest snapshot taken into forecast and capacity."""
        forecast, pace, rows, stages, overhead, incarnation, batches = self[:7]
        rate = newest_rate(case.state.window)
        if rate is not None:
            forecast = forecast.update(case.measured_at, rate, smoothing)
        fresh = case.snapshot.batches
        if fresh:
            pace = pace.learned(fresh, case.evidence.lag_records)
        if incarnation != case.state.incarnation:
            # The first batches of a run load code, state and backlog: they do not show its capacity.
            incarnation, batches = case.state.incarnation, -1
        elif fresh and case.current and batches < 0:
            batches = 0
        elif fresh and case.current and case.newest is not None:
            batches = min(batches + len(fresh), 1000)
            overhead = learn_overhead(overhead, fresh)
            rows = learn(rows, case.current, case.newest, overhead or 0.0)
        if case.snapshot.stages:
            stages = learn_stages(stages, case.snapshot.stages)
        return TideMemory(forecast, pace, rows, stages, overhead, incarnation, batches, *self[7:])


def newest_rate(window: tuple[Slice, ...]) -> float | None:
    """Return the arrival rate of the newest stretch of the window."""
    if len(window) < 2 or window[-1].arrived is None or window[-2].arrived is None:
        return None
    gap = window[-1].at - window[-2].at
    return (window[-1].arrived - window[-2].arrived) / gap if gap > 0 else None
