"""step(): who proposes, what the guards make of it, and what is remembered."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from tests.support.engine import step
from tests.support.events import FAST_FLIP271, START, codes, job, observed, overloaded, result, snapshot, steady
from tidegate.engine.costs import ChangeMemory, Shortfall
from tidegate.engine.decide import KEYFRAME_EVERY, AlreadyDecided
from tidegate.engine.history import STOPPED, History
from tidegate.engine.memory import Recorded
from tidegate.engine.results import take_results
from tidegate.engine.state import InFlight, JobState, ZeroMemory, from_wire, to_wire
from tidegate.engine.supervisor import MAX_FAILURES
from tidegate.engine.tide.memory import TideMemory
from tidegate.events.command import CommandKind
from tidegate.events.decision import Decision, Observed, RedisView, Status
from tidegate.events.envelope import decode, value_of
from tidegate.events.job import JobSpec, ManualScale, Mode
from tidegate.events.result import CHECKPOINT_ELSEWHERE, ActionResult, Phase
from tidegate.events.snapshot import ClusterState, MetricSnapshot, Part
from tidegate.events.way import Way
from tidegate.events.wire import LONGEST_SECONDS


def run(
    spec: JobSpec, snapshots: Iterable[MetricSnapshot], state: JobState | None = None, **seen: Any
) -> tuple[JobState, list[Decision]]:
    """Return the state and decisions after some snapshots."""
    state = state or JobState.new()
    decisions = []
    for each in snapshots:
        state, decision = step(state, each, spec, observed(each, **seen))
        decisions.append(decision)
    return state, decisions


def test_a_manual_command_says_how_long_its_first_batch_may_take() -> None:
    """What waits, at the measured capacity in proportion to the new size: so long a start is not given up."""
    spec, shots = job(mode=Mode.PAUSED), overloaded(9)
    state, _ = run(spec, shots[:-1])
    request = ManualScale(request_id="r", parallelism=6, reason="sale", requested_at=START)
    asked = spec.model_copy(update={"version": 2, "manual": request})
    _, (decision,) = run(asked, shots[-1:], state)
    assert decision.command is not None
    lag, capacity = decision.evidence.lag_records, decision.evidence.true_processing_rate
    assert lag is not None
    assert lag > 30_000
    assert capacity is not None
    assert decision.command.first_batch_seconds == pytest.approx(lag / capacity * 4 / 6, rel=0.001)


def test_an_overloaded_job_is_scaled_up() -> None:
    """Twice the load needs more than twice the size, and the decision says why, with values."""
    _, decisions = run(job(), overloaded(8))
    last = next(d for d in decisions if d.command)
    assert last.status is Status.PENDING_SCALE_UP
    assert last.command is not None
    assert last.command.command_id == last.decision_id
    assert last.command.to_parallelism == last.final_parallelism > 8 - 1
    assert last.sentence.startswith("Scale up from 4 to 8 slots in place: a load of 800 records/s")
    assert decisions[0].status is Status.FINE
    assert codes(decisions[0]) == ["WINDOW_FILLING"]


def test_the_same_input_gives_the_same_bytes() -> None:
    """A decision is a pure function of its inputs, to the byte."""
    one = [value_of(decision) for decision in run(job(), overloaded(8))[1]]
    two = [value_of(decision) for decision in run(job(), overloaded(8))[1]]
    assert one == two


def test_a_decision_survives_the_wire() -> None:
    """Every decision reads back as it was written, with reasons, evidence and keyframe."""
    for decision in run(job(), overloaded(8))[1]:
        assert decode(Decision, value_of(decision)) == decision


def test_a_keyframe_starts_a_replay() -> None:
    """From the state and spec in a keyframe the same decisions follow."""
    spec = job()
    shots = steady(KEYFRAME_EVERY + 20, rate=300, capacity=400)
    _, decisions = run(spec, shots)
    assert [i for i, d in enumerate(decisions) if d.keyframe] == [0, KEYFRAME_EVERY]
    frame = decode(Decision, value_of(decisions[KEYFRAME_EVERY])).keyframe
    assert frame is not None
    _, again = run(frame.spec, shots[KEYFRAME_EVERY:], from_wire(frame.state))
    assert again == decisions[KEYFRAME_EVERY:]


def test_a_new_spec_version_carries_a_keyframe() -> None:
    """The jobs topic is compacted, so a replay gets the spec from the decisions themselves."""
    state, _ = run(job(), steady(3, rate=1, capacity=2))
    _, decisions = run(job(version=2), steady(2, rate=1, capacity=2, first=3), state)
    assert [d.keyframe is not None for d in decisions] == [True, False]


def test_another_engine_begins_with_a_keyframe(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an upgrade the first decision carries the state, so that a replay need not wait for the hundredth."""
    state, _ = run(job(), steady(3, rate=1, capacity=2))
    monkeypatch.setattr("tidegate.engine.decide.ENGINE_VERSION", "next")
    _, decisions = run(job(), steady(2, rate=1, capacity=2, first=3), state)
    assert [d.keyframe is not None for d in decisions] == [True, False]


