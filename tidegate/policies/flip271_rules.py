"""The formulas of the Flink autoscaler (FLIP-271 and its successors), in its own terms: pure functions of numbers.

Source: apache/flink-kubernetes-operator, `flink-autoscaler` (release 1.15, and main where marked), and DS2 (Kalavri
et al., "Three steps is all you need", OSDI 2018). NaN is unknown and +inf unlimited, as in the source. Rates are
records/s, times seconds, utilization 0..1, parallelism in slots. Rounding and the order of operations are theirs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from decimal import ROUND_HALF_UP, Decimal

from tidegate.engine.total import total

NAN = math.nan
INF = math.inf
_THOUSANDTH = Decimal("0.001")


def round_metric(value: float) -> float:
    """Return `value` rounded half up to 3 decimals, but never to 0 (`AutoScalerUtils.roundMetric`)."""
    if not math.isfinite(value):
        return value
    # Flink rounds the shortest decimal form of a number, Python the number itself. The two differ only if that form
    # ends in a 5 in the fourth place, so only then the slow way is needed.
    text = repr(float(value))
    if text[-1] == "5" and text[-5:-4] == ".":
        rounded = float(Decimal(text).quantize(_THOUSANDTH, ROUND_HALF_UP))
    else:
        rounded = round(value, 3)
    return value if rounded == 0 else rounded


def rate(samples: Sequence[tuple[float, float]]) -> float:
    """Return the rate of a counter over (seconds, value) samples: last known minus first known, per second.

    `ScalingMetricEvaluator.getRate`. Fewer than two known values: NaN.
    """
    first = next((sample for sample in samples if not math.isnan(sample[1])), None)
    last = next((sample for sample in reversed(samples) if not math.isnan(sample[1])), None)
    if first is None or last is None or first is last:
        return NAN
    milliseconds = max(1.0, 1000 * (last[0] - first[0]))
    return 1000 * (last[1] - first[1]) / milliseconds


def mean(values: Iterable[float], min_count: int = 1) -> float:
    """Return the mean of the finite values (`ScalingMetricEvaluator.getAverage`).

    Nothing finite: +inf if any +inf was seen, else NaN. Fewer finite values than `min_count`: NaN.
    """
    total, count, infinite = 0.0, 0, False
    for value in values:
        if math.isfinite(value):
            total, count = total + value, count + 1
        elif value == INF:
            infinite = True
    if count == 0:
        return INF if infinite else NAN
    return total / count if count >= min_count else NAN


def observed_true_processing_rate(
    input_rate: float, lag: float, back_pressure: float, fallback: float, *, lag_threshold: float
) -> float:
    """Return the observed true processing rate of one sample of a source (`ScalingMetrics`).

    `back_pressure` is the back-pressured share of time, 0..1; `lag_threshold` is in seconds of input. Only a source
    that lags and is not completely back-pressured shows its capacity. Otherwise the result is `fallback`: the mean of
    the earlier samples' results (`mean` with the minimum of observations).
    """
    if input_rate == 0:
        return INF
    if lag < whole_seconds(lag_threshold) * input_rate or back_pressure >= 1:
        return fallback
    return input_rate / (1 - back_pressure)


def true_processing_rate(busy_tpr: float, observed_tpr: float, switch_threshold: float) -> float:
    """Return the true processing rate by busy time, or the observed one if busy time is too optimistic."""
    if math.isnan(observed_tpr):
        return busy_tpr
    if math.isnan(busy_tpr) or busy_tpr == INF:
        return observed_tpr
    return observed_tpr if busy_tpr > observed_tpr * (1 + switch_threshold) else busy_tpr


def busy_true_processing_rate(input_rate: float, busy: float) -> float:
    """Return records/s at 100 % busy from the input rate and the busy share of time (0..1); +inf with no input."""
    if input_rate == 0:
        return INF
    if busy == 0:
        return INF
    return input_rate / busy


def target_capacity(
    target_rate: float,
    catch_up_rate: float,
    *,
    utilization: float,
    restart_seconds: float,
    catch_up_seconds: float,
    with_restart: bool,
) -> float:
    """Return the processing capacity needed (`AutoScalerUtils.getTargetProcessingCapacity`), in whole records/s.

    capacity = lag catch-up rate + target · restart / catch-up + target / utilization
    """
    if math.isnan(catch_up_rate) or math.isnan(target_rate):
        return NAN
    utilization = min(1.0, max(0.0, utilization))
    if utilization == 0:
        return INF
    restart, catch_up = whole_seconds(restart_seconds), whole_seconds(catch_up_seconds)
    restart_rate = target_rate * restart / catch_up if with_restart and catch_up > 0 else 0.0
    return round_half_up(catch_up_rate + restart_rate + target_rate / utilization)


def whole_seconds(seconds: float) -> float:
    """Return a time as the source calculates with it: without parts of a second (`Duration.toSeconds`)."""
    return float(math.floor(seconds))


def round_half_up(value: float) -> float:
    """Return the nearest whole number, halves up, as Java's `Math.round` does."""
    if not math.isfinite(value):
        return value
    whole = float(math.floor(value))
    return whole + 1 if value - whole >= 0.5 else whole


