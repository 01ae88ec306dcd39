"""The guard `schedule`: slots that are ready at set times, whatever the load."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.cases import AT, decide
from tests.support.engine import check_spec
from tests.support.events import NO_WAIT, START, codes, held, job, snapshot, steady
from tidegate.engine.costs import ChangeMemory, MeasuredCost
from tidegate.engine.guards.periods import parse_schedule
from tidegate.engine.state import JobState
from tidegate.events.command import CommandKind
from tidegate.events.decision import Decision, Status
from tidegate.events.job import JobSpec, ManualScale, Mode
from tidegate.events.snapshot import ClusterState, StateOperator
from tidegate.events.way import Way

NOON = "12:01:00-12:30:00"
"""A period that begins between the last two of seven snapshots: START is noon of a Sunday."""


def planned(at_least: str, **more: Any) -> JobSpec:
    """Return the spec of a job with a schedule, and guards that do not wait."""
    guards = NO_WAIT | {"schedule": {"at_least": at_least}} | more.pop("guards", {})
    return job(guards=guards, **({"min_parallelism": 1, "max_parallelism": 16} | more))


def quiet(spec: JobSpec, **more: Any) -> Decision:
    """Return the decision of a job of 4 slots that needs one."""
    return decide(spec, steady(7, rate=40, capacity=400, partitions=64), **more)[1]


def test_the_job_grows_when_a_period_begins_although_nothing_calls_for_it() -> None:
    """A job that needs one slot gets 12, and the decision says which item of the schedule asks for them."""
    decision = quiet(planned(f"{NOON} && * * * ? * 1 | 12"))
    assert decision.command is not None
    assert (decision.final_parallelism, decision.status) == (12, Status.PENDING_SCALE_UP)
    assert f"the schedule asks for at least 12 slots in the period {NOON} && * * * ? * 1 (UTC)" in decision.sentence, (
        decision.sentence
    )


@pytest.mark.parametrize("at_least", ["", "11:00:00-11:59:59 | 12", f"{NOON} && * * * ? * 2-6 | 12", f"{NOON} | 1"])
def test_outside_its_periods_a_schedule_changes_nothing(at_least: str) -> None:
    """Nor does one that asks for no more than the policy."""
    decision = quiet(planned(at_least))
    assert "SCHEDULED" not in codes(decision)
    assert decision.final_parallelism < 4


def test_in_a_period_the_job_keeps_the_scheduled_slots() -> None:
    """A scale-down ends at them."""
    decision = quiet(planned(f"{NOON} | 3"))
    assert (decision.proposed_parallelism, decision.final_parallelism) == (2, 3), decision.sentence
    kept = quiet(planned(f"{NOON} | 4"))
    assert held(kept)
    assert (kept.status, codes(kept)[-1]) == (Status.FINE, "SCHEDULED")


def test_the_load_may_call_for_more() -> None:
    """A schedule is a lower limit: a job that is late grows beyond it."""
    shots = steady(7, rate=800, capacity=400, partitions=64)
    with_schedule, without = decide(planned(f"{NOON} | 5"), shots)[1], decide(planned(""), shots)[1]
    assert with_schedule.final_parallelism == without.final_parallelism > 5
    assert "SCHEDULED" not in codes(with_schedule)


def test_of_several_periods_the_one_with_the_most_slots_counts() -> None:
    """The order of the list does not matter."""
    for at_least in (f"{NOON} | 6; {NOON} | 9; {NOON} | 7", f"{NOON} | 9; {NOON} | 7"):
        assert quiet(planned(at_least)).final_parallelism == 9


def test_the_spec_and_whole_executors_limit_what_a_schedule_asks_for() -> None:
    """More than the maximum becomes the maximum; a part of an executor becomes a whole one."""
    decision = quiet(planned(f"{NOON} | 40"))
    assert (decision.final_parallelism, codes(decision)[-1]) == (16, "AT_MAXIMUM")
    spec = planned(f"{NOON} | 7", min_parallelism=2, executor_cores=2)
    assert quiet(spec).final_parallelism == 8


def test_no_guard_asks_whether_scheduled_growth_is_worth_it() -> None:
    """Not even that restarts are dear; but a job that settles, or is paused, stays as it is."""
    dear = ChangeMemory(costs=(MeasuredCost(Way.RESTART, int(AT) - 9000, 300.0, 300.0),))
    spec = planned(f"{NOON} | 12", rescale=(Way.RESTART,))
    assert quiet(spec, state=JobState(changes=dear)).final_parallelism == 12
    settles = planned(f"{NOON} | 12", guards={"stabilization": {"seconds": 600}})
    assert codes(quiet(settles))[-1] == "STABILIZING"
    assert quiet(settles).status is Status.PENDING_SCALE_UP
    assert held(quiet(planned(f"{NOON} | 12", mode=Mode.PAUSED)))


def test_an_operators_size_is_not_raised() -> None:
    """A request passes once, as it does against the policy."""
    request = ManualScale(request_id="r-1", parallelism=2, reason="test", requested_at=START)
    decision = decide(planned(f"{NOON} | 12", manual=request), [snapshot(6, partitions=64)])[1]
    assert decision.final_parallelism == 2


def test_a_job_starts_with_the_scheduled_slots() -> None:
    """A job that does not run is not started with fewer, to be changed at once."""
    down = snapshot(6, state=ClusterState.STOPPED, incarnation=None, slots=None)
    decision = decide(planned(f"{NOON} | 12"), [down])[1]
    assert decision.command is not None
    assert (decision.command.kind, decision.final_parallelism) == (CommandKind.START, 12)


def test_a_job_whose_state_is_too_large_is_stopped_in_a_period_too() -> None:
    """What stops a job for good is above the schedule."""
    shots = steady(7, rate=40, capacity=400)
    large = StateOperator(name="save", rows=1, memory_bytes=600 * 10**9, partitions=200)
    shots[-1] = shots[-1].model_copy(update={"state_operators": (large,)})
    decision = decide(planned(f"{NOON} | 12"), shots)[1]
    assert (decision.final_parallelism, decision.status) == (0, Status.STOPPED_STATE_LIMIT)


def test_a_job_that_failed_again_and_again_is_not_started_by_a_schedule() -> None:
    """Nor is one whose cluster does not answer: what the supervisor says holds."""
    down = snapshot(6, state=ClusterState.STOPPED, incarnation=None, slots=None)
    failed = decide(planned(f"{NOON} | 12"), [down], state=JobState(failures=3, spec_version=1))[1]
    assert (failed.command, codes(failed)) == (None, ["NEEDS_A_HUMAN"])
    silent = snapshot(6, state=ClusterState.UNKNOWN, incarnation=None, slots=None)
    assert codes(decide(planned(f"{NOON} | 12"), [silent])[1]) == ["JOB_STATE_UNKNOWN"]


@pytest.mark.parametrize(
    ("at_least", "slots"),
    [
        ("9:00:00-17:00:00 | 4", [4]),
        ("* * * ? * 2-6|4 ; 9:00:00-17:00:00 && * * * ? * 1 | 12;", [4, 12]),
        ("7:50:00-10:00:00 && * * * ? * MON-FRI | 12; 6:00:00-20:00:00 && * * * 27 11 ? 2026 | 16", [12, 16]),
        ("", []),
    ],
)
def test_schedules(at_least: str, slots: list[int]) -> None:
    """Each item is a period as elsewhere, and the slots."""
    assert [each.slots for each in parse_schedule(at_least)] == slots


@pytest.mark.parametrize(
    "at_least",
    [
        "9:00:00-17:00:00",
        "9:00:00-17:00:00 | 0",
        "| 4",
        "9:00:00-17:00:00 | -1",
        "9:00-17:00 | 4",
        "9:00:00-17:00:00 | ٤",
    ],
)
def test_a_schedule_that_cannot_be_read_is_refused_with_the_spec(at_least: str) -> None:
    """The problem names the option and quotes what was found."""
    problems = check_spec(job(guards={"schedule": {"at_least": at_least}}))
    assert len(problems) == 1
    assert "scaling.guards.schedule.at_least" in problems[0]
    assert "found" in problems[0]
