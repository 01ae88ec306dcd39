"""Every guard, reached through step(): the promise it keeps, its explanation, and that no other guard keeps it.

Each row is a case in which exactly one guard stands between a proposed size and its order. The promise holds with all
guards. It breaks when that guard is left out, and only then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

import tidegate.engine.plan
from tests.support.cases import AT, case, decide, evidence
from tests.support.events import NO_WAIT, START, batch, codes, held, job, snapshot, steady
from tidegate.engine.costs import ChangeMemory, ClosedWay, MeasuredCost
from tidegate.engine.guard import Verdict
from tidegate.engine.guards import GUARDS
from tidegate.engine.guards.progress import Ineffective
from tidegate.engine.guards.state import MemoryPressure, StateSize
from tidegate.engine.guards.timing import Cooldown
from tidegate.engine.guards.worth import RestartBudget
from tidegate.engine.history import ORDERS_KEPT, STOPPED, Growth, History, note_gain, note_order
from tidegate.engine.state import InFlight, JobState
from tidegate.engine.ways import checksum
from tidegate.events.command import CommandKind
from tidegate.events.decision import Decision, Emission, EmissionStep, Evidence, Neighbour, RedisView, Status
from tidegate.events.job import JobSpec, ManualScale, Mode
from tidegate.events.result import CHECKPOINT_ELSEWHERE
from tidegate.events.snapshot import (
    ClusterState,
    MetricSnapshot,
    Part,
    Pool,
    RunningBatch,
    SnapshotWarning,
    SourceOffsets,
    StageTasks,
    StateOperator,
    WarningCode,
)
from tidegate.events.way import Way
from tidegate.installed import engine

GB = 10**9
LAST = AT + 60.0
"""When the last snapshot of a growth is taken."""


def guards(**options: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return guards that do not wait, with some set."""
    return NO_WAIT | options


def growth(
    spec: JobSpec | None = None,
    *,
    last: dict[str, Any] | None = None,
    partitions: int = 64,
    skew: bool = False,
    **more: Any,
) -> Decision:
    """Return the decision of a job of 4 slots that gets twice what it can do: 16 are proposed."""
    shots = steady(7, rate=800, capacity=400, partitions=partitions)
    shots = skewed(shots) if skew else shots
    shots[-1] = shots[-1].model_copy(update=last or {})
    return decide(spec or job(), shots, **more)[1]


def shrinking(spec: JobSpec | None = None, *, last: dict[str, Any] | None = None, **more: Any) -> Decision:
    """Return the decision of a job of 4 slots that needs one: 2 are proposed."""
    shots = steady(7, rate=40, capacity=400)
    shots[-1] = shots[-1].model_copy(update=last or {})
    return decide(spec or job(), shots, **more)[1]


def asked(size: int, **scaling: Any) -> Decision:
    """Return the decision on an operator's request."""
    request = ManualScale(request_id="r-1", parallelism=size, reason="sale", requested_at=START)
    return decide(job(manual=request, **scaling), [snapshot(0, partitions=64)])[1]


def tasks(number: int, busy: float, median: float, slowest: float, place: int | None = None) -> StageTasks:
    """Return the tasks of one stage."""
    return StageTasks(
        name="stage",
        tasks=number,
        busy_seconds=busy,
        median_task_seconds=median,
        slowest_task_seconds=slowest,
        slowest_task_place=place,
    )


def stage(number: int, busy: float, median: float, slowest: float, place: int | None = None) -> dict[str, Any]:
    """Return the change of a snapshot that has one stage."""
    return {"stages": (tasks(number, busy, median, slowest, place),)}


def state_of(size: int, partitions: int = 200) -> dict[str, Any]:
    """Return the change of a snapshot that has some state."""
    return {"state_operators": (StateOperator(name="save", rows=1, memory_bytes=size, partitions=partitions),)}


def remembered(**history: Any) -> dict[str, Any]:
    """Return a state with a history, to start from."""
    return {"state": JobState(history=History(**history))}


