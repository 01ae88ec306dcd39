"""Announced demand: the plans of the jobs upstream as arrivals of this job, before they arrive."""

from __future__ import annotations

from datetime import timedelta
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cases import case, evidence
from tests.support.events import START, snapshot
from tidegate.engine.announced import SETTLED_SECONDS, Announced, announced
from tidegate.events.decision import Emission, EmissionStep, Evidence, Neighbour
from tidegate.events.snapshot import SnapshotWarning, WarningCode

AT = START.timestamp()


def plan(*steps: tuple[float, float], topic: str | None = "in") -> Emission:
    """Return a plan of (seconds after the snapshot, records/s) steps."""
    return Emission(tuple(EmissionStep(START + timedelta(seconds=at), rate) for at, rate in steps), topic)


def upstream(
    emits: Emission | None, job_id: str = "up", topics: tuple[str, ...] = ("in",), **figures: Any
) -> Neighbour:
    """Return a job upstream that has read and written 100 records/s."""
    evidence = Evidence(**({"processing_rate": 100.0, "output_ratio": 1.0} | figures))
    return Neighbour(job_id, True, topics, 2, evidence, emits=emits)


def told(*neighbours: Neighbour, sources: tuple[str, ...] = ("in",), arrival: float | None = 100.0) -> Announced | None:
    """Return what neighbours announce to a job."""
    return announced(neighbours, sources, Evidence(arrival_rate=arrival), AT)


def test_a_growth_upstream_is_demand_from_when_it_works() -> None:
    """100/s go on for 30 s, then 250/s: a minute from now on brings 175/s, whatever the forecast said."""
    found = told(upstream(plan((0, 100), (30, 250))))
    assert found is not None
    assert found.steps == ((0.0, 100.0), (30.0, 250.0))
    assert found.on_grid((30.0, 90.0, 100.0), (90.0, 90.0, 400.0)) == (100.0, 250.0, 400.0)
    assert found.demand(0.0, 60.0, 0.0) == pytest.approx(175.0)
    assert found.values == {"upstream": "up", "announced": 250.0, "announced_at": "12:00:30", "emitted": 100.0}


def test_a_topic_that_the_spec_does_not_name_keeps_a_plan_from_being_complete() -> None:
    """The job reads `more` as well, which nobody announces: its arrivals come on top of the plan."""
    shot = snapshot(0)
    more = SnapshotWarning(code=WarningCode.TOPIC_NOT_LISTED, topics=("more",))
    of = case(evidence(arrival_rate=100.0), neighbours=[upstream(plan((0, 60)), processing_rate=60.0)], shot=shot)
    assert of.announced is not None
    assert of.announced.is_complete
    of = of._replace(snapshot=shot.model_copy(update={"warnings": (more,)}))
    assert of.sources == ("in", "more")
    assert of.announced is not None
    assert not of.announced.is_complete
    assert of.announced.steps == ((0.0, 100.0),)


def test_the_end_of_a_backlog_upstream_is_taken_off_the_forecast() -> None:
    """The job upstream writes 300/s until its backlog is gone, then 100/s. A forecast of 320/s becomes 120/s."""
    found = told(upstream(plan((0, 300), (60, 100))), arrival=300.0)
    assert found is not None
    assert found.on_grid((60.0, 120.0), (320.0, 320.0)) == (320.0, 120.0)
    assert found.path(320.0) == ((0.0, 320.0), (60.0, 120.0))


def test_a_plan_that_has_begun_goes_on_from_where_it_is() -> None:
    """Of the steps in the past the last one holds now."""
    found = told(upstream(plan((-50, 100), (-20, 150), (10, 200))))
    assert found is not None
    assert found.steps == ((0.0, 150.0), (10.0, 200.0))


def test_an_old_plan_is_forgotten() -> None:
    """Two minutes after its last step a plan has been followed, or never will be."""
    assert told(upstream(plan((-SETTLED_SECONDS, 250)))) is not None
    assert told(upstream(plan((-SETTLED_SECONDS - 1, 250)))) is None


def test_the_cause_of_a_growth_is_the_plan_that_grows() -> None:
    """A restart emits nothing for a while, and the other job falls by more than this one grows: neither is a cause."""
    found = told(
        upstream(plan((0, 100), (5, 0), (40, 180)), "grows"),
        upstream(plan((0, 500), (90, 50)), "falls", processing_rate=500.0),
    )
    assert found is not None
    assert found.values == {"upstream": "grows", "announced": 180.0, "announced_at": "12:00:40", "emitted": 100.0}


def test_plans_add_up() -> None:
    """A job that reads two others gets what both emit."""
    found = told(
        upstream(plan((0, 100), (30, 150), topic="a"), "one", ("a",)),
        upstream(plan((0, 50), (60, 80), topic="b"), "two", ("b",)),
        sources=("a", "b"),
        arrival=150.0,
    )
    assert found is not None
    assert found.steps == ((0.0, 150.0), (30.0, 200.0), (60.0, 230.0))
    assert found.is_complete
    assert found.values["upstream"] == "one"


