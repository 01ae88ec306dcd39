"""A job with `min_parallelism: 0`: stopped after a silence, started at the first record, whatever the policy."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar

import pytest

from tests.support.engine import OURS, step
from tests.support.events import START, codes, job, observed, result, snapshot, steady
from tidegate.engine.case import Case, Proposal
from tidegate.engine.costs import ChangeMemory, ClosedWay
from tidegate.engine.engine import Engine
from tidegate.engine.guards.silence import cheapest_limit
from tidegate.engine.memory import NoMemory
from tidegate.engine.options import NoOptions
from tidegate.engine.reasons import Reason
from tidegate.engine.state import JobState, ZeroMemory, from_wire, to_wire
from tidegate.engine.supervisor import MAX_FAILURES
from tidegate.engine.ways import checksum
from tidegate.engine.zero import capacity_of, duration
from tidegate.events.command import CommandKind, ScalingCommand
from tidegate.events.decision import Decision, Status
from tidegate.events.envelope import decode, value_of
from tidegate.events.job import JobSpec, ManualScale, Mode
from tidegate.events.result import CHECKPOINT_ELSEWHERE, ActionResult, Phase
from tidegate.events.snapshot import ClusterState, MetricSnapshot, Part, SourceOffsets
from tidegate.events.way import Way

QUICK: dict[str, Any] = {
    "cooldown": {"up_seconds": 0, "down_seconds": 0},
    "stabilization": {"seconds": 0},
    "silence": {"after_seconds": 120},
}
KEEPS: dict[str, Any] = {"policy": "hpa", "policy_options": {"down_select": "Disabled"}}
"""A policy that never shrinks a job, so that only the silence does."""
BUSY = steady(3, rate=200, capacity=400)
ARRIVED = 1_006_000
"""End offsets and committed offsets after `BUSY`."""


def sleeper(**more: Any) -> JobSpec:
    """Return the spec of a job that is stopped after two minutes without records."""
    settings: dict[str, Any] = {"min_parallelism": 0, "guards": QUICK} | KEEPS | more
    return job(**settings)


class Stage:
    """A job on the wire: snapshots go in, and its commands are carried out when the test says so."""

    def __init__(self, spec: JobSpec, state: JobState | None = None) -> None:
        self.spec, self.state = spec, state or JobState.new()
        self.number, self.arrived, self.committed = 0, ARRIVED, ARRIVED
        self.life, self.run, self.size = ClusterState.RUNNING, 1, 4
        self.results: tuple[ActionResult, ...] = ()
        self.decision: Decision | None = None

    def shot(self, **more: Any) -> MetricSnapshot:
        """Return the next snapshot of the job as it is."""
        known: dict[str, Any] = {"arrived": self.arrived, "committed": self.committed, "slots": self.size}
        return snapshot(self.number, **(known | {"state": self.life, "incarnation": f"app-{self.run}"} | more))

    def tick(self, **more: Any) -> Decision:
        """Take the next snapshot; return the decision."""
        shot = self.shot(**more)
        self.state, self.decision = step(self.state, shot, self.spec, observed(shot, results=self.results))
        self.number, self.results = self.number + 1, ()
        return self.decision

    def until(self, kind: CommandKind, most: int = 40) -> ScalingCommand:
        """Take snapshots until a command of a kind is ordered."""
        for _ in range(most):
            command = self.tick().command
            if command is not None:
                assert command.kind is kind, command.reason
                return command
        raise AssertionError(f"no {kind} was ordered: {self.decision and self.decision.sentence}")

    def carry_out(self, command: ScalingCommand, phase: Phase = Phase.VERIFIED, **more: Any) -> None:
        """End a command: the job stops, or runs with the size in another run."""
        told: dict[str, Any] = {"kind": command.kind, "epoch": command.epoch, "parallelism": command.to_parallelism}
        if phase is Phase.VERIFIED and command.to_parallelism:
            self.life, self.run, self.size = ClusterState.RUNNING, self.run + 1, command.to_parallelism
            told["incarnation"] = f"app-{self.run}"
        elif phase is Phase.VERIFIED:
            self.life, self.size = ClusterState.STOPPED, 0
        self.results = (result(command.command_id, phase, self.number, **(told | more)),)

    def put_to_sleep(self) -> None:
        """Let the silence last until the job is stopped."""
        for shot in BUSY:
            self.state, _ = step(self.state, shot, self.spec, observed(shot))
        self.number = len(BUSY)
        self.carry_out(self.until(CommandKind.STOP))


def asleep(**more: Any) -> Stage:
    """Return a job of 4 slots, able to do 400/s, that was stopped after a silence."""
    stage = Stage(sleeper(**more))
    stage.put_to_sleep()
    return stage


@pytest.mark.parametrize("policy", [each.name for each in OURS])
def test_every_policy_stops_a_silent_job_and_starts_it_at_the_first_record(policy: str) -> None:
    """Whatever proposes sizes, a silence ends in a stop, and a single record in a start."""
    stage = Stage(sleeper(policy=policy, policy_options={}))
    for shot in BUSY:
        stage.state, _ = step(stage.state, shot, stage.spec, observed(shot))
    stage.number = len(BUSY)
    for _ in range(90):
        command = stage.tick().command
        if command is not None:
            stage.carry_out(command, incarnation=f"app-{stage.run}", way=Way.IN_PLACE) if command.way else None
            if command.kind is CommandKind.STOP:
                break
            stage.run, stage.life, stage.size = 1, ClusterState.RUNNING, command.to_parallelism
    else:
        raise AssertionError(f"{policy} never stops: {stage.decision and stage.decision.sentence}")
    stage.carry_out(command)
    for _ in range(3):
        assert stage.tick().command is None
    stage.arrived += 1
    command = stage.until(CommandKind.START, 14)
    assert command.to_parallelism >= 1


def test_the_stop_says_why_and_the_sleep_says_what_ends_it() -> None:
    """The stop is pending like a scale-down, the sleep is fine, and both have their sentence."""
    stage = Stage(sleeper())
    stage.put_to_sleep()
    decision = stage.decision
    assert decision is not None
    assert decision.status is Status.PENDING_SCALE_DOWN
    assert decision.sentence.startswith("Stop the job: ")
    assert "nothing has arrived for 2 min and nothing waits," in decision.sentence
    decision = stage.tick()
    assert (decision.status, decision.current_parallelism, decision.evidence.lag_records) == (Status.FINE, 0, 0)
    assert decision.sentence == (
        "Stay stopped: nothing has arrived for 2 min, and the job starts at the first record that waits."
    )
    assert decode(Decision, value_of(decision)) == decision


def test_while_it_is_stopped_it_neither_ends_nor_restarts() -> None:
    """An hour of sleep is no failure, and no start; a snapshot from before the stop changes nothing."""
    stage = asleep()
    decision = stage.tick(state=ClusterState.RUNNING, slots=4)  # taken before the stop, decided after its result
    assert (decision.command, decision.trail[0].code) == (None, "JUST_STOPPED")
    for _ in range(360):
        assert stage.tick().command is None
    assert stage.state.failures == 0
    assert "nothing has arrived for 62 min" in stage.tick().sentence


def test_the_size_of_the_start_is_chosen_for_what_waits() -> None:
    """4 slots did 400/s: a single record needs 1 slot, and 600 records a second as many as there are partitions."""
    few = asleep()
    few.tick()
    few.arrived += 1
    assert few.tick().command.to_parallelism == 1  # type: ignore[union-attr]
    many = asleep()
    many.tick()
    many.arrived += 6000  # 600/s in ten seconds, so 18,000 more until the start works: 600 + 24,000 / 60 = 1,000/s
    command = many.tick().command
    assert command is not None
    assert command.to_parallelism == 8  # not more than the 8 partitions, although 10 slots would be needed
    assert command.first_batch_seconds == pytest.approx(24_000 / 800)
    assert command.reason.startswith("Start with 8 slots: 6000 records wait after 20 s without a slot, which calls")


def test_without_a_known_capacity_the_size_before_is_taken() -> None:
    """A job that never had a batch in the window starts as large as it was."""
    stage = asleep()
    assert stage.state.zero is not None
    stage.state = stage.state._replace(zero=stage.state.zero._replace(sizes=()))
    stage.arrived += 1
    assert stage.tick().command.to_parallelism == 4  # type: ignore[union-attr]


def test_a_start_learns_how_long_starts_take() -> None:
    """A longer start means more records by then, and so a larger size."""
    stage = asleep()
    stage.arrived += 1000
    stage.carry_out(stage.until(CommandKind.START), delay_seconds=75.0)
    stage.tick()
    assert stage.state.zero is not None
    assert (stage.state.zero.starts, stage.state.zero.stopped_at) == ((75.0,), None)


def test_records_that_wait_keep_a_job_running_and_so_does_the_unknown() -> None:
    """With lag, or without an offset, nothing is stopped, however long nothing arrives."""
    lagging = Stage(sleeper())
    lagging.committed -= 1
    missing = Stage(sleeper())
    for _ in range(40):
        assert lagging.tick().final_parallelism > 0
        assert missing.tick(committed=None, missing=(Part.COMMITTED_OFFSETS,)).final_parallelism > 0
        assert missing.tick(arrived=None, missing=(Part.END_OFFSETS,)).final_parallelism > 0


class Eager:
    """A policy from outside that always proposes no slot at all."""

    name, Options, Memory = "eager", NoOptions, NoMemory
    reasons: ClassVar[dict[str, Reason]] = {"EAGER": Reason("nothing is needed")}
    window_seconds = 60.0

    def __init__(self, options: NoOptions) -> None:
        self.options = options

    def propose(self, case: Case, memory: NoMemory) -> Proposal[NoMemory]:
        """Propose 0."""
        assert case.current
        return Proposal(0, "EAGER", {}, memory=memory)

    def ordered(self, case: Case, memory: NoMemory, proposal: Proposal[NoMemory], final: int) -> NoMemory:  # noqa: ARG002
        """Keep the memory."""
        return memory


@pytest.mark.parametrize(
    ("least", "lag", "code", "kind"),
    [(0, 0, "EAGER", CommandKind.STOP), (0, 5, "RECORDS_STILL_WAIT", None), (2, 0, "AT_MINIMUM", CommandKind.RESCALE)],
)
def test_a_policy_may_propose_zero(least: int, lag: int, code: str, kind: CommandKind | None) -> None:
    """It stops a job at once, but none for which records wait, and none whose spec wants a slot."""
    spec = job(policy="eager", policy_options={}, min_parallelism=least, guards=QUICK)
    shot = snapshot(0, arrived=1000 + lag, committed=1000)
    eager: Any = Eager
    _, decision = Engine({"eager": eager}).step(JobState.new(), shot, spec, observed(shot))
    assert decision.trail[-1].code == code
    assert (decision.command.kind if decision.command else None) is kind


def test_stopped_without_committed_offsets_it_still_sees_records() -> None:
    """The end offsets of the stop are enough: what has come since then waits."""
    stage = asleep()
    gone: dict[str, Any] = {"committed": None, "missing": (Part.COMMITTED_OFFSETS,)}
    assert stage.tick(**gone).trail[0].code == "SCALED_TO_ZERO"
    stage.arrived += 7
    decision = stage.tick(**gone)
    assert (decision.command is not None, decision.evidence.lag_records) == (True, 7)


def test_unknown_end_offsets_start_the_job_in_the_end() -> None:
    """Nobody can say whether records wait: after five minutes the job starts, with the size it had."""
    stage = asleep()
    gone: dict[str, Any] = {"arrived": None, "missing": (Part.END_OFFSETS,)}
    early = stage.tick(**gone)
    assert (early.command, early.trail[0].code, early.evidence.lag_records) == (None, "WAITING_UNKNOWN", None)
    for _ in range(29):
        assert stage.tick(**gone).command is None
    command = stage.tick(**gone).command
    assert command is not None
    assert (command.kind, command.to_parallelism) == (CommandKind.START, 4)


def test_a_new_partition_and_a_topic_created_again_count_whole() -> None:
    """What was never committed waits unless it was removed; a topic whose offsets fell has other records."""
    stage = asleep()
    old = stage.shot().sources[0]
    added = SourceOffsets(
        topic="in", end_offsets=(*old.end_offsets, 0), committed_offsets=(*old.committed_offsets, None)
    )
    shot = stage.shot().model_copy(update={"sources": (added,)})
    _, decision = step(stage.state, shot, stage.spec, observed(shot, results=stage.results))
    assert (decision.command, decision.evidence.lag_records) == (None, 0)
    full = added.model_copy(update={"end_offsets": (*old.end_offsets, 3)})
    shot = stage.shot().model_copy(update={"sources": (full,)})
    _, decision = step(stage.state, shot, stage.spec, observed(shot, results=stage.results))
    assert (decision.command is not None, decision.evidence.lag_records) == (True, 3)
    partly = full.model_copy(update={"first_offsets": (*([0] * 8), 1)})
    shot = stage.shot().model_copy(update={"sources": (partly,)})
    _, decision = step(stage.state, shot, stage.spec, observed(shot, results=stage.results))
    assert (decision.command is not None, decision.evidence.lag_records) == (True, 2)
    removed = full.model_copy(update={"first_offsets": (*([0] * 8), 3)})
    shot = stage.shot().model_copy(update={"sources": (removed,)})
    _, decision = step(stage.state, shot, stage.spec, observed(shot, results=stage.results))
    assert (decision.command, decision.evidence.lag_records) == (None, 0)
    again = old.model_copy(update={"end_offsets": (2, *([0] * 7))})
    shot = stage.shot().model_copy(update={"sources": (again,)})
    _, decision = step(stage.state, shot, stage.spec, observed(shot, results=stage.results))
    assert (decision.command is not None, decision.evidence.lag_records) == (True, 2)


@pytest.mark.parametrize(
    ("scaling", "code"),
    [
        ({"mode": Mode.PAUSED}, "PAUSED"),
        ({"interactive": True}, "INTERACTIVE"),
        ({"mode": Mode.ADVISE}, "ADVISE_ONLY"),
        ({"guards": QUICK | {"stabilization": {"seconds": 900}}}, "STABILIZING"),
        ({"guards": QUICK | {"restart_budget": {"per_day": 12}}}, "RESTART_BUDGET"),
        ({"guards": QUICK | {"excluded_periods": {"periods": "00:00:00-23:59:59"}}}, "EXCLUDED_PERIOD"),
    ],
)
def test_a_stop_for_silence_passes_the_guards_of_any_change(scaling: dict[str, Any], code: str) -> None:
    """Paused, pinned, advised, young, out of budget: the job keeps its slots, and the decision says why."""
    stage = Stage(sleeper(**scaling))
    for _ in range(20):
        decision = stage.tick()
        assert decision.command is None
    assert codes(decision)[-2:] == ["SILENCE", code]


def test_the_cooldown_keeps_a_stop_away_from_the_start_before_it() -> None:
    """A start from zero is a change like any other: the next stop waits for the cooldown of a scale-down."""
    stage = asleep(guards=QUICK | {"cooldown": {"up_seconds": 0, "down_seconds": 300}})
    stage.arrived += 1
    started = stage.until(CommandKind.START)
    stage.carry_out(started)
    stage.committed = stage.arrived
    stopped = stage.until(CommandKind.STOP)
    assert stopped.issued_at - started.issued_at >= timedelta(seconds=300)
    assert stage.decision is not None


def test_a_job_with_its_checkpoint_elsewhere_is_not_stopped() -> None:
    """The next run would not find it, and would start from scratch."""
    location = checksum("/checkpoints/rates")
    closed = tuple(ClosedWay(way, CHECKPOINT_ELSEWHERE, 0, "app-1", location) for way in (Way.HANDOVER, Way.RESTART))
    state = JobState(incarnation="app-1", parallelism=4, spec_version=1, changes=ChangeMemory(closed=closed))
    stage = Stage(sleeper(), state)
    for _ in range(20):
        decision = stage.tick()
        assert decision.command is None
    assert decision.trail[-1].code == "CHECKPOINT_ELSEWHERE"


def test_a_job_that_may_only_change_in_place_is_stopped_all_the_same() -> None:
    """`min_parallelism: 0` allows the stop; the ways are about other sizes."""
    stage = Stage(sleeper(rescale=(Way.IN_PLACE,)))
    assert stage.until(CommandKind.STOP).way is None


def test_a_paused_job_sleeps_on_and_is_late_when_records_wait() -> None:
    """Nothing starts a paused job; once records wait, the status says that nobody will work on them."""
    stage = asleep()
    stage.tick()
    paused = stage.spec.scaling.model_copy(update={"mode": Mode.PAUSED})
    stage.spec = stage.spec.model_copy(update={"scaling": paused, "version": 2})
    assert stage.tick().status is Status.FINE
    stage.arrived += 5
    decision = stage.tick()
    assert (decision.command, decision.status) == (None, Status.LATE)
    assert "although 1 is proposed" in decision.sentence
    assert "the job is paused" in decision.sentence


def test_an_operator_can_stop_the_job_until_a_record_waits_and_start_it_before() -> None:
    """`tidegate scale JOB 0` stops it at once; `scale JOB 2` starts it with 2 slots, paused or not."""
    zero = ManualScale(request_id="r-0", parallelism=0, reason="night", requested_at=START)
    stage = Stage(sleeper(manual=zero))
    command = stage.tick().command
    assert command is not None
    assert (command.kind, command.manual) == (CommandKind.STOP, True)
    stage.carry_out(command)
    assert "an operator asked for 0 slots, and the job starts at the first record" in stage.tick().sentence
    two = ManualScale(request_id="r-2", parallelism=2, reason="day", requested_at=START)
    scaling = stage.spec.scaling.model_copy(update={"mode": Mode.PAUSED})
    stage.spec = stage.spec.model_copy(update={"manual": two, "version": 2, "scaling": scaling})
    command = stage.tick().command
    assert command is not None
    assert (command.kind, command.to_parallelism, command.manual) == (CommandKind.START, 2, True)
    assert stage.state.manual_done == "r-2"


def test_a_request_waits_for_the_start_under_way() -> None:
    """It came after the command that wakes the job, so it is served when that has ended, and not before."""
    stage = asleep()
    stage.arrived += 500
    command = stage.tick().command
    assert command is not None
    two = ManualScale(request_id="r-2", parallelism=2, reason="day", requested_at=START)
    stage.spec = stage.spec.model_copy(update={"manual": two, "version": 2})
    decision = stage.tick()
    assert (decision.command, stage.state.manual_done) == (None, None), decision.sentence


def test_zero_is_the_spec_s_to_allow() -> None:
    """An operator's 0 becomes the minimum where the spec wants a slot."""
    zero = ManualScale(request_id="r-0", parallelism=0, reason="night", requested_at=START)
    stage = Stage(job(manual=zero, min_parallelism=2))
    command = stage.tick().command
    assert command is not None
    assert (command.kind, command.to_parallelism) == (CommandKind.RESCALE, 2)


