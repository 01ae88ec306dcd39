"""The guards of the first loop, each reached through step() with the sentence an operator reads."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.support.engine import check_spec, step
from tests.support.events import job, observed, steady
from tidegate.engine.guards import GUARDS
from tidegate.engine.options import BadOption
from tidegate.engine.state import JobState
from tidegate.events.decision import Decision, Observed, RedisView, Status
from tidegate.events.job import JobSpec, Mode, Scaling
from tidegate.events.snapshot import MetricSnapshot, Part


def wishing_more(
    spec: JobSpec, *, last: dict[str, Any] | None = None, seen: dict[str, Any] | None = None, **more: Any
) -> Decision:
    """Return the decision at which the policy first asks for more, with the last snapshot and view changed."""
    state = JobState.new()
    shots = steady(7, rate=800, capacity=400, **more)
    for shot in shots[:-1]:
        state, _ = step(state, shot, spec, observed(shot))
    final = shots[-1].model_copy(update=last or {})
    return step(state, final, spec, observed(final, **(seen or {})))[1]


def entry(decision: Decision, code: str) -> str:
    """Return the sentence of a code in the trail."""
    return next(e.sentence for e in decision.trail if e.code == code)


def held(decision: Decision) -> bool:
    """Whether nothing changes."""
    return decision.final_parallelism == decision.current_parallelism and decision.command is None


def test_without_an_objection_the_wish_goes_out() -> None:
    """The case the others vary: sixteen slots are wanted and ordered."""
    decision = wishing_more(job(), partitions=64)
    assert (decision.proposed_parallelism, decision.final_parallelism) == (16, 16)
    assert [e.code for e in decision.trail] == ["CAPACITY_TOO_LOW"]


def test_stale_measurements_are_not_acted_on() -> None:
    """A decider ten minutes behind says so and orders nothing (F37)."""
    shot = steady(7, rate=800, capacity=400)[-1]
    decision = wishing_more(job(), seen={}, last={"observed_at": shot.observed_at - timedelta(seconds=600)})
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
    """A clock an hour ahead is named, not believed (F35)."""
    decision = late_decision(timedelta(hours=-1))
    assert held(decision)
    assert entry(decision, "SNAPSHOT_FROM_FUTURE") == "the measurements are 3600 s in the future"


def test_incomplete_measurements_are_named() -> None:
    """A missing part holds the change and is named."""
    decision = wishing_more(job(), last={"missing": (Part.PROGRESS,)})
    assert held(decision)
    assert "measurements are missing (progress)" in entry(decision, "METRICS_INCOMPLETE")


def test_a_paused_job_is_left_alone() -> None:
    """Pause is final until resumed: the status does not promise a change."""
    decision = wishing_more(job(mode=Mode.PAUSED))
    assert held(decision)
    assert decision.status is Status.FINE
    assert decision.sentence.endswith("but the job is paused.")


def test_an_interactive_job_keeps_its_size() -> None:
    """The first of Autopilot's five answers: interactive jobs are pinned."""
    decision = wishing_more(job(interactive=True))
    assert held(decision)
    assert entry(decision, "INTERACTIVE") == "the job is interactive, so it keeps its 4 slots"


def test_a_young_run_may_settle() -> None:
    """Nothing is changed inside the stabilization time."""
    decision = wishing_more(job(guards={"stabilization": {"seconds": 300}}))
    assert held(decision)
    assert entry(decision, "STABILIZING") == "the job started 60 s ago and gets 300 s to settle"


def test_steps_bend_the_wish() -> None:
    """A step limit lets part of the wish out."""
    decision = wishing_more(
        job(
            guards={
                "steps": {"up": 2},
                "cooldown": {"up_seconds": 0, "down_seconds": 0},
                "stabilization": {"seconds": 0},
            }
        )
    )
    assert decision.final_parallelism == 6
    assert entry(decision, "STEP_UP_LIMIT") == "at most 2 slots may be added at a time"


