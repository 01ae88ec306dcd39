"""What `flip271` measures: the window of a job, evaluated as the metrics of one Flink vertex.

A job without jobs upstream is a source; the target of another is what those ask of it (`flip271_graph`).

Source: `ScalingMetrics`, `ScalingMetricEvaluator` and `ScalingTracking` of apache/flink-kubernetes-operator,
`flink-autoscaler`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tidegate.engine.case import Case
from tidegate.engine.state import JobState, Slice
from tidegate.engine.ways import measured, way_to
from tidegate.events.way import Way
from tidegate.policies import flip271_rules as rules
from tidegate.policies.flip271_graph import upstream_demand, upstream_lag_seconds
from tidegate.policies.flip271_options import Flip271Options

DAY_SECONDS = 86_400.0


class ObservedRate(NamedTuple):
    """The observed true processing rate of one sample."""

    at: float
    """Epoch seconds."""
    records_per_second: float | None
    """None without traffic: unlimited, for which the wire has no number."""

    @property
    def value(self) -> float:
        """The rate as the formulas take it."""
        return math.inf if self.records_per_second is None else self.records_per_second


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


def began(state: JobState) -> float:
    """Return since when the job has run at its size, epoch seconds: in Flink, each change of size is a new run."""
    return max(state.run_since or 0.0, state.changes.resized_at)


def samples(state: JobState) -> tuple[Slice, ...]:
    """Return the window without what is from before the present size (`ScalingMetricCollector.collect`)."""
    since = began(state)
    return tuple([piece for piece in state.window if piece.at >= since])


def evaluate(
    case: Case, window: Sequence[Slice], observed: Sequence[ObservedRate], o: Flip271Options
) -> VertexMetrics | None:
    """Return the evaluated metrics, each rounded as the source rounds them; `observed` is of the same window."""
    known = [s for s in window if s.arrived is not None and s.committed is not None]
    ends = (known[0], known[-1]) if known else ()
    input_rate = rules.rate([(s.at, _nan(s.committed)) for s in ends])
    lag_rate = rules.rate([(s.at, _nan(s.lag)) for s in ends])
    lag = window[-1].lag
    if math.isnan(input_rate) or math.isnan(lag_rate) or lag is None:
        return None
    target = max(0.0, input_rate + lag_rate)
    duration = rules.whole_seconds(o.catch_up_duration_seconds)
    catch_up = lag / duration if duration else 0.0
    asked = upstream_demand(case, target, duration) if case.observed.neighbours else None
    if asked is not None:
        target, catch_up = asked.target, catch_up + asked.catch_up
    target, catch_up = rules.round_metric(target), rules.round_metric(catch_up)
    load = rules.mean(
        rules.round_metric(min(1.0, s.busy_seconds / s.covered_seconds)) for s in window[1:] if s.covered_seconds > 0
    )
    busy_tpr = rules.busy_true_processing_rate(input_rate, load)
    observed_tpr = rules.mean((rate.value for rate in observed), o.observed_min_observations)
    tpr = rules.round_metric(rules.true_processing_rate(busy_tpr, observed_tpr, o.observed_switch_threshold))
    if not math.isfinite(tpr) or tpr <= 0:
        # No traffic at all: +inf, which allows a scale-down, but only if the input is known to be zero.
        if tpr != math.inf or input_rate != 0 or lag != 0:
            return None
    lag_seconds = (math.inf if lag > 0 else 0.0) if input_rate == 0 else lag / input_rate
    backlog = max(lag_seconds, upstream_lag_seconds(case)) > rules.whole_seconds(o.backlog_lag_threshold_seconds)
    upstream = None if asked is None else asked.jobs
    return VertexMetrics(target, catch_up, tpr, lag, backlog, _restart_seconds(case, o), upstream)


def observe(window: Sequence[Slice], before: Sequence[ObservedRate], o: Flip271Options) -> tuple[ObservedRate, ...]:
    """Return the observed true processing rate of each sample of the window that has one; `before`: of the last round.

    A sample keeps its value as long as it is in the window. One that does not lag has the mean of those before it, and
    counts like a measured one from then on. So a capacity that was seen once is remembered for the whole run.
    """
    known = {rate.at: rate for rate in before}
    rates: list[ObservedRate] = []
    for place, piece in enumerate(window):
        rate = known.get(piece.at)
        if rate is None and place > 0:  # what the first sample counted began before the window
            rate = _sample(piece, rates, o)
        if rate is not None:
            rates.append(rate)
    return tuple(rates)


def _sample(piece: Slice, earlier: Sequence[ObservedRate], o: Flip271Options) -> ObservedRate | None:
    """Return the observed rate of a new sample; None if it is not known."""
    covered, lag = piece.covered_seconds, piece.lag
    if covered <= 0 or lag is None or (piece.sums.batches == 0 and piece.busy_seconds > 0):
        return None  # in the middle of a long batch nothing is counted yet: unknown, not zero
    value = rules.observed_true_processing_rate(
        piece.sums.records / covered,
        lag,
        0.0,
        rules.mean((rate.value for rate in earlier), o.observed_min_observations),
        lag_threshold=o.observed_lag_threshold_seconds,
    )
    if math.isnan(value):
        return None
    return ObservedRate(piece.at, rules.round_metric(value) if math.isfinite(value) else None)


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