def test_the_spec_s_own_stop_ends_the_sleep() -> None:
    """`running: false` and back means that the job runs again, records or not."""
    stage = asleep()
    stage.tick()
    stage.spec = stage.spec.model_copy(update={"running": False, "version": 2})
    assert stage.tick().trail[0].code == "JOB_STOPPED"
    stage.spec = stage.spec.model_copy(update={"running": True, "version": 3})
    assert stage.tick().trail[0].code == "JOB_NOT_RUNNING"


def test_a_job_that_ends_by_itself_is_not_asleep() -> None:
    """Only a stop that scaling ordered is one; a job that died is started again."""
    stage = Stage(sleeper())
    for _ in range(4):
        stage.tick()
    stage.life = ClusterState.FAILED
    decision = stage.tick()
    assert (decision.trail[0].code, decision.final_parallelism) == ("JOB_NOT_RUNNING", 4)


@pytest.mark.parametrize("phase", [Phase.FAILED, Phase.REJECTED])
def test_a_stop_that_fails_leaves_a_running_job(phase: Phase) -> None:
    """Nothing sleeps then: the job runs on and is asked to stop again."""
    stage = Stage(sleeper())
    stage.carry_out(stage.until(CommandKind.STOP), phase)
    assert stage.until(CommandKind.STOP)


