"""The formulas of Numaflow, in its own terms: pure functions of numbers.

Source: numaproj/numaflow `pkg/reconciler/vertex/scaling/scaling.go`, `pkg/reconciler/monovertex/scaling/scaling.go`,
`pkg/reconciler/scaling/utils.go`, `pkg/daemon/server/service/rater/helper.go` (63ba4e8). Pending is in messages, rates
in messages/s, replicas are pods. Rounding is Go's (half away from zero), and so is the cast to 32 bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime

from tidegate.engine.cron import Cron

MAX_INT32 = 2**31 - 1
MIN_INT32 = -(2**31)
MAX_LOOKBACK_SECONDS = 600


def round_half_up(value: float) -> int:
    """Return the nearest whole number of a non-negative value, halves up (Go's `math.Round`)."""
    whole = math.floor(value)
    return whole + 1 if value - whole >= 0.5 else whole


def int32(value: int) -> int:
    """Return the low 32 bits as a signed number: what Go's `int32(...)` makes of an int64."""
    return (value - MIN_INT32) % 2**32 + MIN_INT32


def float_to_int32(value: float) -> int:
    """Return a rounded float as a signed 32-bit number; one that does not fit becomes the least (Go on amd64)."""
    rounded = round_half_up(value) if math.isfinite(value) else MIN_INT32
    return rounded if rounded <= MAX_INT32 else MIN_INT32


def source_desired(pending: int, rate: float, target_processing_seconds: int, ready_replicas: int) -> float:
    """Return the unrounded replicas of the source rule, in the code's order of operations; `rate` is of all pods."""
    return ((pending / rate) / target_processing_seconds) * ready_replicas


def buffer_limit(buffer_length: int, usage_limit: float) -> int:
    """Return how much of a buffer may be used, truncated: `int(length · usage limit)`."""
    return int(buffer_length * usage_limit)


def target_available(buffer_length: int, target_buffer_availability: int) -> int:
    """Return how much of a buffer to keep free, truncated: `int(length · availability / 100)`."""
    return int(buffer_length * target_buffer_availability / 100)


def desired_replicas(
    rates: Sequence[float],
    pending: Sequence[int],
    *,
    target_processing_seconds: int,
    ready_replicas: int,
    source: bool,
    buffer_length: int,
    buffer_length_limit: int,
    target_available_length: int,
    replicas: int,
    replicas_per_scale_up: int,
    wrap_pending: bool,
) -> int:
    """Return the vertex' desired replicas: the largest over its partitions, at least 1 (`desiredReplicas`).

    A source, and any vertex whose pending messages leave `target_available_length` of its buffer free, goes by the time
    that the pending messages take. Otherwise each replica contributes its share of the free buffer. `wrap_pending`
    keeps Numaflow's cast to 32 bits (a defect: more than 2^31 turns negative, and the result is 1).
    """
    most = 1
    for rate, waiting in zip(rates, pending, strict=True):
        if waiting == 0 or rate == 0:
            continue
        if source or waiting <= buffer_length - target_available_length:
            wanted = _cast(source_desired(waiting, rate, target_processing_seconds, ready_replicas), wrap=wrap_pending)
        elif waiting >= buffer_length_limit:
            wanted = replicas + replicas_per_scale_up
        else:
            contribution = (buffer_length_limit - waiting) / ready_replicas
            wanted = _cast(target_available_length / contribution, wrap=wrap_pending)
        wanted = wanted or 1
        cap = int32(waiting) if wrap_pending else min(waiting, MAX_INT32)
        most = max(most, min(wanted, cap))
    return most


def _cast(value: float, *, wrap: bool) -> int:
    if wrap:
        return float_to_int32(value)
    return MAX_INT32 if value >= MAX_INT32 else round_half_up(value)


def mono_vertex_desired(
    rate: float, pending: int, *, target_processing_seconds: int, ready_replicas: int, replicas: int
) -> int:
    """Return a MonoVertex' desired replicas: 0 only if idle, the current ones if nothing is processed."""
    if pending == 0 and rate == 0:
        return 0
    if rate == 0:
        return replicas
    wanted = _cast(source_desired(pending, rate, target_processing_seconds, ready_replicas), wrap=False) or 1
    return min(wanted, pending, MAX_INT32) if pending > 0 else wanted


def back_pressure(pending: int, buffer_length_limit: int, threshold: float) -> bool:
    """Whether a downstream buffer is full enough to cause back pressure: `pending / limit >= threshold`."""
    return pending / buffer_length_limit >= threshold


def at_rate_limit(total_rate: float, limit: float) -> bool:
    """Whether the vertex processes as much as its rate limit allows, so that more replicas would not help."""
    return math.ceil(total_rate) >= limit


def scaled(
    current: int,
    desired: int,
    *,
    minimum: int,
    maximum: int,
    since_last_scale: float,
    up_cooldown: float,
    down_cooldown: float,
    up_step: int,
    down_step: int,
    direct_pressure: bool,
    downstream_pressure: bool,
    fix_pressure_cooldown: bool,
) -> tuple[int, str]:
    """Return (replicas, what limited the change) for a desired number (`scaleOneVertex`).

    Limited by "" (nothing), "cooldown", "step", "direct pressure" or "downstream pressure". While both cooldowns run,
    nothing changes. The step down under direct back pressure ignores a down-cooldown that runs alone (a defect),
    unless `fix_pressure_cooldown` is set.
    """
    if since_last_scale < up_cooldown and since_last_scale < down_cooldown:
        return current, "cooldown"
    desired = max(minimum, min(desired, maximum))
    if not minimum <= current <= maximum:
        return desired, ""
    if desired < current:
        if since_last_scale < down_cooldown:
            return current, "cooldown"
        return stepped(current, desired, up_step, down_step)
    if desired > current:
        if direct_pressure:
            held = fix_pressure_cooldown and since_last_scale < down_cooldown
            shrinks = current > minimum and current > 1 and not held
            return current - 1 if shrinks else current, "direct pressure"
        if downstream_pressure:
            return current, "downstream pressure"
        if since_last_scale < up_cooldown:
            return current, "cooldown"
        return stepped(current, desired, up_step, down_step)
    return current, ""


def replicas_from_zero(
    *,
    source: bool,
    pending: int | None,
    since_last_scale: float,
    zero_replica_sleep: float,
    up_cooldown: float,
    down_cooldown: float,
) -> int:
    """Return the replicas of a vertex that was scaled to zero: 1 to look for messages or to process them, else 0.

    A source sleeps for `zero_replica_sleep` and then peeks, whatever waits for it. Any other vertex goes by the pending
    messages of its own buffers, where None (they could not be asked) changes nothing. As for any size, nothing happens
    while both cooldowns run (`scaleOneVertex`).
    """
    if since_last_scale < up_cooldown and since_last_scale < down_cooldown:
        return 0
    if source:
        return 1 if since_last_scale >= zero_replica_sleep else 0
    return 1 if pending is not None and pending > 0 else 0


def stepped(current: int, desired: int, up_step: int, down_step: int) -> tuple[int, str]:
    """Return (replicas one step towards `desired`, "step" if that is not all the way)."""
    size = max(current - down_step, min(desired, current + up_step))
    return size, "" if size == desired else "step"


def window_active(start: Cron, end: Cron, at: datetime) -> bool:
    """Whether a cron window is open: its next end comes before its next start (`IsActiveAt`)."""
    ends, starts = end.following(at), start.following(at)
    # If there is no next match, Go has the zero time, which is before every other.
    if ends is None or starts is None:
        return ends is None and starts is not None
    return ends < starts


def next_lookback(current: float, still: float, configured: float) -> float:
    """Return the lookback after a longest still spell of `still` seconds (`updateDynamicLookbackSecs`).

    Rounded up to whole minutes; growing never above `MAX_LOOKBACK_SECONDS`, otherwise never below what is configured.
    """
    wanted = 60.0 * math.ceil(still / 60.0)
    return min(wanted, MAX_LOOKBACK_SECONDS) if wanted > current else max(wanted, configured)


def lengthens(still: float, configured: float) -> bool:
    """Whether a still spell gives more than the configured lookback; the spell is rounded up to minutes first."""
    return next_lookback(configured, still, configured) > configured
