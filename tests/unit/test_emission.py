"""Emission: what a job will write, from its planned size, capacity, backlog and output ratio."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cases import AT, case, evidence
from tests.support.events import START, job
from tidegate.engine.case import Case, Proposal
from tidegate.engine.emission import planned_emission, reads
from tidegate.engine.state import InFlight
from tidegate.events.decision import Emission, EmissionStep, Expectation, Neighbour
from tidegate.events.way import Way

READER = Neighbour("reader", False, ("out",))


def busy(**figures: Any) -> Case:
    """Return the busy job (4 slots, 300/s of 400/s) that writes two records for each it reads, to one reader."""
    state = figures.pop("state", {})
    neighbours = figures.pop("neighbours", (READER,))
    return case(evidence(**({"output_ratio": 2.0} | figures)), neighbours=neighbours, **state)


def proposal(size: int = 4, *, outage: float = 0.0, delay: float = 20.0, **more: Any) -> Proposal[Any]:
    """Return a proposal of a policy that knows that a slot does 100/s."""
    expected = Expectation(processing_rate=100.0 * size, outage_seconds=outage, delay_seconds=delay)
    return Proposal(size, "TIDE_GROW", expectation=expected, capacity=400.0, **more)


def steps(emits: Emission | None) -> list[tuple[float, float]]:
    """Return the steps as (seconds after the snapshot, records/s)."""
    assert emits is not None
    return [(step.at.timestamp() - AT, step.rate) for step in emits.steps]


def test_a_job_that_keeps_up_emits_what_arrives() -> None:
    """300/s arrive and two records come of each."""
    emits = planned_emission(busy(), proposal(), 4, withheld=False)
    assert steps(emits) == [(0.0, 600.0)]
    assert emits is not None
    assert emits.topic == "out"


def test_a_growth_emits_its_backlog_first() -> None:
    """4 slots do 400/s; 8 do 800/s from second 20 on. Of 46,000 records 10,000 are usual: two intervals of 500/s.

    The other 36,000 grow by 100/s until second 20 and then fall by 300/s: they are gone 127 s later.
    """
    seen = busy(arrival_rate=500.0, lag_records=46_000)
    found = steps(planned_emission(seen, proposal(8), 8, withheld=False))
    assert found == [(0.0, 800.0), (20.0, 1600.0), (147.0, 1000.0)]


def test_a_restart_emits_nothing_while_it_lasts() -> None:
    """The old size goes on until second 10, and the new one works from second 40 on."""
    found = steps(planned_emission(busy(), proposal(8, outage=30.0, delay=40.0), 8, withheld=False))
    assert [at for at, _ in found] == [0.0, 10.0, 40.0, 58.0]
    assert [rate for _, rate in found] == [600.0, 0.0, 1600.0, 600.0]


def test_each_second_has_one_step() -> None:
    """The outage begins a third of a second after the snapshot: the rate before it is of no use."""
    found = steps(planned_emission(busy(), proposal(8, outage=30.0, delay=30.3), 8, withheld=False))
    assert [at for at, _ in found] == [0.0, 30.0, 48.0]
    assert found[0][1] == 0.0


def test_what_the_policy_expects_to_arrive_counts() -> None:
    """The evidence's rate is that of a window; the policy may know better."""
    assert steps(planned_emission(busy(), proposal(arrival_rate=200.0), 4, withheld=False)) == [(0.0, 400.0)]


def test_a_target_is_no_arrival() -> None:
    """`flip271` wants to process 900/s because the jobs upstream should send so many; 300/s arrive and are emitted."""
    emits = planned_emission(busy(), proposal(12, target_rate=900.0), 12, withheld=False)
    assert emits is not None
    assert emits.target_rate == 900.0
    assert max(rate for _, rate in steps(emits)) == 600.0


