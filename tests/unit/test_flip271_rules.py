"""The formulas of the Flink autoscaler, case by case, each with its arithmetic."""

from __future__ import annotations

import math
from functools import partial

import pytest

from tidegate.policies import flip271_rules as rules

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("value", "rounded"),
    [(1.2345, 1.235), (0.0004, 0.0004), (0.0005, 0.001), (2.0, 2.0), (1.0005, 1.001), (INF, INF), (0.0, 0.0)],
)
def test_metrics_are_rounded_half_up_but_never_to_zero(value: float, rounded: float) -> None:
    """Three decimals, halves up; a value that would become 0 is kept."""
    assert rules.round_metric(value) == rounded


def test_the_rounding_of_metrics_matters() -> None:
    """200 subtasks at 78 % busy with target 0.8: 195 with the rounding, 196 without."""
    load = rules.mean([0.78] * 6)  # 0.7800000000000001

    def size(busy: float, rounded: bool) -> int:
        tpr = rules.busy_true_processing_rate(1560.0, busy)
        factor = (1560.0 / 0.8) / (rules.round_metric(tpr) if rounded else tpr)
        return rules.scaled_parallelism(200, factor, minimum=1, maximum=1000)

    assert size(load, rounded=False) == 196
    assert size(rules.round_metric(load), rounded=True) == 195


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([(0.0, 100.0), (10.0, 300.0)], 20.0),
        ([(0.0, NAN), (5.0, 100.0), (10.0, 150.0)], 10.0),  # the first known counts
        ([(0.0, 100.0), (5.0, NAN)], NAN),
        ([], NAN),
        ([(0.0, 0.0), (0.0, 5.0)], 5000.0),  # at least a millisecond lies between
    ],
)
def test_a_rate_is_last_known_minus_first_known(samples: list[tuple[float, float]], expected: float) -> None:
    """Counters are compared at both ends of the window; unknown ones are skipped."""
    assert rules.rate(samples) == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize(
    ("values", "min_count", "expected"),
    [([1, 2, NAN, INF], 1, 1.5), ([INF, NAN], 1, INF), ([NAN], 1, NAN), ([5], 2, NAN), ([], 1, NAN)],
)
def test_a_mean_skips_what_is_not_finite(values: list[float], min_count: int, expected: float) -> None:
    """NaN and +inf are skipped; +inf alone stays; too few values are unknown."""
    assert rules.mean(values, min_count) == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize(
    ("busy", "observed", "expected"),
    [
        (120.0, NAN, 120.0),
        (NAN, 90.0, 90.0),
        (INF, 90.0, 90.0),
        (114.9, 100.0, 114.9),  # less than 15 % above is still believed
        (115.1, 100.0, 100.0),  # more is too optimistic
    ],
)
def test_busy_time_is_believed_unless_observation_contradicts(busy: float, observed: float, expected: float) -> None:
    """The switch threshold of 0.15 decides between busy time and observation."""
    assert rules.true_processing_rate(busy, observed, 0.15) == expected


def test_observation_needs_lag() -> None:
    """Only a source that lags shows its capacity; otherwise the mean of at least two earlier values counts."""

    def observe(rate: float, lag: float, back_pressure: float, earlier: list[float]) -> float:
        return rules.observed_true_processing_rate(rate, lag, back_pressure, rules.mean(earlier, 2), lag_threshold=30)

    assert observe(0, 0, 0, []) == INF
    assert observe(100, 3000, 0.5, []) == 200  # 100 / (1 - 0.5)
    assert math.isnan(observe(100, 2999, 0, [150]))
    assert observe(100, 2999, 0, [150, 170]) == 160
    assert observe(100, 9999, 1.0, [150, 170]) == 160
    assert rules.observed_true_processing_rate(100, 3000, 0, NAN, lag_threshold=30.9) == 100  # whole seconds


