"""`flip271`: the Flink autoscaler's rule (FLIP-271), for one micro-batch job.

The job is one source vertex: it reads Kafka and does all its work in the same slots. Metrics are averaged over
`metrics_window_seconds`, and what is measured in the first `stabilization_interval_seconds` after a start does not
count: nothing is decided until both have passed.

    T     = rate(records in) + rate(lag)              what arrives
    C     = rate(records in) / busy                   capacity of the present size
    W(u)  = L / D  +  T · R / D  +  T / u             capacity wanted, for a utilization of u
    grow    when C < W(upper edge), there without T · R / D
    shrink  when C > W(lower edge)
    size  = ceil( n · W(target) / C )

- T, C, W: records/s. L: lag, records. n: present size, slots. D: `catch_up_duration_seconds`. R: restart time, s.
- busy: share of time inside micro-batches. A job that lags by more than `observed_lag_threshold_seconds` shows its
  capacity by what it processes; that is taken for C where C is more than `observed_switch_threshold` above it.
- target, upper and lower edge: `utilization_target`, and the same plus and minus `utilization_boundary`.
- With more than `backlog_lag_threshold_seconds` of input waiting, it grows when C < W(1) and does not shrink.
- The size is bounded by the two factors and the spec, then aligned to the partitions. A reduction waits for
  `scale_down_interval_seconds` and then follows the largest size wanted meanwhile.

Source: FLIP-271; apache/flink-kubernetes-operator, `flink-autoscaler` 1.15 and main; DS2 (Kalavri et al., OSDI 2018),
section 3. Options carry Flink's names and defaults.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import JsonValue

from tidegate.engine.case import Case, Proposal
from tidegate.engine.options import option
from tidegate.engine.reasons import Reason
from tidegate.engine.state import Slice
from tidegate.events.decision import Expectation, Figure
from tidegate.policies import flip271_rules as rules

DAY_SECONDS = 86_400.0
HISTORY = 3


@dataclass(frozen=True, slots=True)
class Flip271Options:
    """Options of `flip271`, with the defaults of the Flink autoscaler."""

    metrics_window_seconds: float = option(900.0, "window the metrics are averaged over", unit="s", gt=0)
    stabilization_interval_seconds: float = option(
        300.0, "samples this soon after a start do not count", unit="s", ge=0
    )
    utilization_target: float = option(0.7, "busy share of time to aim at", unit="share", gt=0, le=1)
    utilization_boundary: float = option(0.3, "half-width of the band around the target", unit="share", ge=0, le=1)
    utilization_max: float | None = option(
        None, "upper edge of the band; target + boundary when absent", unit="share", ge=0, le=1
    )
    utilization_min: float | None = option(
        None, "lower edge of the band; target - boundary when absent", unit="share", ge=0, le=1
    )
    catch_up_duration_seconds: float = option(
        1800.0, "time in which lag is to be worked off; 0: not at all", unit="s", ge=0
    )
    restart_time_seconds: float = option(
        300.0, "restart time reckoned with, unless `restart_time_tracking` has one", unit="s", ge=0
    )
    restart_time_tracking: bool = option(False, "reckon with the longest of the last 3 measured restarts")
    restart_time_limit_seconds: float = option(900.0, "most that a measured restart counts for", unit="s", ge=0)
    scale_up_max_factor: float = option(100_000.0, "largest growth at once, as a share of the size", unit="share", ge=0)
    scale_down_max_factor: float = option(
        0.6, "largest reduction at once, as a share of the size", unit="share", ge=0, le=1
    )
    scale_down_interval_seconds: float = option(3600.0, "how long a reduction waits for a larger wish", unit="s", ge=0)
    backlog_lag_threshold_seconds: float = option(
        300.0, "lag, in seconds of input, from which nothing is scaled down", unit="s", ge=0
    )
    observed_lag_threshold_seconds: float = option(
        30.0, "lag, in seconds of input, from which the rate processed shows the capacity", unit="s", ge=0
    )
    observed_min_observations: int = option(2, "samples the observed capacity needs", unit="samples", ge=1)
    observed_switch_threshold: float = option(
        0.15, "how far C must be above the observed capacity for that to be taken", unit="share", ge=0
    )
    alignment_mode: str = option(
        "BALANCED",
        "`BALANCED`: up to a size with fewer partitions a slot; `EVENLY_SPREAD`: up to a divisor of the partitions; "
        "`OFF`: as it is; `LEGACY_…`: the rules of release 1.15",
        choices=("BALANCED", "EVENLY_SPREAD", "OFF", "LEGACY_EVENLY_SPREAD", "LEGACY_MAXIMIZE_UTILISATION"),
    )
    observed_scalability: bool = option(
        False, "divide by how far the last changes fell short of linear scaling (the coefficient)"
    )
    scalability_min_observations: int = option(3, "decisions the coefficient needs", unit="decisions", ge=2, le=HISTORY)
    scalability_coefficient_min: float = option(0.5, "least the coefficient may be", unit="share", gt=0, le=1)
    ineffective_detection: bool = option(False, "block a scale-up after one that brought nothing")
    ineffective_threshold: float = option(
        0.1, "share of the expected gain below which it brought nothing", unit="share", ge=0, le=1
    )


class Flip271:
    """The Flink autoscaler's rule: the capacity that fits arrivals, lag and a target utilization."""

    name: ClassVar[str] = "flip271"
    Options: ClassVar[type] = Flip271Options
    reasons: ClassVar[Mapping[str, Reason]] = {
        "WINDOW_FILLING": Reason(
            "measurements cover {have_seconds:.0f} s of the {need_seconds:.0f} s that a judgement needs"
        ),
        "CAPACITY_UNKNOWN": Reason("the job's capacity cannot be told from what was measured"),
        "WITHIN_BAND": Reason(
            "{arrival:.0f} records/s arrive, and the capacity of {capacity:.0f}/s "
            "lies in the band {low:.0f}..{high:.0f}/s"
        ),
        "CAPACITY_TOO_LOW": Reason(
            "{arrival:.0f} records/s arrive and {lag} wait, which asks for {wanted:.0f}/s; "
            "{current} slots can do {capacity:.0f}/s"
        ),
        "CAPACITY_TOO_HIGH": Reason(
            "{arrival:.0f} records/s arrive and {lag} wait, which asks for {wanted:.0f}/s; "
            "{current} slots could do {capacity:.0f}/s"
        ),
        "IDLE": Reason("nothing arrives and nothing waits; {size} slots will do"),
        "DRAINING": Reason("{lag} records wait, and nothing is taken away while a backlog is worked off"),
        "SCALE_DOWN_DELAYED": Reason(
            "{size} slots would do, but a scale-down waits until {wait_seconds:.0f} s have passed"
        ),
        "INEFFECTIVE_SCALE_UP": Reason("the last scale-up to {current} slots brought too little to add more"),
        "RIGHT_SIZE": Reason("the size that fits {arrival:.0f} records/s is the present one, {current} slots"),
    }

    def __init__(self, options: Flip271Options) -> None:
        self.options = options

    @property
    def window_seconds(self) -> float:
        """The metric window."""
        return self.options.metrics_window_seconds

    def propose(self, case: Case) -> Proposal:
        """Return the size by the rule, or the present one while the window fills."""
        memory = _Memory(case.state.memory)
        have = self._window_age(case, memory)
        if have < self.window_seconds - 1e-6 or len(case.state.window) < 2:
            numbers = {"have_seconds": max(0.0, have), "need_seconds": self.window_seconds}
            return Proposal(case.current, "WINDOW_FILLING", numbers, memory=memory.wire())
        measured = self._evaluate(case)
        if measured is None:
            return Proposal(case.current, "CAPACITY_UNKNOWN", {}, memory=memory.wire())
        return self._decide(case, measured, memory)

    def ordered(self, case: Case, proposal: Proposal, final: int) -> dict[str, JsonValue]:
        """Remember the executed decision and drop pending scale-downs."""
        memory = _Memory(proposal.memory or case.state.memory)
        tpr = proposal.numbers.get("capacity")
        if isinstance(tpr, float) and case.current:
            expected = tpr / case.current * final
            memory.history = [*memory.recent(case.measured_at), (case.measured_at, case.current, final, tpr, expected)][
                -HISTORY:
            ]
        memory.clear_pending()
        return memory.wire()

    def _window_age(self, case: Case, memory: _Memory) -> float:
        """Return how long samples have counted: from the first one after the stabilization interval."""
        state = case.state
        stable = (state.run_since or 0.0) + self.options.stabilization_interval_seconds
        if memory.first_at is not None and (memory.first_at < stable or memory.first_at < (state.window_since or 0.0)):
            memory.first_at = None
        if memory.first_at is None and case.measured_at >= stable:
            memory.first_at = case.measured_at
        return case.measured_at - memory.first_at if memory.first_at is not None else 0.0

    def _evaluate(self, case: Case) -> _Measured | None:
        """Return the evaluated metrics, each rounded as the source rounds them."""
        o = self.options
        window = case.state.window
        known = [s for s in window if s.arrived is not None and s.committed is not None]
        ends = (known[0], known[-1]) if known else ()
        input_rate = rules.rate([(s.at, _nan(s.committed)) for s in ends])
        lag_rate = rules.rate([(s.at, _nan(s.lag)) for s in ends])
        lag = window[-1].lag
        if math.isnan(input_rate) or math.isnan(lag_rate) or lag is None:
            return None
        target = rules.round_metric(max(0.0, input_rate + lag_rate))
        catch_up = rules.round_metric(lag / o.catch_up_duration_seconds) if o.catch_up_duration_seconds else 0.0
        load = rules.round_metric(rules.mean(_loads(window)))
        busy_tpr = rules.busy_true_processing_rate(input_rate, load)
        observed = self._observed(window)
        tpr = rules.round_metric(rules.true_processing_rate(busy_tpr, observed, o.observed_switch_threshold))
        if not math.isfinite(tpr) or tpr <= 0:
            # No traffic at all: +inf, "allows scale down"; only a known zero input may say so.
            if tpr != math.inf or input_rate != 0 or lag != 0:
                return None
        backlog = lag > 0 if input_rate == 0 else lag / input_rate > o.backlog_lag_threshold_seconds
        return _Measured(target, catch_up, tpr, lag, backlog, self._restart_seconds(case))

    def _observed(self, window: tuple[Slice, ...]) -> float:
        """Return the mean of the samples' observed true processing rates."""
        o = self.options
        total, count, idle = 0.0, 0, False
        for piece in window[1:]:
            covered, lag = piece.covered_seconds, piece.lag
            if covered <= 0 or lag is None or (piece.batches == 0 and piece.busy_seconds > 0):
                continue  # inside one long batch nothing was counted yet: unknown, not zero
            # The running form of `rules.mean` over the values so far.
            so_far = total / count if count >= o.observed_min_observations else math.nan
            value = rules.observed_true_processing_rate(
                piece.records / covered,
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

    def _restart_seconds(self, case: Case) -> float:
        """Return the restart time to reckon with: the longest kept one, or the assumed one."""
        o = self.options
        kept = [seconds for at, seconds in case.state.restarts[-3:] if at >= case.measured_at - DAY_SECONDS]
        kept = kept or [seconds for _, seconds in case.state.restarts[-1:]]
        if not o.restart_time_tracking or not kept:
            return o.restart_time_seconds
        return min(max(kept), o.restart_time_limit_seconds)

    def _capacity(self, measured: _Measured, utilization: float, *, with_restart: bool) -> float:
        return rules.target_capacity(
            measured.target,
            measured.catch_up,
            utilization=utilization,
            restart_seconds=measured.restart_seconds,
            catch_up_seconds=self.options.catch_up_duration_seconds,
            with_restart=with_restart,
        )

    def _decide(self, case: Case, m: _Measured, memory: _Memory) -> Proposal:
        o = self.options
        low_edge = o.utilization_min if o.utilization_min is not None else o.utilization_target - o.utilization_boundary
        high_edge = (
            o.utilization_max if o.utilization_max is not None else o.utilization_target + o.utilization_boundary
        )
        if m.backlog:
            up, down = self._capacity(m, 1.0, with_restart=False), math.inf
        else:
            up = self._capacity(m, high_edge, with_restart=False)
            down = self._capacity(m, low_edge, with_restart=True)
        outside = m.tpr < up or m.tpr > down
        wanted = self._capacity(m, o.utilization_target, with_restart=True)
        alpha = self._alpha(case, memory)
        factor = rules.scale_factor(
            wanted, m.tpr, max_down=o.scale_down_max_factor, max_up=o.scale_up_max_factor, alpha=alpha
        )
        scaling = case.spec.scaling
        size = rules.scaled_parallelism(
            case.current, factor, minimum=scaling.min_parallelism, maximum=scaling.max_parallelism
        )
        if size != case.current:
            size = self._align(case, size)
        numbers: dict[str, Figure] = {
            "arrival": m.target,
            "lag": m.lag,
            "wanted": _figure(wanted),
            "capacity": _figure(m.tpr),
            "low": _figure(up),
            "high": _figure(down),
            "current": case.current,
            "size": size,
            "restart_seconds": m.restart_seconds,
        }
        if size >= case.current:
            memory.clear_pending()
        if size == case.current:
            return self._proposal(case, m, size, "RIGHT_SIZE", numbers, memory)
        if size > case.current and o.ineffective_detection and self._brought_nothing(case, m, memory):
            return self._proposal(case, m, case.current, "INEFFECTIVE_SCALE_UP", numbers, memory)
        if size < case.current and o.scale_down_interval_seconds > 0:
            due = memory.pend(case.measured_at, size, outside, o.scale_down_interval_seconds)
            if due is None:
                wait = memory.pending_since + o.scale_down_interval_seconds - case.measured_at  # type: ignore[operator]
                numbers["wait_seconds"] = wait
                held = "DRAINING" if m.backlog else "WITHIN_BAND"
                code = "SCALE_DOWN_DELAYED" if outside else held
                return self._proposal(case, m, case.current, code, numbers, memory)
            size, outside = due
            numbers["size"] = size
        if not outside or size == case.current:
            code = "DRAINING" if m.backlog and size < case.current else "WITHIN_BAND"
            return self._proposal(case, m, case.current, code, numbers, memory)
        if size > case.current:
            code = "CAPACITY_TOO_LOW"
        else:
            code = "CAPACITY_TOO_HIGH" if math.isfinite(m.tpr) else "IDLE"
        return self._proposal(case, m, size, code, numbers, memory)

    def _align(self, case: Case, size: int) -> int:
        o = self.options
        partitions = case.evidence.partitions or 0
        limit = case.spec.scaling.max_parallelism
        if o.alignment_mode.startswith("LEGACY_"):
            lower = min(case.current, case.spec.scaling.min_parallelism)
            mode = o.alignment_mode.removeprefix("LEGACY_")
            return rules.align_legacy(case.current, size, partitions, mode=mode, limit=limit, lower=lower)[0]
        return rules.align(case.current, size, partitions, mode=o.alignment_mode, limit=limit)

    def _alpha(self, case: Case, memory: _Memory) -> float:
        if not self.options.observed_scalability:
            return 1.0
        pairs = [(current, tpr) for _, current, _, tpr, _ in memory.recent(case.measured_at)]
        return rules.scalability_coefficient(
            pairs,
            min_observations=self.options.scalability_min_observations,
            minimum=self.options.scalability_coefficient_min,
        )

    def _brought_nothing(self, case: Case, m: _Measured, memory: _Memory) -> bool:
        recent = memory.recent(case.measured_at)
        if not recent:
            return False
        _, before, after, tpr, expected = recent[-1]
        if after <= before or after != case.current:
            return False
        return rules.ineffective(m.tpr, tpr, expected, self.options.ineffective_threshold)

    def _proposal(
        self, case: Case, m: _Measured, size: int, code: str, numbers: dict[str, Figure], memory: _Memory
    ) -> Proposal:
        expectation = None
        if math.isfinite(m.tpr) and case.current:
            capacity = m.tpr / case.current * size
            waiting = m.lag + (m.target * m.restart_seconds if size != case.current else 0.0)
            spare = capacity - m.target
            expectation = Expectation(
                processing_rate=capacity,
                lag_seconds=waiting / capacity,
                catch_up_seconds=waiting / spare if spare > 0 else None,
                restart_seconds=m.restart_seconds if size != case.current else 0.0,
            )
        return Proposal(size, code, numbers, expectation, memory.wire())


@dataclass(frozen=True, slots=True)
class _Measured:
    target: float
    catch_up: float
    tpr: float
    lag: int
    backlog: bool
    restart_seconds: float


class _Memory:
    """What the rule keeps: when samples began to count, pending scale-downs, the last executed decisions."""

    def __init__(self, wire: Mapping[str, Any]) -> None:
        self.first_at: float | None = wire.get("first_at")
        self.pending: list[tuple[float, int, bool]] = [(t, p, o) for t, p, o in wire.get("pending", ())]
        self.pending_since: float | None = wire.get("pending_since")
        self.history: list[tuple[float, int, int, float, float]] = [
            (a, b, c, d, e) for a, b, c, d, e in wire.get("history", ())
        ]

    def pend(self, at: float, size: int, outside: bool, interval: float) -> tuple[int, bool] | None:
        """Take in a wish to scale down; return the wish that is due, if one is."""
        self.pending, self.pending_since, due = rules.delayed_scale_down(
            self.pending, self.pending_since, at, size, outside, interval
        )
        return due

    def clear_pending(self) -> None:
        self.pending, self.pending_since = [], None

    def recent(self, at: float) -> list[tuple[float, int, int, float, float]]:
        return [record for record in self.history if record[0] >= at - DAY_SECONDS]

    def wire(self) -> dict[str, JsonValue]:
        kept: dict[str, JsonValue] = {}
        if self.first_at is not None:
            kept["first_at"] = self.first_at
        if self.pending:
            kept["pending"] = [list(wish) for wish in self.pending]
            kept["pending_since"] = self.pending_since
        if self.history:
            kept["history"] = [list(record) for record in self.history]
        return kept


def _nan(value: int | None) -> float:
    return math.nan if value is None else float(value)


def _figure(value: float) -> float | None:
    """Return a number for the trail; unlimited and unknown have no figure on the wire."""
    return value if math.isfinite(value) else None


def _loads(window: tuple[Slice, ...]) -> list[float]:
    return [min(1.0, s.busy_seconds / s.covered_seconds) for s in window[1:] if s.covered_seconds > 0]