def skewed(shots: list[MetricSnapshot], others: int = 0) -> list[MetricSnapshot]:
    """Return the snapshots of a growth whose lag becomes 28,000 in one partition, and `others` in each other one."""
    made = []
    for number, shot in enumerate(shots, 1):
        done = shot.sources[0].committed_offsets
        lags = [each * number // len(shots) for each in (28_000, *(others,) * (len(done) - 1))]
        ends = tuple((offset or 0) + lag for offset, lag in zip(done, lags, strict=True))
        source = SourceOffsets(topic="in", end_offsets=ends, committed_offsets=done)
        made.append(shot.model_copy(update={"sources": (source,)}))
    return made


def stuck() -> Decision:
    """Return the decision of a job that committed nothing for 80 s while 5,000 records arrived."""
    spec = job(policy="keda", policy_options={})
    shots = [snapshot(n, arrived=1040, committed=1000, partitions=64) for n in range(8)]
    return decide(spec, [*shots, snapshot(8, arrived=6040, committed=1000, partitions=64)])[1]


def at_work(finished: int) -> RunningBatch:
    """Return a running batch of 64 tasks of which some have finished."""
    return RunningBatch(
        batch_id=9,
        started_at=START,
        tasks=64,
        tasks_finished=finished,
        busy_seconds=10.0 * finished,
        read_tasks=64,
        read_tasks_finished=finished,
        records_read=10 * finished,
        read_seconds=10.0 * finished,
        slowest_read_seconds=10.0 if finished else 0.0,
    )


def idle_growth(rate: int = 100, each: int = 25, **seen: Any) -> Decision:
    """Return the decision of a job that could do 300/s, soon drains `each` records a partition, and asks for more."""
    spec = job(policy="keda", policy_options={})
    shots = steady(3, rate=rate, capacity=300, partitions=64)
    late = steady(4, rate=rate, capacity=300, partitions=64)[-1]
    end = late.sources[0]
    more = SourceOffsets(
        topic="in",
        end_offsets=tuple(o + each for o in end.end_offsets if o is not None),
        committed_offsets=end.committed_offsets,
    )
    cost = MeasuredCost(Way.IN_PLACE, int(AT) - 900, 0.0, 25.0)
    state = JobState(changes=ChangeMemory(costs=(cost,)), incarnation="app-1", parallelism=4)
    return decide(spec, [*shots, late.model_copy(update={"sources": (more,)})], state=state, **seen)[1]


def elsewhere() -> JobState:
    """Return the state of a job whose start has shown that it keeps its checkpoint elsewhere."""
    location = checksum("/checkpoints/rates")
    closed = [
        ClosedWay(way, CHECKPOINT_ELSEWHERE, int(AT) - 900, "app-1", location) for way in (Way.HANDOVER, Way.RESTART)
    ]
    return JobState(incarnation="app-1", parallelism=4, spec_version=1, changes=ChangeMemory(closed=tuple(closed)))


def at_most(size: int) -> Callable[[Decision], bool]:
    """Return the promise that the size ends at or under a bound."""
    return lambda decision: decision.final_parallelism <= size


def at_least(size: int) -> Callable[[Decision], bool]:
    """Return the promise that the size ends at or over a bound."""
    return lambda decision: decision.final_parallelism >= size


@dataclass(frozen=True)
class Row:
    """One case: how to make it, what is promised, and the explanation."""

    guard: str
    make: Callable[[], Decision]
    promise: Callable[[Decision], bool]
    code: str
    sentence: str


def full_pool() -> dict[str, Any]:
    """Return the change of a snapshot whose pool has 2 free slots."""
    return {"pool": Pool(pool_id="default", slots_total=6, slots_used=4, workers_alive=1)}


def behind() -> Neighbour:
    """Return a job downstream that is 700 s behind and falling further behind."""
    return Neighbour("reports", upstream=False, topics=("out",), evidence=Evidence(lag_seconds=700.0, lag_trend=5.0))


ROWS = [
    Row(
        "fresh",
        lambda: growth(late=600.0),
        held,
        "SNAPSHOT_STALE",
        "the measurements are 600 s old, and the limit is 40 s",
    ),
    Row(
        "complete",
        lambda: growth(last={"missing": (Part.JOB_STATE,)}),
        held,
        "METRICS_INCOMPLETE",
        "some measurements are missing (job_state), and nothing changes without them",
    ),
    Row(
        "schedule",
        lambda: shrinking(job(guards=guards(schedule={"at_least": "12:01:00-13:00:00 && * * * ? * 1 | 6"}))),
        at_least(6),
        "SCHEDULED",
        "the schedule asks for at least 6 slots in the period 12:01:00-13:00:00 && * * * ? * 1 (UTC)",
    ),
    Row(
        "state_limits",
        lambda: decide(
            job(),
            [snapshot(0, state=ClusterState.STOPPED, incarnation=None, slots=None)],
            state=JobState(history=History(halt=STOPPED), spec_version=1),
        )[1],
        held,
        "HALTED_RESUMABLE",
        "the job was stopped because its state is too large",
    ),
    Row(
        "silence",
        lambda: decide(
            job(min_parallelism=0, policy="hpa", policy_options={}, guards=guards(silence={"after_seconds": 120})),
            steady(13, rate=0, capacity=400),
        )[1],
        lambda decision: decision.command is not None and decision.command.kind is CommandKind.STOP,
        "SILENCE",
        "nothing has arrived for 2 min and nothing waits, and from 2 min on a stop and a start cost less",
    ),
    Row("paused", lambda: growth(job(mode=Mode.PAUSED)), held, "PAUSED", "the job is paused"),
    Row(
        "interactive",
        lambda: growth(job(interactive=True)),
        held,
        "INTERACTIVE",
        "the job is interactive, so it keeps its 4 slots",
    ),
    Row(
        "excluded_periods",
        lambda: growth(job(guards=guards(excluded_periods={"periods": "12:00:00-13:00:00 && * * * ? * 1"}))),
        held,
        "EXCLUDED_PERIOD",
        "nothing changes in the excluded period 12:00:00-13:00:00 && * * * ? * 1 (UTC)",
    ),
    Row(
        "in_flight",
        lambda: growth(state=JobState(in_flight=InFlight("c-1", "rescale", 6, LAST - 20, LAST + 100), parallelism=4)),
        held,
        "COMMAND_IN_FLIGHT",
        "the change to 6 slots, ordered 21 s ago, is still under way (ordered)",
    ),
    Row(
        "stabilization",
        lambda: growth(job(guards=guards(stabilization={"seconds": 600}))),
        held,
        "STABILIZING",
        "the job started 60 s ago and gets 150 s to settle",
    ),
    Row(
        "scale_down_grace",
        lambda: shrinking(
            job(guards=guards(scale_down_grace={"seconds": 600})), **remembered(growth=Growth(LAST - 99, 2, 4, 200.0))
        ),
        held,
        "SCALE_DOWN_GRACE",
        "the last scale-up was 100 s ago and nothing is removed for 600 s after one",
    ),
    Row(
        "scale_down_window",
        lambda: shrinking(job(guards=guards(scale_down_window={"seconds": 600})), **remembered(shrink=(LAST - 100, 3))),
        at_least(3),
        "SCALE_DOWN_WINDOW",
        "fewer slots have been proposed for only 0 s of the required 600 s",
    ),
    Row(
        "steps",
        lambda: growth(job(guards=guards(steps={"up": 2}))),
        at_most(6),
        "STEP_UP_LIMIT",
        "at most 2 slots may be added at a time",
    ),
    Row("bounds", lambda: asked(50, max_parallelism=12), at_most(12), "AT_MAXIMUM", "the spec allows at most 12 slots"),
    Row(
        "partitions",
        lambda: growth(job(policy_options={**job().scaling.policy_options, "alignment_mode": "OFF"}), partitions=6),
        at_most(6),
        "SOURCE_PARTITIONS",
        "the sources have 6 partitions, no stage has more than 6 tasks, and a slot without a task has nothing to do",
    ),
    Row(
        "state_partitions",
        lambda: growth(last=state_of(GB, partitions=6)),
        at_most(6),
        "STATE_PARTITIONS",
        "the state has 6 partitions, fixed by the checkpoint, no stage has more than 6 tasks, "
        "and a slot without a task has nothing to do",
    ),
    Row(
        "single_task",
        lambda: growth(last=stage(1, 9.0, 9.0, 9.0)),
        held,
        "SINGLE_TASK",
        "100% of the time goes into single-task stages, which more slots do not speed up",
    ),
    Row(
        "skew",
        lambda: growth(last=stage(8, 16.0, 1.0, 9.0)),
        held,
        "TASK_SKEW",
        "the slowest task takes 9.0 times the median, and 100% of the time goes into stages that last as long as their "
        "slowest task, which more slots do not speed up",
    ),
    Row(
        "stuck_consumer",
        stuck,
        held,
        "CONSUMER_STUCK",
        "no offset was committed for 60 s while 5000 records arrived, so the job is stuck rather than too small",
    ),
    Row(
        "ineffective",
        lambda: growth(**remembered(growth=Growth(LAST - 600, 2, 4, 395.0, repeated=True))),
        held,
        "SCALE_UP_INEFFECTIVE",
        "two scale-ups in a row had no effect: the last one, from 2 to 4 slots, brought 1% of the expected gain, "
        "so no more slots are added",
    ),
    Row(
        "downstream",
        lambda: growth(neighbours=(behind(),)),
        held,
        "DOWNSTREAM_BEHIND",
        "reports downstream is 700 s behind and falling further behind, so more output would only wait there",
    ),
    Row(
        "memory_pressure",
        lambda: shrinking(last={"gc_ratio": 0.4}),
        held,
        "MEMORY_PRESSURE",
        "40% of the run time goes into garbage collection, so no memory is removed",
    ),
    Row(
        "state_size",
        lambda: shrinking(last=state_of(25 * GB)),
        at_least(3),
        "STATE_TOO_LARGE_TO_SHRINK",
        "25.0 GB of state at 10 GB per executor need 3 slots",
    ),
    Row(
        "executors",
        lambda: asked(5, executor_cores=2, min_parallelism=2),
        lambda decision: decision.final_parallelism % 2 == 0,
        "EXECUTOR_CORES",
        "an executor has 2 cores, so the size must be a multiple of 2",
    ),
    Row(
        "way",
        lambda: growth(job(rescale=(Way.HANDOVER, Way.RESTART)), state=elsewhere()),
        held,
        "CHECKPOINT_ELSEWHERE",
        "the job keeps its checkpoint elsewhere than in /checkpoints/rates, as its spec says, "
        "so a new run would lose it",
    ),
    Row(
        "restart_worth",
        idle_growth,
        held,
        "DRAINS_SOONER",
        "at this size the lag is gone in 11 s, and a change in place takes 25 s",
    ),
    Row(
        "restart_budget",
        lambda: growth(
            job(guards=guards(restart_budget={"per_day": 3}), rescale=(Way.RESTART,)),
            **remembered(ordered_at=(int(LAST) - 3000, int(LAST) - 2000, int(LAST) - 1000)),
        ),
        held,
        "RESTART_BUDGET",
        "3 of 3 restarts of the last 24 hours are used up",
    ),
    Row(
        "quota",
        lambda: growth(job(guards=guards(quota={"slots": 6}))),
        at_most(6),
        "QUOTA",
        "the job's quota allows 6 slots",
    ),
    Row(
        "cooldown",
        lambda: growth(
            job(guards=guards(cooldown={"up_seconds": 600, "down_seconds": 0})),
            state=JobState(last_action_at=LAST - 99),
        ),
        held,
        "COOLDOWN",
        "the last change was 100 s ago and the cooldown lasts 150 s",
    ),
    Row(
        "backoff",
        lambda: growth(state=JobState(spec_version=1, last_action_at=LAST - 99, history=History(failed=(True, 3)))),
        held,
        "BACKOFF",
        "the last scale-up failed (3 in a row); it was ordered 100 s ago, and the next one waits until 240 s after it",
    ),
    Row(
        "redis",
        lambda: growth(redis=RedisView.UNREACHABLE),
        held,
        "REDIS_UNREACHABLE",
        "Redis cannot be used, so the cooldown and the pool cannot be checked and nothing changes",
    ),
    Row(
        "advise",
        lambda: growth(job(mode=Mode.ADVISE)),
        lambda decision: decision.command is None,
        "ADVISE_ONLY",
        "the job is in advise mode, so the change is only shown",
    ),
    Row(
        "pool",
        lambda: growth(last=full_pool()),
        at_most(6),
        "POOL_EXHAUSTED",
        "that takes 12 more slots, and pool default has 2 of 6 free",
    ),
    Row(
        "reservation",
        lambda: growth(reservation_refused=True),
        held,
        "RESERVATION_LOST",
        "another decision reserved the slots or the cooldown first, so the next snapshot tries again",
    ),
    Row(
        "stop_deadline",
        lambda: growth(job(rescale=(Way.RESTART,)), last={"batches": (batch(6, 6, 4000, 420.0),)}),
        lambda decision: "BATCH_OUTLASTS_STOP" in codes(decision),
        "BATCH_OUTLASTS_STOP",
        "a micro-batch lasts 78 s and a stop waits 60 s at most, so the restart breaks the running batch, "
        "and it runs again",
    ),
]


@pytest.mark.parametrize(
    ("running", "way", "waits"), [(5, Way.RESTART, True), (25, Way.RESTART, False), (5, Way.IN_PLACE, False)]
)
def test_a_scale_up_waits_for_a_batch_that_a_stop_would_break_shortly_before_its_end(
    running: int, way: Way, waits: bool
) -> None:
    """A batch lasts 78 s and a stop waits for 60 s: one that runs since 5 s is worth 13 s more, and after 25 s none."""
    began = START + timedelta(seconds=60 - running)
    last = {"batches": (batch(6, 6, 4000, 420.0),), "current_batch_started_at": began}
    decision = growth(job(rescale=(way,)), last=last)
    assert ("BATCH_ENDS_FIRST" in codes(decision)) is waits
    assert (decision.command is None) is waits


def test_every_guard_has_its_row() -> None:
    """The table has a row for each guard in the list, so a new guard without a case fails this test."""
    assert [row.guard for row in ROWS] == [guard.name for guard in GUARDS]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.guard)
