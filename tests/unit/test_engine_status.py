"""The status tells the truth: a job that is late and will not be changed is LATE, and a failed start counts once."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.cases import AT, case, decide, evidence
from tests.support.engine import step
from tests.support.events import job, observed, result, snapshot, steady
from tidegate.engine.delay import Arrivals, Knot
from tidegate.engine.lateness import is_late
from tidegate.engine.state import JobState
from tidegate.engine.supervisor import MAX_FAILURES
from tidegate.events.command import CommandKind
from tidegate.events.decision import Decision, Status
from tidegate.events.job import Mode
from tidegate.events.result import ActionResult, Phase
from tidegate.events.snapshot import ClusterState

OBJECTIVE = 60.0
"""Age of the oldest record, s: the default of the job's spec."""


@pytest.mark.parametrize(
    ("figures", "capacity", "late"),
    [
        ({"lag_records": 0}, None, False),
        ({"lag_records": 23_000, "true_processing_rate": 400.0, "lag_trend": 50.0}, None, False),
        ({"lag_records": 25_000, "true_processing_rate": 400.0, "lag_trend": 50.0}, None, True),
        ({"lag_records": 25_000, "true_processing_rate": 400.0, "lag_trend": None}, None, True),
        # 1,000 too many: at 20/s fewer they are gone in 50 s, at 10/s not in time
        ({"lag_records": 25_000, "true_processing_rate": 400.0, "lag_trend": -20.0}, None, False),
        ({"lag_records": 25_000, "true_processing_rate": 400.0, "lag_trend": -10.0}, None, True),
        # what the policy has learned counts, also without a batch in the window
        ({"lag_records": 25_000, "true_processing_rate": None, "lag_trend": 1.0}, 400.0, True),
        ({"lag_records": 25_000, "true_processing_rate": 400.0, "lag_trend": 1.0}, 500.0, False),
        # no capacity: the lag has grown for as long as the objective, or the window allows
        ({"lag_records": 500, "true_processing_rate": None, "lag_trend": 50.0, "window_seconds": 60.0}, None, True),
        ({"lag_records": 500, "true_processing_rate": None, "lag_trend": 50.0, "window_seconds": 50.0}, None, False),
        ({"lag_records": 500, "true_processing_rate": None, "lag_trend": -5.0, "window_seconds": 90.0}, None, False),
        ({"lag_records": None, "true_processing_rate": None, "lag_trend": None}, None, False),
    ],
)
def test_late_is_behind_the_objective_and_not_back_in_time(
    figures: dict[str, Any], capacity: float | None, late: bool
) -> None:
    """Without a delay, capacity times objective is what may wait; without both, growth for that long is enough."""
    assert case().spec.scaling.lag_objective_seconds == OBJECTIVE
    assert is_late(case(evidence(**figures)), capacity, 120.0) is late


@pytest.mark.parametrize(
    ("figures", "late"),
    [
        # 100/s arrived, so what is older than 60 s are the records beyond 6,000
        ({"lag_records": 9000, "delay_seconds": 50.0}, False),
        ({"lag_records": 9000, "delay_seconds": 90.0}, True),
        ({"lag_records": 9000, "delay_seconds": 90.0, "lag_trend": -40.0}, True),
        ({"lag_records": 9000, "delay_seconds": 90.0, "lag_trend": -50.0}, False),
        # little lag, but one partition stands still: no trend of the whole helps it
        ({"lag_records": 50, "delay_seconds": 90.0, "lag_trend": -50.0}, True),
        # much work, but young
        ({"lag_records": 40_000, "delay_seconds": 50.0}, False),
        # at least 30 s old: the seconds of work decide
        ({"lag_records": 40_000, "delay_seconds": 30.0, "delay_at_least": True}, True),
        ({"lag_records": 9000, "delay_seconds": 30.0, "delay_at_least": True}, False),
        ({"lag_records": 9000, "delay_seconds": 61.0, "delay_at_least": True}, True),
        ({"lag_records": 0, "delay_seconds": 0.0}, False),
    ],
)
def test_late_is_a_matter_of_age(figures: dict[str, Any], late: bool) -> None:
    """A known delay decides, whatever work the lag is; of a lower bound within the objective the work does."""
    knots = tuple(Knot(int(1000 * (AT - 10 * n)), 100_000 - 1000 * n, None) for n in range(20, -1, -1))
    seen = evidence(**({"true_processing_rate": 400.0, "lag_trend": 5.0} | figures))
    assert is_late(case(seen, arrivals=Arrivals(knots=knots)), None, 120.0) is late


