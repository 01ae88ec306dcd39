"""`flip271`: the rule of the Flink autoscaler (FLIP-271), for micro-batch jobs.

A job counts as one vertex: it does all its work in the same slots. The jobs of a pipeline, linked by topics, are the
vertices of one graph. Rates are averaged over `metrics_window_seconds`. What is from before a start or a change of size
does not count, nor do the `stabilization_interval_seconds` after it, so the rule makes its first proposal when both
times have passed. When snapshots are missing at the start of the window, it waits until the window is full again.

    T     = rate(records in) + rate(lag)              arrivals
    C     = rate(records in) / busy                   capacity of the current size
    W(u)  = L / D  +  T · R / D  +  T / u             capacity needed for a utilization of u
    scale up     when C < W(upper edge), without the term T · R / D
    scale down   when C > W(lower edge)
    size  = ceil( n · W(target) / C )

- T, C, W: records/s. L: lag, records. n: current size, slots. D: `catch_up_duration_seconds`. R: restart time, s.
- busy: share of the time spent in micro-batches. A job that lags by more than `observed_lag_threshold_seconds` works
  as fast as it can, so its processing rate is its capacity. That rate replaces C when C is more than
  `observed_switch_threshold` above it, and is remembered until the job starts again or changes its size.
- target: `utilization_target`. Upper and lower edge: `utilization_max` and `utilization_min`, or the target plus and
  minus `utilization_boundary`.
- If more than `backlog_lag_threshold_seconds` of input is waiting, here or at a job upstream, the job scales up when
  C < W(1), and not down.
- T and L / D of a job that reads other jobs are the sums of theirs, times the output ratios; its own L / D is added
  (`flip271_graph`).
- `scale_up_max_factor`, `scale_down_max_factor` and the spec limit the size. Then it is aligned to the partitions.
- A scale-down waits for `scale_down_interval_seconds` and then goes to the largest size proposed in that time.

When to choose it: You know Flink's autoscaler and want its rule on Spark, for load that changes over hours.

Set first: `metrics_window_seconds` and `stabilization_interval_seconds` (by default the first proposal comes 20 minutes
after each start and each change), `scale_down_interval_seconds` (an hour).

Source: FLIP-271; apache/flink-kubernetes-operator, `flink-autoscaler` 1.15 and main; DS2 (Kalavri et al., OSDI 2018),
section 3. Options have Flink's names, ranges and defaults.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, NamedTuple

from tidegate.engine.case import Case, Proposal
from tidegate.engine.reasons import Reason
from tidegate.engine.window import slice_seconds
from tidegate.events.decision import Figure
from tidegate.policies import flip271_rules as rules
from tidegate.policies.flip271_metrics import (
    DAY_SECONDS,
    ObservedRate,
    VertexMetrics,
    began,
    evaluate,
    observe,
    samples,
)
from tidegate.policies.flip271_options import HISTORY, Flip271Options
from tidegate.policies.sizing import IDLE, change_to, effect


class Executed(NamedTuple):
    """A command of the past."""

    at: float
    """Epoch seconds."""
    before: int
    after: int
    """Sizes, slots."""
    capacity: float | None
    """Of the size before, records/s; None without traffic: unlimited, for which the wire has no number."""

    @property
    def tpr(self) -> float:
        """The capacity as the formulas take it."""
        return math.inf if self.capacity is None else self.capacity

    @property
    def expected(self) -> float:
        """The capacity that was expected of the new size."""
        return self.tpr / self.before * self.after


class Flip271Memory(NamedTuple):
    """What `flip271` remembers. Times are epoch seconds."""

    first_at: float | None = None
    """The first sample that counts."""
    pending: tuple[tuple[float, int, bool], ...] = ()
    """(when, size, whether the capacity was outside its band) of the reductions that wait."""
    pending_since: float | None = None
    history: tuple[Executed, ...] = ()
    """The last commands."""
    observed: tuple[ObservedRate, ...] = ()
    """Of the samples in the window."""

    def without_pending(self) -> Flip271Memory:
        """Return the memory without the reductions that wait."""
        return self._replace(pending=(), pending_since=None)

    def recent(self, at: float) -> list[Executed]:
        """Return the commands of the last day."""
        return [executed for executed in self.history if executed.at >= at - DAY_SECONDS]


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
            "{arrival:rate} records/s arrive, and the capacity of {capacity:rate}/s "
            "is within the band of {low:rate} to {high:rate}/s"
        ),
        "CAPACITY_TOO_LOW": Reason(
            "a load of {arrival:rate} records/s and a lag of {lag} need a capacity of {wanted:rate}/s, "
            "and {current} slots have only {capacity:rate}/s"
        ),
        "UPSTREAM_NEEDS_MORE": Reason(
            "{upstream} upstream should make {arrival:rate} records/s of load here; with a lag of {lag} that needs a "
            "capacity of {wanted:rate}/s, and {current} slots have only {capacity:rate}/s"
        ),
        "CAPACITY_TOO_HIGH": Reason(
            "a capacity of {wanted:rate}/s is enough for a load of {arrival:rate} records/s and a lag of {lag}, "
            "and {current} slots have {capacity:rate}/s"
        ),
        "IDLE": IDLE,
        "DRAINING": Reason("{lag} records are waiting, and the job does not scale down until it has caught up"),
        "SCALE_DOWN_DELAYED": Reason(
            "{size} slots would be enough, and the scale-down waits another {wait_seconds:.0f} s"
        ),
        "INEFFECTIVE_SCALE_UP": Reason("the last scale-up, to {current} slots, had too little effect to add more"),
        "RIGHT_SIZE": Reason("{current} slots are the right size for {arrival:rate} records/s"),
    }

    def __init__(self, options: Flip271Options) -> None:
        self.options = options

    @property
    def window_seconds(self) -> float:
        """The metric window."""
        return self.options.metrics_window_seconds

    def propose(self, case: Case, memory: Flip271Memory) -> Proposal[Flip271Memory]:
        """Return the size by the rule, or the current one while the window fills."""
        window = samples(case.state)
        observed = observe(window, memory.observed, self.options)
        memory = memory._replace(first_at=self._first_at(case, memory), observed=observed)
        have = 0.0 if memory.first_at is None else case.measured_at - memory.first_at
        full = have >= self.window_seconds - 1e-6
        if full:
            memory = memory._replace(first_at=self._first_kept(case, window[0].at, memory.first_at))
        if not full or len(window) < 2:
            numbers = {"have_seconds": max(0.0, have), "need_seconds": self.window_seconds}
            return Proposal(case.current, "WINDOW_FILLING", numbers, memory=memory)
        measured = evaluate(case, window, observed, self.options)
        if measured is None:
            return Proposal(case.current, "CAPACITY_UNKNOWN", {}, memory=memory)
        return self._decide(case, measured, memory)

    def ordered(
        self, case: Case, memory: Flip271Memory, proposal: Proposal[Flip271Memory], final: int
    ) -> Flip271Memory:
        """Remember the executed decision and drop pending scale-downs."""
        memory = memory.without_pending()
        if proposal.target_rate is None or not case.current:
            return memory  # nothing was measured: somebody asked for the size
        executed = Executed(case.measured_at, case.current, final, proposal.capacity)
        return memory._replace(history=(*memory.recent(case.measured_at), executed)[-HISTORY:])

    def _first_at(self, case: Case, memory: Flip271Memory) -> float | None:
        """Return since when samples have counted: from the first one after the stabilization interval."""
        state = case.state
        stable = began(state) + self.options.stabilization_interval_seconds
        first_at = memory.first_at
        if first_at is not None and (first_at < stable or first_at < (state.window_since or 0.0)):
            first_at = None
        return case.measured_at if first_at is None and case.measured_at >= stable else first_at

    def _first_kept(self, case: Case, first: float, first_at: float | None) -> float | None:
        """Return the first sample that a full window keeps: a later one than before if there is a gap before it.

        The window is full again when it is as old as the window (`getWindowFullTime`, `removeMetricsBefore`).
        """
        interval = case.snapshot.interval_seconds
        without_gap = case.measured_at - self.window_seconds + slice_seconds(self.window_seconds, interval)
        return first if first > without_gap + interval / 2 else first_at

    def _capacity(self, measured: VertexMetrics, utilization: float, *, with_restart: bool) -> float:
        return rules.target_capacity(
            measured.target,
            measured.catch_up,
            utilization=utilization,
            restart_seconds=measured.restart_seconds,
            catch_up_seconds=self.options.catch_up_duration_seconds,
            with_restart=with_restart,
        )

    def _decide(self, case: Case, m: VertexMetrics, memory: Flip271Memory) -> Proposal[Flip271Memory]:
        o = self.options
        target, half = o.utilization_target, o.utilization_boundary
        low_edge = target - half if o.utilization_min is None else o.utilization_min
        high_edge = target + half if o.utilization_max is None else o.utilization_max
        if m.backlog:
            up, down = self._capacity(m, 1.0, with_restart=False), math.inf
        else:
            up = self._capacity(m, high_edge, with_restart=False)
            down = self._capacity(m, low_edge, with_restart=True)
        outside = m.tpr < up or m.tpr > down
        needed = self._capacity(m, target, with_restart=True)
        alpha = self._alpha(case, memory)
        factor = rules.scale_factor(
            needed, m.tpr, max_down=o.scale_down_max_factor, max_up=o.scale_up_max_factor, alpha=alpha
        )
        scaling = case.spec.scaling
        size = rules.scaled_parallelism(
            case.current, factor, minimum=case.spec.smallest_size, maximum=scaling.max_parallelism
        )
        if size != case.current:
            size = self._align(case, size)
        numbers: dict[str, Figure] = {
            "arrival": m.target,
            "lag": m.lag,
            "wanted": _figure(needed),
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
        return self._proposal(case, m, size, self._change_code(case, m, size, numbers), numbers, memory)

    def _change_code(self, case: Case, m: VertexMetrics, size: int, numbers: dict[str, Figure]) -> str:
        """Return why the size changes; a load that comes from upstream is told with the jobs that make it."""
        if size < case.current:
            return "CAPACITY_TOO_HIGH" if math.isfinite(m.tpr) else "IDLE"
        if m.upstream is None:
            return "CAPACITY_TOO_LOW"
        numbers["upstream"] = m.upstream
        return "UPSTREAM_NEEDS_MORE"

    def _align(self, case: Case, size: int) -> int:
        o = self.options
        partitions = case.evidence.partitions or 0
        limit = max(case.current, case.spec.scaling.max_parallelism)
        if o.alignment_mode.startswith("LEGACY_"):
            lower = min(case.current, case.spec.smallest_size)
            mode = o.alignment_mode.removeprefix("LEGACY_")
            return rules.align_legacy(case.current, size, partitions, mode=mode, limit=limit, lower=lower)
        return rules.align(case.current, size, partitions, mode=o.alignment_mode, limit=limit)

    def _alpha(self, case: Case, memory: Flip271Memory) -> float:
        if not self.options.observed_scalability:
            return 1.0
        pairs = [(executed.before, executed.tpr) for executed in memory.recent(case.measured_at)]
        return rules.scalability_coefficient(
            pairs,
            min_observations=self.options.scalability_min_observations,
            minimum=self.options.scalability_coefficient_min,
        )

    def _had_no_effect(self, case: Case, m: VertexMetrics, memory: Flip271Memory) -> bool:
        recent = memory.recent(case.measured_at)
        if not recent:
            return False
        last = recent[-1]
        if last.after <= last.before or last.after != case.current:
            return False
        return rules.ineffective(m.tpr, last.tpr, last.expected, self.options.ineffective_threshold)

    def _proposal(
        self, case: Case, m: VertexMetrics, size: int, code: str, numbers: dict[str, Figure], memory: Flip271Memory
    ) -> Proposal[Flip271Memory]:
        expectation = None
        if math.isfinite(m.tpr) and case.current:
            change = change_to(case, size, m.restart_seconds)
            expectation = effect(case.current, size, m.tpr, m.target, max(0, m.lag), change)
        return Proposal(
            size,
            code,
            numbers,
            expectation,
            memory,
            _figure(m.tpr),
            catch_up_rate=m.catch_up,
            target_rate=m.target,
        )


def _figure(value: float) -> float | None:
    """Return a value as it goes on the wire, which has none for unlimited and unknown."""
    return value if math.isfinite(value) else None