def test_a_guard_keeps_its_promise_and_says_so(row: Row) -> None:
    """With all guards the promise holds, and the reasons have the guard, its code and its explanation."""
    decision = row.make()
    assert row.promise(decision), decision.sentence
    entry = next(entry for entry in decision.trail if entry.by == row.guard)
    assert (entry.code, entry.sentence) == (row.code, row.sentence)
    assert row.sentence in decision.sentence


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.guard)
def test_without_the_guard_the_promise_breaks(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other guard keeps the promise."""
    monkeypatch.setattr(tidegate.engine.plan, "GUARDS", tuple(guard for guard in GUARDS if guard.name != row.guard))
    decision = row.make()
    assert not row.promise(decision), decision.sentence


def test_a_job_whose_records_come_after_a_silence_is_not_stuck() -> None:
    """While nothing waited, there was nothing to commit."""
    spec = job(policy="keda", policy_options={})
    silent = [snapshot(n, arrived=1000, committed=1000, partitions=64) for n in range(8)]
    decision = decide(spec, [*silent, snapshot(8, arrived=6040, committed=1000, partitions=64)])[1]
    assert decision.final_parallelism > decision.current_parallelism


def test_a_job_whose_source_holds_records_back_does_not_grow() -> None:
    """With `minOffsetsPerTrigger` a job waits although records do; more slots would take none of them sooner."""
    decision = growth(last={"warnings": (SnapshotWarning(code=WarningCode.SOURCE_WAITS),)})
    assert held(decision)
    said = "the job takes no batch although 28000 records wait: its source holds them back, and no size changes that"
    assert [each.sentence for each in decision.trail if each.code == "SOURCE_HOLDS_BACK"] == [said]


@pytest.mark.parametrize(("goes_on_until", "moves"), [(8, True), (4, True), (2, False)])
def test_a_long_batch_whose_tasks_go_on_finishing_is_not_stuck(goes_on_until: int, moves: bool) -> None:
    """Nothing is committed for 80 s; from 60 s without a task that finished, the batch hangs."""
    spec = job(policy="keda", policy_options={})
    shots = [
        snapshot(n, arrived=1040 if n < 8 else 6040, committed=1000, partitions=64).model_copy(
            update={"running": (at_work(3 * min(n, goes_on_until)),)}
        )
        for n in range(9)
    ]
    decision = decide(spec, shots)[1]
    assert (decision.final_parallelism > decision.current_parallelism) is moves, decision.sentence


@pytest.mark.parametrize(("step", "judged"), [(0.25, True), (1.0, True), (1.5, False)])
def test_the_gain_of_a_small_scale_up_is_not_judged(step: float, judged: bool) -> None:
    """From 2 to 4 slots a job grew by all of its size; a smaller step than the limit is within the noise."""
    spec = job(guards=guards(ineffective={"step": step}))
    assert held(growth(spec, **remembered(growth=Growth(LAST - 600, 2, 4, 395.0, repeated=True)))) is judged


@pytest.mark.parametrize(("saturation", "judged"), [(0.4, True), (0.9, False)])
def test_the_gain_of_a_job_that_is_not_busy_is_not_judged(saturation: float, judged: bool) -> None:
    """A job that waits for half of the time does not show what it could do with its slots."""
    shots = [
        shot.model_copy(update={"batches": tuple(b.model_copy(update={"duration_seconds": 5.0}) for b in shot.batches)})
        for shot in steady(7, rate=800, capacity=400, partitions=64)
    ]
    spec = job(guards=guards(ineffective={"saturation": saturation}))
    decision = decide(spec, shots, **remembered(growth=Growth(LAST - 600, 2, 4, 795.0, repeated=True)))[1]
    assert decision.proposed_parallelism > decision.current_parallelism
    assert held(decision) is judged


@pytest.mark.parametrize(
    ("worked", "repeated", "stops"), [(False, True, True), (False, False, False), (True, True, False)]
)
def test_one_scale_up_without_effect_stops_nothing(worked: bool, repeated: bool, stops: bool) -> None:
    """The job may have become slower while it grew, so a second one must have had no effect either."""
    assert held(growth(**remembered(growth=Growth(LAST - 600, 2, 4, 395.0, worked, repeated)))) is stops


def test_a_scale_up_remembers_whether_the_one_before_it_worked() -> None:
    """From 1 to 2 slots a job that did 100 records/s came to 110, and later from 2 to 4 slots to 160 of 220."""
    once = note_gain(note_order(History(), 0.0, 1, 2, 100.0), 2, 110.0)
    assert once.growth == Growth(0.0, 1, 2, 100.0)
    twice = note_order(once, 60.0, 2, 4, 110.0)
    assert twice.growth == Growth(60.0, 2, 4, 110.0, repeated=True)
    assert note_gain(twice, 4, 160.0) == twice
    assert note_gain(twice, 3, 300.0) == twice, "at another size"
    worked = note_gain(twice, 4, 170.0)
    assert worked.growth == Growth(60.0, 2, 4, 110.0, worked=True, repeated=True)
    assert note_gain(worked, 4, 90.0) == worked, "later the job became slower"
    assert note_order(worked, 90.0, 4, 6, 90.0).growth == Growth(90.0, 4, 6, 90.0)
    assert note_order(twice, 90.0, 3, 6, 110.0).growth == Growth(90.0, 3, 6, 110.0), "not from 4 slots"
    assert note_order(twice, 120.0, 4, 1, 200.0).growth is None


def test_lag_in_one_partition_is_skew_too() -> None:
    """All of the lag in one of 64 partitions: one slot reads it, whatever the size."""
    decision = growth(skew=True)
    assert held(decision)
    assert "100% of the lag is in one of 64 partitions" in decision.sentence


def test_a_slow_task_among_much_other_work_is_no_bound() -> None:
    """Skewed, but the other tasks keep the slots busy for longer: more slots help."""
    assert growth(last=stage(64, 90.0, 1.0, 9.0)).final_parallelism == 16


@pytest.mark.parametrize(("even", "size"), [(30.0, 4), (34.0, 16)])
def test_other_stages_may_gain_from_growth_when_the_skewed_one_does_not(even: float, size: int) -> None:
    """The slow task lasts 16 s, two even stages 15 or 17 s on 4 slots: growth stops from half of the time on."""
    stages = tasks(8, 60.0, 3.0, 16.0), *(tasks(48, even, even / 48, even / 48) for _ in range(2))
    assert growth(last={"stages": stages}).final_parallelism == size


@pytest.mark.parametrize(("readers", "size"), [(64, 4), (48, 16)])
def test_lag_in_one_partition_holds_up_only_the_stages_that_read(readers: int, size: int) -> None:
    """Most of the work comes after a shuffle into 48 tasks, or it is done by the 64 tasks that read."""
    assert growth(skew=True, last=stage(readers, 64.0, 1.0, 1.0)).final_parallelism == size


@pytest.mark.parametrize(("current", "grows"), [(1, True), (2, False)])
def test_a_partition_with_most_of_the_lag_stops_growth_once_it_sets_the_pace(current: int, *, grows: bool) -> None:
    """It has 60 % of the lag: on 1 slot it takes 60 % of the time, on 2 slots the other 40 % end before it."""
    shots = steady(7, rate=800, capacity=400, slots=current, partitions=64)
    assert (decide(job(), skewed(shots, others=300))[1].final_parallelism > current) is grows


def test_tide_weighs_skew_itself() -> None:
    """So its growth is stopped only where nothing gets shorter."""
    stages = tasks(8, 60.0, 1.0, 16.0), tasks(48, 30.0, 1.0, 1.0)
    shot = snapshot(0, partitions=64).model_copy(update={"stages": stages})
    seen = case(evidence(task_skew=16.0), shot=shot)
    judged = {}
    for name in ("hpa", "tide"):
        guard = next(each for each in engine().plan(job(policy=name, policy_options={})).guards if each.name == "skew")
        judged[name] = guard.dispose(16, seen)
    assert judged["tide"] is None
    assert judged["hpa"] is not None


@pytest.mark.parametrize(("place", "size"), [(3, 4), (4, 16)])
def test_a_slow_task_that_waits_for_a_slot_lets_the_job_grow(place: int, size: int) -> None:
    """On 4 slots the fifth task begins when another one has ended; with more, it begins at once."""
    assert growth(last=stage(8, 16.0, 1.0, 9.0, place)).final_parallelism == size


def test_the_time_of_grace_after_a_growth_does_not_hold_another_one() -> None:
    """A job whose load goes on rising grows again at once."""
    spec = job(guards=guards(scale_down_grace={"seconds": 600}))
    decision = growth(spec, **remembered(growth=Growth(LAST - 99, 2, 4, 200.0)))
    assert decision.final_parallelism == decision.proposed_parallelism > decision.current_parallelism


def test_the_largest_proposal_of_the_window_counts() -> None:
    """When the window is over, the largest size proposed in it counts, not the last one."""
    spec = job(guards=guards(scale_down_window={"seconds": 60}))
    shots = steady(8, rate=40, capacity=400)
    state, _ = decide(spec, shots[:7])
    assert state.history.shrink == (LAST, 2)
    state = state._replace(history=History(shrink=(AT, 3)))
    _, decision = decide(spec, shots[7:], state=state)
    assert decision.final_parallelism == 3
    assert "3 is the largest size proposed in the scale-down window" in decision.sentence


def test_a_job_near_its_capacity_grows_though_its_lag_drains_soon() -> None:
    """250/s of 300/s arrive: the small lag drains within seconds, and the scale-up is meant for later load."""
    assert not held(idle_growth(rate=250, each=5))


def test_a_growth_for_announced_load_is_worth_it() -> None:
    """100/s of 300/s arrive and the lag drains soon, but the job upstream will emit 900/s in a minute."""
    plan = Emission((EmissionStep(START, 100.0), EmissionStep(START + timedelta(seconds=90), 900.0)), "in")
    feeder = Neighbour("feeder", upstream=True, topics=("in",), emits=plan)
    assert held(idle_growth())
    assert not held(idle_growth(neighbours=(feeder,)))


def test_a_job_upstream_that_is_behind_holds_nothing() -> None:
    """Only a job that reads our output would get more of it."""
    upstream = Neighbour("feeder", upstream=True, topics=("in",), evidence=behind().evidence)
    assert growth(neighbours=(upstream,)).final_parallelism == 16


def test_a_job_further_downstream_that_is_behind_holds_nothing() -> None:
    """What it waits for is what the job between writes, not what we write."""
    further = Neighbour("reports", upstream=False, topics=("x",), evidence=behind().evidence, distance=2)
    assert growth(neighbours=(further,)).final_parallelism == 16


def test_in_a_circle_no_job_waits_for_another() -> None:
    """Two jobs that feed each other are both behind: if each waited for the other, none would ever grow."""
    fed_by = Neighbour("reports", upstream=True, topics=("in",))
    assert held(growth(neighbours=(behind(),)))
    assert growth(neighbours=(behind(), fed_by)).final_parallelism == 16


def reader(ceiling: float | None, job_id: str = "reports", **more: Any) -> Neighbour:
    """Return a job that reads our output and can process so many records/s at most."""
    return Neighbour(job_id, upstream=False, topics=("out",), ceiling=ceiling, **more)


def writing(*neighbours: Neighbour, sinks: tuple[str, ...] = ("out",), written: int | None = 8000) -> Decision:
    """Return the decision of a job of 4 slots and 400/s that writes two records for each it reads: 16 are proposed."""
    shots = steady(7, rate=800, capacity=400, partitions=64)
    shots = [
        shot.model_copy(
            update={"batches": tuple(each.model_copy(update={"output_records": written}) for each in shot.batches)}
        )
        for shot in shots
    ]
    spec = job().model_copy(update={"sinks": sinks})
    return decide(spec, shots, neighbours=neighbours)[1]


def test_growth_ends_where_the_reader_cannot_follow() -> None:
    """4 slots write 800/s. A reader of at most 1,500/s takes the output of 7.5 slots, so 8 is the limit."""
    limited = writing(reader(1500.0))
    assert limited.final_parallelism == 8
    assert limited.sentence.endswith(
        "but reports downstream can process at most 1500 records/s, "
        "so the output of more than 8 slots would only wait there."
    )
    assert writing(reader(500.0)).final_parallelism == 4


@pytest.mark.parametrize(
    "decision",
    [
        lambda: writing(reader(1500.0), reader(1e6, "audit")),
        lambda: writing(reader(1500.0), reader(None, "audit")),
        lambda: writing(reader(1500.0), sinks=("out", "audit")),
        lambda: writing(reader(1500.0), written=None),
        lambda: writing(reader(1500.0), Neighbour("reports", upstream=True, topics=("in",))),
        lambda: writing(reader(1500.0, distance=2)),
        writing,
    ],
    ids=["another follows", "another is unknown", "two sinks", "no ratio", "circle", "no reader", "alone"],
)
def test_growth_is_not_limited_where_a_reader_may_follow(decision: Callable[[], Decision]) -> None:
    """One reader that can follow is enough, and what is not known limits nothing. In a circle nobody waits."""
    assert writing(reader(500.0)).final_parallelism == 4
    assert decision().final_parallelism == 16


def test_memory_pressure_lets_growth_through() -> None:
    """More executors bring more memory, so only a scale-down is stopped."""
    assert growth(last={"gc_ratio": 0.9}).final_parallelism == 16


def test_the_last_changes_of_the_day_are_kept_for_growth() -> None:
    """With 12 of 48 restarts reserved, 36 stop a scale-down but not a scale-up, and no change in place."""
    times, spec = tuple(int(LAST) - 600 - 60 * n for n in range(36, 0, -1)), job(rescale=(Way.RESTART,))
    assert held(shrinking(spec, **remembered(ordered_at=times)))
    assert growth(spec, **remembered(ordered_at=times)).final_parallelism == 16
    assert not held(shrinking(**remembered(ordered_at=times)))


def test_a_reduction_that_saves_less_than_its_restart_is_not_made() -> None:
    """A restart of two hours on 4 slots costs 28,800 slot-seconds; 2 slots fewer save 7,200 in an hour.

    A change in place is always worth it.
    """
    cost = MeasuredCost(Way.RESTART, int(AT) - 9000, 7200.0, 7200.0)
    decision = shrinking(job(rescale=(Way.RESTART,)), state=JobState(changes=ChangeMemory((cost,))))
    assert held(decision)
    in_place = ChangeMemory((cost._replace(way=Way.IN_PLACE),))
    assert not held(shrinking(state=JobState(changes=in_place)))
    assert (
        "a restart of 7200 s costs 28800 slot-seconds, and 2 slots fewer save only 7200 in 3600 s" in decision.sentence
    )


def test_a_job_above_its_quota_may_shrink() -> None:
    """The quota may have been lowered while the job was larger; it caps growth alone."""
    decision = shrinking(job(guards=guards(quota={"slots": 1})))
    assert decision.final_parallelism == decision.proposed_parallelism == 2


def test_memory_counts_in_the_quota() -> None:
    """512 MiB an executor: 3 GB hold 5 of them."""
    assert growth(job(guards=guards(quota={"memory_gb": 3.0}))).final_parallelism == 5


def test_orders_are_remembered() -> None:
    """The history has every ordered scale-up, with what the job could do before it."""
    spec = job(rescale=(Way.RESTART,))
    state, decision = decide(spec, steady(7, rate=800, capacity=400, partitions=64))
    assert decision.command is not None
    assert state.history.ordered_at == (int(decision.decided_at.timestamp()),)
    assert state.history.growth == Growth(decision.decided_at.timestamp(), 4, 16, 400.0)


def run_state(
    size: int, *, spec: JobSpec | None = None, state: JobState | None = None, first: int = 0, **pool: Any
) -> Any:
    """Return (state, decision) of a job that keeps up, with some state."""
    shots = steady(7, rate=300, capacity=400, first=first, partitions=64)
    shots[-1] = shots[-1].model_copy(update=state_of(size) | pool)
    return decide(spec or job(), shots, state=state)


def test_state_forces_growth() -> None:
    """At 25 GB per executor the policy proposes no change, and the state needs 10 executors of 10 GB."""
    _, decision = run_state(100 * GB)
    assert (decision.proposed_parallelism, decision.final_parallelism) == (4, 10)
    assert decision.status is Status.PENDING_SCALE_UP
    assert "the executors hold 25.0 GB of state each and should hold 10 GB, which takes 10 slots" in decision.sentence


def test_state_that_the_pool_cannot_hold_exhausts_it() -> None:
    """Growth forced by the state passes the other guards too: a full pool gives POOL_EXHAUSTED."""
    _, decision = run_state(100 * GB, pool=Pool(pool_id="default", slots_total=4, slots_used=4, workers_alive=1))
    assert held(decision)
    assert decision.status is Status.POOL_EXHAUSTED


def test_a_little_too_much_state_forces_nothing() -> None:
    """With a target of 10 GB per executor, growth is forced above 15 GB, not at 15 GB."""
    assert held(run_state(60 * GB)[1])
    assert run_state(61 * GB)[1].final_parallelism == 7


@pytest.mark.parametrize(("gigabytes", "warned"), [(399, False), (400, True), (500, True)])
def test_state_is_warned_about_from_80_percent(gigabytes: int, warned: bool) -> None:
    """From 400 GB of 500 GB every decision warns, and the job continues."""
    spec = job(guards=guards(state_size={"target_gb_per_executor": 1000.0}))
    _, decision = run_state(gigabytes * GB, spec=spec)
    assert held(decision)
    assert (f"the state of {gigabytes} GB is close to the limit of 500 GB" in decision.sentence) is warned


def test_over_the_soft_limit_a_job_stops_and_may_be_resumed() -> None:
    """Over 500 GB the job is stopped; a new version of the spec lets it continue at its own risk."""
    state, decision = run_state(501 * GB)
    assert decision.command is not None
    assert (decision.command.to_parallelism, decision.status) == (0, Status.STOPPED_STATE_LIMIT)
    assert "the state of 501 GB is over the limit of 500 GB" in decision.sentence
    down = snapshot(20, state=ClusterState.STOPPED, incarnation=None, slots=None)
    state = state._replace(in_flight=None)
    state, decision = decide(job(), [down], state=state)
    assert held(decision)
    assert (decision.status, decision.trail[-1].code) == (Status.STOPPED_STATE_LIMIT, "HALTED_RESUMABLE")
    again = snapshot(21, state=ClusterState.STOPPED, incarnation=None, slots=None)
    state, decision = decide(job(version=2), [again], state=state)
    assert decision.command is not None
    assert decision.command.to_parallelism == 4
    state = state._replace(in_flight=None)
    spec = job(version=2, guards=guards(state_size={"target_gb_per_executor": 1000.0}))
    _, decision = run_state(600 * GB, spec=spec, state=state, first=30)
    assert decision.final_parallelism == 4
    assert "continues at its own risk; at 1000 GB it fails for good" in decision.sentence


def test_over_the_hard_limit_a_job_fails_for_good() -> None:
    """Over 1000 GB the job is stopped, and no new version of the spec starts it again."""
    state, decision = run_state(1001 * GB)
    assert decision.command is not None
    assert (decision.command.to_parallelism, decision.status) == (0, Status.FAILED_STATE_LIMIT)
    down = snapshot(20, state=ClusterState.STOPPED, incarnation=None, slots=None)
    _, decision = decide(job(version=2), [down], state=state._replace(in_flight=None))
    assert held(decision)
    assert (decision.status, decision.trail[-1].code) == (Status.FAILED_STATE_LIMIT, "HALTED_FOR_GOOD")


@pytest.mark.parametrize("mode", [Mode.PAUSED, Mode.ADVISE])
def test_a_job_tidegate_may_not_touch_is_not_stopped(mode: Mode) -> None:
    """A job over its limits that is paused or in advise mode only gets a warning."""
    _, decision = run_state(
        1001 * GB, spec=job(mode=mode, guards=guards(state_size={"target_gb_per_executor": 1000.0}))
    )
    assert decision.command is None
    assert "STATE_OVER_SOFT_LIMIT" in codes(decision)


def test_orders_of_yesterday_are_forgotten() -> None:
    """The budget covers any 24 hours: older orders neither count nor are kept."""
    old = tuple(int(LAST - 90_000 + n) for n in range(48))
    spec, state = job(rescale=(Way.RESTART,)), JobState(history=History(ordered_at=old))
    state, decision = decide(spec, steady(7, rate=800, capacity=400, partitions=64), state=state)
    assert decision.command is not None
    assert state.history.ordered_at == (int(decision.decided_at.timestamp()),)
    assert decision.decided_at - START == timedelta(seconds=61)


def test_a_scale_down_waits_so_that_the_restarts_last_for_the_day() -> None:
    """After a third of the day's restarts at once, scale-downs come one by one; growth need not wait."""
    spec = job(guards=guards(restart_budget={"per_day": 24, "reserved_for_growth": 0}), rescale=(Way.RESTART,))
    busy = remembered(ordered_at=tuple(int(LAST) - 1000 + 100 * number for number in range(8)))
    waits = shrinking(spec, **busy)
    assert held(waits)
    assert "8 of 24 restarts of the last 24 hours are used up, and so that they last for the day" in waits.sentence
    assert not held(growth(spec, **busy))


def test_a_scale_down_may_follow_when_the_guard_has_said_so() -> None:
    """The time that it states is neither too short nor too long."""
    guard, base = RestartBudget(per_day=24, reserved_for_growth=0), case(spec=job(rescale=(Way.RESTART,)))
    history = History(ordered_at=tuple(int(AT) - 1000 + 100 * number for number in range(8)))

    def ask(later: float) -> Verdict | None:
        now = base._replace(decided_at=AT + later, state=base.state._replace(history=history))
        return guard.dispose(now.current - 1, now)

    verdict = ask(0.0)
    assert verdict is not None
    wait = verdict.values["wait_seconds"]
    assert isinstance(wait, float)
    assert ask(wait - 1.0) is not None
    assert ask(wait + 1.0) is None


@pytest.mark.parametrize("per_day", [1, 4, 6, 24, 72])
def test_restarts_last_for_the_day(per_day: int) -> None:
    """A job that always wants to shrink uses at most its budget in any 24 hours, and waits evenly long."""
    guard, base = RestartBudget(per_day=per_day, reserved_for_growth=0), case(spec=job(rescale=(Way.RESTART,)))
    ordered, at = list[int](), int(AT)
    while at < AT + 2 * 86_400:
        history = History(ordered_at=tuple(ordered)[-ORDERS_KEPT:])
        now = base._replace(decided_at=float(at), state=base.state._replace(history=history))
        if guard.dispose(now.current - 1, now) is None:
            ordered.append(at)
        at += 60
    assert all(sum(first <= each < first + 86_400 for each in ordered) <= per_day for first in ordered)
    longest = max(later - earlier for earlier, later in pairwise(ordered))
    assert longest <= 86_400 / max(1, per_day - max(4, per_day // 3)) + 120


@pytest.mark.parametrize(
    ("state_gb", "size", "kept"),
    [(60, 4, None), (61, 4, 7), (61, 6, 7), (61, 7, None), (61, 12, None), (61, 0, None), (None, 4, None)],
)
def test_state_forces_growth_to_what_it_needs(state_gb: float | None, size: int, kept: int | None) -> None:
    """Above 15 GB on each of 4 executors, it takes as many as hold 10 GB each; a policy may want more, or a stop."""
    state = None if state_gb is None else int(state_gb * GB)
    verdict = StateSize().force(size, case(evidence(state_bytes=state)))
    assert (verdict.size if verdict else None) == kept


@pytest.mark.parametrize(("current", "most", "kept"), [(8, 16, 7), (8, 6, 6), (5, 16, 5)])
def test_state_keeps_what_it_needs_within_the_bounds(current: int, most: int, kept: int) -> None:
    """61 GB need 7 executors: a smaller size becomes 7, or the maximum of the spec, or what there is."""
    of = case(evidence(state_bytes=61 * GB), spec=job(max_parallelism=most), current=current)
    verdict = StateSize().dispose(3, of)
    assert verdict is not None
    assert verdict.size == kept


@pytest.mark.parametrize(("size", "waits"), [(2, True), (4, False), (8, False)])
def test_a_new_application_waits_as_long_as_growth(size: int, waits: bool) -> None:
    """A minute, and not the five of a scale-down: the same size again takes no slots from the job."""
    verdict = Cooldown().dispose(size, case(spec=job(rescale=(Way.RESTART,)), last_action_at=AT - 100))
    assert (verdict is not None) is waits


@pytest.mark.parametrize(
    ("gc", "size", "holds"),
    [(0.31, 3, True), (0.3, 3, False), (None, 3, False), (0.31, 4, False), (0.31, 8, False), (0.31, 0, False)],
)
def test_only_garbage_collection_above_the_limit_keeps_memory(gc: float | None, size: int, holds: bool) -> None:
    """It forbids fewer slots, and neither more of them nor a stop."""
    assert (MemoryPressure().dispose(size, case(evidence(gc_ratio=gc))) is not None) is holds


@pytest.mark.parametrize(("size", "stops"), [(3, False), (4, False), (8, True)])
def test_scale_ups_without_effect_stop_only_growth(size: int, stops: bool) -> None:
    """Two of them say that more slots do not help, and nothing against fewer."""
    useless = History(growth=Growth(AT - 600, 2, 4, 395.0, repeated=True))
    of = case(evidence(utilization=1.0, true_processing_rate=400.0), history=useless)
    assert (Ineffective().dispose(size, of) is not None) is stops
