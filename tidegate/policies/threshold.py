"""`threshold`: the rule of Spark's DStreams: batch time over batch interval, against two thresholds.

    ratio = mean batch time / batch interval          both in s
    ratio >= `scaling_up_ratio`      add max( round(ratio), 1 ) executors
    ratio <= `scaling_down_ratio`    remove one executor

The policy decides once per `scaling_interval_seconds`, over the batches since the last time. Without
`batch_interval_seconds` the ratio is the utilization: a query that starts a batch as soon as the last one ends has no
interval.

The rule ignores lag. With `lag_up_seconds` it also adds an executor when more work than that is waiting, and does not
remove one.

When to choose it: You come from DStreams' dynamic allocation, or want the rule that is easiest to explain.

Set first: `batch_interval_seconds` (the query's trigger), `lag_up_seconds` (lag is ignored by default).

Source: apache/spark `ExecutorAllocationManager` of Spark Streaming; threshold rules in general: T. Lorido-Botran et
al., "A review of auto-scaling techniques for elastic applications in cloud environments", 2014.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from tidegate.engine.case import Case, Proposal
from tidegate.engine.options import option
from tidegate.engine.reasons import Reason
from tidegate.events.decision import Figure
from tidegate.policies.rule import Rule
from tidegate.policies.sizing import EVIDENCE_MISSING, clamp


def dstreams_change(ratio: float, up_ratio: float = 0.9, down_ratio: float = 0.3) -> int:
    """Return how many executors to add, -1 to remove one, or 0 (`manageAllocation`)."""
    if ratio >= up_ratio:
        return max(int(ratio + 0.5), 1)
    return -1 if ratio <= down_ratio else 0


@dataclass(frozen=True, slots=True)
class ThresholdOptions:
    """Options of `threshold`, with the defaults of Spark Streaming."""

    scaling_interval_seconds: float = option(60.0, "time between two decisions", unit="s", gt=0)
    scaling_up_ratio: float = option(0.9, "ratio at which the job scales up", unit="share", gt=0)
    scaling_down_ratio: float = option(0.3, "ratio at which the job scales down", unit="share", gt=0)
    batch_interval_seconds: float | None = option(
        None, "trigger interval of the query; absent: the ratio is the utilization", unit="s", ge=0.001
    )
    lag_up_seconds: float | None = option(
        None, "lag, in seconds of work, above which the job also scales up; absent: lag is ignored", unit="s", gt=0
    )
    assumed_restart_seconds: float = option(30.0, "restart time to expect until one is measured", unit="s", ge=0)

    @property
    def window_seconds(self) -> float:
        """One scaling interval."""
        return self.scaling_interval_seconds

    def __post_init__(self) -> None:
        """Refuse thresholds that overlap."""
        up, down = self.scaling_up_ratio, self.scaling_down_ratio
        if up <= down:
            raise ValueError(f"scaling_up_ratio: must be above scaling_down_ratio ({down:g}), found {up:g}")


class ThresholdMemory(NamedTuple):
    """What `threshold` remembers."""

    looked_at: float | None = None
    """When the ratio was last looked at, epoch seconds."""


class Threshold(Rule[ThresholdOptions, ThresholdMemory]):
    """Spark Streaming's rule: batch time over batch interval, against two thresholds."""

    name: ClassVar[str] = "threshold"
    Options: ClassVar[type] = ThresholdOptions
    Memory: ClassVar[type] = ThresholdMemory
    reasons: ClassVar[Mapping[str, Reason]] = {
        "EVIDENCE_MISSING": EVIDENCE_MISSING,
        "THRESHOLD_NOT_DUE": Reason("the policy decides every {interval:.0f} s, next in {wait:.0f} s"),
        "THRESHOLD_UP": Reason(
            "batches take {ratio:.0%} of the available time, and from {up:.0%} the job needs a larger size"
        ),
        "THRESHOLD_LAG": Reason("{lag:.0f} s of work are waiting, more than {lag_up:.0f} s"),
        "THRESHOLD_DOWN": Reason(
            "batches take {ratio:.0%} of the available time, and up to {down:.0%} a smaller size is enough"
        ),
        "THRESHOLD_BETWEEN": Reason("batches take {ratio:.0%} of the available time, between {down:.0%} and {up:.0%}"),
    }

    def propose(self, case: Case, memory: ThresholdMemory) -> Proposal[ThresholdMemory]:
        """Return the size by the two thresholds, if a decision is due."""
        o, evidence, current = self.options, case.evidence, case.current
        started = case.measured_at if memory.looked_at is None else memory.looked_at
        wait = started + o.scaling_interval_seconds - case.measured_at
        if wait > 1e-6:
            numbers: dict[str, Figure] = {"interval": o.scaling_interval_seconds, "wait": wait}
            return Proposal(current, "THRESHOLD_NOT_DUE", numbers, memory=ThresholdMemory(started))
        ratio = evidence.utilization
        if o.batch_interval_seconds is not None:
            milliseconds = None if evidence.batch_seconds is None else int(evidence.batch_seconds * 1000)
            ratio = None if milliseconds is None else milliseconds / (o.batch_interval_seconds * 1000)
        lag, most = evidence.lag_seconds, o.lag_up_seconds
        unknown_lag = most is not None and lag is None
        if ratio is None or unknown_lag:
            missing = "lag in seconds" if unknown_lag else "time taken by batches"
            return Proposal(current, "EVIDENCE_MISSING", {"missing": missing}, memory=ThresholdMemory(started))
        change = dstreams_change(ratio, o.scaling_up_ratio, o.scaling_down_ratio)
        code = "THRESHOLD_UP" if change > 0 else "THRESHOLD_DOWN" if change < 0 else "THRESHOLD_BETWEEN"
        if change <= 0 and most is not None and lag is not None and lag > most:
            change, code = 1, "THRESHOLD_LAG"
        size = clamp(case, current + change * case.spec.application.executor_cores)
        numbers = {
            "ratio": ratio,
            "up": o.scaling_up_ratio,
            "down": o.scaling_down_ratio,
            "lag": lag,
            "lag_up": most,
        }
        return self._proposal(case, size, code, numbers, ThresholdMemory(case.measured_at))

    def ordered(
        self,
        case: Case,
        memory: ThresholdMemory,  # noqa: ARG002
        proposal: Proposal[ThresholdMemory],  # noqa: ARG002
        final: int,  # noqa: ARG002
    ) -> ThresholdMemory:
        """Decide again one interval after the change."""
        return ThresholdMemory(case.measured_at)
