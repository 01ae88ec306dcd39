"""The ways to change a size: which the decision names, what is learned of each, and what stands in its way."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.support.cases import AT, case, decide
from tests.support.engine import step
from tests.support.events import batch, codes, job, observed, result, snapshot, steady, with_application
from tidegate.engine.costs import COSTS_KEPT, MeasuredCost, Shortfall
from tidegate.engine.guards.timing import Cooldown, Stabilization
from tidegate.engine.plan import plan_for
from tidegate.engine.reservations import hold_for
from tidegate.engine.state import JobState, from_wire, to_wire
from tidegate.engine.ways import RETRY_SECONDS, way_to
from tidegate.events.command import CommandKind
from tidegate.events.decision import Decision, Status
from tidegate.events.job import JobSpec
from tidegate.events.result import ActionResult, Phase
from tidegate.events.snapshot import ClusterState, MetricSnapshot
from tidegate.events.way import Way
from tidegate.installed import engine as installed_engine


def overloaded(first: int = 0, count: int = 7, **more: Any) -> list[MetricSnapshot]:
    """Return a job of 4 slots that can do 400/s and gets 800/s."""
    return steady(count, rate=800, capacity=400, first=first, partitions=64, **more)


def ordered(spec: JobSpec | None = None, **more: Any) -> tuple[JobState, Decision]:
    """Return state and decision after a scale-up from 4 to 16 slots was ordered."""
    state, decision = decide(spec or job(), overloaded(), **more)
    assert decision.command is not None
    return state, decision


def after(
    state: JobState, shot: MetricSnapshot, *results: ActionResult, spec: JobSpec | None = None
) -> tuple[JobState, Decision]:
    """Return state and decision after one more snapshot, before which some results came."""
    return step(state, shot, spec or job(), observed(shot, results=results))


def verified(of: Decision, number: int = 8, **more: Any) -> ActionResult:
    """Return the result of a scale-up in place."""
    done: dict[str, Any] = {
        "parallelism": 16,
        "incarnation": "app-1",
        "way": Way.IN_PLACE,
        "outage_seconds": 0.0,
        "delay_seconds": 9.0,
    }
    return result(of.decision_id, Phase.VERIFIED, number, **(done | more))


def test_the_first_possible_way_is_named() -> None:
    """In place by default; else what the spec puts first; a job inside its driver has no executors to change."""
    assert way_to(case(), 8) is Way.IN_PLACE
    assert way_to(case(spec=job(rescale=(Way.RESTART, Way.IN_PLACE))), 8) is Way.RESTART
    local = with_application(job(), backend="local", master="local[4]")
    assert way_to(case(spec=local), 8) is Way.HANDOVER


@pytest.mark.parametrize(("left", "way"), [(None, Way.HANDOVER), (90.0, Way.HANDOVER), (91.0, Way.RESTART)])
def test_a_handover_needs_a_batch_that_ends(left: float | None, way: Way) -> None:
    """A second driver is ready after 30 s, and the first one has 60 s to finish its batch; else it was all for nothing.

    A job that can only be handed over has no choice.
    """
    spec = job(rescale=(Way.HANDOVER, Way.RESTART))
    seen = case(spec=spec, shot=snapshot(0, free=16))
    seen = seen._replace(evidence=replace(seen.evidence, running_left_seconds=left))
    assert way_to(seen, 8) is way
    assert way_to(seen._replace(spec=job(rescale=(Way.HANDOVER,))), 8) is Way.HANDOVER


def test_a_handover_needs_room_for_both_runs() -> None:
    """With 8 free slots a second run of 8 fits next to the first one; with 7 the next way is taken."""
    spec = job(rescale=(Way.HANDOVER, Way.RESTART))
    assert way_to(case(spec=spec, shot=snapshot(0, free=8)), 8) is Way.HANDOVER
    assert way_to(case(spec=spec, shot=snapshot(0, free=7)), 8) is Way.RESTART
    assert way_to(case(spec=spec, shot=snapshot(0, free=None)), 8) is Way.RESTART
    only = job(rescale=(Way.HANDOVER,))
    decision = decide(only, overloaded(free=12))[1]
    assert (decision.final_parallelism, decision.status) == (12, Status.POOL_EXHAUSTED)
    assert "that takes 16 more slots, and pool default has 12 of 16 free" in decision.sentence
    assert decision.command is not None
    assert hold_for(only, decision.command, granted=4).slots == 12
    shrinking = decide(only, steady(7, rate=40, capacity=400, free=1))[1]
    assert (shrinking.final_parallelism, shrinking.status) == (4, Status.POOL_EXHAUSTED)


@pytest.mark.parametrize(
    ("way", "said", "slots", "seconds"),
    [
        (Way.IN_PLACE, "in place", 12, 25.0),
        (Way.HANDOVER, "by handover", 16, 100.0),
        (Way.RESTART, "by restart", 12, 100.0),
    ],
)
def test_decision_and_command_name_the_way(way: Way, said: str, slots: int, seconds: float) -> None:
    """The sentence, the expectation and the command say how; slots and cooldown are reserved accordingly."""
    spec = job(rescale=(way,), guards={"cooldown": {"up_seconds": 100}, "stabilization": {"seconds": 0}})
    state, decision = ordered(spec)
    assert decision.sentence.startswith(f"Scale up from 4 to 16 slots {said}: ")
    command, expected = decision.command, decision.expectation
    assert command is not None
    assert expected is not None
    assert command.way is expected.way is way
    assert command.first_batch_seconds == expected.lag_seconds
    assert state.in_flight is not None
    assert state.in_flight.way is way
    held = hold_for(spec, command, granted=4)
    assert (held.slots, held.cooldown_until - command.issued_at.timestamp()) == (slots, seconds)
    shrinks = command.model_copy(update={"from_parallelism": 16, "to_parallelism": 4})
    assert hold_for(spec, shrinks, granted=16).slots == (4 if way is Way.HANDOVER else 0)
    assert from_wire(json.loads(json.dumps(to_wire(state)))).in_flight == state.in_flight


def test_a_start_goes_no_way() -> None:
    """Only a running job has a size to change."""
    down = snapshot(0, state=ClusterState.STOPPED, incarnation=None, slots=None)
    _, decision = decide(job(), [down])
    assert decision.command is not None
    assert (decision.command.kind, decision.command.way) == (CommandKind.START, None)


def test_the_cost_of_each_way_is_learned() -> None:
    """Outage and delay are kept per way, the newest few; older results tell a downtime, and it was a restart."""
    state, decision = ordered()
    state, _ = after(state, snapshot(9, slots=16), verified(decision))
    assert state.changes.costs == (MeasuredCost(Way.IN_PLACE, int(AT) + 80, 0.0, 9.0),)
    for number in range(10, 21):
        told = result("other", Phase.VERIFIED, number, downtime_seconds=float(number), incarnation=f"app-{number}")
        state, _ = after(state, snapshot(number, incarnation=f"app-{number}"), told)
    assert [cost.outage for cost in state.changes.costs if cost.way is Way.RESTART] == [
        float(number) for number in range(13, 21)
    ]
    assert len(state.changes.costs) == COSTS_KEPT + 1
    assert from_wire(json.loads(json.dumps(to_wire(state)))).changes == state.changes


def test_the_outage_of_a_restart_is_its_downtime() -> None:
    """The first batch of a cold run is part of what a restart costs."""
    state, decision = ordered(job(rescale=(Way.RESTART,)))
    told = verified(
        decision, way=Way.RESTART, incarnation="app-2", outage_seconds=20.0, delay_seconds=38.0, downtime_seconds=35.5
    )
    state, _ = after(state, snapshot(9, slots=16, incarnation="app-2"), told)
    assert state.changes.costs == (MeasuredCost(Way.RESTART, int(AT) + 80, 35.5, 38.0),)


def test_a_silence_before_a_restart_is_no_outage() -> None:
    """The downtime counts from the last commit, which a silence puts far back."""
    state, decision = ordered(job(rescale=(Way.RESTART,)))
    told = verified(decision, way=Way.RESTART, incarnation="app-2", delay_seconds=40.0, downtime_seconds=195.0)
    state, _ = after(state, snapshot(9, slots=16, incarnation="app-2"), told)
    assert state.changes.costs == (MeasuredCost(Way.RESTART, int(AT) + 80, 40.0, 40.0),)


def test_what_an_older_engine_learned_of_restarts_is_kept() -> None:
    """Its state had restarts with their downtime, and commands without a way."""
    old = to_wire(JobState.new()) | {"restarts": [[AT, 17.5]], "in_flight": ["c", "rescale", 6, AT, AT + 9, "ordered"]}
    state = from_wire(old)
    assert state.changes.costs == (MeasuredCost(Way.RESTART, int(AT), 17.5, 17.5),)
    assert state.in_flight is not None
    assert state.in_flight.way is None


def fallen_back(**more: Any) -> JobState:
    """Return the state after a change in place that became a restart."""
    state, decision = ordered()
    restart: dict[str, Any] = {
        "way": Way.RESTART,
        "incarnation": "app-2",
        "outage_seconds": 20.0,
        "delay_seconds": 30.0,
    }
    shot = snapshot(9, slots=16, incarnation="app-2", partitions=64)
    return after(state, shot, verified(decision, **(restart | more)))[0]


def test_a_way_that_fell_back_is_not_assumed_again() -> None:
    """Not in this run, and not within an hour; the restart counts in the budget. A new spec opens the way."""
    state = fallen_back()
    assert [cost.way for cost in state.changes.costs] == [Way.RESTART]
    assert state.history.ordered_at == (int(AT) + 80,)
    kept: dict[str, Any] = {"changes": state.changes, "incarnation": "app-2"}
    assert way_to(case(after=200.0, **kept), 8) is Way.HANDOVER
    assert way_to(case(after=2 * RETRY_SECONDS, **kept), 8) is Way.HANDOVER
    assert way_to(case(after=200.0, **(kept | {"incarnation": "app-3"})), 8) is Way.HANDOVER
    assert way_to(case(after=2 * RETRY_SECONDS, **(kept | {"incarnation": "app-3"})), 8) is Way.IN_PLACE
    renewed, _ = after(state, snapshot(10, slots=16, incarnation="app-2"), spec=job(version=2))
    assert renewed.changes.closed == ()


def test_a_rejected_command_says_nothing_about_its_way() -> None:
    """Nothing was tried."""
    state, decision = ordered()
    state, _ = after(state, snapshot(9), result(decision.decision_id, Phase.REJECTED, 8))
    assert (state.changes.closed, state.changes.costs) == ((), ())


def elsewhere(kind: CommandKind = CommandKind.START) -> JobState:
    """Return the state after a start that found the checkpoint elsewhere."""
    told = result("c", Phase.VERIFIED, 0, kind=kind, incarnation="app-1", code="CHECKPOINT_ELSEWHERE")
    return after(JobState.new(), snapshot(0), told)[0]


@pytest.mark.parametrize("kind", [CommandKind.START, CommandKind.RESCALE])
def test_a_job_with_its_checkpoint_elsewhere_is_changed_in_place_only(kind: CommandKind) -> None:
    """A new run would not find the checkpoint. The decision says what to set when nothing else is left."""
    state = elsewhere(kind)
    _, decision = decide(job(), overloaded(first=1), state=state)
    assert decision.command is not None
    assert decision.command.way is Way.IN_PLACE
    _, decision = decide(job(rescale=(Way.RESTART,), lag_objective_seconds=20.0), overloaded(first=1), state=state)
    assert decision.command is None
    assert decision.status is Status.LATE
    assert "keeps its checkpoint elsewhere than in /checkpoints/rates" in decision.sentence


def test_another_location_or_another_run_opens_the_ways_again() -> None:
    """A new version of the spec alone does not: the checkpoint would still be lost."""
    spec = job(rescale=(Way.RESTART,), version=2)
    assert decide(spec, overloaded(first=1), state=elsewhere())[1].command is None
    moved = with_application(spec, checkpoint_location="/elsewhere")
    assert decide(moved, overloaded(first=1), state=elsewhere())[1].command is not None
    assert decide(spec, overloaded(first=1, incarnation="app-2"), state=elsewhere())[1].command is not None


def test_a_spec_may_leave_no_way() -> None:
    """A job inside its driver whose spec allows only changes in place keeps its size, and the decision says so."""
    spec = with_application(job(rescale=(Way.IN_PLACE,)), backend="local", master="local[4]")
    _, decision = decide(spec, overloaded())
    assert decision.command is None
    assert decision.trail[-1].code == "NO_WAY"


def test_what_the_pool_gave_is_what_is_asked_for() -> None:
    """Granted 8 of 16 slots, the job asks for no more until the pool shows more free slots, or after ten minutes."""
    state, decision = ordered()
    told = verified(decision, parallelism=8, code="GRANTED_FEWER")
    state, decision = after(state, snapshot(9, slots=8, partitions=64, free=10), told)
    assert decision.current_parallelism == 8
    assert (state.changes.shortfall, state.changes.costs) == (Shortfall(AT + 80, 8, 10), ())
    assert from_wire(json.loads(json.dumps(to_wire(state)))).changes == state.changes

    def asked(first: int, free: int) -> list[int]:
        now, sizes = state, []
        for shot in steady(7, rate=1600, capacity=800, slots=8, first=first, partitions=64, free=free):
            now, decision = after(now, shot)
            sizes += [decision.command.to_parallelism] if decision.command else []
        assert sizes or "gave only 8 slots" in decision.sentence
        return sizes

    assert asked(first=10, free=10) == []
    assert asked(first=10, free=11) == [16]
    assert asked(first=80, free=10) == [16]


def long_batch(number: int, seconds: float) -> MetricSnapshot:
    """Return a snapshot with one batch of 4,000 records that ended in it."""
    return snapshot(
        number,
        arrived=1_008_000 + 8000 * number,
        committed=1_004_000 + 4000 * number,
        slots=16,
        partitions=64,
        batches=(batch(number, number, 4000, seconds),),
    )


def test_batches_across_a_change_in_place_show_neither_size() -> None:
    """The window keeps its counters; its batches, and those that began before the change, count no more."""
    state, decision = ordered()
    state, _ = after(state, long_batch(8, 9.0))
    assert sum(piece.sums.batches for piece in state.window[-1:]) == 0
    state, crossing = after(state, long_batch(9, 15.0), verified(decision))
    assert crossing.current_parallelism == 16
    assert (crossing.evidence.true_processing_rate, crossing.evidence.batch_seconds) == (None, None)
    assert crossing.evidence.arrival_rate == pytest.approx(800.0, rel=0.1)
    state, own = after(state, long_batch(10, 2.5))
    assert own.evidence.true_processing_rate == pytest.approx(1600.0)
    assert state.incarnation == "app-1"


def settled(batches: Sequence[int]) -> Decision:
    """Return the last decision on snapshots after a change in place, each with so many batches of the new size."""
    state, decision = ordered()
    spec = job(guards={"cooldown": {"up_seconds": 0, "down_seconds": 0}}, policy="keda", policy_options={})
    state = state._replace(run_since=AT - 600)
    told: tuple[ActionResult, ...] = (verified(decision, parallelism=4),)
    for number, count in enumerate(batches, start=9):
        ran = [batch(number, 10 * number + n, 4000, 9.0) for n in range(count)]
        shot = overloaded(count=number + 1)[-1].model_copy(update={"batches": tuple(ran)})
        state, decision = step(state, shot, spec, observed(shot, results=told))
        told = ()
    return decision


def test_after_a_change_in_place_two_batches_are_waited_for() -> None:
    """A change in place starts no new run: two batches are enough, and a minute without them too."""
    waiting = settled([0, 1])
    assert waiting.command is None
    assert waiting.status is Status.PENDING_SCALE_UP
    assert "changed in place 20 s ago, and 1 of the 2 micro-batches needed" in waiting.sentence
    assert settled([0, 1, 1]).command is not None
    assert settled([0, 1, 0, 0]).command is None
    assert settled([0, 1, 0, 0, 0, 0]).command is not None


@pytest.mark.parametrize(
    ("policy", "given", "batches"), [("keda", {}, 2), ("tide", {}, 0), ("tide", {"batches": 3}, 3)]
)
def test_a_policy_may_have_its_own_defaults_for_a_guard(policy: str, given: dict[str, Any], batches: int) -> None:
    """`tide` knows what a new size can do, so it need not wait for its batches, unless the spec says so."""
    spec = job(policy=policy, policy_options={}, guards={"stabilization": given})
    engine = installed_engine()
    plan = plan_for(spec, engine.policy_type, engine.reasons)
    (guard,) = [each for each in plan.guards if isinstance(each, Stabilization)]
    assert guard.batches == batches


@pytest.mark.parametrize(
    ("way", "limits"), [(Way.IN_PLACE, (15.0, 75.0)), (Way.RESTART, (60.0, 300.0)), (None, (60.0, 300.0))]
)
def test_the_cooldown_depends_on_the_way(way: Way | None, limits: tuple[float, float]) -> None:
    """A change in place waits for a quarter of the time; Redis holds the shorter one."""
    assert Cooldown().limits(way) == limits
    assert Cooldown().hold_seconds(way) == limits[0]


@pytest.mark.parametrize(("way", "waits"), [(Way.IN_PLACE, False), (Way.RESTART, True)])
def test_growth_in_place_does_not_wait_for_a_new_run_to_settle(way: Way, waits: bool) -> None:
    """A job that starts with a backlog may grow after a quarter of the time, if nothing stops for it."""
    _, decision = decide(job(rescale=(way,), guards={"stabilization": {"seconds": 100}}), overloaded())
    assert (decision.command is None) is waits
    assert ("STABILIZING" in codes(decision)) is waits


def test_redis_holds_every_way_off() -> None:
    """What another decider has ordered holds the job until its cooldown ends, whichever way it went."""
    spec = job(guards={"stabilization": {"seconds": 0}})
    shots = overloaded()
    until = shots[-1].observed_at.replace(second=20)
    _, decision = decide(spec, shots, cooldown_until=until, cooldown_owner="other")
    assert until > decision.decided_at
    assert decision.trail[-1].code == "COOLDOWN"