def test_a_stop_that_nobody_carried_out_is_forgotten() -> None:
    """It expires, and the next one is ordered."""
    stage = Stage(sleeper())
    stage.until(CommandKind.STOP)
    assert stage.until(CommandKind.STOP)


def test_a_start_that_fails_is_tried_again_until_a_person_has_to_look() -> None:
    """As for any other job: after three failed starts in a row the job is late and stays down."""
    stage = asleep()
    stage.arrived += 9
    for _ in range(MAX_FAILURES):
        stage.carry_out(stage.until(CommandKind.START), Phase.FAILED)
    for _ in range(5):
        decision = stage.tick()
        assert (decision.command, decision.status) == (None, Status.LATE)
    assert decision.trail[0].code == "NEEDS_A_HUMAN"


def test_a_job_that_is_no_longer_allowed_to_sleep_starts() -> None:
    """Another minimum in the spec ends the sleep."""
    stage = asleep()
    stage.tick()
    scaling = stage.spec.scaling.model_copy(update={"min_parallelism": 2})
    stage.spec = stage.spec.model_copy(update={"scaling": scaling, "version": 2})
    decision = stage.tick()
    assert (decision.trail[0].code, decision.final_parallelism) == ("JOB_NOT_RUNNING", 4)
    assert stage.state.zero is None


