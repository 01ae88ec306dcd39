"""`flip271`: the rule of the Flink autoscaler (FLIP-271), for one micro-batch job.

The job counts as one source vertex: it reads Kafka and does all its work in the same slots. Rates are averaged over
`metrics_window_seconds`. The first `stabilization_interval_seconds` after a start do not count, so the rule makes its
first proposal when both times have passed.

    T     = rate(records in) + rate(lag)              arrivals
    C     = rate(records in) / busy                   capacity of the current size
    W(u)  = L / D  +  T · R / D  +  T / u             capacity needed for a utilization of u
    scale up     when C < W(upper edge), without the term T · R / D
    scale down   when C > W(lower edge)
    size  = ceil( n · W(target) / C )

- T, C, W: records/s. L: lag, records. n: current size, slots. D: `catch_up_duration_seconds`. R: restart time, s.
- busy: share of the time spent in micro-batches. A job that lags by more than `observed_lag_threshold_seconds` works
  as fast as it can, so its processing rate is its capacity. That rate replaces C when C is more than
  `observed_switch_threshold` above it.
- target: `utilization_target`. Upper and lower edge: `utilization_max` and `utilization_min`, or the target plus and
  minus `utilization_boundary`.
- If more than `backlog_lag_threshold_seconds` of input is waiting, the job scales up when C < W(1), and not down.
- The two factors and the spec limit the size. Then it is aligned to the partitions.
- A scale-down waits for `scale_down_interval_seconds` and then goes to the largest size proposed in that time.

When to choose it: You know Flink's autoscaler and want its rule on Spark, for load that changes over hours.

Set first: `metrics_window_seconds` and `stabilization_interval_seconds` (by default the first proposal comes 20 minutes
after each start), `scale_down_interval_seconds` (an hour).

Source: FLIP-271; apache/flink-kubernetes-operator, `flink-autoscaler` 1.15 and main; DS2 (Kalavri et al., OSDI 2018),
section 3. Options have Flink's names, ranges and defaults.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from tidegate.engine.case import Case, Proposal
from tidegate.engine.options import BadOption, option
from tidegate.engine.reasons import Reason
from tidegate.engine.state import Slice
from tidegate.events.decision import Expectation, Figure
from tidegate.policies import flip271_rules as rules
from tidegate.policies.sizing import IDLE

DAY_SECONDS = 86_400.0
HISTORY = 3


@dataclass(frozen=True, slots=True)
class Flip271Options:
    """Options of `flip271`, with the defaults of the Flink autoscaler."""

    metrics_window_seconds: float = option(900.0, "window that rates are averaged over", unit="s", gt=0)
    stabilization_interval_seconds: float = option(
        300.0, "time after a start in which samples do not count", unit="s", ge=0
    )
    utilization_target: float = option(0.7, "utilization to aim at", unit="share", gt=0, le=1)
    utilization_boundary: float = option(0.3, "half-width of the band around the target", unit="share", ge=0, le=1)
    utilization_max: float | None = option(
        None, "upper edge of the band, from the target to 1; absent: target + boundary", unit="share", ge=0, le=1
    )
    utilization_min: float | None = option(
        None, "lower edge of the band, from 0 to the target; absent: target - boundary", unit="share", ge=0, le=1
    )
    catch_up_duration_seconds: float = option(
        1800.0, "time to work off the lag in; 0: the lag is ignored", unit="s", ge=0
    )
    restart_time_seconds: float = option(
        300.0, "assumed restart time, until `restart_time_tracking` has measured one", unit="s", ge=0
    )
    restart_time_tracking: bool = option(False, "use the longest of the last 3 measured restarts")
    restart_time_limit_seconds: float = option(900.0, "longest restart time that is used", unit="s", ge=0)
    scale_up_max_factor: float = option(
        100_000.0, "largest scale-up at once, as a share of the size", unit="share", ge=0
    )
    scale_down_max_factor: float = option(
        0.6, "largest scale-down at once, as a share of the size", unit="share", ge=0, le=1
    )
    scale_down_interval_seconds: float = option(
        3600.0, "how long a scale-down waits for a larger proposal", unit="s", ge=0
    )
    backlog_lag_threshold_seconds: float = option(
        300.0, "lag, in seconds of input, above which the job does not scale down", unit="s", ge=0
    )
    observed_lag_threshold_seconds: float = option(
        30.0, "lag, in seconds of input, from which the processing rate shows the capacity", unit="s", ge=0
    )
    observed_min_observations: int = option(2, "samples needed for the observed capacity", unit="samples", ge=1)
    observed_switch_threshold: float = option(
        0.15, "how far C must be above the observed capacity to be replaced by it", unit="share", ge=0
    )
    alignment_mode: str = option(
        "BALANCED",
        "`BALANCED`: up to a size with fewer partitions per slot; `EVENLY_SPREAD`: up to a divisor of the partitions; "
        "`OFF`: no alignment; `LEGACY_…`: the rules of release 1.15",
        choices=("BALANCED", "EVENLY_SPREAD", "OFF", "LEGACY_EVENLY_SPREAD", "LEGACY_MAXIMIZE_UTILISATION"),
    )
    observed_scalability: bool = option(
        False, "divide by a coefficient: how close the last changes came to linear scaling"
    )
    scalability_min_observations: int = option(
        3, "decisions needed for the coefficient", unit="decisions", ge=2, le=HISTORY
    )
    scalability_coefficient_min: float = option(0.5, "smallest coefficient", unit="share", ge=0.01, le=1)
    ineffective_detection: bool = option(False, "block a scale-up after one without effect")
    ineffective_threshold: float = option(
        0.1, "share of the expected gain below which a scale-up had no effect", unit="share", ge=0, le=1
    )


class Flip271Memory(NamedTuple):
    """What `flip271` remembers. Times are epoch seconds."""

    first_at: float | None = None
    """When samples started to count."""
    pending: tuple[tuple[float, int, bool], ...] = ()
    """(when, size, whether the capacity was outside its band) of the reductions that wait."""
    pending_since: float | None = None
    history: tuple[tuple[float, int, int, float, float], ...] = ()
    """(when, from, to, capacity, capacity expected) of the last commands."""

    def without_pending(self) -> Flip271Memory:
        """Return the memory without the reductions that wait."""
        return self._replace(pending=(), pending_since=None)

    def recent(self, at: float) -> list[tuple[float, int, int, float, float]]:
        """Return the commands of the last day."""
        return [record for record in self.history if record[0] >= at - DAY_SECONDS]


class Flip271:
    """The Flink autoscaler's rule: the capacity that arrivals, lag and a target utilization need."""

    name: ClassVar[str] = "flip271"
    Options: ClassVar[type] = Flip271Options
    Memory: ClassVar[type] = Flip271Memory
    reasons: ClassVar[Mapping[str, Reason]] = {
        "WINDOW_FILLING": Reason(
            "the measurements cover {have_seconds:.0f} s of the {need_seconds:.0f} s that the rule needs"
        ),
        "CAPACITY_UNKNOWN": Reason("the measurements do not show the capacity of the job"),
        "WITHIN_BAND": Reason(
            "{arrival:.0f} records/s arrive, and the capacity of {capacity:.0f}/s "
            "is within the band of {low:.0f} to {high:.0f}/s"
        ),
        "CAPACITY_TOO_LOW": Reason(
            "a load of {arrival:.0f} records/s and a lag of {lag} need a capacity of {wanted:.0f}/s, "
            "and {current} slots have only {capacity:.0f}/s"
        ),
        "CAPACITY_TOO_HIGH": Reason(
            "a capacity of {wanted:.0f}/s is enough for a load of {arrival:.0f} records/s and a lag of {lag}, "
            "and {current} slots have {capacity:.0f}/s"
        ),
        "IDLE": IDLE,
        "DRAINING": Reason("{lag} records are waiting, and the job does not scale down until it has caught up"),
        "SCALE_DOWN_DELAYED": Reason(
            "{size} slots would be enough, and the scale-down waits another {wait_seconds:.0f} s"
        ),
        "INEFFECTIVE_SCALE_UP": Reason("the last scale-up, to {current} slots, had too little effect to add more"),
        "RIGHT_SIZE": Reason("{current} slots are the right size for {arrival:.0f} records/s"),
    }

    def __init__(self, options: Flip271Options) -> None:
        """Raise `BadOption` for edges of the band on the wrong side of the target, as Flink's validator does."""
        if problems := "; ".join(_misplaced_edges(options)):
            raise BadOption(problems)
        self.options = options

    @property
    def window_seconds(self) -> float:
        """The metric window."""
        return self.options.metrics_window_seconds

    def propose(self, case: Case, memory: Flip271Memory) -> Proposal[Flip271Memory]:
        """Return the size by the rule, or the current one while the window fills."""
        memory = memory._replace(first_at=self._first_at(case, memory))
        have = 0.0 if memory.first_at is None else case.measured_at - memory.first_at
        if have < self.window_seconds - 1e-6 or len(case.state.window) < 2:
            numbers = {"have_seconds": max(0.0, have), "need_seconds": self.window_seconds}
            return Proposal(case.current, "WINDOW_FILLING", numbers, memory=memory)
        measured = self._evaluate(case)
        if measured is None:
            return Proposal(case.current, "CAPACITY_UNKNOWN", {}, memory=memory)
        return self._decide(case, measured, memory)

    def ordered(
        self, case: Case, memory: Flip271Memory, proposal: Proposal[Flip271Memory], final: int
    ) -> Flip271Memory:
        """Remember the executed decision and drop pending scale-downs."""
        memory = memory.without_pending()
        tpr = proposal.capacity
        if tpr is None or not case.current:
            return memory
        executed = (case.measured_at, case.current, final, tpr, tpr / case.current * final)
        return memory._replace(history=(*memory.recent(case.measured_at), executed)[-HISTORY:])

    def _first_at(self, case: Case, memory: Flip271Memory) -> float | None:
        """Return since when samples have counted: from the first one after the stabilization interval."""
        state = case.state
        stable = (state.run_since or 0.0) + self.options.stabilization_interval_seconds
        first_at = memory.first_at
        if first_at is not None and (first_at < stable or first_at < (state.window_since or 0.0)):
            first_at = None
        return case.measured_at if first_at is None and case.measured_at >= stable else first_at

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
            # No traffic at all: +inf, which allows a scale-down, but only if the input is known to be zero.
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
                continue  # in the middle of a long batch nothing is counted yet: unknown, not zero
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
        """Return the longest measured restart time that is kept, or the assumed one."""
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

    def _decide(self, case: Case, m: _Measured, memory: Flip271Memory) -> Proposal[Flip271Memory]:
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
            memory = memory.without_pending()
        if size == case.current:
            return self._proposal(case, m, size, "RIGHT_SIZE", numbers, memory)
        if size > case.current and o.ineffective_detection and self._had_no_effect(case, m, memory):
            return self._proposal(case, m, case.current, "INEFFECTIVE_SCALE_UP", numbers, memory)
        if size < case.current and o.scale_down_interval_seconds > 0:
            pending, since, due = rules.delayed_scale_down(
                memory.pending, memory.pending_since, case.measured_at, size, outside, o.scale_down_interval_seconds
            )
            memory = memory._replace(pending=tuple(pending), pending_since=since)
            if due is None:
                numbers["wait_seconds"] = since + o.scale_down_interval_seconds - case.measured_at
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

    def _alpha(self, case: Case, memory: Flip271Memory) -> float:
        if not self.options.observed_scalability:
            return 1.0
        pairs = [(current, tpr) for _, current, _, tpr, _ in memory.recent(case.measured_at)]
        return rules.scalability_coefficient(
            pairs,
            min_observations=self.options.scalability_min_observations,
            minimum=self.options.scalability_coefficient_min,
        )

    def _had_no_effect(self, case: Case, m: _Measured, memory: Flip271Memory) -> bool:
        recent = memory.recent(case.measured_at)
        if not recent:
            return False
        _, before, after, tpr, expected = recent[-1]
        if after <= before or after != case.current:
            return False
        return rules.ineffective(m.tpr, tpr, expected, self.options.ineffective_threshold)

    def _proposal(
        self, case: Case, m: _Measured, size: int, code: str, numbers: dict[str, Figure], memory: Flip271Memory
    ) -> Proposal[Flip271Memory]:
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
        return Proposal(size, code, numbers, expectation, memory, _figure(m.tpr))


@dataclass(frozen=True, slots=True)
class _Measured:
    target: float
    catch_up: float
    tpr: float
    lag: int
    backlog: bool
    restart_seconds: float


def _misplaced_edges(options: Flip271Options) -> Iterator[str]:
    """Yield what is wrong with the edges of the band (`DefaultValidator.validateAutoscalerOptions`)."""
    target, low, high = options.utilization_target, options.utilization_min, options.utilization_max
    place = "scaling.policy_options"
    if high is not None and high < target:
        yield f"{place}.utilization_max: must be from utilization_target ({target:g}) to 1, found {high:g}"
    if low is not None and low > target:
        yield f"{place}.utilization_min: must be from 0 to utilization_target ({target:g}), found {low:g}"


def _nan(value: int | None) -> float:
    return math.nan if value is None else float(value)


def _figure(value: float) -> float | None:
    """Return a value as it goes on the wire, which has none for unlimited and unknown."""
    return value if math.isfinite(value) else None


def _loads(window: tuple[Slice, ...]) -> list[float]:
    return [min(1.0, s.busy_seconds / s.covered_seconds) for s in window[1:] if s.covered_seconds > 0]
