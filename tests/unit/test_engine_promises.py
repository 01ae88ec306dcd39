"""What guards, bounds and results promise, where several of them meet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

import pytest

from services.decider.specs import SpecBook
from tests.support.engine import step
from tests.support.events import (
    NO_WAIT,
    START,
    codes,
    job,
    observed,
    overloaded,
    result,
    snapshot,
    steady,
    with_application,
)
from tests.unit.test_decider_handler import Bench
from tests.unit.test_engine_upgrade import OLD, Run, changed
from tests.unit.test_engine_zero import asleep
from tidegate.engine.case import Case, Proposal
from tidegate.engine.costs import ChangeMemory, ClosedWay, MeasuredCost, Shortfall
from tidegate.engine.decide import ENGINE_VERSION
from tidegate.engine.engine import Engine
from tidegate.engine.history import STOPPED, History
from tidegate.engine.memory import NoMemory
from tidegate.engine.options import option
from tidegate.engine.reasons import Reason
from tidegate.engine.state import JobState
from tidegate.events.command import CommandKind
from tidegate.events.decision import Decision, Observed, RedisView, Status
from tidegate.events.job import JobSpec, Mode
from tidegate.events.result import ActionResult, Phase
from tidegate.events.snapshot import ClusterState, MetricSnapshot, Part, Pool, StateOperator
from tidegate.events.way import Way

QUIET: dict[str, Any] = {"rate": 200, "capacity": 400, "partitions": 64}


@dataclass(frozen=True, slots=True)
class Size:
    """Options of `Fixed`."""

    size: int = option(4, "size")


class Fixed:
    """A policy that always proposes one size."""

    name: ClassVar[str] = "fixed"
    Options: ClassVar[type] = Size
    Memory: ClassVar[type] = NoMemory
    reasons: ClassVar[dict[str, Reason]] = {"FIXED": Reason("fixed")}
    window_seconds = 60.0

    def __init__(self, options: Size) -> None:
        self.options = options

    def propose(self, _case: Case, _memory: NoMemory) -> Proposal[NoMemory]:
        """Return the size."""
        return Proposal(self.options.size, "FIXED")

    def ordered(self, _case: Case, memory: NoMemory, _proposal: Proposal[NoMemory], _final: int) -> NoMemory:
        """Keep the memory."""
        return memory


POLICIES: dict[str, type[Any]] = {"fixed": Fixed}
fixed_step = Engine(POLICIES).step


def fixed(size: int, guards: dict[str, Any] | None = None, **more: Any) -> JobSpec:
    """Return the spec of a job whose policy proposes a size."""
    return job(policy="fixed", policy_options={"size": size}, guards=NO_WAIT | (guards or {}), **more)


def until_ordered(
    spec: JobSpec, shots: Iterable[MetricSnapshot], state: JobState | None = None
) -> tuple[JobState, Decision]:
    """Decide on snapshots until a command is ordered; return the last state and decision."""
    state, decision = state or JobState.new(), None
    for shot in shots:
        state, decision = fixed_step(state, shot, spec, observed(shot))
        if decision.command is not None:
            break
    assert decision is not None
    return state, decision


def cost_of(way: Way, outage: float, delay: float) -> JobState:
    """Return the state of a job of which one change in a way was measured."""
    return JobState(changes=ChangeMemory(costs=(MeasuredCost(way, int(START.timestamp()), outage, delay),)))


def started() -> ActionResult:
    """Return the result of the start with the old application."""
    end = result("c", Phase.VERIFIED, 0, kind=CommandKind.START)
    return end.model_copy(update={"application": OLD.application.digest})


def with_spec(bench: Bench, spec: JobSpec) -> None:
    """Give the decider a newer spec."""
    bench.specs = SpecBook([spec])
    bench.again()


@pytest.mark.parametrize("view", [RedisView.UNREACHABLE, RedisView.REBUILDING])
def test_a_new_application_waits_for_redis(view: RedisView) -> None:
    """As every change does; it was ordered and could not be reserved, so each snapshot was a dead letter."""
    bench, shots = Bench(OLD), steady(15, **QUIET)
    bench.take(started(), *shots[:5])
    with_spec(bench, changed())
    bench.reservations.condition = view
    bench.take(*shots[5:])
    assert not bench.letters()
    assert not bench.commands()
    assert "REDIS" in codes(bench.decisions()[-1])[-1]
    assert bench.decisions()[-1].sentence.startswith("Stay at 4 slots: the spec names another application")


def test_a_new_application_waits_for_the_cooldown_of_the_last_change() -> None:
    """The cooldown is held in Redis for all deciders, so nothing could be reserved."""
    old = job(guards={"stabilization": {"seconds": 0}})
    bench, shots = Bench(old), overloaded(12, partitions=64)
    bench.take(started(), *shots[:7])
    (command,) = bench.commands()
    newer = with_application(old.model_copy(update={"version": 2}), executor_memory_mb=4096)
    with_spec(bench, newer)
    end = result(command.command_id, Phase.VERIFIED, 7, parallelism=16, incarnation="app-1", way=Way.IN_PLACE)
    bench.take(end, *shots[7:])
    assert not bench.letters()


def test_a_new_application_by_handover_waits_for_a_pool_with_room() -> None:
    """A handover needs the slots of both drivers at once."""
    bench, shots = Bench(OLD), steady(25, rate=200, capacity=400, free=2)
    bench.take(started(), *shots[:5])
    with_spec(bench, changed(rescale=(Way.HANDOVER,)))
    bench.take(*shots[5:])
    assert not bench.letters()
    assert bench.decisions()[-1].status is Status.POOL_EXHAUSTED


def test_a_new_application_is_not_started_by_an_old_snapshot() -> None:
    """Nothing starts from a stale snapshot (I8)."""
    run = Run()
    run.decide(OLD)
    shot = next(run.shots)
    late = Observed(at=shot.observed_at + timedelta(hours=1))
    assert step(run.state, shot, changed(), late)[1].command is None


@pytest.mark.parametrize(("redis", "size"), [(RedisView.UNREACHABLE, None), (RedisView.OK, 6)])
def test_a_new_application_with_a_larger_minimum_starts_within_it(redis: RedisView, size: int | None) -> None:
    """Or not at all: it was ordered with the old size, although its own sentence said that nothing changes."""
    run = Run()
    run.decide(OLD)
    shot = next(run.shots)
    command = step(run.state, shot, changed(min_parallelism=6), observed(shot, redis=redis))[1].command
    assert (None if command is None else command.to_parallelism) == size


def test_a_new_application_with_other_executors_gets_whole_ones() -> None:
    """4 slots are no whole number of executors of 3 cores; the actuator would refuse the command, again and again."""
    run = Run()
    run.decide(OLD)
    spec = with_application(job(version=2, min_parallelism=3, max_parallelism=15), executor_cores=3)
    command = run.decide(spec).command
    assert command is not None
    assert command.to_parallelism == 6


def after_a_quiet_minute(spec: JobSpec, state: JobState, **last: Any) -> Decision:
    """Return the decision on a new spec, after a minute in which the job kept up and nothing changed."""
    shots = steady(9, **QUIET)
    for shot in shots[:8]:
        state, decision = fixed_step(state, shot, fixed(4), observed(shot))
        assert decision.command is None
    return fixed_step(state, shots[8].model_copy(update=last), spec, observed(shots[8]))[1]


@pytest.mark.parametrize("way", list(Way))
def test_a_larger_minimum_reaches_a_job_that_keeps_up(way: Way) -> None:
    """That its lag is gone sooner than the change works is no reason against what the spec says."""
    spec = fixed(4, min_parallelism=8, version=2, rescale=(way,))
    decision = after_a_quiet_minute(spec, cost_of(way, 3.0, 15.0))
    assert (decision.command is not None, decision.final_parallelism) == (True, 8)


def test_a_pool_that_gave_fewer_slots_costs_no_restart_after_the_other() -> None:
    """The job keeps up below its minimum; whether another try is worth a restart is weighed as ever."""
    state = cost_of(Way.RESTART, 30.0, 30.0)
    fewer = Shortfall(START.timestamp() - 3600, 4, free=0)
    state = state._replace(changes=state.changes._replace(shortfall=fewer))
    decision = after_a_quiet_minute(fixed(4, min_parallelism=8, version=2, rescale=(Way.RESTART,)), state)
    assert (decision.command, codes(decision)[-1]) == (None, "DRAINS_SOONER")


def test_a_smaller_maximum_reaches_a_job_whose_restart_costs_more_than_it_saves() -> None:
    """The spec says how large the job may be, whatever it costs to get there."""
    spec = fixed(39, max_parallelism=39, rescale=(Way.RESTART,))
    assert until_ordered(spec, steady(8, slots=40, **QUIET), cost_of(Way.RESTART, 120.0, 120.0))[1].command is not None


def test_what_a_change_is_worth_is_judged_beyond_the_bounds() -> None:
    """The policy wants 12 slots and the minimum is 8: the growth that brings nothing ends there."""
    decision = after_a_quiet_minute(fixed(12, min_parallelism=8, version=2), cost_of(Way.IN_PLACE, 3.0, 15.0))
    assert decision.final_parallelism == 8
    assert "DRAINS_SOONER" in codes(decision)


def test_growth_that_the_state_needs_is_not_judged_by_the_lag() -> None:
    """100 GB in four executors."""
    operators = (StateOperator(name="s", rows=1, memory_bytes=100 * 10**9, partitions=64),)
    decision = after_a_quiet_minute(fixed(4), cost_of(Way.IN_PLACE, 3.0, 15.0), state_operators=operators)
    assert decision.final_parallelism == 10


def test_refused_commands_use_up_no_restart() -> None:
    """Six orders that nobody carried out are no six restarts of the day."""
    budget = {"restart_budget": {"per_day": 6, "reserved_for_growth": 0}}
    spec, state = fixed(8, budget, rescale=(Way.RESTART,)), JobState.new()
    refused: tuple[ActionResult, ...] = ()
    for shot in steady(30, rate=800, capacity=400, partitions=64):
        state, decision = fixed_step(state, shot, spec, observed(shot, results=refused))
        command = decision.command
        refused = () if command is None else (result(command.command_id, Phase.REJECTED, 0, code="FOREIGN_DRIVER"),)
    assert "RESTART_BUDGET" not in codes(decision), decision.sentence


def test_the_start_of_a_smaller_size_is_no_scale_down() -> None:
    """The job had more slots before it was stopped; now it has none."""
    stopped = asleep()
    stopped.tick()
    stopped.arrived += 10
    stopped.until(CommandKind.START)
    assert stopped.tick().status is Status.PENDING_SCALE_UP


def test_the_status_goes_by_what_is_done() -> None:
    """The policy wants 14 slots, the job has 10 and may have 6: it scales down."""
    _, decision = until_ordered(fixed(14, max_parallelism=6), steady(2, slots=10, **QUIET))
    assert (decision.status, decision.final_parallelism) == (Status.PENDING_SCALE_DOWN, 6)
    assert codes(decision)[1] == "AT_MAXIMUM"


def test_the_scale_down_window_begins_anew_after_a_scale_down() -> None:
    """While a change is under way, the policy looks at a size that is about to go; that held each later one."""
    state, size, orders = JobState.new(), 8, []
    ended: tuple[ActionResult, ...] = ()
    first: tuple[int, str] | None = None
    for number, shot in enumerate(steady(60, slots=8, **QUIET)):
        if first is not None and number == first[0] + 3:
            size, ended = 4, (result(first[1], Phase.VERIFIED, number, way=Way.IN_PLACE, incarnation="app-1"),)
        wanted = 4 if first is None or number < first[0] + 3 else 3
        spec = fixed(wanted, {"scale_down_window": {"seconds": 60}})
        seen = shot.model_copy(update={"slots_granted": size})
        state, decision = fixed_step(state, seen, spec, observed(shot, results=ended))
        ended = ()
        if decision.command is not None:
            orders.append(decision.final_parallelism)
            first = first or (number, decision.command.command_id)
        if len(orders) == 2:
            break
    assert orders == [4, 3], decision.sentence


def test_steps_are_whole_executors() -> None:
    """At most 6 slots at a time are one executor of 4 cores, not two."""
    spec = fixed(16, {"steps": {"up": 6}}, executor_cores=4, min_parallelism=4)
    assert until_ordered(spec, steady(2, **QUIET))[1].final_parallelism == 8


def test_the_budget_judges_the_way_of_the_whole_executors() -> None:
    """The pool has room for a handover to 5 slots, and 8 take a restart, for which there is no budget left."""
    state = JobState(history=History(ordered_at=(int(START.timestamp()) - 100,)))
    ways = (Way.HANDOVER, Way.RESTART)
    spec = fixed(5, {"restart_budget": {"per_day": 1}}, executor_cores=4, min_parallelism=4, rescale=ways)
    assert until_ordered(spec, steady(3, free=6, **QUIET), state)[1].command is None


def test_a_scale_down_is_not_rounded_up_to_growth() -> None:
    """6 slots with executors of 4 cores, and 5 are enough."""
    spec = fixed(5, executor_cores=4, min_parallelism=4)
    shots = steady(3, rate=200, capacity=400, slots=6, partitions=6)
    assert until_ordered(spec, shots)[1].command is None


def test_a_scale_down_needs_no_slots_of_a_full_pool() -> None:
    """The job has 8 slots, of which a lost worker left 2; it goes to fewer, and takes nothing from others."""
    bench = Bench(job())
    pool = Pool(pool_id="default", slots_total=20, slots_used=20, workers_alive=1)
    seen = {"slots_granted": 2, "pool": pool}
    shots = [shot.model_copy(update=seen) for shot in steady(20, rate=120, capacity=500, slots=8)]
    bench.take(result("c", Phase.VERIFIED, 0, kind=CommandKind.START, parallelism=8, incarnation="app-1"), *shots)
    assert bench.commands(), bench.decisions()[-1].sentence


def test_a_stop_that_was_refused_halts_nothing() -> None:
    """The state has shrunk since, and the job ended for another reason: it is started again."""
    big, small = [(StateOperator(name="s", rows=1, memory_bytes=gb * 10**9, partitions=64),) for gb in (600, 1)]
    state, decision = until_ordered(fixed(4), steady(3, state_operators=big, **QUIET))
    assert decision.command is not None
    refused = result(decision.command.command_id, Phase.REJECTED, 4, kind=CommandKind.STOP, code="EXPIRED")
    for shot in steady(5, first=3, state_operators=small, **QUIET):
        state, _ = fixed_step(state, shot, fixed(4), observed(shot, results=(refused,)))
    dead = snapshot(80, slots=0, state=ClusterState.FAILED)
    assert fixed_step(state, dead, fixed(4), observed(dead))[1].command is not None


@pytest.mark.parametrize(("mode", "halt"), [(Mode.PAUSED, STOPPED), (Mode.ACTIVE, "RESUMED")])
def test_a_pause_lets_no_halted_job_continue(mode: Mode, halt: str) -> None:
    """The job is stopped until `tidegate resume`, and a pause is none."""
    halted = History(halt=STOPPED)
    state = JobState(spec_version=1, engine_version=ENGINE_VERSION, policy="fixed", history=halted, parallelism=4)
    shot = snapshot(1, slots=0, state=ClusterState.STOPPED)
    assert fixed_step(state, shot, fixed(4, mode=mode, version=2), observed(shot))[0].history.halt == halt


def test_a_change_is_not_given_up_before_its_deadlines() -> None:
    """A start that may take an hour is under way for longer than half an hour."""
    spec = with_application(fixed(8, rescale=(Way.RESTART,)), start_deadline_seconds=3600.0)
    state, decision = until_ordered(spec, steady(3, **QUIET))
    assert decision.command is not None
    seen: tuple[ActionResult, ...] = (result(decision.command.command_id, Phase.STARTING, 3, parallelism=8),)
    for number in (3, 100, 200, 300):
        shot = snapshot(number, slots=0, state=ClusterState.STOPPED)
        state, decision = fixed_step(state, shot, spec, observed(shot, results=seen))
        seen = ()
        assert decision.command is None, decision.sentence


def test_a_checkpoint_that_was_elsewhere_in_another_run_is_no_reason() -> None:
    """What stands in the way is that the change in place fell back, and that the spec allows no other."""
    closed = (
        ClosedWay(Way.RESTART, "CHECKPOINT_ELSEWHERE", 0, "app-0", 12345),
        ClosedWay(Way.IN_PLACE, "FELL_BACK", int(START.timestamp()), "app-1"),
    )
    changes = ChangeMemory(closed=closed)
    state = JobState(spec_version=1, engine_version=ENGINE_VERSION, policy="fixed", changes=changes)
    _, decision = until_ordered(fixed(8, rescale=(Way.IN_PLACE,)), steady(3, **QUIET), state)
    assert "NO_WAY" in codes(decision), decision.sentence


def test_a_refused_scale_up_is_no_last_scale_up() -> None:
    """`scale_down_grace` counts from a scale-up that took place."""
    grace, shots = {"scale_down_grace": {"seconds": 600}}, steady(5, **QUIET)
    state, decision = until_ordered(fixed(8, grace), shots[:2])
    assert decision.command is not None
    refused = result(decision.command.command_id, Phase.REJECTED, 2)
    last = fixed_step(state, shots[2], fixed(3, grace), observed(shots[2], results=(refused,)))[1]
    assert last.command is not None, last.sentence


@pytest.mark.parametrize("cluster", [ClusterState.RUNNING, ClusterState.STARTING])
def test_a_job_without_a_known_size_is_stopped(cluster: ClusterState) -> None:
    """A driver that waits for executors, or for its image, has no slots; `running: false` stops it, once."""
    off = job(running=False)
    waits = [snapshot(n, state=cluster, slots=None if cluster is ClusterState.STARTING else 0) for n in range(3)]
    state, ordered = step(JobState.new(), waits[0], off, observed(waits[0]))
    assert ordered.command is not None
    assert (ordered.command.kind, ordered.command.to_parallelism) == (CommandKind.STOP, 0)
    assert ordered.sentence == "Stop the job: the spec says that the job should not run."
    assert ordered.status is Status.PENDING_SCALE_DOWN
    state, meanwhile = step(state, waits[1], off, observed(waits[1]))
    assert meanwhile.command is None
    assert meanwhile.status is Status.PENDING_SCALE_DOWN
    assert meanwhile.sentence == (
        "Wait: the spec says that the job should not run; but the change to 0 slots, ordered 10 s ago, "
        "is still under way (ordered)."
    )
    done = result(ordered.decision_id, Phase.VERIFIED, 2, kind=CommandKind.STOP, parallelism=0)
    gone = snapshot(2, state=ClusterState.STOPPED, slots=None, incarnation=None)
    _, after = step(state, gone, off, observed(gone, results=(done,)))
    assert (after.command, after.sentence) == (None, "Stay stopped: the job is stopped, as its spec says.")


def test_a_job_that_should_not_run_is_not_late() -> None:
    """Its lag is no reason for another status: it is to be stopped, also if nobody knows its size."""
    *before, last = (
        shot.model_copy(update={"slots_granted": 0}) for shot in steady(31, rate=400, capacity=40, partitions=64)
    )
    state = JobState.new()
    for shot in before:
        state, decision = step(state, shot, job(), observed(shot))
    assert (decision.current_parallelism, decision.status) == (0, Status.LATE)
    _, decision = step(state, last, job(version=2, running=False), observed(last))
    assert (decision.current_parallelism, decision.status) == (0, Status.PENDING_SCALE_DOWN)


def test_a_stop_of_unknown_size_waits_for_redis() -> None:
    """Guards that hold every command hold this one as well."""
    off, shot = job(running=False), snapshot(0, slots=0)
    _, decision = step(JobState.new(), shot, off, observed(shot, redis=RedisView.UNREACHABLE))
    assert decision.command is None
    assert codes(decision)[:1] == ["JOB_TO_STOP"]
    assert len(codes(decision)) == 2


def test_a_stopped_job_of_which_nobody_knows_what_waits_is_not_fine() -> None:
    """Without offsets nobody can say whether it should run, so its status is UNKNOWN until it starts."""
    decision = asleep().tick(arrived=None, missing=(Part.END_OFFSETS,))
    assert (codes(decision), decision.status) == (["WAITING_UNKNOWN"], Status.UNKNOWN)