def test_the_first_start_of_all_has_an_executor() -> None:
    """Nobody knows what waits before a job has a checkpoint, so it starts once, with one executor."""
    stage = Stage(sleeper(executor_cores=2, max_parallelism=16))
    stage.life, stage.committed = ClusterState.STOPPED, 0
    decision = stage.tick(incarnation=None, committed=None, slots=0, missing=(Part.COMMITTED_OFFSETS,))
    assert (decision.trail[0].code, decision.final_parallelism) == ("JOB_NOT_RUNNING", 2)


def test_the_memory_survives_the_wire_and_is_absent_for_other_jobs() -> None:
    """The sleep survives a decider's restart; a job that keeps a slot has no trace of it."""
    stage = asleep()
    stage.tick()
    assert from_wire(to_wire(stage.state)).zero == stage.state.zero
    awake = Stage(job())
    awake.tick()
    assert "zero" not in to_wire(awake.state)


@pytest.mark.parametrize(
    ("gaps", "limit"),
    [
        ((), 480.0),
        ((3600, 3600), 480.0),  # two silences say too little
        ((3600, 3600, 3600), 60.0),  # silences are long: stop early
        ((500, 500, 500), 625.0),  # a stop at 60 s would have cost 540 each: stay until they are usually over
        ((100, 110, 90), 480.0),  # all are short: any limit above them costs the same, the break-even time is closest
        ((100,) * 9 + (7200,) * 3, 125.0),
        ((100_000,) + (1000,) * 5, 60.0),
    ],
)
def test_the_limit_learns_from_past_silences(gaps: tuple[int, ...], limit: float) -> None:
    """The time that would have cost least, at most twice the break-even time of 480 s."""
    assert cheapest_limit(gaps, 480.0) == limit


