"""The topological pass of `flip271`: the cases of Flink's `ScalingMetricEvaluatorTest`, and jobs linked by topics."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.support.cases import case, evidence
from tests.support.events import job
from tidegate.engine.case import Case
from tidegate.events.decision import Emission, Evidence, Neighbour
from tidegate.policies.flip271_graph import (
    Edge,
    UpstreamDemand,
    edge_rate,
    output_ratio,
    propagated,
    upstream_demand,
    upstream_lag_seconds,
)


@pytest.mark.parametrize(("catch_up_seconds", "own", "passed_on"), [(2, 500, 1000), (1, 1000, 2000), (0, 0, 0)])
def test_lag_based_source_scaling(catch_up_seconds: int, own: float, passed_on: float) -> None:
    """`testLagBasedSourceScaling`: target 150/s, lag 1000, output ratio 2; both double at the sink."""
    assert own == (1000 / catch_up_seconds if catch_up_seconds else 0)
    source = Edge(target=150.0, catch_up=own, input_rate=100.0, output_rate=200.0)
    assert propagated(200.0, [source]) == (300.0, passed_on)


def test_computable_output_ratios() -> None:
    """`testComputableOutputRatios`: 250/s reach op1, of which one source writes 200/s and the other 50/s."""
    edges = [Edge(100.0, 0.0, 100.0, 200.0), Edge(100.0, 0.0, 100.0, 50.0)]
    ratios = [output_ratio(edge_rate(250.0, edges, place), 100.0) for place in (0, 1)]
    assert ratios == [2.0, 0.5]
    assert output_ratio(edge_rate(50.0, [Edge(250.0, 0.0, 250.0, math.nan)], 0), 250.0) == 0.2


def test_output_ratio_falls_back_to_the_output_of_the_vertex() -> None:
    """`testOutputRatioFallbackToOutPerSecond`: both sources write to both operators: only their output is known."""
    edges = [Edge(1.0, 0.0, 100.0, 200.0, only_output=False), Edge(1.0, 0.0, 100.0, 50.0, only_output=False)]
    assert [output_ratio(edge_rate(math.nan, edges, place), 100.0) for place in (0, 1)] == [2.0, 0.5]


def test_one_input_with_another_output_is_not_subtracted() -> None:
    """Rule 2 needs each of the others to write to this vertex alone; the other way round it holds."""
    edges = [Edge(1.0, 0.0, 100.0, 200.0, only_output=False), Edge(1.0, 0.0, 100.0, 50.0)]
    assert edge_rate(270.0, edges, 0) == 220.0
    assert edge_rate(270.0, edges, 1) == 50.0


@pytest.mark.parametrize(("edge", "rate"), [(100.0, 0.0), (0.0, 100.0), (math.nan, 100.0), (100.0, math.nan)])
def test_without_traffic_the_ratio_is_zero(edge: float, rate: float) -> None:
    """Flink's rule: unless both rates are above 0."""
    assert output_ratio(edge, rate) == 0.0


def feeder(target: float | None = 300.0, **figures: Any) -> Neighbour:
    """Return a job upstream that reads 100/s and writes 200/s, and should read 300/s and 50/s of its backlog."""
    seen = {"window_seconds": 60.0, "arrival_rate": 150.0, "processing_rate": 100.0, "output_ratio": 2.0}
    emits = None if target is None else Emission(target_rate=target, catch_up_rate=50.0)
    return Neighbour("up", True, ("in",), 2, Evidence(**(seen | figures)), emits=emits, only_reader=True)


def reading(*neighbours: Neighbour, sources: tuple[str, ...] = ("in",)) -> Case:
    """Return a job that reads others, over a window of 60 s."""
    return case(
        evidence(window_seconds=60.0),
        neighbours=neighbours,
        spec=job().model_copy(update={"sources": sources}),
    )


def test_a_job_is_sized_for_what_the_job_upstream_should_process() -> None:
    """It does 100/s and should do 300/s: this job should take 600/s, although 200/s arrive."""
    found = upstream_demand(reading(feeder()), 200.0, 1800.0)
    assert found == UpstreamDemand(600.0, 100.0, "up")


def test_a_job_upstream_under_another_policy_counts_with_what_arrives_there() -> None:
    """Its target is 150/s, its lag of 1800 records 1/s of catch-up."""
    found = upstream_demand(reading(feeder(target=None, lag_records=1800)), 200.0, 1800.0)
    assert found == UpstreamDemand(300.0, 2.0, "up")


def test_other_sources_come_on_top() -> None:
    """Of 260/s, 200/s come from the job upstream."""
    found = upstream_demand(reading(feeder(), sources=("in", "clicks")), 260.0, 1800.0)
    assert found == UpstreamDemand(660.0, 100.0, "up")


def test_windows_of_different_length_are_not_compared() -> None:
    """After a restart of one of them, only the output ratio measured upstream is of one time."""
    found = upstream_demand(reading(feeder(window_seconds=900.0)), 20.0, 1800.0)
    assert found == UpstreamDemand(600.0, 100.0, "up")


@pytest.mark.parametrize(
    "neighbour",
    [
        Neighbour("up", True, ("in",)),
        feeder(processing_rate=None),
        feeder(target=None, arrival_rate=None),
        feeder(target=None, lag_records=None),
        feeder(processing_rate=0.0, lag_records=5000),
        feeder(window_seconds=900.0, output_ratio=None),
    ],
)
def test_an_unknown_rate_leaves_the_job_a_source(neighbour: Neighbour) -> None:
    """Flink would take it for no traffic, and scale down."""
    assert upstream_demand(reading(neighbour), 200.0, 1800.0) is None


def test_a_job_in_a_circle_is_no_input() -> None:
    """Its target would come from itself."""
    assert upstream_demand(reading(feeder(), Neighbour("up", False, ("out",), distance=2)), 200.0, 1800.0) is None


def test_a_backlog_upstream_counts() -> None:
    """`testBacklogProcessingEvaluation`, for a job upstream: lag over what it reads."""
    assert upstream_lag_seconds(reading(feeder(lag_records=45_000))) == 450.0
    assert upstream_lag_seconds(reading(feeder(lag_records=5, processing_rate=0.0))) == math.inf
    assert upstream_lag_seconds(reading(feeder())) == 0.0
