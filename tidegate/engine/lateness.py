"""Lateness: is a job behind its lag objective, and not about to be back within it?

The objective is an age: the delay, which is how long the oldest record that is not committed has waited.

    delay known         delay > objective, and the records that are too many, lag - arrivals of the last objective's
                        time, are not gone within another objective's time at the rate at which the lag falls
    not known           or only known to be at least as long as something within the objective:
      capacity known    lag / capacity > objective, and the excess is not gone within another objective's time
      capacity unknown  the lag has grown over the window, and the window is as long as the objective, or nearly as
                        long as it can be
    not running         a job that should run and that nobody will start

A late job that nothing will change has the status LATE, whatever holds it.
"""

from __future__ import annotations

from typing import Final

from tidegate.engine.case import Case
from tidegate.engine.delay import arrived_since

WHOLE_WINDOW: Final = 0.8
"""Share of the policy's window from which it counts as full."""


def is_late(case: Case, capacity: float | None, window_seconds: float) -> bool:
    """Whether the job is late. `capacity` is what the policy thinks of the present size, if it has an opinion."""
    evidence, objective = case.evidence, case.spec.scaling.lag_objective_seconds
    lag, trend = evidence.lag_records, evidence.lag_trend
    if lag is None or lag <= 0:
        return False
    if evidence.delay_seconds is not None:
        if evidence.delay_seconds > objective:
            excess = lag - (arrived_since(case.state.arrivals, objective) or 0.0)
            return not _is_gone(excess, trend, objective)
        if not evidence.delay_at_least:
            return False
    if evidence.lag_seconds is not None and evidence.lag_seconds <= objective:
        return False
    rate = max(capacity or 0.0, evidence.true_processing_rate or 0.0)
    if rate > 0:
        excess = lag - rate * objective
        return excess > 0 and not _is_gone(excess, trend, objective)
    return trend is not None and trend > 0 and evidence.window_seconds >= min(objective, WHOLE_WINDOW * window_seconds)


def _is_gone(excess: float, trend: float | None, seconds: float) -> bool:
    """Whether records that are too many are gone after some time; a partition that lags alone shows no excess."""
    return excess > 0 and trend is not None and -trend * seconds >= excess
