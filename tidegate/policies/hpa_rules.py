"""The formulas of the Kubernetes Horizontal Pod Autoscaler, in its own terms: pure functions of numbers.

Source: kubernetes `pkg/controller/podautoscaler` (`replica_calculator.go`, `horizontal.go`, `metrics/utilization.go`),
with per-direction tolerance (KEP-4951). Quantities are whole milli-units, and divisions truncate, as in Go.
"Unready" pods are pending or not ready yet; "missing" pods are ready and sent no metric.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MAX_REPLICAS = 2**31 - 1
SCALE_UP_LIMIT_FACTOR = 2.0
SCALE_UP_LIMIT_MINIMUM = 4.0


def within_tolerance(ratio: float, down: float, up: float) -> bool:
    """Whether a usage ratio is close enough to 1 to keep the size: `1 - down <= ratio <= 1 + up`."""
    return 1.0 - down <= ratio <= 1.0 + up


def usage_ratio(usage: Sequence[int], request: int, target: int) -> float:
    """Return 100 · Σ usage / Σ request, truncated to whole percent, over the target (`GetResourceUtilizationRatio`)."""
    return sum(usage) * 100 // (request * len(usage)) / target


def resource_replicas(
    current: int,
    usage: Sequence[int],
    request: int,
    target: int,
    *,
    unready: int = 0,
    missing: int = 0,
    down: float,
    up: float,
) -> int:
    """Return the replicas for a resource (`GetResourceReplicas`): `usage` in milli-units, of the ready pods.

    Each pod requests `request` milli-units; `target` is a percentage of that. Missing pods count as max(100, target) %
    of their request on the way down and as 0 on the way up; unready pods count as 0 on the way up and not at all on the
    way down.
    """
    ratio = usage_ratio(usage, request, target)
    if not missing and not (unready and ratio > 1.0):
        return current if within_tolerance(ratio, down, up) else ceil_replicas(ratio * len(usage))
    filled = list(usage)
    if ratio < 1.0:
        filled += [request * max(100, target) // 100] * missing
    elif ratio > 1.0:
        filled += [0] * (missing + unready)
    ratio_again = usage_ratio(filled, request, target)
    flips = (ratio < 1.0 < ratio_again) or (ratio > 1.0 > ratio_again)
    if within_tolerance(ratio_again, down, up) or flips:
        return current
    replicas = ceil_replicas(ratio_again * len(filled))
    against = (ratio_again < 1.0 and replicas > current) or (ratio_again > 1.0 and replicas < current)
    return current if against else replicas


def per_pod_replicas(status_replicas: int, value: int, target: int, *, down: float, up: float) -> int:
    """Return the replicas for a total shared by all pods (`AverageValue`): `ceil(value/target)` outside tolerance.

    The ratio is `value / (target · status replicas)`; from 0 replicas there is none, and the total decides.
    """
    if status_replicas and within_tolerance(value / (target * status_replicas), down, up):
        return status_replicas
    return ceil_replicas(value / target)


def combine(current: int, proposals: Iterable[int | None]) -> int | None:
    """Return the largest of the replicas by several metrics (None: it failed), or None if nothing may change.

    If one failed, scaling up is allowed and scaling down is not (`computeReplicasForMetrics`).
    """
    sizes = list(proposals)
    known = [replicas for replicas in sizes if replicas is not None]
    if not known:
        return None
    largest = max(known)
    return None if len(known) < len(sizes) and largest < current else largest


def stabilize(
    current: int,
    desired: int,
    recommendations: Sequence[tuple[float, int]],
    now: float,
    *,
    up_window: float,
    down_window: float,
) -> int:
    """Return the stabilized recommendation from earlier (seconds, replicas) ones (`stabilizeRecommendation...`).

    lo = min(up window, desired), hi = max(down window, desired), result = current moved into [lo, hi]. A record is
    in a window when it is newer than `now - window`.
    """
    low = min([n for at, n in recommendations if at > now - up_window] + [desired])
    high = max([n for at, n in recommendations if at > now - down_window] + [desired])
    return low if current < low else min(current, high)


@dataclass(frozen=True, slots=True)
class RatePolicy:
    """One rate policy: `value` pods or percent in any `period_seconds`."""

    kind: str
    """`Pods` or `Percent`."""
    value: int
    period_seconds: float


def scale_up_limit(
    current: int, events: Sequence[tuple[float, int]], policies: Sequence[RatePolicy], select: str, now: float
) -> int:
    """Return the most replicas that may be reached now (`calculateScaleUpLimitWithScalingRules`).

    `events` are (seconds, replicas added or removed: positive or negative). `select` is Max, Min or Disabled.
    """
    if select == "Disabled":
        return current
    limits = [_limit(current, events, policy, now, up=True) for policy in policies]
    return max(current, min(limits, default=current) if select == "Min" else max(limits, default=current))


def scale_down_limit(
    current: int, events: Sequence[tuple[float, int]], policies: Sequence[RatePolicy], select: str, now: float
) -> int:
    """Return the fewest replicas that may be reached now (`calculateScaleDownLimitWithBehaviors`)."""
    if select == "Disabled":
        return current
    limits = [_limit(current, events, policy, now, up=False) for policy in policies]
    return min(current, max(limits, default=current) if select == "Min" else min(limits, default=current))


def _limit(current: int, events: Sequence[tuple[float, int]], policy: RatePolicy, now: float, *, up: bool) -> int:
    recent = [change for at, change in events if at > now - policy.period_seconds]
    start = current - sum(recent)
    if up:
        return start + policy.value if policy.kind == "Pods" else math.ceil(start * (1 + policy.value / 100))
    return start - policy.value if policy.kind == "Pods" else int(start * (1 - policy.value / 100))


def legacy_up_limit(current: int) -> int:
    """Return the most replicas without behaviours: `max(2 · current, 4)` (`calculateScaleUpLimit`)."""
    return int(max(SCALE_UP_LIMIT_FACTOR * current, SCALE_UP_LIMIT_MINIMUM))


def ceil_replicas(value: float) -> int:
    """Return a number of replicas, rounded up and limited to an int32, both infinities included."""
    return MAX_REPLICAS if value >= MAX_REPLICAS else math.ceil(max(value, -MAX_REPLICAS - 1))