def test_a_silence_is_remembered_when_it_ends() -> None:
    """Only silences of a minute or more count, measured between snapshots with new records."""
    stage = Stage(sleeper(guards=QUICK | {"silence": {"after_seconds": 9999}}))
    for quiet in (3, 30, 5, 12):
        for _ in range(quiet):
            stage.tick()
        stage.arrived += 10
        stage.committed = stage.arrived
        stage.tick()
    assert stage.state.zero is not None
    assert stage.state.zero.gaps == (300, 120)


def test_without_an_option_the_prices_decide() -> None:
    """4 slots of at most 16: 30 · 16 / 4 slot-seconds per slot and a start of 30 s make 150 s."""
    stage = Stage(sleeper(guards={name: QUICK[name] for name in ("cooldown", "stabilization")}))
    command = stage.until(CommandKind.STOP)
    assert command.issued_at - START == timedelta(seconds=151)


def test_capacity_between_known_sizes_is_linear() -> None:
    """From the closest known size."""
    assert capacity_of(((2, 100.0), (8, 320.0)), 1) == 50.0
    assert capacity_of(((2, 100.0), (8, 320.0)), 16) == 640.0
    assert capacity_of(((2, 100.0), (8, 320.0)), 4) == 200.0


def test_a_length_of_time_in_words() -> None:
    """Seconds up to two minutes, minutes up to two hours, hours up to two days."""
    said = [duration(seconds) for seconds in (0, 119, 120, 900, 7199, 7200, 172_799, 200_000)]
    assert said == ["0 s", "119 s", "2 min", "15 min", "120 min", "2 h", "48 h", "2 days"]