@pytest.mark.parametrize(
    ("utilization", "with_restart", "expected"),
    [
        # target 1000/s, lag catch-up 50/s, restart 300 s, catch-up 1800 s
        (0.7, True, 1645.0),  # 50 + 1000*300/1800 + 1000/0.7 = 50 + 166.667 + 1428.571 = 1645.238
        (0.7, False, 1479.0),  # 50 + 1428.571 = 1478.571
        (1.0, False, 1050.0),
        (2.0, False, 1050.0),  # clamped to 1
        (0.0, True, INF),
    ],
)
def test_the_capacity_formula(utilization: float, with_restart: bool, expected: float) -> None:
    """Lag over catch-up time, the restart's own backlog, and the load at the target utilization, in whole records/s."""
    assert (
        rules.target_capacity(
            1000.0, 50.0, utilization=utilization, restart_seconds=300, catch_up_seconds=1800, with_restart=with_restart
        )
        == expected
    )


def test_times_count_in_whole_seconds() -> None:
    """`Duration.toSeconds`: 47.9 s of restart are 47, and a catch-up duration below a second is none."""

    def capacity(restart: float, catch_up: float) -> float:
        return rules.target_capacity(
            1000.0, 0.0, utilization=1.0, restart_seconds=restart, catch_up_seconds=catch_up, with_restart=True
        )

    assert capacity(47.9, 100.9) == capacity(47.0, 100.0) == 1470.0
    assert capacity(47.0, 0.9) == 1000.0


@pytest.mark.parametrize(
    ("value", "rounded"),
    [(0.49999999999999994, 0.0), (0.5, 1.0), (-0.5, 0.0), (-1.5, -1.0), (2.0**52 + 1, 2.0**52 + 1), (INF, INF)],
)
def test_halves_are_rounded_up_as_in_java(value: float, rounded: float) -> None:
    """`Math.round` adds no half to the number, which would round by itself."""
    assert rules.round_half_up(value) == rounded


def test_the_default_band_and_aim() -> None:
    """With the defaults the band is 1.00 to 2.667 times the target rate, and the aim is 1.595 times it."""

    def capacity(utilization: float, with_restart: bool) -> float:
        return rules.target_capacity(
            1_000_000.0,
            0.0,
            utilization=utilization,
            restart_seconds=300,
            catch_up_seconds=1800,
            with_restart=with_restart,
        )

    assert capacity(1.0, False) / 1e6 == 1.0
    assert capacity(0.4, True) / 1e6 == pytest.approx(2.667, abs=5e-4)
    assert capacity(0.7, True) / 1e6 == pytest.approx(1.595, abs=5e-4)


@pytest.mark.parametrize(
    ("capacity", "tpr", "alpha", "factor"),
    [
        (1600.0, 1000.0, 1.0, 1.6),
        (100.0, 1000.0, 1.0, 0.4),
        (1600.0, 1000.0, 0.8, 2.0),
        (10.0, 0.00001, 1.0, 100_001.0),
    ],
)
def test_the_factor_is_clamped(capacity: float, tpr: float, alpha: float, factor: float) -> None:
    """At most 60 % of the slots go at once, and a scalability coefficient raises the factor."""
    assert rules.scale_factor(capacity, tpr, max_down=0.6, max_up=100_000, alpha=alpha) == pytest.approx(factor)


@pytest.mark.parametrize(
    ("current", "factor", "minimum", "maximum", "expected"),
    [
        (4, 1.6, 1, 100, 7),  # ceil(6.4)
        (4, 1.6, 1, 5, 5),
        (4, 0.4, 3, 100, 3),
        (2, 0.4, 3, 100, 2),  # a size under the minimum is not raised by it: lo = min(current, minimum)
        (10, 0.95, 1, 5, 10),  # a size above the maximum is not lowered by it: hi = max(current, maximum)
        (1_000_000, 100_001.0, 1, 2_000_000, 2_000_000),
    ],
)
def test_parallelism_stays_within_the_vertex(
    current: int, factor: float, minimum: int, maximum: int, expected: int
) -> None:
    """The bounds of a vertex apply, but never in the other direction."""
    assert rules.scaled_parallelism(current, factor, minimum=minimum, maximum=maximum) == expected


