"""The rule of Varga, Balassi and Kiss: its two metrics and the policy that uses them."""

from __future__ import annotations

import pytest

from tests.support.cases import case, evidence, propose
from tidegate.policies import varga_rules as rules


def test_the_lag_metric_is_the_factor_that_stops_the_lag() -> None:
    """A lag that grows by half the processing rate takes half as many slots more."""
    assert rules.lag_metric(200.0, 400.0) == 1.5
    assert rules.desired_replicas(4, 1.5, 1.0, 0.1, 0.1) == 6
    assert rules.lag_metric(200.0, 0.0) == 1.0


@pytest.mark.parametrize(("metric", "target", "want"), [(1.1, 1.0, 4), (1.11, 1.0, 5), (0.35, 0.7, 2), (0.65, 0.7, 4)])
def test_the_hpa_formula(metric: float, target: float, want: int) -> None:
    """ceil(current * metric / target), with a tolerance of a tenth in either direction."""
    assert rules.desired_replicas(4, metric, target, 0.1, 0.1) == want


def test_a_tiny_rate_asks_for_the_maximum() -> None:
    """A lag that grows while almost nothing is processed gives an infinite ratio, not an error."""
    assert rules.desired_replicas(1, rules.lag_metric(1.0, 2.3e-309), 1.0, 0.1, 0.1) == 2**31 - 1


def test_a_growing_lag_scales_up() -> None:
    """Lag grows by 400/s while 400/s are processed: twice the size."""
    seen = evidence(processing_rate=400.0, utilization=1.0, lag_records=40_000, lag_trend=400.0)
    proposal = propose("varga", case(seen))
    assert (proposal.size, proposal.code) == (8, "VARGA_LAG_GROWS")


def test_a_falling_lag_never_scales_down() -> None:
    """A job that catches up keeps its size, however idle it looks."""
    seen = evidence(utilization=0.2, lag_records=40_000, lag_trend=-300.0)
    proposal = propose("varga", case(seen), stabilization_down_seconds=0.0)
    assert (proposal.size, proposal.code) == (4, "VARGA_CATCHING_UP")


def test_idleness_scales_down_once_the_window_allows() -> None:
    """20 % busy against 70 %: ceil(4 * 0.286) = 2, but only after the stabilization window."""
    seen = evidence(utilization=0.2)
    assert propose("varga", case(seen), stabilization_down_seconds=0.0).size == 2
    assert propose("varga", case(seen)).code == "HPA_STABILIZED"


def test_a_little_lag_does_not_count() -> None:
    """Below the threshold a lag does not count, because its relative change means little."""
    seen = evidence(lag_records=400, lag_trend=200.0, utilization=0.7)  # a second of work
    assert propose("varga", case(seen)).size == 4
    assert propose("varga", case(seen), lag_threshold_seconds=0.5).size == 7  # ceil(4 * (1 + 200/300))
