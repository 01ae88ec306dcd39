"""`varga`: the change of the lag and the utilization, driven through the Horizontal Pod Autoscaler.

    by lag           size = ceil( n · (1 + (dL/dt) / P) )         scales up only
    by utilization   size = ceil( n · U / target )
    proposed         the larger of both; a metric within the tolerance does not change the size

- n: current size, slots. dL/dt: trend of the lag, records/s. P: processing rate, records/s; if it is 0, only the
  utilization counts.
- U: utilization. target: `target_utilization`.

The lag counts only above `lag_threshold_seconds` of work, because the relative change of a tiny lag means little. As
long as that much is waiting, the job does not scale down either, as it may be catching up. The proposed size then goes
through the [behaviour](behaviour.md).

When to choose it: You want few options: the job grows when its lag grows and shrinks when it is idle.

Set first: `target_utilization`, `lag_threshold_seconds`.

Source: B. Varga, M. Balassi, A. Kiss, "Towards autoscaling of Apache Flink jobs", 2021 (`varga_rules`). The paper gives
the two metrics and leaves the thresholds to the user; here they are options.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from tidegate.engine.case import Case, Proposal
from tidegate.engine.options import option
from tidegate.engine.reasons import Reason
from tidegate.events.decision import Figure
from tidegate.policies import varga_rules as rules
from tidegate.policies.behaviour import BEHAVIOUR_REASONS, BehavingRule, BehaviourMemory, BehaviourOptions
from tidegate.policies.sizing import EVIDENCE_MISSING, unknown


@dataclass(frozen=True, slots=True)
class VargaOptions(BehaviourOptions):
    """Options of `varga`."""

    metrics_window_seconds: float = option(60.0, "window of rates, lag trend and utilization", unit="s", gt=0)
    target_utilization: float = option(0.7, "utilization to aim at", unit="share", gt=0, le=1)
    lag_threshold_seconds: float = option(
        10.0, "lag, in seconds of work, above which it counts and the job does not scale down", unit="s", ge=0
    )
    assumed_restart_seconds: float = option(30.0, "restart time to expect until one is measured", unit="s", ge=0)

    @property
    def window_seconds(self) -> float:
        """The metric window."""
        return self.metrics_window_seconds


class Varga(BehavingRule[VargaOptions]):
    """The rule of Varga, Balassi and Kiss: how fast the lag grows, and how busy the job is."""

    name: ClassVar[str] = "varga"
    Options: ClassVar[type] = VargaOptions
    Memory: ClassVar[type] = BehaviourMemory
    reasons: ClassVar[Mapping[str, Reason]] = {
        "EVIDENCE_MISSING": EVIDENCE_MISSING,
        "VARGA_LAG_GROWS": Reason(
            "the lag grows by {change:rate} records/s with {rate:rate}/s processed, which calls for a size of {wanted}"
        ),
        "VARGA_UTILIZATION": Reason(
            "the job is busy {utilization:.0%} of the time, which calls for a size of {wanted}"
        ),
        "VARGA_CATCHING_UP": Reason("{lag} records are waiting, so the job does not scale down to {wanted}"),
        "VARGA_ON_TARGET": Reason(
            "a utilization of {utilization:.0%} and a lag trend of {change:rate} records/s are on target"
        ),
    } | BEHAVIOUR_REASONS

    def propose(self, case: Case, memory: BehaviourMemory) -> Proposal[BehaviourMemory]:
        """Return the size by the larger of both metrics."""
        o, e = self.options, case.evidence
        if e.utilization is None or e.processing_rate is None or e.lag_trend is None or e.lag_records is None:
            missing = unknown(e, "processing_rate", "utilization", "lag_records", "lag_trend")
            return Proposal(case.current, "EVIDENCE_MISSING", {"missing": missing})
        # A lag that cannot be measured in seconds counts as a long one.
        waits = e.lag_records > 0 and (e.lag_seconds is None or e.lag_seconds > o.lag_threshold_seconds)
        by_use = rules.desired_replicas(
            case.current, e.utilization, o.target_utilization, o.tolerance_down, o.tolerance_up
        )
        proposed, code = by_use, "VARGA_UTILIZATION"
        if waits:
            metric = rules.lag_metric(e.lag_trend, e.processing_rate)
            by_lag = max(
                case.current, rules.desired_replicas(case.current, metric, 1.0, o.tolerance_down, o.tolerance_up)
            )
            if by_lag > by_use:
                proposed, code = by_lag, "VARGA_LAG_GROWS" if by_lag > case.current else "VARGA_CATCHING_UP"
        wanted = max(case.spec.smallest_size, proposed)
        if wanted == case.current and code != "VARGA_CATCHING_UP":
            code = "VARGA_ON_TARGET"
        numbers: dict[str, Figure] = {
            "utilization": e.utilization,
            "change": e.lag_trend,
            "rate": e.processing_rate,
            "lag": e.lag_records,
            "wanted": by_use if code == "VARGA_CATCHING_UP" else wanted,
        }
        return self._behaved(case, proposed, code, numbers, memory)