@pytest.mark.parametrize(
    ("current", "target", "partitions", "mode", "expected"),
    [
        (2, 5, 8, "BALANCED", 8),  # 8/5 = 1, q = 8 divides; 6 and 7 give 1 as well
        (2, 3, 8, "BALANCED", 4),
        (8, 3, 8, "BALANCED", 4),
        (2, 50, 99, "BALANCED", 99),  # double, to remove a 1 % imbalance
        (2, 30, 100, "BALANCED", 34),  # 100/30 = 3, 100/34 = 2
        (2, 30, 100, "EVENLY_SPREAD", 50),
        (2, 5, 8, "OFF", 5),
        (2, 20, 15, "BALANCED", 20),  # an empty region keeps the target, a defect of Flink
        (2, 5, 0, "BALANCED", 5),  # unknown partitions
        (4, 3, 7, "EVENLY_SPREAD", 3),  # nothing in [3, 4] divides 7
    ],
)
def test_alignment(current: int, target: int, partitions: int, mode: str, expected: int) -> None:
    """Targets are aligned upward to the partitions where the region allows."""
    assert rules.align(current, target, partitions, mode=mode, limit=1000) == expected


@pytest.mark.parametrize(
    ("current", "target", "partitions", "mode", "expected"),
    [
        (2, 20, 15, "EVENLY_SPREAD", 15),  # the legacy rule caps at the partitions
        (2, 5, 8, "EVENLY_SPREAD", 8),
        (2, 30, 100, "MAXIMIZE_UTILISATION", 34),
    ],
)
def test_legacy_alignment(current: int, target: int, partitions: int, mode: str, expected: int) -> None:
    """The rule of release 1.15, which caps a source at its partitions."""
    assert rules.align_legacy(current, target, partitions, mode=mode, limit=1000, lower=1) == expected


def test_the_scalability_coefficient() -> None:
    """Sub-linear history gives a coefficient under 1, rounded up to two decimals."""
    # beta = 100/1; sum(P*R) = 1*100 + 2*180 + 4*320 = 1740; sum(P^2)*beta = 21*100 = 2100; 0.8285.. -> 0.83
    coefficient = partial(rules.scalability_coefficient, min_observations=3, minimum=0.5)
    assert coefficient([(1, 100.0), (2, 180.0), (4, 320.0)]) == 0.83
    assert coefficient([(1, 100.0), (2, 180.0)]) == 1.0
    assert coefficient([(1, 100.0), (2, 20.0), (4, 40.0)]) == 0.5
    assert coefficient([(1, 0.0), (2, 0.0), (4, 0.0)]) == 1.0


def test_an_ineffective_scale_up_is_recognised() -> None:
    """Less than a tenth of the expected gain is ineffective, and so is an unknown gain."""
    assert rules.ineffective(105.0, 100.0, 200.0, 0.1)  # gain 0.05
    assert not rules.ineffective(110.0, 100.0, 200.0, 0.1)  # gain 0.1
    assert rules.ineffective(NAN, 100.0, 200.0, 0.1)


@pytest.mark.parametrize(("now", "blocked"), [(50.0, False), (0.0, True), (NAN, True)])
def test_a_gain_from_a_rate_of_zero_is_effective(now: float, blocked: bool) -> None:
    """Flink divides by zero: 50 / 0 is infinite and passes, 0 / 0 is NaN and does not (`detectIneffectiveScaleUp`)."""
    assert rules.ineffective(now, 0.0, 0.0, 0.1) is blocked


def test_scale_down_waits_for_the_largest_proposal() -> None:
    """After the interval the largest proposal in it wins, with its own flag."""
    queue, first, due = rules.delayed_scale_down([], None, 0.0, 3, True, 60.0)
    assert due is None
    queue, first, due = rules.delayed_scale_down(queue, first, 30.0, 5, False, 60.0)
    assert [proposal[1] for proposal in queue] == [5]
    queue, first, due = rules.delayed_scale_down(queue, first, 50.0, 2, True, 60.0)
    assert due is None
    queue, first, due = rules.delayed_scale_down(queue, first, 61.0, 2, True, 60.0)
    assert due == (5, False)
    queue, first, due = rules.delayed_scale_down(queue, first, 95.0, 2, True, 60.0)
    assert due == (2, True)