def test_announced_demand_is_passed_on() -> None:
    """The job upstream will emit 350/s from second 30 on, so this one will emit 700/s."""
    plan = Emission((EmissionStep(START, 300.0), EmissionStep(START + timedelta(seconds=30), 350.0)), "in")
    seen = busy(neighbours=(READER, Neighbour("up", True, ("in",), emits=plan)))
    assert steps(planned_emission(seen, proposal(), 4, withheld=False)) == [(0.0, 600.0), (30.0, 700.0)]


def test_a_size_that_the_guards_chose_is_taken_as_linear() -> None:
    """8 were proposed and 6 are left: 600/s."""
    found = steps(planned_emission(busy(arrival_rate=900.0), proposal(8), 6, withheld=False))
    assert found == [(0.0, 800.0), (20.0, 1200.0)]


def test_a_change_that_is_only_shown_changes_nothing() -> None:
    """In advise mode the size stays."""
    found = steps(planned_emission(busy(arrival_rate=900.0), proposal(8), 8, withheld=True))
    assert found == [(0.0, 800.0)]


@pytest.mark.parametrize("figure", ["arrival_rate", "output_ratio"])
def test_what_is_not_known_is_not_emitted(figure: str) -> None:
    """A missing figure is never a zero: nothing is said."""
    assert planned_emission(busy(**{figure: None}), proposal(), 4, withheld=False) is None


def test_without_a_capacity_nothing_is_said() -> None:
    """A policy that is still learning does not know what the job will do."""
    assert planned_emission(busy(), Proposal(4, "TIDE_LEARNING"), 4, withheld=False) is None


def test_without_a_reader_nothing_is_said() -> None:
    """Nobody needs it: events of jobs alone stay as they are. A job further down is no reader."""
    further = Neighbour("far", False, ("x",), distance=2)
    for neighbours in ((), (further,), (Neighbour("up", True, ("in",)),)):
        assert planned_emission(busy(neighbours=neighbours), proposal(), 4, withheld=False) is None


def test_a_change_under_way_keeps_the_plan_that_ordered_it() -> None:
    """The steps are those of the decision before; targets still go out."""
    under_way = {"in_flight": InFlight("c", "rescale", 8, AT, AT + 60, way=Way.IN_PLACE)}
    assert planned_emission(busy(state=under_way), proposal(), 4, withheld=False) is None
    emits = planned_emission(busy(state=under_way), proposal(arrival_rate=300.0), 4, withheld=False)
    assert emits == Emission((), "out", 300.0)


def test_of_several_sinks_none_is_named() -> None:
    """How the output is shared between them is not known."""
    spec = job().model_copy(update={"sinks": ("out", "audit")})
    seen = busy()._replace(spec=spec)
    emits = planned_emission(seen, proposal(), 4, withheld=False)
    assert emits is not None
    assert emits.topic is None


moments = st.floats(0.5, 3000)
rates = st.floats(0, 1000)
paths = st.lists(st.tuples(moments, rates), max_size=3, unique_by=lambda step: step[0]).map(sorted)


@given(arrives=rates, later=paths, able=rates, changes=paths, backlog=st.floats(0, 50_000))
def test_a_queue_reads_no_more_than_it_can_nor_than_there_is(
    arrives: float, later: list[tuple[float, float]], able: float, changes: list[tuple[float, float]], backlog: float
) -> None:
    """Up to any moment no more than the capacity allows, and no more than the backlog and what has arrived."""
    arrivals, capacities = ((0.0, arrives), *later), ((0.0, able), *changes)
    path = reads(arrivals, capacities, backlog)
    times = [at for at, _ in path]
    assert times[0] == 0.0
    assert times == sorted(times)
    for moment in (*times, 1.0, 100.0, 3500.0):
        # Rates within 2 % of each other are one step.
        assert _total(path, moment) <= 1.02 * (backlog + _total(arrivals, moment)) + 1.0
        assert _total(path, moment) <= 1.02 * _total(capacities, moment) + 1.0


def _total(path: Sequence[tuple[float, float]], until: float) -> float:
    """Return the records up to a moment."""
    ends = [*(at for at, _ in path[1:]), math.inf]
    return sum(rate * max(0.0, min(end, until) - at) for (at, rate), end in zip(path, ends, strict=True))