def scale_factor(capacity: float, tpr: float, *, max_down: float, max_up: float, alpha: float) -> float:
    """Return the factor to scale by, clamped to [1 - max_down, 1 + max_up] (`JobVertexScaler`)."""
    factor = capacity / tpr if tpr > 0 else INF
    factor /= alpha
    return min(max(factor, 1 - max_down), 1 + max_up)


def scaled_parallelism(current: int, factor: float, *, minimum: int, maximum: int) -> int:
    """Return the parallelism for a factor, within the vertex' bounds (`JobVertexScaler.scale`)."""
    low, high = min(current, minimum), max(current, maximum)
    raw = high if factor * current >= high else math.ceil(factor * current)
    return min(max(low, raw), high)


def align(current: int, target: int, partitions: int, *, mode: str, limit: int) -> int:
    """Return `target` aligned upward to `partitions` (or key groups) of a source (`BuiltInAlignmentMode`).

    `limit` is the larger of the current parallelism and the vertex' maximum (`parallelismUpperLimit`).
    BALANCED accepts q when N % q = 0 or N/q < N/t, EVENLY_SPREAD only divisors, OFF nothing; if the search
    region [t, min(c, N, limit)] (scale down) or [t, min(N, limit)] (scale up) has none, the result is t.
    """
    if mode == "OFF" or partitions <= 0 or target <= 0:
        return target
    last = min(partitions, limit) if target > current else min(current, partitions, limit)
    for size in range(target, last + 1):
        if partitions % size == 0 or (mode == "BALANCED" and partitions // size < partitions // target):
            return size
    return target


def align_legacy(current: int, target: int, partitions: int, *, mode: str, limit: int, lower: int) -> int:
    """Return the parallelism by the rule of release 1.15 (`key-group.partitions.adjust.mode`).

    EVENLY_SPREAD and MAXIMIZE_UTILISATION.
    """
    if partitions <= 0:
        return target
    last = min(partitions, limit) if target > current else min(current, partitions, limit)
    for size in range(target, last + 1):
        if partitions % size == 0 or (mode == "MAXIMIZE_UTILISATION" and partitions // size < partitions // target):
            return size
    size = min(target, partitions)
    while size > 1 and partitions // size <= partitions // target:
        size -= 1
    if partitions % size != 0:
        size += 1
    size = max(size, lower)
    return max(size, current) if target > current else min(size, current)


def scalability_coefficient(history: Sequence[tuple[int, float]], *, min_observations: int, minimum: float) -> float:
    """Return alpha of `rate = alpha · beta · parallelism` from (parallelism, rate) pairs, oldest first.

    alpha = Σ(P·R) / (Σ P² · β), clamped to [minimum, 1], rounded up to 2 decimals. β is the rate per slot of the
    newest record with parallelism 1, else of the record with the smallest parallelism (newest wins). Too few
    records, or an idle history (where Flink divides 0 by 0): 1.
    """
    if len(history) < min_observations:
        return 1.0
    smallest = min(parallelism for parallelism, _ in history)
    base_parallelism, base_rate = next(pair for pair in reversed(history) if pair[0] == smallest)
    beta = base_rate / base_parallelism
    squares = sum(parallelism * parallelism for parallelism, _ in history)
    products = total(parallelism * observed for parallelism, observed in history)
    if not math.isfinite(products) or beta <= 0 or squares <= 0:
        return 1.0
    alpha = min(1.0, max(minimum, products / (squares * beta)))
    return float(Decimal(repr(alpha)).quantize(Decimal("0.01"), "ROUND_UP"))


def ineffective(tpr_now: float, tpr_then: float, expected_then: float, threshold: float) -> bool:
    """Whether the last scale-up brought too little of the expected gain (`detectIneffectiveScaleUp`).

    gain = (rate now - rate then) / (expected rate - rate then), ineffective unless gain >= threshold. Java divides by
    zero: from a rate of 0, with 0 expected, any gain is infinitely effective, and no gain (NaN) is ineffective.
    """
    gained, expected = tpr_now - tpr_then, expected_then - tpr_then
    if expected == 0:
        return not gained > 0
    return not gained / expected >= threshold


def delayed_scale_down(
    queue: Sequence[tuple[float, int, bool]],
    first: float | None,
    now: float,
    parallelism: int,
    outside: bool,
    interval: float,
) -> tuple[list[tuple[float, int, bool]], float, tuple[int, bool] | None]:
    """Return (queue, first time, decision) after a proposal to scale down at `now` (`DelayedScaleDown`).

    The queue keeps proposals of falling parallelism, oldest first. There is no decision until `interval` has passed
    since the first proposal. Then it is the largest proposal of the last interval, with its own outside flag.
    """
    kept = list(queue)
    while kept and kept[-1][1] <= parallelism:
        kept.pop()
    kept.append((now, parallelism, outside))
    first = now if first is None else first
    if now - interval < first:
        return kept, first, None
    kept = [proposal for proposal in kept if proposal[0] >= now - interval]
    return kept, first, (kept[0][1], kept[0][2])
