"""The formulas of KEDA's Kafka scaler, in its own terms: pure functions of numbers.

Source: kedacore/keda `pkg/scalers/kafka_scaler.go`, `pkg/scalers/cron_scaler.go`, `pkg/fallback/fallback.go`,
`pkg/scaling/executor/scale_scaledobjects.go` (8b4f083). Offsets, lags and thresholds are whole records. The replicas
come from the Horizontal Pod Autoscaler's `AverageValue` rule (`hpa_rules.per_pod_replicas`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime

from tidegate.engine.cron import Cron

INVALID_OFFSET = -1
"""Kafka's answer for a group that has committed nothing."""


def partition_lag(
    consumer_offset: int,
    latest_offset: int | None,
    *,
    previous_offset: int | None,
    offset_reset_policy: str,
    scale_to_zero_on_invalid_offset: bool,
    exclude_persistent_lag: bool,
) -> tuple[int, int]:
    """Return (lag, lag with persistent lag) of one partition (`getLagForPartition`).

    `latest_offset` None: the partition is not in the answer and has no lag. `previous_offset` is the consumer's offset
    one poll ago, None if there was none. If it is the same, the lag is persistent.
    """
    if consumer_offset == INVALID_OFFSET:
        if offset_reset_policy == "latest":
            lag = 0 if scale_to_zero_on_invalid_offset else 1
            return lag, lag
        if scale_to_zero_on_invalid_offset:
            return 0, 0
    if latest_offset is None:
        return 0, 0
    if consumer_offset == INVALID_OFFSET:
        return latest_offset, latest_offset
    lag = latest_offset - consumer_offset
    if exclude_persistent_lag and previous_offset == consumer_offset:
        return 0, lag
    return lag, lag


def factors(number: int) -> list[int]:
    """Return all divisors of a number in order (`FindFactors`); none below 1."""
    if number < 1:
        return []
    low = [i for i in range(1, math.isqrt(number) + 1) if number % i == 0]
    return low + [number // i for i in reversed(low) if i != number // i]


def next_factor(total_lag: int, partitions: int, lag_threshold: int) -> int:
    """Return the smallest divisor of the partitions whose consumers can take the lag, else all partitions."""
    return next((f for f in factors(partitions) if f * lag_threshold >= total_lag), partitions)


def total_lag(
    lags: Sequence[int],
    lag_threshold: int,
    *,
    allow_idle_consumers: bool,
    limit_to_partitions_with_lag: bool,
    ensure_even_distribution: bool,
) -> int:
    """Return the lag reported to the autoscaler, capped so that it asks for no idle consumer (`getTotalLag`).

    KEDA divides whole numbers: a lag of 44 on 4 partitions is not capped at a threshold of 10, and the autoscaler
    rounds it up to 5 consumers (a defect).
    """
    total = sum(lags)
    if allow_idle_consumers and not limit_to_partitions_with_lag and not ensure_even_distribution:
        return total
    if ensure_even_distribution:
        total = next_factor(total, len(lags), lag_threshold) * lag_threshold
    upper = sum(1 for lag in lags if lag > 0) if limit_to_partitions_with_lag else len(lags)
    return upper * lag_threshold if total // lag_threshold > upper else total


def cooled_down(
    now: float,
    *,
    last_active: float | None,
    created: float,
    cooldown_period: float,
    initial_cooldown_period: float,
) -> bool:
    """Whether an inactive job may go to zero (`scaleToZeroOrIdle`): strictly after the period."""
    if last_active is None:
        return created + initial_cooldown_period < now
    return last_active + cooldown_period < now


def window_open(start: Cron, end: Cron, at: datetime) -> bool:
    """Whether a cron window is open (`cronScaler.GetMetricsAndActivity`).

    It is unless its next start comes before its next end: a window that ends and starts at the same time stays open. A
    start that never comes is Go's zero time, before every other and past: open. An end that never comes: closed.
    """
    starts, ends = start.following(at), end.following(at)
    if starts is None:
        return True
    return ends is not None and ends <= starts


def fallback_replicas(behavior: str, replicas: int, current: int) -> int:
    """Return the replicas that the fallback's metric stands for (`doFallback`)."""
    if behavior == "currentReplicas":
        return current
    if behavior == "currentReplicasIfHigher":
        return max(current, replicas)
    if behavior == "currentReplicasIfLower":
        return min(current, replicas)
    return replicas
