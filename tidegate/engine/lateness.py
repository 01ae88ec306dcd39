"""Lateness: is a job behind its lag objective, and not about to be back within it?

    capacity known      lag / capacity > objective, and the excess is not gone within another objective's time
                        at the rate at which the lag falls
    capacity unknown    the lag has grown over the window, and the window is as long as the objective, or nearly as
                        long as it can be
    not running         a job that should run and that nobody will start

A late job that nothing will change has the status LATE, whatever holds it.
"""

from __future__ import annotations

from tidegate.engine.case import Case

WHOLE_WINDOW = 0.8
"""Share of the policy's window from which it counts as full."""


def is_late(case: Case, capacity: float | None, window_seconds: float) -> bool:
    """Whether the job is late. `capacity` is what the policy thinks of the present size, if it has an opinion."""
    evidence, objective = case.evidence, case.spec.scaling.lag_objective_seconds
    if evidence.lag_seconds is not None and evidence.lag_seconds <= objective:
        return False
    lag, trend = evidence.lag_records, evidence.lag_trend
    if lag is None or lag <= 0:
        return False
    rate = max(capacity or 0.0, evidence.true_processing_rate or 0.0)
    if rate > 0:
        excess = lag - rate * objective
        return excess > 0 and (trend is None or -trend * objective < excess)
    return trend is not None and trend > 0 and evidence.window_seconds >= min(objective, WHOLE_WINDOW * window_seconds)