def test_the_maximum_bends_the_wish() -> None:
    """The spec's maximum is named as the limit. The rule itself knows the maximum, so only a manual wish meets it."""
    decision = wishing_more(job(max_parallelism=6))
    assert decision.final_parallelism == 6


def test_partitions_bound_the_size() -> None:
    """More slots than partitions would idle: the wish is bounded, and the status is FINE as nothing more can help."""
    decision = wishing_more(job(), partitions=4)
    assert held(decision)
    assert decision.status is Status.FINE
    assert (
        entry(decision, "SOURCE_PARTITIONS")
        == "the sources have 4 partitions, and a slot without a partition has nothing to read"
    )


def test_split_partitions_lift_the_bound() -> None:
    """A job that sets minPartitions is not bounded by partitions."""
    lifted = {
        "partitions": {"lifted": True},
        "cooldown": {"up_seconds": 0, "down_seconds": 0},
        "stabilization": {"seconds": 0},
    }
    decision = wishing_more(job(guards=lifted), partitions=4)
    assert decision.final_parallelism > 4


def test_sizes_are_whole_executors() -> None:
    """A size is rounded up to whole executors."""
    spec = job(
        executor_cores=3,
        min_parallelism=3,
        max_parallelism=15,
        policy_options=job().scaling.policy_options | {"alignment_mode": "OFF"},
    )
    decision = wishing_more(spec, partitions=20)
    assert decision.final_parallelism % 3 == 0
    assert decision.final_parallelism >= decision.proposed_parallelism


def test_cooldown_held_in_redis_counts() -> None:
    """A cooldown another decider took holds the change, though the state knows nothing of it."""
    spec = job(guards={"cooldown": {"up_seconds": 60, "down_seconds": 60}, "stabilization": {"seconds": 0}})
    shot = steady(7, rate=800, capacity=400)[-1]
    until = shot.observed_at + timedelta(seconds=41)
    decision = wishing_more(spec, seen={"cooldown_until": until, "cooldown_owner": "someone"})
    assert held(decision)
    assert entry(decision, "COOLDOWN") == "the last change was 20 s ago and the cooldown lasts 60 s"
    assert decision.status is Status.PENDING_SCALE_UP


@pytest.mark.parametrize(
    ("view", "code"), [(RedisView.UNREACHABLE, "REDIS_UNREACHABLE"), (RedisView.REBUILDING, "REDIS_REBUILDING")]
)
def test_without_redis_nothing_is_changed(view: RedisView, code: str) -> None:
    """Redis gone or empty: hold, and say so."""
    decision = wishing_more(job(), seen={"redis": view})
    assert held(decision)
    assert decision.trail[-1].code == code


def test_the_pool_bends_and_stops() -> None:
    """A pool with too few free slots gives what it has, and the status names the pool."""
    some = wishing_more(job(), free=2)
    assert (some.final_parallelism, some.status) == (6, Status.POOL_EXHAUSTED)
    none = wishing_more(job(), free=0)
    assert held(none)
    assert none.status is Status.POOL_EXHAUSTED
    assert entry(none, "POOL_EXHAUSTED") == "that takes 4 more slots, and pool default has 0 of 4 free"


def test_promised_slots_are_not_free() -> None:
    """Slots promised to another job and not yet taken are not handed out twice."""
    decision = wishing_more(job(), free=4, seen={"pool_reserved": 3})
    assert decision.final_parallelism == 5


def test_an_unseen_pool_is_not_an_empty_or_a_full_one() -> None:
    """Without the pool's view nothing is added."""
    decision = wishing_more(job(), free=None)
    assert held(decision)
    assert decision.trail[-1].code == "POOL_UNKNOWN"


def test_a_lost_reservation_is_tried_again_later() -> None:
    """Losing the race for slots holds this decision only."""
    decision = wishing_more(job(), seen={"reservation_refused": True})
    assert held(decision)
    assert decision.trail[-1].code == "RESERVATION_LOST"


def test_every_guard_says_what_it_needs() -> None:
    """Every guard has a name of its own, and its options parse with their defaults."""
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
