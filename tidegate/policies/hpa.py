"""`hpa`: the rule of the Kubernetes Horizontal Pod Autoscaler, with a job's slots as pods.

    by utilization   size = ceil( U / target · n )
    by lag           size = ceil( lag / target )         only if `target_lag_records_per_slot` is set
    proposed         the larger of both; a metric within the tolerance does not change the size

- U: utilization in whole percent, in place of the CPU utilization of pods. target: `target_utilization_percent`.
- n: slots that the cluster granted. A slot that is not granted yet counts as a pod that is not ready: idle if the size
  would grow, ignored if it would shrink. `ungranted_slots` can change that.
- lag: records. Its target: `target_lag_records_per_slot`.

If the value of a metric is unknown, the job does not scale down. The proposed size then goes through the
[behaviour](behaviour.md).

When to choose it: You run the Horizontal Pod Autoscaler elsewhere and want the same rule and behaviour.

Set first: `target_utilization_percent`, `target_lag_records_per_slot` (lag is ignored by default).

Source: kubernetes/kubernetes `pkg/controller/podautoscaler`; KEP-4951 for the tolerances.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from tidegate.engine.case import Case, Proposal
from tidegate.engine.options import option
from tidegate.engine.reasons import Reason
from tidegate.events.decision import Figure
from tidegate.policies import hpa_rules as rules
from tidegate.policies.behaviour import BEHAVIOUR_REASONS, BehavingRule, BehaviourMemory, BehaviourOptions
from tidegate.policies.sizing import EVIDENCE_MISSING

REQUEST = 1000
"""What a slot requests, in thousandths of a core."""


@dataclass(frozen=True, slots=True)
class HpaOptions(BehaviourOptions):
    """Options of `hpa`, with the defaults of Kubernetes."""

    metrics_window_seconds: float = option(60.0, "window that utilization is averaged over", unit="s", gt=0)
    target_utilization_percent: int = option(80, "utilization to aim at; 0: ignored", unit="%", ge=0, le=100)
    ungranted_slots: str = option(
        "unready",
        "slots that are not granted yet count as `unready` pods (ignored if the size would shrink) or as pods whose "
        "metrics are `missing` (busy in that case)",
        choices=("unready", "missing"),
    )
    target_lag_records_per_slot: int = option(0, "lag per slot to aim at; 0: ignored", unit="records", ge=0)
    assumed_restart_seconds: float = option(30.0, "restart time to expect until one is measured", unit="s", ge=0)

    @property
    def window_seconds(self) -> float:
        """The metric window."""
        return self.metrics_window_seconds


class Hpa(BehavingRule[HpaOptions]):
    """The Horizontal Pod Autoscaler's rule: utilization, and lag per slot if a target is set."""

    name: ClassVar[str] = "hpa"
    Options: ClassVar[type] = HpaOptions
    Memory: ClassVar[type] = BehaviourMemory
    reasons: ClassVar[Mapping[str, Reason]] = {
        "EVIDENCE_MISSING": EVIDENCE_MISSING,
        "HPA_ON_TARGET": Reason(
            "the utilization is {utilization:.0%} and the lag {lag} records, both within tolerance of their targets"
        ),
        "HPA_RATIO": Reason(
            "the utilization is {utilization:.0%} and the lag {lag} records, which calls for a size of {wanted}"
        ),
        "HPA_METRIC_MISSING": Reason(
            "a metric is unknown ({missing}), so the others may not scale the job down to {wanted}"
        ),
    } | BEHAVIOUR_REASONS

    def propose(self, case: Case, memory: BehaviourMemory) -> Proposal[BehaviourMemory]:
        """Return the size by the algorithm of the autoscaler."""
        o, evidence = self.options, case.evidence
        by_metric: dict[str, int | None] = {}
        if o.target_utilization_percent:
            by_metric["utilization"] = self._by_utilization(case, o.target_utilization_percent)
        if o.target_lag_records_per_slot:
            by_metric["lag"] = self._by_lag(case, o.target_lag_records_per_slot)
        missing = ", ".join(name for name, size in by_metric.items() if size is None)
        numbers: dict[str, Figure] = {
            "utilization": evidence.utilization,
            "lag": evidence.lag_records,
            "current": case.current,
            "missing": missing,
        }
        proposed = rules.combine(case.current, by_metric.values())
        if proposed is None:
            known = [size for size in by_metric.values() if size is not None]
            if not known:
                return Proposal(case.current, "EVIDENCE_MISSING", {"missing": missing or "any metric"})
            return Proposal(case.current, "HPA_METRIC_MISSING", {**numbers, "wanted": max(known)})
        wanted = max(case.spec.smallest_size, proposed)
        code = "HPA_ON_TARGET" if wanted == case.current else "HPA_RATIO"
        return self._behaved(case, proposed, code, numbers | {"wanted": wanted}, memory)

    def _by_utilization(self, case: Case, target: int) -> int | None:
        utilization = case.evidence.utilization
        granted = case.snapshot.slots_granted
        if utilization is None or granted == 0:
            return None
        ready = min(case.current, case.current if granted is None else granted)
        return rules.resource_replicas(
            case.current,
            [int(REQUEST * utilization)] * ready,
            REQUEST,
            target,
            **{self.options.ungranted_slots: case.current - ready},
            down=self.options.tolerance_down,
            up=self.options.tolerance_up,
        )

    def _by_lag(self, case: Case, target: int) -> int | None:
        lag = case.evidence.lag_records
        if lag is None:
            return None
        return rules.per_pod_replicas(
            case.current, max(0, lag), target, down=self.options.tolerance_down, up=self.options.tolerance_up
        )
