"""`varga`: relative change of lag, and idleness, driven through the Horizontal Pod Autoscaler.

    by lag           size = ceil( n · (1 + (dL/dt) / P) )         grows only
    by utilization   size = ceil( n · U / target )
    wish             the larger of both; each leaves the size alone while it is within the tolerance

- n: present size, slots. dL/dt: trend of the lag, records/s. P: processing rate, records/s.
- U: utilization. target: `target_utilization`.

The lag counts only while more than `lag_threshold_seconds` of work waits: a lag near nothing changes by much relative
to itself. While that much waits, nothing is scaled down either: the job is catching up. Then comes the
[behaviour](#behaviour-of-hpa-keda-and-varga).

Source: B. Varga, M. Balassi, A. Kiss, "Towards autoscaling of Apache Flink jobs", 2021 (`varga_rules`). The paper gives
the two metrics and leaves the thresholds to the user; they are options here.
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
from tidegate.policies.behaviour import LIMITED, STABILIZED, BehaviourMemory, BehaviourOptions, behave
from tidegate.policies.shared import EVIDENCE_MISSING, clamp, expect, restart_seconds, unknown


@dataclass(frozen=True, slots=True)
class VargaOptions(BehaviourOptions):
    """Options of `varga`."""

    metrics_window_seconds: float = option(60.0, "window of rates, lag trend and idleness", unit="s", gt=0)
    target_utilization: float = option(0.7, "busy share of time to aim at", unit="share", gt=0, le=1)
    lag_threshold_seconds: float = option(
        10.0, "lag, in seconds of work, from which it counts and nothing is scaled down", unit="s", ge=0
    )
    assumed_restart_seconds: float = option(
        30.0, "restart time in the decision's expectation until one was measured", unit="s", ge=0
    )


class Varga:
    """The rule of Varga, Balassi and Kiss: how fast the lag grows, and how busy the job is."""

    name: ClassVar[str] = "varga"
    Options: ClassVar[type] = VargaOptions
    Memory: ClassVar[type] = BehaviourMemory
    reasons: ClassVar[Mapping[str, Reason]] = {
        "EVIDENCE_MISSING": EVIDENCE_MISSING,
        "VARGA_LAG_GROWS": Reason(
            "the lag changes by {change:.0f} records/s while {rate:.0f}/s are processed, "
            "which asks for a size of {wanted}"
        ),
        "VARGA_UTILIZATION": Reason("the job is busy {utilization:.0%} of the time, which asks for a size of {wanted}"),
        "VARGA_CATCHING_UP": Reason(
            "{lag} records wait and the job is catching up, so it keeps its size although a size of {wanted} would do"
        ),
        "VARGA_ON_TARGET": Reason("busy {utilization:.0%} of the time and the lag changes by {change:.0f} records/s"),
        "HPA_LIMITED": LIMITED,
        "HPA_STABILIZED": STABILIZED,
    }

    def __init__(self, options: VargaOptions) -> None:
        self.options = options

    @property
    def window_seconds(self) -> float:
        """The metric window."""
        return self.options.metrics_window_seconds

    def propose(self, case: Case, memory: BehaviourMemory) -> Proposal[BehaviourMemory]:
        """Return the size by the larger of both metrics."""
        o, e = self.options, case.evidence
        absent = unknown(e, "processing_rate", "utilization", "lag_records", "lag_trend")
        if e.utilization is None or e.processing_rate is None or e.lag_trend is None or e.lag_records is None:
            return Proposal(case.current, "EVIDENCE_MISSING", {"missing": absent})
        # Work that waits and no rate to measure it by: as much as can be.
        waits = e.lag_records > 0 and (e.lag_seconds is None or e.lag_seconds > o.lag_threshold_seconds)
        by_use = rules.desired_replicas(
            case.current, e.utilization, o.target_utilization, self._tolerance(e.utilization)
        )
        wanted, code = by_use, "VARGA_UTILIZATION"
        if waits:
            relative = rules.relative_lag_change_rate(e.lag_trend, e.processing_rate)
            metric = rules.lag_metric(relative)
            by_lag = max(case.current, rules.desired_replicas(case.current, metric, 1.0, o.tolerance_up))
            if by_lag > by_use:
                wanted, code = by_lag, "VARGA_LAG_GROWS" if by_lag > case.current else "VARGA_CATCHING_UP"
        wanted = clamp(case, wanted)
        if wanted == case.current and code != "VARGA_CATCHING_UP":
            code = "VARGA_ON_TARGET"
        done = behave(case, memory, wanted, o)
        numbers: dict[str, Figure] = {
            "utilization": e.utilization,
            "change": e.lag_trend,
            "rate": e.processing_rate,
            "lag": e.lag_records,
            "wanted": by_use if code == "VARGA_CATCHING_UP" else wanted,
            "size": done.size,
        }
        restart = restart_seconds(case, o.assumed_restart_seconds)
        return Proposal(done.size, done.bent or code, numbers, expect(case, done.size, restart), done.memory)

    def ordered(
        self,
        case: Case,
        memory: BehaviourMemory,
        proposal: Proposal[BehaviourMemory],  # noqa: ARG002
        final: int,
    ) -> BehaviourMemory:
        """Remember the scale event."""
        return memory.with_event(case, final)

    def _tolerance(self, utilization: float) -> float:
        o = self.options
        return o.tolerance_up if utilization > o.target_utilization else o.tolerance_down
