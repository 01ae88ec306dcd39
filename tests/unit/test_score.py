"""The score, against figures worked out by hand."""

from __future__ import annotations

import math

import pytest

from tests.support.events import result
from tidegate.events.command import CommandKind
from tidegate.events.result import Phase
from tidegate.events.way import Way
from tidegate.lab.jobs import spec_for
from tidegate.lab.score import Prices, score
from tidegate.lab.simulate import JobRecording
from tidegate.twin.model import JobModel, StageModel
from tidegate.twin.topic import even
from tidegate.twin.world import Truth

# One slot does 100 records/s whatever the batch: no overhead, 10 ms a record.
MODEL = JobModel("job", ("in",), (StageModel("map", 0.01),), overhead_seconds=0.0)
SHARES = even(16)


def _recording(points: list[tuple[float, float, float, int, bool]]) -> JobRecording:
    """Return a recording of (rate over the last minute, age, slots, running) one minute apart, with a commit each."""
    ticks, commits, arrived, core = [], [], 0.0, 0.0
    for at, rate, age, slots, running in points:
        arrived += rate * 60
        core += slots * 60
        ticks.append(Truth(at, arrived, 0, age, slots, running, core, 0.0))
        commits.append((at, at - age))
    return JobRecording(ticks=ticks, commits=commits)


def test_elasticity_is_what_the_formulas_say() -> None:
    """Demand 4, 4, 2, 2 against supply 2, 0, 4, 2: under 2 and 4 slots, over 2 slots, a minute each of four."""
    recording = _recording(
        [
            (0, 400, 0, 2, True),
            (60, 400, 0, 2, True),
            (120, 400, 0, 4, False),
            (180, 200, 0, 4, True),
            (240, 200, 0, 2, True),
        ]
    )
    found = score(MODEL, spec_for(MODEL), SHARES, recording)
    assert found.under_accuracy == pytest.approx((2 + 4) / 4)
    assert found.over_accuracy == pytest.approx(2 / 4)
    assert found.under_share == pytest.approx(2 / 4)
    assert found.over_share == pytest.approx(1 / 4)
    # Held 2 2 4 4 2 moves 4 units, demand 4 4 4 2 2 moves 2, over four minutes.
    assert found.jitter == pytest.approx((4 - 2) / 4)
    assert found.demand_changes == 1


def test_late_is_the_time_in_which_the_oldest_record_is_older_than_the_objective() -> None:
    """A record of 75 s at a commit was over the objective of 60 s for 15 s; one of 130 s, since the commit before."""
    recording = _recording([(0, 400, 0, 4, True), (60, 400, 75, 4, True), (120, 400, 130, 4, True)])
    found = score(MODEL, spec_for(MODEL), SHARES, recording)
    assert found.worst_age_seconds == pytest.approx(130.0)
    assert found.violated_seconds == pytest.approx(15.0 + 60.0)
    assert found.violated_share == pytest.approx(75 / 120)


def test_where_no_record_waits_the_oldest_has_no_age() -> None:
    """A job without arrivals commits while nothing waits: the oldest record is 0 s old, not minus infinity."""
    recording = _recording([(0, 0.0, -math.inf, 4, True), (60, 0.0, -math.inf, 4, True)])
    found = score(MODEL, spec_for(MODEL), SHARES, recording)
    assert (found.worst_age_seconds, found.violated_seconds) == (0.0, 0.0)


def test_the_cost_adds_slots_violations_and_changes_of_size() -> None:
    """Cost = slot-seconds + 16 slots * (2 * violated + 30 a restart + 10 a handover + 2 in place); starts are free."""
    recording = _recording([(0, 400, 0, 4, True), (60, 400, 120, 4, True)])
    recording.results += [
        result("c1", Phase.ACCEPTED),
        result("c1", Phase.STOPPING, way=Way.RESTART),
        result("in-place", Phase.ACCEPTED),
        result("in-place", Phase.RESIZING, way=Way.IN_PLACE),
        result("in-place", Phase.VERIFIED, way=Way.IN_PLACE),
        result("fell-back", Phase.ACCEPTED),
        result("fell-back", Phase.WARMING, way=Way.HANDOVER),
        result("fell-back", Phase.STOPPING, way=Way.RESTART),
        result("handover", Phase.WARMING, way=Way.HANDOVER),
        result("start", Phase.ACCEPTED, kind=CommandKind.START),
    ]
    found = score(MODEL, spec_for(MODEL), SHARES, recording)
    assert (found.restarts, found.handovers, found.in_place, found.rescales) == (2, 1, 1, 3)
    assert found.core_seconds == 240.0
    assert found.cost == pytest.approx(240 + 16 * (2 * 60 + 2 * 30 + 10 + 2))
    free = score(
        MODEL, spec_for(MODEL), SHARES, recording, Prices(violated_second=0.0, restart=0.0, handover=0.0, in_place=0.0)
    )
    assert free.cost == pytest.approx(240.0)


def test_a_job_that_is_down_at_the_end_is_lost() -> None:
    """A run that ends with the job down is marked, however cheap it was."""
    recording = _recording([(0, 400, 0, 4, True), (60, 400, 100, 0, False)])
    assert score(MODEL, spec_for(MODEL), SHARES, recording).lost


def test_a_score_needs_two_moments() -> None:
    """A recording that is too short is refused, naming its job."""
    with pytest.raises(ValueError, match="job job: a score needs at least 2 ticks, found 0"):
        score(MODEL, spec_for(MODEL), SHARES, JobRecording())