def test_what_another_engine_remembered_is_not_taken_for_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy starts without memory after an upgrade: the old memory may mean something else."""
    state, _ = run(job(policy="tide", policy_options={}), steady(3, rate=1, capacity=2))
    assert isinstance(state.memory, TideMemory)
    monkeypatch.setattr("tidegate.engine.decide.ENGINE_VERSION", "next")
    strange = state._replace(memory=Recorded({"batches": 77}))
    after, decisions = run(job(policy="tide", policy_options={}), steady(2, rate=1, capacity=2, first=3), strange)
    assert len(decisions) == 2
    assert isinstance(after.memory, TideMemory)
    assert after.memory.batches < 77


def test_a_memory_that_does_not_fit_its_policy_is_dropped() -> None:
    """A policy starts without memory if another version of it wrote one that it cannot read."""
    spec = job(policy="tide", policy_options={})
    state, _ = run(spec, steady(3, rate=1, capacity=2))
    strange = state._replace(memory=Recorded({"forecast": ["of another layout"]}))
    after, decisions = run(spec, steady(2, rate=1, capacity=2, first=3), strange)
    assert len(decisions) == 2
    assert isinstance(after.memory, TideMemory)


def test_a_duplicate_is_refused_and_changes_nothing() -> None:
    """A snapshot at or below the newest sequence is not decided again."""
    shots = steady(3, rate=1, capacity=2)
    state, _ = run(job(), shots)
    for old in shots:
        with pytest.raises(AlreadyDecided):
            step(state, old, job(), observed(old))


def test_while_a_command_is_under_way_nothing_else_is_ordered() -> None:
    """One change at a time: a second change waits until the first command has ended."""
    spec = job()
    state, decisions = run(spec, overloaded(8))
    ordered = next(d for d in decisions if d.command)
    after = decisions[decisions.index(ordered) + 1 :]
    assert after
    assert all(d.command is None and d.status is Status.PENDING_SCALE_UP for d in after)
    assert "COMMAND_IN_FLIGHT" in codes(after[0])
    assert state.in_flight is not None
    assert state.in_flight.command_id == ordered.decision_id


def ordered_state(spec: JobSpec) -> tuple[JobState, Decision]:
    """Return a state with a command under way, and the decision that ordered it."""
    state, decisions = run(spec, overloaded(7))
    return state, next(d for d in decisions if d.command)


def test_a_verified_restart_teaches_size_and_downtime() -> None:
    """The verified result sets the size, keeps the measured downtime and ends the command.

    An older actuator tells no way: it was a restart.
    """
    spec = job(rescale=(Way.RESTART,))
    state, ordered = ordered_state(spec)
    done = result(ordered.decision_id, Phase.VERIFIED, 8, parallelism=8, incarnation="app-2", downtime_seconds=17.5)
    done = done.model_copy(update={"delay_seconds": 20.0})
    shot = snapshot(9, slots=8, incarnation="app-2")
    state, decision = step(state._replace(failures=2), shot, spec, observed(shot, results=(done,)))
    assert state.in_flight is None
    assert (state.run_since, state.failures) == (done.at.timestamp(), 0)
    assert decision.current_parallelism == 8
    assert [tuple(cost) for cost in state.changes.costs] == [(Way.RESTART, int(START.timestamp()) + 80, 17.5, 20.0)]
    assert state.changes.closed == ()


def test_what_is_rejected_is_ordered_again_only_after_the_cooldown() -> None:
    """An actuator that rejects every rescale, for example because of a foreign driver, gets one order per cooldown."""
    spec = job(guards={"cooldown": {"up_seconds": 60, "in_place": 1}})
    state, ordered = JobState.new(), list[int]()
    results: tuple[ActionResult, ...] = ()
    for number, each in enumerate(overloaded(40)):
        state, decision = step(state, each, spec, observed(each, results=results))
        results = (result(decision.decision_id, Phase.REJECTED, number),) if decision.command else ()
        ordered += [number] if decision.command else []
    assert len(ordered) > 2
    assert all(after - before >= 6 for before, after in pairwise(ordered)), "60 s, ten seconds apart"


def orders_that_fail(spec: JobSpec, *, snapshots: int, fail: Callable[[int], bool]) -> list[int]:
    """Return at which snapshots an overloaded job was ordered to grow; `fail` says which orders are taken back."""
    state, ordered = JobState.new(), list[int]()
    results: tuple[ActionResult, ...] = ()
    for number, each in enumerate(overloaded(snapshots)):
        state, decision = step(state, each, spec, observed(each, results=results))
        results = ()
        if decision.command is not None:
            phase = Phase.ROLLED_BACK if fail(len(ordered)) else Phase.VERIFIED
            results = (result(decision.decision_id, phase, number, parallelism=4, way=Way.IN_PLACE),)
            ordered.append(number)
    return ordered


def test_a_change_that_fails_again_and_again_is_ordered_ever_more_rarely() -> None:
    """Such as growth whose executors always die: 1, 2, 4, 8 minutes and so on, until one works."""
    quick = FAST_FLIP271 | {"metrics_window_seconds": 10.0}  # it looks at each new run that long
    spec = job(policy_options=quick, guards={"cooldown": {"up_seconds": 60}, "backoff": {"longest_seconds": 480}})
    ordered = orders_that_fail(spec, snapshots=220, fail=lambda _: True)
    assert [after - before for before, after in pairwise(ordered)][:6] == [6, 12, 24, 48, 48, 48]
    once = orders_that_fail(spec, snapshots=100, fail=lambda count: count != 2)
    assert [after - before for before, after in pairwise(once)][:5] == [6, 12, 2, 6, 12]


def test_a_failure_of_the_other_direction_or_of_an_older_spec_delays_nothing() -> None:
    """What fails is a scale-up or a scale-down; a person who has changed the spec may have removed the cause."""
    shots = overloaded(9)
    for history, spec_version, orders in ((History(failed=(True, 9)), 1, 0), (History(failed=(False, 9)), 1, 1)):
        state = JobState(spec_version=spec_version, last_action_at=shots[0].observed_at.timestamp(), history=history)
        assert sum(each.command is not None for each in run(job(), shots, state)[1]) == orders
        state = state._replace(spec_version=2)
        assert sum(each.command is not None for each in run(job(), shots, state)[1]) == 1


def test_a_rolled_back_restart_keeps_the_last_good_size() -> None:
    """After a rollback the size is the one that runs, not the one that was ordered."""
    spec = job()
    state, ordered = ordered_state(spec)
    back = result(ordered.decision_id, Phase.ROLLED_BACK, 8, parallelism=4, incarnation="app-3", code="NO_BATCH")
    back = back.model_copy(update={"downtime_seconds": 99.0})
    shot = snapshot(9, slots=4, incarnation="app-3")
    state, decision = step(state, shot, spec, observed(shot, results=(back,)))
    assert decision.current_parallelism == 4
    assert state.in_flight is None
    assert state.changes.costs == (), "a change costs what one costs that works"


def test_a_command_nobody_began_is_forgotten_after_its_expiry() -> None:
    """An expired command does not block the job for ever."""
    spec = job(command_ttl_seconds=20.0)
    state, _ = ordered_state(spec)
    shots = steady(8, rate=800, capacity=400, first=20)
    _, decisions = run(spec, shots, state)
    assert any(d.command for d in decisions)


def test_results_of_a_lost_state_are_adopted() -> None:
    """A decider that starts without state does not order a second change into a running one."""
    spec = job()
    going = result("someone-elses", Phase.STOPPING, 0, parallelism=8)
    state = JobState.new()
    decisions = []
    for number, shot in enumerate(overloaded(9)):
        state, decision = step(state, shot, spec, observed(shot, results=(going,) if number == 0 else ()))
        decisions.append(decision)
    assert all(d.command is None for d in decisions)
    assert "COMMAND_IN_FLIGHT" in codes(decisions[-1])


def test_a_job_that_should_run_is_started() -> None:
    """A job that has never run starts with its initial size."""
    shot = snapshot(1, state=ClusterState.STOPPED, incarnation=None, slots=None)
    _, decision = step(JobState.new(), shot, job(initial_parallelism=3), observed(shot))
    assert decision.command is not None
    assert (decision.command.kind, decision.command.to_parallelism) == (CommandKind.START, 3)
    assert (
        decision.sentence == "Start with 3 slots: the job should be running and is stopped, so it starts with 3 slots."
    )


def test_a_job_that_died_is_started_at_its_size() -> None:
    """A restart after a crash keeps the size and sets no cooldown."""
    spec = job()
    state, _ = run(spec, steady(4, rate=300, capacity=400))
    dead = snapshot(5, state=ClusterState.FAILED, incarnation="app-1", slots=None)
    state, decision = step(state, dead, spec, observed(dead))
    assert decision.command is not None
    assert (decision.command.kind, decision.command.to_parallelism) == (CommandKind.START, 4)
    assert state.last_action_at is None


def crash_loop(spec: JobSpec, loops: int) -> tuple[JobState, list[Decision]]:
    """Return what follows when every start fails."""
    state = JobState.new()
    decisions: list[Decision] = []
    for number in range(loops):
        shot = snapshot(number, state=ClusterState.STOPPED, incarnation=None, slots=None)
        failed: tuple[ActionResult, ...] = ()
        if decisions and decisions[-1].command:
            failed = (result(decisions[-1].decision_id, Phase.FAILED, number, kind=CommandKind.START, code="NO_BATCH"),)
        state, decision = step(state, shot, spec, observed(shot, results=failed))
        decisions.append(decision)
    return state, decisions


def test_a_job_that_keeps_failing_is_left_to_a_person() -> None:
    """A job that cannot start is not restarted for ever; a new version of the spec allows new attempts."""
    state, decisions = crash_loop(job(), 8)
    assert sum(d.command is not None for d in decisions) == MAX_FAILURES
    assert codes(decisions[-1]) == ["NEEDS_A_HUMAN"]
    shot = snapshot(20, state=ClusterState.STOPPED, incarnation=None, slots=None)
    _, decision = step(state, shot, job(version=2), observed(shot))
    assert decision.command is not None


def starts_that_die(*, commits: bool) -> list[Decision]:
    """Return what follows when every run starts well and dies, before its first batch has ended or after it."""
    state, decisions, spec = JobState.new(), list[Decision](), job()
    for number in range(0, 16, 2):
        app = f"app-{number}"
        dead = snapshot(number, state=ClusterState.STOPPED, incarnation=None, slots=None)
        state, decision = step(state, dead, spec, observed(dead))
        decisions.append(decision)
        if decision.command is None:
            break
        works = result(
            decision.decision_id,
            Phase.VERIFIED,
            number,
            kind=CommandKind.START,
            parallelism=4,
            incarnation=app,
            code="FIRST_BATCH",
            delay_seconds=8.0,
            downtime_seconds=8.0,
        )
        alive = steady(1, rate=300, capacity=400, first=number + 1, incarnation=app)[0]
        alive = alive if commits else alive.model_copy(update={"batches": ()})
        state, _ = step(state, alive, spec, observed(alive, results=(works,)))
        assert state.run_since == works.at.timestamp() - 8.0
        assert state.changes.costs == (), "a start is no change of size"
    return decisions


def test_a_start_at_work_is_no_success_until_it_commits() -> None:
    """Runs that die in their first batch are failed starts; each commit begins the count again."""
    decisions = starts_that_die(commits=False)
    assert codes(decisions[-1]) == ["NEEDS_A_HUMAN"]
    assert sum(d.command is not None for d in decisions) == MAX_FAILURES
    assert all(d.command is not None for d in starts_that_die(commits=True))


def test_during_a_restart_the_decision_says_so() -> None:
    """While the job is down for its restart, the decision names what is under way, and its direction."""
    spec = job()
    state, ordered = ordered_state(spec)
    stopping = result(ordered.decision_id, Phase.STOPPED, 8, parallelism=8)
    down = snapshot(9, state=ClusterState.STOPPED, incarnation="app-1", slots=0)
    _, decision = step(state, down, spec, observed(down, results=(stopping,)))
    assert decision.command is None
    assert decision.status is Status.PENDING_SCALE_UP
    assert decision.sentence == (
        "Wait: the job is changing to 8 slots, ordered 30 s ago (stopped), so there is nothing to measure."
    )


def test_a_failed_way_back_leaves_the_last_good_size() -> None:
    """When even the rollback fails, what may still run has the size it went back to, not the ordered one."""
    spec = job()
    state, ordered = ordered_state(spec)
    back = result(ordered.decision_id, Phase.STARTING, 8, parallelism=4, attempt=2)
    gone = result(ordered.decision_id, Phase.FAILED, 9, parallelism=4, attempt=2, code="NO_BATCH")
    alive = snapshot(9, slots=4, incarnation="app-3")
    state, decision = step(state, alive, spec, observed(alive, results=(back,)))
    assert decision.current_parallelism == 4
    alive = snapshot(10, slots=4, incarnation="app-3")
    _, decision = step(state, alive, spec, observed(alive, results=(gone,)))
    assert decision.current_parallelism == 4


def test_one_death_counts_once() -> None:
    """A dead job that may not be started is one failure, however long it stays dead, and keeps its size."""
    spec = job(mode=Mode.ADVISE)
    state, _ = run(spec, steady(4, rate=300, capacity=400))
    dead = [snapshot(n, state=ClusterState.STOPPED, incarnation="app-1", slots=0) for n in range(5, 15)]
    state, decisions = run(spec, dead, state)
    assert state.failures == 1
    assert {d.final_parallelism for d in decisions} == {4}
    assert "NEEDS_A_HUMAN" not in {code for d in decisions for code in codes(d)}


@pytest.mark.parametrize(
    ("stopped_at", "stopped_run", "failures"), [(1.0, "app-1", 0), (1.0, "app-0", 1), (None, "app-1", 1)]
)
def test_an_end_that_was_ordered_is_no_failure(stopped_at: float | None, stopped_run: str, failures: int) -> None:
    """One of another run, or after the stop was given up, counts as any."""
    zero = ZeroMemory(stopped_at=stopped_at, stopped_run=stopped_run)
    state = JobState.new()._replace(parallelism=4, incarnation="app-1", zero=zero)
    dead = snapshot(5, state=ClusterState.STOPPED, incarnation="app-1", slots=0)
    state, _ = step(state, dead, job(mode=Mode.ADVISE, min_parallelism=0), observed(dead))
    assert state.failures == failures


def test_a_job_not_meant_to_run_is_stopped_and_left_stopped() -> None:
    """`running: false` stops the job once and leaves it alone."""
    state, _ = run(job(), steady(3, rate=1, capacity=2))
    off = job(version=2, running=False)
    shot = snapshot(5)
    state, decision = step(state, shot, off, observed(shot))
    assert decision.command is not None
    assert (decision.command.kind, decision.command.to_parallelism) == (CommandKind.STOP, 0)
    done = result(decision.decision_id, Phase.VERIFIED, 6, kind=CommandKind.STOP, parallelism=0)
    shot = snapshot(6, state=ClusterState.STOPPED, slots=None)
    _, decision = step(state, shot, off, observed(shot, results=(done,)))
    assert decision.command is None
    assert decision.sentence == "Stay stopped: the job is stopped, as its spec says."


def test_unknown_is_not_dead() -> None:
    """When the cluster cannot say whether the job runs, nothing is started."""
    state, _ = run(job(), steady(3, rate=1, capacity=2))
    shot = snapshot(5, state=ClusterState.UNKNOWN, incarnation=None, slots=None, missing=[Part.JOB_STATE])
    _, decision = step(state, shot, job(), observed(shot))
    assert decision.command is None
    assert codes(decision) == ["JOB_STATE_UNKNOWN"]
    assert decision.status is Status.UNKNOWN
    _, decision = step(JobState.new(), shot, job(), observed(shot))
    assert decision.sentence == "Wait: the cluster did not say whether the job is running."
    assert decision.status is Status.UNKNOWN


def test_a_job_that_starts_is_not_called_fine() -> None:
    """Nobody has ordered the start, so no command is pending; with a wrong image it never gets further."""
    shot = snapshot(0, state=ClusterState.STARTING, slots=None)
    _, decision = step(JobState.new(), shot, job(), observed(shot))
    assert (codes(decision), decision.status) == (["JOB_STARTING"], Status.UNKNOWN)


@pytest.mark.parametrize(("capacity", "status"), [(100, Status.FINE), (40, Status.LATE)])
def test_a_running_job_of_unknown_size_is_not_called_stopped(capacity: int, status: Status) -> None:
    """Nothing changes until its cluster has said how many slots it has, but a late job is called late."""
    shots = [
        shot.model_copy(update={"slots_granted": None, "missing": (Part.CAPACITY,)})
        for shot in steady(30, rate=100, capacity=capacity)
    ]
    state, decisions = run(job(), shots)
    decision = decisions[-1]
    assert decision.sentence == "Wait: the job is running, but its cluster has not said yet on how many slots."
    assert (decision.command, decision.status) == (None, status)
    known = steady(1, rate=100, capacity=capacity, first=30, lag=30 * 10 * (100 - capacity))[0]
    _, decision = step(state, known, job(), observed(known))
    assert decision.current_parallelism == 4


def manual(size: int, **scaling: Any) -> JobSpec:
    """Return a spec with an open request for a size."""
    request = ManualScale(request_id="r-1", parallelism=size, reason="launch day", requested_at=START)
    return job(version=2, manual=request, **scaling)


def test_an_operators_size_is_ordered_once() -> None:
    """A manual request becomes a command without the policy, and is not repeated once it is done."""
    state, _ = run(job(), steady(3, rate=1, capacity=200))
    shot = snapshot(4)
    state, decision = step(state, shot, manual(6), observed(shot))
    assert decision.command is not None
    assert (decision.command.to_parallelism, decision.command.manual) == (6, True)
    assert "an operator asked for 6 slots: launch day" in decision.sentence
    done = result(decision.decision_id, Phase.VERIFIED, 5, parallelism=6, incarnation="app-2")
    shot = snapshot(6, slots=6, incarnation="app-2")
    _, decision = step(state, shot, manual(6), observed(shot, results=(done,)))
    assert decision.command is None
    assert "MANUAL" not in codes(decision)


def test_a_request_for_the_size_that_the_job_has_is_done_at_once() -> None:
    """There is nothing to order, and the policy decides again."""
    state, _ = run(job(), steady(3, rate=1, capacity=200))
    _, decisions = run(manual(4), [snapshot(4), snapshot(5)], state)
    assert [each.command for each in decisions] == [None, None]
    assert ["MANUAL" in codes(each) for each in decisions] == [True, False]


def test_an_operators_size_obeys_the_bounds() -> None:
    """Maximum, partitions and pool limit a manual request like any proposed size."""
    state, _ = run(job(), steady(3, rate=1, capacity=200))
    shot = snapshot(4, free=3)
    _, decision = step(state, shot, manual(50, max_parallelism=12), observed(shot))
    assert codes(decision) == ["MANUAL", "AT_MAXIMUM", "SOURCE_PARTITIONS", "POOL_EXHAUSTED"]
    assert decision.final_parallelism == 7
    assert decision.status is Status.POOL_EXHAUSTED


def test_an_operators_size_waits_for_redis() -> None:
    """A request that had to wait is served later, not dropped."""
    state, _ = run(job(), steady(3, rate=1, capacity=200))
    shot = snapshot(4)
    state, decision = step(state, shot, manual(6), observed(shot, redis=RedisView.UNREACHABLE))
    assert decision.command is None
    shot = snapshot(5)
    _, decision = step(state, shot, manual(6), observed(shot))
    assert decision.command is not None


def test_a_request_for_the_size_that_is_about_to_go_waits_for_the_change_under_way() -> None:
    """An operator who wants to keep 4 slots gets them back after the change to more; the request is not dropped."""
    state, ordered = ordered_state(job())
    assert ordered.command is not None
    assert ordered.command.to_parallelism > 4
    shot = snapshot(7)
    state, decision = step(state, shot, manual(4), observed(shot))
    assert (decision.command, state.manual_done) == (None, None), decision.sentence
    size = ordered.command.to_parallelism
    done = result(ordered.decision_id, Phase.VERIFIED, 8, parallelism=size, incarnation="app-2")
    later = snapshot(68, slots=size, incarnation="app-2")
    _, decision = step(state, later, manual(4), observed(later, results=(done,)))
    assert decision.command is not None
    assert (decision.command.to_parallelism, decision.command.manual) == (4, True)


def test_advise_mode_shows_and_does_nothing() -> None:
    """In advise mode the size stands in the decision and no command goes out."""
    state, decisions = run(job(mode=Mode.ADVISE), overloaded(8))
    assert decisions[-1].final_parallelism == 8
    assert decisions[-1].command is None
    assert decisions[-1].status is Status.PENDING_SCALE_UP
    assert state.in_flight is None


def test_a_job_outside_its_bounds_is_brought_inside() -> None:
    """A new minimum above the current size applies even if the policy proposes no change."""
    state, _ = run(job(), steady(8, rate=300, capacity=400))
    shots = steady(8, rate=300, capacity=400, first=8)[:1]
    _, decisions = run(job(version=2, min_parallelism=6), shots, state)
    assert decisions[-1].final_parallelism == 6
    assert "AT_MINIMUM" in codes(decisions[-1])


def test_state_stays_small() -> None:
    """The state of a busy job with a default window stays under 4 kB of JSON."""
    spec = job(policy_options={})
    state, _ = run(spec, steady(400, rate=123_456, capacity=130_000))
    assert len(json.dumps(to_wire(state), separators=(",", ":"))) <= 4096


@pytest.mark.parametrize("bounds", [{"min_parallelism": 8}, {"max_parallelism": 2}])
def test_a_command_while_less_has_arrived_than_was_committed(bounds: dict[str, int]) -> None:
    """A topic was made again, so nothing waits for the committed offsets: the command expects no time below zero."""
    spec, before = job(policy="tide", policy_options={}), steady(12, rate=100, capacity=101)
    state, _ = run(spec, before)
    again = snapshot(14, arrived=3000, committed=1_012_000, slots=4)
    state = state._replace(in_flight=None)
    changed = spec.model_copy(update={"version": 2, "scaling": spec.scaling.model_copy(update=bounds)})
    _, decisions = run(changed, [again], state)
    assert decisions[-1].command is not None
    assert decisions[-1].command.first_batch_seconds == 0.0


@pytest.mark.parametrize(("started", "after", "kept"), [
    (None, 3600.0, True), (None, 3640.0, False), (10.0, 1800.0, True), (10.0, 1820.0, False), (3000.0, 4790.0, True),
])  # fmt: skip
def test_a_command_that_may_still_end_is_not_given_up(started: float | None, after: float, kept: bool) -> None:
    """A command counts as lost half an hour after its start; until it has started, it may do so until it expires."""
    at = START.timestamp()
    stop = InFlight("c", "stop", 0, at, at + 3600.0)
    state = JobState.new()._replace(in_flight=stop, history=History(halt=STOPPED))
    if started is not None:
        stopping = result("c", Phase.STOPPING, int(started / 10), parallelism=8)
        state = take_results(state, Observed(at=stopping.at, results=(stopping,)), job())
    state = take_results(state, Observed(at=START + timedelta(seconds=after)), job())
    assert (state.in_flight is not None) is kept
    assert (state.history.halt is None) is (started is None and not kept), "one that nobody began has halted nothing"


@pytest.mark.parametrize("phase", [Phase.STOPPING, Phase.REJECTED, Phase.VERIFIED, Phase.FAILED])
def test_a_result_of_another_command_does_not_touch_the_one_under_way(phase: Phase) -> None:
    """It may have been ordered by hand, or by a decider whose state is lost here (I2)."""
    at = START.timestamp()
    state = JobState.new()._replace(in_flight=InFlight("c", "rescale", 8, at, at + 60.0))
    theirs = result("theirs", phase, parallelism=2, attempt=2)
    assert take_results(state, Observed(at=START, results=(theirs,)), job()).in_flight == state.in_flight


@pytest.mark.parametrize("code", ["STOP_FAILED", CHECKPOINT_ELSEWHERE])
@pytest.mark.parametrize(("attempt", "size"), [(1, 4), (2, 6)])
def test_what_a_failed_command_tells(attempt: int, size: int, code: str) -> None:
    """The size that it went back to, if it did, and which ways a checkpoint elsewhere closes; nothing of the pool."""
    changes = ChangeMemory(shortfall=Shortfall(0.0, 1))
    state = JobState.new()._replace(parallelism=4, incarnation="app-1", changes=changes)
    failed = result("c", Phase.FAILED, parallelism=8 if attempt == 1 else 6, attempt=attempt, code=code)
    state = take_results(state, Observed(at=START, results=(failed,)), job())
    assert state.parallelism == size
    if code == CHECKPOINT_ELSEWHERE:
        assert {each.way for each in state.changes.closed} == {Way.HANDOVER, Way.RESTART}
    else:
        assert state.changes == changes


@pytest.mark.parametrize(("size", "kept"), [(6, True), (8, True), (9, False)])
def test_a_pool_that_gave_too_few_is_remembered_until_it_gives_more(size: int, kept: bool) -> None:
    """A job that has shrunk since then would ask again without effect."""
    state = JobState.new()._replace(parallelism=8, changes=ChangeMemory(shortfall=Shortfall(0.0, 8)))
    done = result("c", Phase.VERIFIED, parallelism=size, way=Way.IN_PLACE)
    state = take_results(state, Observed(at=START, results=(done,)), job())
    assert (state.changes.shortfall is not None) is kept


def test_idle_long_enough_is_scaled_down() -> None:
    """An idle job is scaled down: zero traffic that was measured is a zero."""
    spec = job(min_parallelism=1)
    shots = [snapshot(n, arrived=1000, committed=1000) for n in range(9)]
    _, decisions = run(spec, shots)
    ordered = next(d for d in decisions if d.command)
    assert ordered.final_parallelism < 4
    assert codes(ordered)[0] == "IDLE"


@pytest.mark.parametrize("part", [Part.END_OFFSETS, Part.COMMITTED_OFFSETS, Part.PROGRESS])
def test_what_is_missing_never_scales_down(part: Part) -> None:
    """The same silence changes nothing when it comes from a missing measurement (I12)."""
    known = None if part is Part.END_OFFSETS else 1000
    done = None if part is Part.COMMITTED_OFFSETS else 1000
    shots = [snapshot(n, arrived=known, committed=done, missing=[part]) for n in range(20)]
    _, decisions = run(job(), shots)
    assert all(d.final_parallelism == 4 and d.command is None for d in decisions)


@pytest.mark.parametrize("seconds", [45.0, LONGEST_SECONDS])
def test_the_command_expires_after_the_specs_time(seconds: float) -> None:
    """A command is void after the spec's time to live, counted from the decision; the longest one is a date, too."""
    spec = job(command_ttl_seconds=seconds)
    _, ordered = ordered_state(spec)
    assert ordered.command is not None
    assert ordered.command.expires_at - ordered.command.issued_at == timedelta(seconds=seconds)
    assert ordered.command.epoch == ordered.sequence
