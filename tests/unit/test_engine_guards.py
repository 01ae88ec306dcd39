"""The most common guards, each reached through step(), with the explanation an operator reads."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.support.cases import decide
from tests.support.engine import check_spec, step
from tests.support.events import NO_WAIT, codes, held, job, observed, steady
from tidegate.engine.guards import GUARDS
from tidegate.engine.options import BadOption
from tidegate.engine.state import JobState
from tidegate.events.decision import Decision, Observed, RedisView, Status
from tidegate.events.job import JobSpec, Mode, Scaling
from tidegate.events.snapshot import MetricSnapshot, Part, StageTasks


def overloaded(
    spec: JobSpec, *, last: dict[str, Any] | None = None, seen: dict[str, Any] | None = None, **more: Any
) -> Decision:
    """Return the decision at which the policy first asks for more, with changes to the last snapshot and view."""
    shots = steady(7, rate=800, capacity=400, **more)
    shots[-1] = shots[-1].model_copy(update=last or {})
    return decide(spec, shots, **(seen or {}))[1]


def entry(decision: Decision, code: str) -> str:
    """Return the explanation of a code in a decision."""
    return next(e.sentence for e in decision.trail if e.code == code)


def test_without_an_objection_the_proposed_size_is_ordered() -> None:
    """The case that the others vary: sixteen slots are proposed and ordered."""
    decision = overloaded(job(), partitions=64)
    assert (decision.proposed_parallelism, decision.final_parallelism) == (16, 16)
    assert codes(decision) == ["CAPACITY_TOO_LOW"]


def test_stale_measurements_are_not_acted_on() -> None:
    """A decider that is ten minutes behind says so and orders nothing (F37)."""
    shot = steady(7, rate=800, capacity=400)[-1]
    decision = overloaded(job(), seen={}, last={"observed_at": shot.observed_at - timedelta(seconds=600)})
    assert decision.trail[-1].code in {"SNAPSHOT_STALE", "WINDOW_FILLING"}
    late = late_decision(timedelta(seconds=600))
    assert held(late)
    assert entry(late, "SNAPSHOT_STALE") == "the measurements are 600 s old, and the limit is 40 s"
    assert late.status is Status.PENDING_SCALE_UP


def late_decision(delay: timedelta) -> Decision:
    """Return a decision taken this long after its snapshot."""
    state, spec = JobState.new(), job()
    shots = steady(7, rate=800, capacity=400)
    for shot in shots:
        state, decision = step(state, shot, spec, Observed(at=shot.observed_at + delay))
    return decision


def test_measurements_from_the_future_are_not_acted_on() -> None:
    """A clock that is an hour ahead is reported and not trusted (F35)."""
    decision = late_decision(timedelta(hours=-1))
    assert held(decision)
    assert entry(decision, "SNAPSHOT_FROM_FUTURE") == "the measurements are 3600 s in the future"


def test_incomplete_measurements_are_named() -> None:
    """A missing part stops the change and is named."""
    decision = overloaded(job(), last={"missing": (Part.PROGRESS,)})
    assert held(decision)
    assert "measurements are missing (progress)" in entry(decision, "METRICS_INCOMPLETE")


def test_a_paused_job_is_left_alone() -> None:
    """Pause is final until resumed: the status does not promise a change, and says that the job is late."""
    decision = overloaded(job(mode=Mode.PAUSED, lag_objective_seconds=20.0))
    assert held(decision)
    assert decision.status is Status.LATE
    assert decision.sentence.endswith("but the job is paused.")


def test_the_maximum_limits_the_size() -> None:
    """No size is above the spec's maximum. The policy knows the maximum, so only a manual request meets the guard."""
    decision = overloaded(job(max_parallelism=6))
    assert decision.final_parallelism == 6


def test_partitions_bound_the_size() -> None:
    """More slots than partitions would be idle: the size is limited, and the job stays late."""
    decision = overloaded(job(lag_objective_seconds=20.0), partitions=4)
    assert held(decision)
    assert decision.status is Status.LATE
    assert (
        entry(decision, "SOURCE_PARTITIONS")
        == "the sources have 4 partitions, no stage has more than 4 tasks, and a slot without a task has nothing to do"
    )


@pytest.mark.parametrize(("busy", "bounded"), [(30.0, False), (3.0, True)])
def test_a_wider_stage_lifts_the_bound(busy: float, *, bounded: bool) -> None:
    """A stage of 48 tasks uses more slots than partitions, unless it does less than a tenth of the work."""
    stages = tuple(
        StageTasks(name=name, tasks=tasks, busy_seconds=each, median_task_seconds=0.1, slowest_task_seconds=0.1)
        for name, tasks, each in (("read", 4, 40.0), ("shuffle", 48, busy))
    )
    decision = overloaded(job(lag_objective_seconds=20.0), last={"stages": stages}, partitions=4)
    assert held(decision) is bounded
    assert any(entry.code == "SOURCE_PARTITIONS" for entry in decision.trail) is bounded


def test_split_partitions_lift_the_bound() -> None:
    """A job that sets minPartitions is not bounded by partitions."""
    decision = overloaded(job(guards=NO_WAIT | {"partitions": {"lifted": True}}), partitions=4)
    assert decision.final_parallelism > 4


