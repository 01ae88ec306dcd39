"""Makespans, capacity and demand, checked against figures worked out by hand."""

from __future__ import annotations

import math

import pytest

from tidegate.twin.model import BadModel, JobModel, Measurement, RestartCosts, StageModel
from tidegate.twin.schedule import capacity, demand, makespan, record_seconds
from tidegate.twin.topic import even, skewed


def _model(**more: object) -> JobModel:
    fields: dict[str, object] = {"overhead_seconds": 1.0, **more}
    return JobModel("job", ("in",), (StageModel("map", 0.002),), **fields)  # type: ignore[arg-type]


def test_a_stage_lasts_as_long_as_its_slowest_chain() -> None:
    """Tasks go to free slots in order: 4, 3, 2, 1 s on two slots end at 5 s, not at the ideal of 5 s by luck."""
    assert makespan([4, 3, 2, 1], 2) == 5  # 4+1 and 3+2
    assert makespan([1, 2, 3, 4], 2) == 6  # 1+3 and 2+4: order matters
    assert makespan([4, 3, 2, 1], 9) == 4
    assert makespan([4, 3, 2, 1], 1) == 10
    assert makespan([], 3) == 0


def test_seven_slots_are_no_faster_than_four_on_eight_even_partitions() -> None:
    """The size curve has steps where partitions do not divide evenly."""
    model = _model()
    costs = {slots: record_seconds(model, even(8), slots) for slots in range(1, 11)}
    assert costs[1] == pytest.approx(0.002)
    assert costs[4] == costs[7] == pytest.approx(0.0005)
    assert costs[8] == costs[10] == pytest.approx(0.00025)


def test_a_single_task_stage_bounds_every_size() -> None:
    """A global aggregation runs in one task, whatever the slots."""
    model = JobModel("job", ("in",), (StageModel("map", 0.002), StageModel("total", 0.001, tasks=1)))
    assert record_seconds(model, even(64), 64) > 0.001


def test_contention_bends_the_curve_and_coherency_turns_it() -> None:
    """With contention, twice the slots give less than twice the capacity; with coherency, more slots can be slower."""
    bent = _model(contention=0.05)
    assert record_seconds(bent, even(16), 1) / record_seconds(bent, even(16), 16) < 16
    turned = _model(coherency=0.02)
    assert record_seconds(turned, even(16), 16) > record_seconds(turned, even(16), 8)


def test_capacity_spreads_the_overhead_over_the_longest_batch_allowed() -> None:
    """At 2 ms a record and 1 s overhead a batch of 11 s holds 5,000 records: 5000 / 11 s; a limit holds it to fewer."""
    assert capacity(_model(), even(1), 1, 11.0) == pytest.approx(5000 / 11)
    assert capacity(_model(max_records_per_trigger=500), even(1), 1, 11.0) == pytest.approx(250.0)
    assert capacity(_model(max_records_per_trigger=500, trigger_interval_seconds=5.0), even(1), 1, 11.0) == 100.0
    assert capacity(_model(), even(1), 0, 11.0) == 0.0


def test_demand_is_the_smallest_size_that_keeps_up() -> None:
    """One record/s above a size's capacity needs the next size; above all, the largest capacity wins."""
    model, shares = _model(), even(16)
    able = capacity(model, shares, 4, 30.0)
    assert demand(model, shares, able, 30.0, range(1, 17)) == 4
    assert demand(model, shares, able + 1, 30.0, range(1, 17)) == 6  # 5 slots still need 4 waves
    assert demand(model, shares, 1e9, 30.0, range(1, 17)) == 16


def test_shares_are_parts_of_one() -> None:
    """Even and skewed shares sum to 1, and the hot partition has its factor."""
    assert math.fsum(even(7)) == pytest.approx(1.0)
    assert math.fsum(skewed(8, 3.0)) == pytest.approx(1.0)
    assert skewed(8, 3.0)[0] == pytest.approx(3 / 8)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: _model(overhead_seconds=-1.0), "job job: overhead_seconds must be at least 0, found -1"),
        (lambda: _model(max_records_per_trigger=0), "max_records_per_trigger must be at least 1, found 0"),
        (lambda: _model(restart=RestartCosts(start_seconds=math.nan)), "start_seconds must be at least 0, found nan"),
        (lambda: _model(measurement=Measurement(lost_share=-0.1)), "lost_share"),
        (lambda: JobModel("job", (), (StageModel("map", 1.0),)), "sources must name at least one topic"),
    ],
)
def test_a_model_that_cannot_be_says_why(make: object, told: str) -> None:
    """A bad model is refused with job, field and value."""
    with pytest.raises(BadModel, match=told):
        make()  # type: ignore[operator]