def test_the_memory_is_small() -> None:
    """The window and the policy need most of the state; zero takes little of the 4 kB that a state may have."""
    full = ZeroMemory(
        stopped_at=1.5e9, stopped_run="app-20260101000000-0001", committed=10**12, seen_at=1.5e9, arrived=10**12,
        silent_since=1.5e9, rate=123.456, unknown_since=1.5e9, gaps=(86_400,) * 12,
        sizes=tuple((size, 12_345.0) for size in range(6)), starts=(30.1, 30.2, 30.3),
    )  # fmt: skip
    assert len(str(to_wire(JobState(zero=full))["zero"])) < 600


@pytest.mark.parametrize("policy", ["hpa", "keda", "numaflow", "tide"])
def test_a_sleeping_job_is_started_when_a_period_begins(policy: str) -> None:
    """It starts with the scheduled slots although no record waits, and is not stopped while the period lasts."""
    stage = asleep()
    assert stage.tick().command is None
    begins = QUICK | {"schedule": {"at_least": "12:00:00-13:00:00 | 6"}}
    stage.spec = sleeper(policy=policy, policy_options={}, guards=begins)
    decision = stage.tick()
    assert decision.command is not None, decision.sentence
    assert (decision.command.kind, decision.final_parallelism) == (CommandKind.START, 6)
    stage.carry_out(decision.command)
    for _ in range(40):
        decision = stage.tick()
        assert decision.final_parallelism == 6, decision.sentence
    stage.spec = sleeper(guards=QUICK)
    assert stage.until(CommandKind.STOP).to_parallelism == 0


def test_while_a_sleeping_job_starts_the_schedule_orders_nothing_more() -> None:
    """The start is under way; a second one would only be refused."""
    stage = asleep()
    stage.spec = sleeper(guards=QUICK | {"schedule": {"at_least": "12:00:00-13:00:00 | 6"}})
    assert stage.until(CommandKind.START).to_parallelism == 6
    assert codes(stage.tick()) == ["JOB_RESTARTING"]