def test_sizes_are_whole_executors() -> None:
    """A size is rounded up to whole executors."""
    spec = job(
        executor_cores=3,
        min_parallelism=3,
        max_parallelism=15,
        policy_options=job().scaling.policy_options | {"alignment_mode": "OFF"},
    )
    decision = overloaded(spec, partitions=20)
    assert decision.final_parallelism % 3 == 0
    assert decision.final_parallelism >= decision.proposed_parallelism


def test_a_step_is_at_least_one_executor() -> None:
    """With executors of four slots, a step of two slots would never be possible, so it is one of four."""
    spec = job(executor_cores=4, min_parallelism=4, guards=NO_WAIT | {"steps": {"up": 2, "down": 2}})
    grown = overloaded(spec, partitions=64)
    assert (grown.proposed_parallelism, grown.final_parallelism) == (16, 8)
    assert entry(grown, "STEP_UP_LIMIT") == "at most 4 slots may be added at a time"
    shots = steady(7, rate=40, capacity=400, slots=16)
    shrunk = decide(spec, shots)[1]
    assert shrunk.proposed_parallelism < 12
    assert shrunk.final_parallelism == 12
    assert entry(shrunk, "STEP_DOWN_LIMIT") == "at most 4 slots may be removed at a time"


def test_cooldown_held_in_redis_counts() -> None:
    """A cooldown that another decider holds stops the change, although the state does not know it."""
    spec = job(guards={"cooldown": {"up_seconds": 60, "down_seconds": 60}, "stabilization": {"seconds": 0}})
    shot = steady(7, rate=800, capacity=400)[-1]
    until = shot.observed_at + timedelta(seconds=41)
    decision = overloaded(spec, seen={"cooldown_until": until, "cooldown_owner": "someone"})
    assert held(decision)
    assert entry(decision, "COOLDOWN") == "the last change was 20 s ago and the cooldown lasts 60 s"
    assert decision.status is Status.PENDING_SCALE_UP


@pytest.mark.parametrize(
    ("view", "code"), [(RedisView.UNREACHABLE, "REDIS_UNREACHABLE"), (RedisView.REBUILDING, "REDIS_REBUILDING")]
)
def test_without_redis_nothing_is_changed(view: RedisView, code: str) -> None:
    """While Redis is gone or empty the job keeps its size, and the decision says why."""
    decision = overloaded(job(), seen={"redis": view})
    assert held(decision)
    assert decision.trail[-1].code == code


def test_the_pool_limits_and_stops_growth() -> None:
    """A pool with too few free slots gives what it has, and the status says so."""
    some = overloaded(job(), free=2)
    assert (some.final_parallelism, some.status) == (6, Status.POOL_EXHAUSTED)
    none = overloaded(job(), free=0)
    assert held(none)
    assert none.status is Status.POOL_EXHAUSTED
    assert entry(none, "POOL_EXHAUSTED") == "that takes 4 more slots, and pool default has 0 of 4 free"


def test_promised_slots_are_not_free() -> None:
    """Slots promised to another job and not yet used are not handed out twice."""
    decision = overloaded(job(), free=4, seen={"pool_reserved": 3})
    assert decision.final_parallelism == 5


def test_nothing_is_added_while_the_pool_is_unknown() -> None:
    """An unknown pool counts neither as empty nor as full."""
    decision = overloaded(job(), free=None)
    assert held(decision)
    assert decision.trail[-1].code == "POOL_UNKNOWN"


def test_every_guard_says_what_it_needs() -> None:
    """Every guard has a name of its own, and its options have defaults."""
    assert len({guard.name for guard in GUARDS}) == len(GUARDS)
    for guard in GUARDS:
        assert guard() == guard()


@pytest.mark.parametrize(
    ("scaling", "problem"),
    [
        ({"policy": "nonesuch"}, "unknown policy 'nonesuch', known are "),
        (
            {"policy": "flip271", "policy_options": {"utilization_target": 1.5}},
            "scaling.policy_options.utilization_target: must be at most 1, found 1.5",
        ),
        ({"policy_options": {"utilisation": 0.5}}, "scaling.policy_options.utilisation: unknown option"),
        ({"policy": "flip271", "policy_options": {"utilization_target": "high"}}, "must be a number, found 'high'"),
        ({"policy": "flip271", "policy_options": {"alignment_mode": "SIDEWAYS"}}, "must be one of 'BALANCED'"),
        ({"guards": {"cooldwon": {}}}, "scaling.guards.cooldwon: unknown guard, known are"),
        (
            {"guards": {"cooldown": {"up_seconds": -1}}},
            "scaling.guards.cooldown.up_seconds: must be at least 0, found -1",
        ),
    ],
)
def test_a_wrong_option_is_named(scaling: dict[str, Any], problem: str) -> None:
    """A wrong option is refused with its place, its value and what is known."""
    found = check_spec(job().model_copy(update={"scaling": Scaling(**scaling)}))
    assert any(problem in text for text in found), found


def test_a_spec_that_was_not_checked_raises() -> None:
    """The engine never guesses at an option."""
    spec = job(policy_options={"utilization_target": 7.0})
    shot: MetricSnapshot = steady(1, rate=1, capacity=2)[0]
    with pytest.raises(BadOption, match="utilization_target"):
        step(JobState.new(), shot, spec, observed(shot))