def test_arrivals_of_other_sources_stay() -> None:
    """Of 180/s, 100/s come from the job upstream: the other 80/s stay when it grows to 300/s."""
    found = told(upstream(plan((0, 300))), sources=("in", "clicks"), arrival=180.0)
    assert found is not None
    assert found.steps == ((0.0, 380.0),)
    assert not found.is_complete


@pytest.mark.parametrize("other", [upstream(None, "other"), upstream(plan((-300, 80)), "other")])
def test_what_another_writer_of_the_topic_emits_stays(other: Neighbour) -> None:
    """It has no plan, or an old one, and makes 80 of the 180/s: they stay when the first job grows to 300/s."""
    found = told(upstream(plan((0, 300))), other, arrival=180.0)
    assert found is not None
    assert found.steps == ((0.0, 380.0),)
    assert not found.is_complete


def test_without_what_the_upstream_job_emits_now_other_arrivals_are_not_known() -> None:
    """A missing figure is not taken for zero: nothing is announced."""
    assert told(upstream(plan((0, 300)), output_ratio=None), sources=("in", "clicks"), arrival=180.0) is None


def test_of_several_sinks_the_arrivals_show_the_share() -> None:
    """40 of the 100/s that the job upstream writes arrive here; when it writes 250/s, 100/s will."""
    found = told(upstream(plan((0, 100), (30, 250), topic=None)), arrival=40.0)
    assert found is not None
    assert found.steps == ((0.0, 40.0), (30.0, 100.0))


def test_beside_another_source_the_share_of_several_sinks_is_not_known() -> None:
    """Of the 440/s that arrive nobody knows how many the job upstream wrote: its growth is not theirs."""
    found = told(upstream(plan((0, 100), (30, 250), topic=None)), sources=("in", "clicks"), arrival=440.0)
    assert found is None


def test_a_share_is_at_most_all_of_it() -> None:
    """The job upstream has just started and has written 1/s so far: its 250/s do not become 25,000."""
    found = told(upstream(plan((0, 100), (30, 250), topic=None), processing_rate=1.0), arrival=100.0)
    assert found is not None
    assert found.steps == ((0.0, 100.0), (30.0, 250.0))


def test_the_plan_of_a_job_in_a_circle_is_ignored() -> None:
    """The job upstream also reads what comes of ours: each would raise the other's demand forever."""
    down = Neighbour("up", False, ("out",), distance=3)
    assert told(upstream(plan((0, 300))), down) is None


def test_a_growth_is_more_than_the_size_can_do_and_more_than_arrives() -> None:
    """250/s are a growth above 200/s, but not above 300/s, and not if 240/s arrive already."""
    found, arrived = told(upstream(plan((0, 100), (30, 250)))), told(upstream(plan((0, 250))), arrival=240.0)
    assert found is not None
    assert arrived is not None
    assert found.grows_above(200.0, 30.0)
    assert not found.grows_above(300.0, 30.0)
    assert not arrived.grows_above(200.0, 30.0)
    assert found.highest == 250.0


rates = st.floats(0, 1e6)
paths = st.lists(st.tuples(st.floats(0.1, 1000), rates), max_size=4)


@given(first=rates, later=paths, spans=st.lists(st.tuples(st.floats(0, 600), rates), max_size=4))
def test_announced_demand_is_at_least_what_is_announced(
    first: float, later: list[tuple[float, float]], spans: list[tuple[float, float]]
) -> None:
    """Demand is never below the plans and never negative; without a fall it is never below the forecast."""
    steps = ((0.0, first), *sorted(later))
    found, forecast = Announced(steps, 0.0, True, {}), [rate for _, rate in spans]
    ends = list(accumulate(seconds for seconds, _ in spans))
    for demand, own in zip(found.on_grid(ends, forecast), forecast, strict=True):
        assert demand >= 0.0
        if all(rate >= first for _, rate in steps):
            assert demand >= own
    assert all(found.demand(start, 60.0, 0.0) >= min(rate for _, rate in steps) - 1e-6 for start in (0.0, 100.0))


@given(first=rates, later=paths, lower=rates, more=rates)
def test_a_higher_forecast_never_means_less_demand(
    first: float, later: list[tuple[float, float]], lower: float, more: float
) -> None:
    """So a job that receives more never plans with less."""
    found = Announced(((0.0, first), *sorted(later)), 0.0, True, {})
    higher, less = (found.on_grid((60.0, 600.0), (rate, rate)) for rate in (lower + more, lower))
    assert all(one >= other for one, other in zip(higher, less, strict=True))