@pytest.mark.parametrize(
    ("scaling", "status"),
    [
        ({"mode": Mode.PAUSED}, Status.LATE),
        ({"interactive": True}, Status.LATE),
        ({"max_parallelism": 4}, Status.LATE),
        ({"guards": {"stabilization": {"seconds": 600}}}, Status.PENDING_SCALE_UP),
        ({"guards": {"cooldown": {"up_seconds": 0}, "stabilization": {"seconds": 0}}}, Status.PENDING_SCALE_UP),
    ],
)
def test_a_late_job_is_never_fine(scaling: dict[str, Any], status: Status) -> None:
    """Held for good it is LATE; put off, or under way, the scale-up is pending."""
    shots = steady(16, rate=800, capacity=400, partitions=64)
    _, decision = decide(job(**scaling), shots)
    assert decision.evidence.delay_seconds == pytest.approx(80, abs=0.1)
    assert decision.status is status


def test_a_job_whose_capacity_nobody_knows_is_late_too() -> None:
    """No batch has ended, so nothing can be decided, but the lag has grown for two minutes."""
    spec = job(policy="tide", policy_options={})
    shots = [snapshot(n, arrived=1_000_000 + 5000 * n, committed=1_000_000) for n in range(13)]
    _, early = decide(spec, shots[:5])
    assert early.status is Status.FINE
    _, decision = decide(spec, shots)
    assert decision.status is Status.LATE
    assert decision.sentence.startswith("Stay at 4 slots: 0 of the 3 micro-batches needed")


def test_a_start_that_is_under_way_for_long_hides_no_lateness() -> None:
    """The job runs already with the size that the start ordered, commits nothing, and its lag grows."""
    spec = job(policy="tide", policy_options={}, initial_parallelism=4)
    down = snapshot(0, state=ClusterState.STOPPED, incarnation=None, slots=None)
    state, started = step(JobState.new(), down, spec, observed(down))
    assert started.command is not None
    for number in range(1, 14):
        shot = snapshot(number, arrived=1_000_000 + 5000 * number, committed=1_000_000)
        state, decision = step(state, shot, spec, observed(shot))
        assert state.in_flight is not None
        if number == 5:
            assert decision.status is Status.FINE
    assert decision.status is Status.LATE


def test_a_small_lag_is_fine() -> None:
    """A job that keeps up is not late."""
    _, decision = decide(job(), steady(8, rate=300, capacity=400, lag=1000))
    assert decision.status is Status.FINE


def loop(starts: int) -> tuple[JobState, list[Decision]]:
    """Return what follows when every start is seen running, fails, and leaves a dead job."""
    state, number, decisions = JobState.new(), 0, list[Decision]()

    def decided(up: bool, run: int, *results: ActionResult) -> None:
        nonlocal state, number
        number += 1
        life = ClusterState.RUNNING if up else ClusterState.FAILED
        shot = snapshot(number, state=life, incarnation=f"app-{run}" if run else None, slots=4 if up else None)
        state, decision = step(state, shot, job(), observed(shot, results=results))
        decisions.append(decision)

    decided(False, 0)
    for run in range(1, starts + 1):
        command = decisions[-1].command
        assert command is not None
        assert state.failures == run - 1
        decided(True, run)
        told: dict[str, Any] = {"kind": CommandKind.START, "parallelism": 4, "incarnation": f"app-{run}"}
        decided(False, run, result(command.command_id, Phase.FAILED, number, code="NO_BATCH", **told))
    return state, decisions


def test_a_failed_start_counts_once() -> None:
    """Its result and the dead job that follows are one failure; after three a person has to look, and it is late."""
    state, decisions = loop(MAX_FAILURES)
    assert state.failures == MAX_FAILURES
    assert sum(decision.command is not None for decision in decisions) == MAX_FAILURES
    assert decisions[-1].trail[0].code == "NEEDS_A_HUMAN"
    assert "ended 3 times in a row" in decisions[-1].sentence
    assert decisions[-1].status is Status.LATE


def test_a_failed_start_counts_once_when_only_the_result_names_the_run() -> None:
    """No snapshot saw the run, and the snapshot after it says that the job is dead."""
    down = snapshot(0, state=ClusterState.STOPPED, incarnation=None, slots=None)
    state, decision = step(JobState.new(), down, job(), observed(down))
    told = result(decision.decision_id, Phase.FAILED, 1, kind=CommandKind.START, incarnation="app-1", code="NO_BATCH")
    dead = snapshot(2, state=ClusterState.FAILED, incarnation="app-1", slots=None)
    state, _ = step(state, dead, job(), observed(dead, results=(told,)))
    assert state.failures == 1


def test_a_failed_change_of_a_running_job_is_no_failed_start() -> None:
    """The job goes on: nothing ended."""
    state, decision = decide(job(), steady(7, rate=800, capacity=400, partitions=64))
    shot = snapshot(8, partitions=64)
    told = result(decision.decision_id, Phase.FAILED, 8, code="CLUSTER_UNKNOWN")
    state, _ = step(state, shot, job(), observed(shot, results=(told,)))
    assert state.failures == 0
