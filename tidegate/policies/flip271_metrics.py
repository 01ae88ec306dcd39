"""What `flip271` measures: the window of a job, evaluated as the metrics of one Flink vertex.

A job without jobs upstream is a source; the target of another is what those ask of it (`flip271_graph`).

Source: `ScalingMetricEvaluator` and `ScalingTracking` of apache/flink-kubernetes-operator, `flink-autoscaler`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tidegate.engine.case import Case
from tidegate.engine.state import Slice
from tidegate.engine.ways import measured, way_to
from tidegate.events.way import Way
from tidegate.policies import flip271_rules as rules
from tidegate.policies.flip271_graph import upstream_demand, upstream_lag_seconds
from tidegate.policies.flip271_options import Flip271Options

DAY_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class VertexMetrics:
    """The metrics of the window; rates in records/s, all known."""

    target: float
    """What arrives, or what the jobs upstream should emit."""
    catch_up: float
    """What the lag adds, that of the jobs upstream too, spread over the catch-up duration."""
    tpr: float
    """The true processing rate; +inf without traffic."""
    lag: int
    backlog: bool
    """Whether so much input is waiting that the job must not scale down."""
    restart_seconds: float
    upstream: str | None = None
    """The jobs that the target comes from; None for a source."""


def evaluate(case: Case, o: Flip271Options) -> VertexMetrics | None:
    """Return the evaluated metrics, each rounded as the source rounds them."""
    window = case.state.window
    known = [s for s in window if s.arrived is not None and s.committed is not None]
    ends = (known[0], known[-1]) if known else ()
    input_rate = rules.rate([(s.at, _nan(s.committed)) for s in ends])
    lag_rate = rules.rate([(s.at, _nan(s.lag)) for s in ends])
    lag = window[-1].lag
    if math.isnan(input_rate) or math.isnan(lag_rate) or lag is None:
        return None
    target = max(0.0, input_rate + lag_rate)
    catch_up = lag / o.catch_up_duration_seconds if o.catch_up_duration_seconds else 0.0
    asked = upstream_demand(case, target, o.catch_up_duration_seconds) if case.observed.neighbours else None
    if asked is not None:
        target, catch_up = asked.target, catch_up + asked.catch_up
    target, catch_up = rules.round_metric(target), rules.round_metric(catch_up)
    loads = (min(1.0, s.busy_seconds / s.covered_seconds) for s in window[1:] if s.covered_seconds > 0)
    load = rules.round_metric(rules.mean(loads))
    busy_tpr = rules.busy_true_processing_rate(input_rate, load)
    observed = _observed(window, o)
    tpr = rules.round_metric(rules.true_processing_rate(busy_tpr, observed, o.observed_switch_threshold))
    if not math.isfinite(tpr) or tpr <= 0:
        # No traffic at all: +inf, which allows a scale-down, but only if the input is known to be zero.
        if tpr != math.inf or input_rate != 0 or lag != 0:
            return None
    lag_seconds = (math.inf if lag > 0 else 0.0) if input_rate == 0 else lag / input_rate
    backlog = max(lag_seconds, upstream_lag_seconds(case)) > o.backlog_lag_threshold_seconds
    upstream = None if asked is None else asked.jobs
    return VertexMetrics(target, catch_up, tpr, lag, backlog, _restart_seconds(case, o), upstream)


def _observed(window: tuple[Slice, ...], o: Flip271Options) -> float:
    """Return the mean of the samples' observed true processing rates."""
    total, count, idle = 0.0, 0, False
    for piece in window[1:]:
        covered, lag = piece.covered_seconds, piece.lag
        if covered <= 0 or lag is None or (piece.sums.batches == 0 and piece.busy_seconds > 0):
            continue  # in the middle of a long batch nothing is counted yet: unknown, not zero
        # The running form of `rules.mean` over the values so far.
        so_far = total / count if count >= o.observed_min_observations else math.nan
        value = rules.observed_true_processing_rate(
            piece.sums.records / covered,
            lag,
            0.0,
            math.inf if idle and count == 0 else so_far,
            lag_threshold=o.observed_lag_threshold_seconds,
        )
        if value < math.inf:  # false for NaN too
            total, count = total + value, count + 1
        else:
            idle = idle or value == math.inf
    if count == 0:
        return math.inf if idle else math.nan
    return total / count if count >= o.observed_min_observations else math.nan


def _restart_seconds(case: Case, o: Flip271Options) -> float:
    """Return the longest measured restart time that is kept, or the assumed one: the outage of the job's way."""
    costs = measured(case.state, way_to(case, case.current) or Way.RESTART)[-3:]
    kept = [cost.outage for cost in costs if cost.at >= case.measured_at - DAY_SECONDS]
    kept = kept or [cost.outage for cost in costs[-1:]]
    if not o.restart_time_tracking or not kept:
        return o.restart_time_seconds
    return min(max(kept), o.restart_time_limit_seconds)


def _nan(value: int | None) -> float:
    return math.nan if value is None else float(value)
