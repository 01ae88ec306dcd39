"""Handovers carried out against a simulated cluster whose drivers obey the orders of a handover."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from services.actuator.actions import resume, switch
from services.actuator.actions.waits import ARRIVAL_SECONDS, LEAVE_SECONDS, OTHERS_SECONDS
from services.actuator.backends import BackendUnreachable, DriverState, Submission
from services.actuator.checkpoint import read_mark
from services.actuator.drivers import JobDrivers
from services.actuator.task import Abandoned
from tests.support.events import command, with_application
from tests.support.fake_world import Died, FakeWorld
from tidegate.events.command import CommandKind
from tidegate.events.job import JobSpec
from tidegate.events.result import CHECKPOINT_ELSEWHERE, ActionResult, CheckpointMark, Phase
from tidegate.events.way import Way
from tidegate.launcher.control.claims import Claims
from tidegate.launcher.control.files import Control, HandoverOrder, Token
from tidegate.remote.files import Files


@dataclass
class HandoverWorld(FakeWorld):
    """A world in which drivers hand over. At most one of them may write: `tick` fails the test if two do."""

    ways: tuple[Way, ...] = (Way.HANDOVER, Way.RESTART)
    waiting: set[str] = field(default_factory=set)
    """Second drivers that have not been let go."""
    paused: set[str] = field(default_factory=set)
    slots: int = 100
    """How many slots the cluster has for a second driver."""
    breaks: bool = False
    """Whether a second driver ends while it warms up."""
    dies_ready: bool = False
    """Whether a second driver ends as soon as it has said that it is ready."""
    pauses: bool = True
    """Whether the first driver comes to a batch boundary in time."""
    writers: list[str] = field(default_factory=list)
    """Who committed, in order."""
    queries: str = "ab"
    """Ids of the queries of each driver."""
    late_seconds: float = 0.0
    """After how long the second driver's other query commits."""
    caught_up: bool = False
    idle: bool = False
    """Whether drivers that arrive say that their queries have no data."""
    let_go_at: float | None = None
    die_after_go: bool = False
    """Whether the actuator dies when the driver that it has let go has taken note of that."""
    retired_at: float | None = None

    @property
    @override
    def spec(self) -> JobSpec:
        return with_application(super().spec, rescale=self.ways)

    @override
    def submit(self, run: Submission) -> str:
        driver = super().submit(run)
        if run.handover:
            self.waiting.add(driver)
        return driver

    @override
    def is_new(self, driver: str) -> bool:
        return (self.control.running(self.tokens[driver]) or {}).get("submission_id") != driver

    @override
    def tick(self) -> None:
        for driver in self.alive():
            self._obey(driver)
        busy = [d for d in self.alive() if self._may_write(d)]
        assert len(busy) <= 1, f"two writers: {busy}"
        for driver in busy:
            if self.works(self.sizes[driver]):
                self.commit()
                self.writers.append(driver)

    def _may_write(self, driver: str) -> bool:
        return not self.is_new(driver) and driver not in self.waiting and driver not in self.paused

    def _obey(self, driver: str) -> None:
        token, control = self.tokens[driver], self.control
        marker, hold, go, fence = control.stop_marker(), control.hold(), control.go(), control.fence()
        if self.let_go_at is not None and self.seconds - self.let_go_at >= self.late_seconds and not self.caught_up:
            control.write_progress(control.runs()[-1], {"committed": {"a": 1, "b": 1}})
            self.caught_up = True
        if marker and marker[0] > token and self.obeys:
            self.drivers[driver] = DriverState.ENDED
            self.retired_at = self.seconds
        elif self.is_new(driver):
            if self.seconds - self.asked_at[driver] >= 5:
                self._arrive(driver, token)
        elif driver in self.waiting and self.breaks:
            self.drivers[driver] = DriverState.ENDED
        elif driver in self.waiting and self.seconds - self.asked_at[driver] >= 20 and control.ready(token) is None:
            control.write_ready(token, {"submission_id": driver, "slots": min(self.slots, self.sizes[driver])})
            self.drivers[driver] = DriverState.ENDED if self.dies_ready else self.drivers[driver]
        if hold and hold.submission_id == driver and hold.token > token and control.paused(hold.token) is None:
            self.paused |= {driver} if self.pauses else set()
            control.write_paused(hold.token, {"paused": self.pauses, "queries": {}})
        if go and go.submission_id == driver and go.token > token and fence and fence[0] <= go.token:
            if self.die_after_go:
                self.die_after_go = False
                raise Died
            self.let_go_at, self.caught_up = self.seconds, False
            self.waiting.discard(driver)
            self.paused.discard(driver)
            self.tokens[driver] = go.token
            self._arrive(driver, go.token)

    def _arrive(self, driver: str, token: Token) -> None:
        if (self.control.running(token) or {}).get("submission_id", driver) != driver:
            self.drivers[driver] = DriverState.ENDED  # another one was submitted as this run
            return
        facts: dict[str, Any] = {"submission_id": driver, "application_id": f"app-{driver}", "hands_over": True}
        place = str(self.spec.application.checkpoint_location)
        queries = [{"id": id_, "name": None, "checkpoint": place} for id_ in self.queries]
        facts |= {"application": f"digest-{driver}", "queries": queries}
        facts |= {"idle_at": "now"} if self.idle else {}
        facts |= {"waits": True} if driver in self.waiting else {}
        self.control.write_running(token, {**facts, "epoch": token.epoch, "run": token.run})

    def last(self) -> ActionResult:
        """Return the newest result."""
        return self.topic[-1]


FIRST, SECOND = "driver-1-0", "driver-1-1"
MINUTE = timedelta(seconds=60)
HANDED_OVER = ["accepted", "warming", "switching", "running", "retiring", "verified"]


@pytest.fixture
def world(tmp_path: Path) -> HandoverWorld:
    """A job of size 2 that runs."""
    world = HandoverWorld(tmp_path)
    world.start()
    return world


def test_files_that_break_in_the_switch_do_not_leave_the_job_paused(
    world: HandoverWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second driver cannot be let go, so it is ended, and the first one goes on at once."""
    let_go = Control.let_go

    def cannot_write(control: Control, order: HandoverOrder) -> None:
        if order.submission_id == SECOND:
            raise OSError("the disk is full")
        let_go(control, order)

    monkeypatch.setattr(Control, "let_go", cannot_write)
    assert world.carry(command()) is Phase.ROLLED_BACK
    assert world.phases() == ["accepted", "warming", "switching", "resuming", "rolled_back"]
    assert (world.last().code, world.last().parallelism) == ("BROKEN_FILES", 2)
    assert "the disk is full" in world.last().sentence
    assert world.alive() == [FIRST]
    assert world.seconds < 90


def test_a_first_driver_is_not_paused_for_a_second_one_that_has_ended(world: HandoverWorld) -> None:
    """It was ready, and died before the switch."""
    world.dies_ready = True
    assert world.carry(command()) is Phase.ROLLED_BACK
    assert world.last().code == "NOT_SWITCHED"
    assert world.control.hold() is None
    assert world.alive() == [FIRST]


def test_a_second_driver_takes_over(world: HandoverWorld) -> None:
    """The second driver starts while the first one runs, commits after it, and is the only one left."""
    assert world.carry(command()) is Phase.VERIFIED
    assert world.phases() == HANDED_OVER
    assert world.alive() == [SECOND]
    end = world.last()
    assert (end.way, end.parallelism, end.submission_id) == (Way.HANDOVER, 4, SECOND)
    assert (end.incarnation, end.application) == (f"app-{SECOND}", f"digest-{SECOND}")
    assert end.outage_seconds is not None
    assert end.delay_seconds is not None
    assert world.writers == sorted(world.writers), "the first driver wrote after the second one had"
    # and once more: the log and the control directory know which driver runs
    assert world.carry(command(to=6, epoch=8, command_id="again", from_parallelism=4)) is Phase.VERIFIED
    assert world.alive() == ["driver-1-2"]


@pytest.mark.parametrize(
    ("late", "idle", "stays"),
    [(0.0, False, 0.0), (9.0, False, 9.0), (1000.0, False, OTHERS_SECONDS), (1000.0, True, 0.0)],
)
def test_the_first_driver_stays_until_all_queries_have_committed(
    world: HandoverWorld, late: float, idle: bool, stays: float
) -> None:
    """Its end would take the processor from their first batches. But it does not wait for ever, nor if all are idle."""
    world.late_seconds, world.idle = late, idle
    assert world.carry(command()) is Phase.VERIFIED
    assert world.let_go_at is not None
    assert world.retired_at is not None
    assert stays <= world.retired_at - world.let_go_at < stays + 5


@pytest.mark.parametrize(("takes", "killed"), [(LEAVE_SECONDS - 5, False), (1000.0, True)])
def test_the_first_driver_is_given_time_to_leave(
    world: HandoverWorld, monkeypatch: pytest.MonkeyPatch, *, takes: float, killed: bool
) -> None:
    """Its script may have something to end, too; if it does not leave, it is killed, as it holds its slots."""
    obey, asked_at = HandoverWorld._obey, list[float]()
    kill, killed_at = HandoverWorld.kill, list[float]()

    def slowly(of: HandoverWorld, driver: str) -> None:
        if driver == FIRST and of.control.seconds_to_stop(of.tokens[FIRST]) is not None:
            asked_at.append(of.seconds)
            if of.seconds < asked_at[0] + takes:
                return
        obey(of, driver)

    def note(of: HandoverWorld, spec: JobSpec, driver: str) -> None:
        killed_at.append(of.seconds)
        kill(of, spec, driver)

    monkeypatch.setattr(HandoverWorld, "_obey", slowly)
    monkeypatch.setattr(HandoverWorld, "kill", note)
    assert world.carry(command()) is Phase.VERIFIED
    assert world.alive() == [SECOND]
    assert bool(killed_at) is killed
    assert all(LEAVE_SECONDS <= at - asked_at[0] < LEAVE_SECONDS + 2 for at in killed_at)


def test_the_next_restart_finds_the_driver_that_took_over(world: HandoverWorld) -> None:
    """After a handover a stop ends the second driver, which is known by its newer run."""
    world.carry(command())
    assert world.carry(command(CommandKind.STOP, to=0, epoch=8, command_id="stop")) is Phase.VERIFIED
    assert world.alive() == []


def test_a_second_driver_that_breaks_changes_nothing(world: HandoverWorld) -> None:
    """A new version that fails while it warms up leaves the first driver alone: the fence has not moved."""
    world.breaks = True
    fence = world.control.fence()
    assert world.carry(command()) is Phase.ROLLED_BACK
    assert world.phases() == ["accepted", "warming", "rolled_back"]
    assert (world.last().code, world.last().parallelism) == ("NOT_WARM", 2)
    assert "ended before it was ready" in world.last().sentence
    assert world.alive() == [FIRST]
    assert world.control.fence() == fence
    assert not world.paused


@pytest.mark.parametrize("fails", ["breaks", "late"])
def test_handovers_that_fail_again_and_again_do_not_fill_the_control_files(world: HandoverWorld, fails: str) -> None:
    """A ConfigMap holds 1 MiB, and nobody restarts a job that runs; what its driver has written stays."""
    world.breaks, world.pauses = fails == "breaks", False
    for number in range(30):
        later = world.now() + timedelta(seconds=60)
        order = command(epoch=7 + number, command_id=f"c{number}", expires_at=later)
        assert world.carry(order) is Phase.ROLLED_BACK
    assert len(world.control.runs()) <= 24
    assert len(list(Path(world.control.place).iterdir())) <= 80
    first = world.control.running(world.tokens[FIRST])
    assert first is not None
    assert first["submission_id"] == FIRST
    assert world.alive() == [FIRST]


def test_a_second_driver_that_works_for_too_long_is_not_said_to_have_made_no_progress(
    world: HandoverWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real clock goes on between two looks at it."""
    calls = [0]

    def monotonic(of: FakeWorld) -> float:
        calls[0] += 1
        return of.seconds + 1e-6 * calls[0]

    def not_ready(control: Control, token: Token) -> None:
        control.write_progress(token, {"finished_tasks": int(world.seconds)})

    monkeypatch.setattr(FakeWorld, "monotonic", monotonic)
    monkeypatch.setattr(Control, "ready", not_ready)
    spec = with_application(world.spec, start_deadline_seconds=6.0)
    assert world.carry(command(), spec=spec) is Phase.ROLLED_BACK
    assert "The second driver was not ready within 60 s, although it made progress: " in world.last().sentence
    assert "made no progress" not in world.last().sentence
    assert world.alive() == [FIRST]


@pytest.mark.parametrize("why", ["", "KeyError: 'a'"])
def test_a_second_driver_that_does_not_come_is_given_up(
    world: HandoverWorld, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """It is ended, so that it does not come later, and the result says why it did not, if the cluster knows."""
    obey = HandoverWorld._obey
    monkeypatch.setattr(HandoverWorld, "_obey", lambda of, driver: obey(of, driver) if driver == FIRST else None)
    monkeypatch.setattr(HandoverWorld, "log_tail", lambda *_: f"{why}\n")
    assert world.carry(command()) is Phase.ROLLED_BACK
    assert world.phases() == ["accepted", "warming", "rolled_back"]
    assert "The second driver made no progress for 60 s: the driver has not arrived." in world.last().sentence
    assert ("The reason: KeyError: 'a'" in world.last().sentence) is bool(why)
    assert ("The reason" in world.last().sentence) is bool(why)
    assert world.alive() == [FIRST]
    assert world.seconds < 90


def test_a_cluster_without_room_restarts_the_job(world: HandoverWorld) -> None:
    """If the second driver gets too few slots, it ends, and the job is restarted."""
    world.slots = 1
    assert world.carry(command()) is Phase.VERIFIED
    assert world.phases() == ["accepted", "warming", "stopping", "stopped", "starting", "running", "verified"]
    assert world.topic[-5].code == "NO_ROOM"
    assert world.last().way is Way.RESTART
    assert len(world.alive()) == 1


def test_a_cluster_without_room_leaves_a_job_that_must_not_restart(world: HandoverWorld) -> None:
    """Without a restart among the ways, the command fails, and the first driver goes on."""
    world.slots, world.ways = 1, (Way.HANDOVER,)
    assert world.carry(command()) is Phase.FAILED
    assert (world.last().code, world.alive()) == ("NO_ROOM", [FIRST])


def test_a_first_driver_that_does_not_pause_goes_on(world: HandoverWorld) -> None:
    """If no batch ends before the deadline, the second driver ends, and the first one goes on under a newer run."""
    world.pauses = False
    assert world.carry(command()) is Phase.ROLLED_BACK
    assert world.phases() == ["accepted", "warming", "switching", "resuming", "rolled_back"]
    assert world.last().code == "NOT_SWITCHED"
    assert "No batch of the first driver ended within 20 s" in world.last().sentence
    assert world.alive() == [FIRST]
    assert world.last().submission_id == FIRST


@pytest.mark.parametrize(
    ("ways", "queries", "seconds"),
    [((Way.HANDOVER,), "a", 600), ((Way.HANDOVER,), "ab", 20), ((Way.HANDOVER, Way.RESTART), "a", 20)],
)
def test_a_job_with_one_query_and_no_other_way_is_given_time(
    tmp_path: Path, ways: tuple[Way, ...], queries: str, seconds: float
) -> None:
    """A handover that fails would only be tried again; but of several queries, some would be paused all the time."""
    world = HandoverWorld(tmp_path, ways=ways, queries=queries, pauses=False)
    world.start()
    assert world.carry(command()) is Phase.ROLLED_BACK
    assert f"No batch of the first driver ended within {seconds} s" in world.last().sentence
    asked = world.control.hold()
    assert asked is not None
    assert asked.deadline_seconds == seconds


def test_a_cluster_that_does_not_answer_does_not_stop_a_handover(world: HandoverWorld) -> None:
    """While the first driver pauses, only its own answer counts."""
    world.goes_silent(at=Phase.RUNNING, seconds=15)
    assert world.carry(command()) is Phase.VERIFIED
    assert world.alive() == [SECOND]


def test_a_first_driver_that_stays_is_ended_although_its_cluster_is_silent_for_a_while(world: HandoverWorld) -> None:
    """It has paused, so it does no harm but for its slots; and nobody would know that it still holds them."""

    def away(result: ActionResult) -> None:
        if result.phase is Phase.RETIRING:
            world.obeys = False
            world.down_until = world.seconds + 60

    world.on_result = away
    assert world.carry(command()) is Phase.VERIFIED
    assert world.alive() == [SECOND]


def test_a_cluster_that_goes_silent_before_the_switch_costs_the_job_nothing(world: HandoverWorld) -> None:
    """Nobody can tell then whether the second driver is alive, nor end it: the first one goes on, not stopped."""
    world.goes_silent(at=Phase.SWITCHING, seconds=float("inf"))
    assert world.carry(command()) is Phase.FAILED
    assert world.last().code == "NO_ANSWER"
    assert FIRST in world.alive()
    assert world.control.hold() is None


def test_a_first_driver_that_does_not_answer_is_stopped(world: HandoverWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it obeys no order, while the cluster is silent or not, the second driver ends and the job is restarted."""
    obey = HandoverWorld._obey

    def deaf(of: HandoverWorld, driver: str) -> None:
        if driver != FIRST:
            obey(of, driver)

    def fail(result: ActionResult) -> None:
        if result.phase is Phase.SWITCHING:
            world.down_until = world.seconds + 3
            monkeypatch.setattr(HandoverWorld, "_obey", deaf)

    world.on_result = fail
    world.works = lambda size: size == 2
    assert world.carry(command()) is Phase.ROLLED_BACK
    assert world.phases()[2:5] == ["switching", "resuming", "stopping"]
    assert world.phases()[5:] == ["stopped", "starting", "running", "rolled_back"]
    assert FIRST not in world.alive()
    assert SECOND not in world.alive()


@pytest.mark.parametrize("past", ["known", "forgotten", "handed over"])
def test_a_first_driver_goes_on_although_its_cluster_is_silent(world: HandoverWorld, past: str) -> None:
    """The second driver was not let go, so it writes nothing, whether it is alive or not: the job need not stop.

    Kafka keeps results for 30 days; and an order to pause may be that of an earlier handover.
    """
    first = FIRST
    if past == "forgotten":
        world.topic.clear()
    elif past == "handed over":
        assert world.carry(command(epoch=6, command_id="before")) is Phase.VERIFIED
        first, world.dies_ready = SECOND, True
    world.pauses = False
    world.goes_silent(at=Phase.RESUMING, seconds=float("inf"))
    assert world.carry(command()) is Phase.ROLLED_BACK
    assert world.phases() == ["accepted", "warming", "switching", "resuming", "rolled_back"]
    assert first in world.alive()
    assert world.last().submission_id == first


def test_a_second_driver_that_is_let_go_too_late_does_not_run(
    world: HandoverWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An actuator was paused before it let it go, and wakes when its successor has seen that nobody did (I4)."""
    cannot_write = resume._cannot_write

    def wakes(drivers: JobDrivers, second_id: str) -> bool:
        found = cannot_write(drivers, second_id)
        drivers.control.let_go(HandoverOrder(Token(7, 2), second_id))
        return found

    monkeypatch.setattr(resume, "_cannot_write", wakes)
    monkeypatch.setattr(HandoverWorld, "kill", lambda *_: None)
    world.pauses = False
    world.goes_silent(at=Phase.RESUMING, seconds=float("inf"))
    assert world.carry(command()) is Phase.ROLLED_BACK
    assert world.last().submission_id == FIRST
    assert SECOND not in world.writers


def test_a_successor_lets_the_first_driver_go_on_although_its_cluster_is_silent(world: HandoverWorld) -> None:
    """The actuator that let it go had ended the second driver before."""
    world.works = lambda size: size == 2

    def die(result: ActionResult) -> None:
        if result.phase is Phase.RESUMING:
            world.die_after_go = True

    world.on_result = die
    with pytest.raises(Died):
        world.carry(command())
    assert world.alive() == [FIRST]
    world.works, world.down_until = (lambda _size: True), float("inf")
    assert world.carry(command(), owner="b") is Phase.ROLLED_BACK
    assert world.alive() == [FIRST]
    assert world.last().submission_id == FIRST


@pytest.mark.parametrize(("seconds", "end"), [(45, Phase.ROLLED_BACK), (float("inf"), Phase.FAILED)])
def test_a_first_driver_does_not_go_on_if_nobody_knows_whether_the_second_has_ended(
    world: HandoverWorld, seconds: float, end: Phase
) -> None:
    """The second one was let go: if it lives, both would write (I4). So both are asked to stop."""
    world.works = lambda size: size == 2
    world.goes_silent(at=Phase.RESUMING, seconds=seconds)
    assert world.carry(command()) is end
    assert world.phases()[4:6] == ["resuming", "stopping"]
    marker = world.control.stop_marker()
    assert marker is not None
    assert marker[0] > max(world.tokens[FIRST], world.tokens[SECOND])


@pytest.mark.parametrize("lingers", [0, 10])
def test_a_second_driver_that_commits_nothing_gives_way_to_the_first(
    world: HandoverWorld, monkeypatch: pytest.MonkeyPatch, lingers: int
) -> None:
    """It is ended before the first one goes on, which commits again; a kill may take its time (I4)."""
    world.works = lambda size: size == 2
    kill, asked_at = HandoverWorld.kill, list[float]()

    def slowly(of: HandoverWorld, spec: JobSpec, driver: str) -> None:
        asked_at.append(of.seconds)
        if of.seconds >= asked_at[0] + lingers:
            kill(of, spec, driver)

    monkeypatch.setattr(HandoverWorld, "kill", slowly)
    assert world.carry(command()) is Phase.ROLLED_BACK
    assert world.phases() == ["accepted", "warming", "switching", "running", "resuming", "rolled_back"]
    assert world.last().sentence.startswith("Size 4 failed: ")
    assert "The first driver goes on and has committed batch" in world.last().sentence
    assert world.alive() == [FIRST]
    assert (world.last().parallelism, world.last().application) == (2, f"digest-{FIRST}")
    world.works = lambda _size: True
    assert world.carry(command(epoch=8, command_id="again")) is Phase.VERIFIED


@pytest.mark.parametrize(
    ("stuck", "phases"),
    [(FIRST, [*HANDED_OVER[:-1], "failed"]), (SECOND, [*HANDED_OVER[:4], "resuming", "stopping", "failed"])],
)
def test_next_to_a_driver_that_cannot_be_ended_no_other_writes(
    world: HandoverWorld, monkeypatch: pytest.MonkeyPatch, stuck: str, phases: list[str]
) -> None:
    """A first driver that has handed over holds only its slots; after a second one that was let go none starts (I4)."""
    kill = HandoverWorld.kill

    def not_this_one(of: HandoverWorld, spec: JobSpec, driver: str) -> None:
        if driver != stuck:
            kill(of, spec, driver)

    monkeypatch.setattr(HandoverWorld, "kill", not_this_one)
    world.obeys = False
    world.works = lambda size: size == 2 or stuck == FIRST
    assert world.carry(command()) is Phase.FAILED
    assert world.phases() == phases
    assert world.last().code == "STOP_FAILED"
    go = world.control.go()
    assert go is not None
    assert go.submission_id == SECOND
    assert (FIRST in world.last().sentence) is (stuck == FIRST)


def test_a_first_driver_that_is_gone_cannot_go_on(world: HandoverWorld) -> None:
    """If the second driver fails and the first one has ended, the job is started with the last good size."""
    world.driver_ends(at=Phase.RUNNING, driver=FIRST, attempt=1)
    world.works = lambda size: size == 2
    assert world.carry(command()) is Phase.ROLLED_BACK
    assert world.phases()[4:] == ["resuming", "stopping", "stopped", "starting", "running", "rolled_back"]
    assert world.sizes[world.alive()[0]] == 2


@pytest.mark.parametrize("at", [Phase.SWITCHING, Phase.RUNNING], ids=["before it pauses", "while it is paused"])
def test_a_first_driver_that_is_killed_does_not_matter(world: HandoverWorld, at: Phase) -> None:
    """The second driver is let go, and goes on."""
    world.driver_ends(at=at, driver=FIRST)
    assert world.carry(command()) is Phase.VERIFIED
    assert world.phases() == HANDED_OVER
    assert world.alive() == [SECOND]


@pytest.mark.parametrize(
    ("at", "why"),
    [
        (Phase.ACCEPTED, "Not handover: 2 drivers of the job run."),
        (Phase.SWITCHING, f"More than one driver runs: {FIRST}, driver-1-9."),
    ],
)
def test_a_job_with_two_first_drivers_is_not_handed_over(world: HandoverWorld, at: Phase, why: str) -> None:
    """One that was thought to be gone has come back: only one of them could be told to pause (I4)."""
    late = "driver-1-9"

    def arrive(result: ActionResult) -> None:
        if result.phase is at:
            world.drivers[late], world.tokens[late], world.sizes[late] = DriverState.RUNNING, Token(0, 1), 2
            facts = {"submission_id": late, "application_id": f"app-{late}", "hands_over": True}
            world.control.write_running(Token(0, 1), {**facts, "epoch": 0, "run": 1})
            world.paused.add(late)

    world.on_result = arrive
    assert world.carry(command()) is (Phase.VERIFIED if at is Phase.ACCEPTED else Phase.ROLLED_BACK)
    assert any(why in result.sentence for result in world.topic)
    assert world.last().way is Way.RESTART
    assert len(world.alive()) == 1


def test_an_overtaken_actuator_lets_no_driver_go(world: HandoverWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its successor may have told the first driver to go on meanwhile (I4)."""

    def overtaken(location: str, files: Files) -> tuple[CheckpointMark, bool]:
        Claims(world.control).raise_fence(Token(7, 99), "b")
        return read_mark(location, files)

    monkeypatch.setattr(switch, "read_mark", overtaken)
    with pytest.raises(Abandoned, match="overtaken"):
        world.carry(command())
    assert world.control.go() is None


@pytest.mark.parametrize("dies", [False, True])
def test_a_first_driver_is_given_time_to_pause(
    world: HandoverWorld, monkeypatch: pytest.MonkeyPatch, *, dies: bool
) -> None:
    """Its batch goes on for five seconds; if it dies meanwhile, it is certainly gone, and nobody waits for longer."""
    obey, asked_at = HandoverWorld._obey, list[float]()

    def at_work(of: HandoverWorld, driver: str) -> None:
        if driver == FIRST and of.control.hold() is not None:
            asked_at.append(of.seconds)
            if dies and of.seconds >= asked_at[0] + 5:
                of.drivers[FIRST] = DriverState.ENDED
            if dies or of.seconds < asked_at[0] + 5:
                return
        obey(of, driver)

    monkeypatch.setattr(HandoverWorld, "_obey", at_work)
    assert world.carry(command()) is Phase.VERIFIED
    assert world.phases() == HANDED_OVER
    assert world.let_go_at is not None
    assert 5 <= world.let_go_at - asked_at[0] < 8


def test_nobody_waits_for_a_batch_if_the_second_driver_ends_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first driver is told to go on at once, in the middle of its batch, and not after ten minutes."""
    world = HandoverWorld(tmp_path, ways=(Way.HANDOVER,), queries="a", pauses=False)
    world.start()
    obey, asked_at = HandoverWorld._obey, []

    def at_work(of: HandoverWorld, driver: str) -> None:
        hold, go = of.control.hold(), of.control.go()
        if driver == FIRST and hold is not None and (go is None or go.token < hold.token):
            asked_at.append(of.seconds)
            if of.seconds > asked_at[0] + 20:
                of.drivers[SECOND] = DriverState.ENDED
        else:
            obey(of, driver)

    monkeypatch.setattr(HandoverWorld, "_obey", at_work)
    assert world.carry(command()) is Phase.ROLLED_BACK
    assert world.last().code == "NOT_SWITCHED"
    assert "The second driver ended while the first one finished its batch." in world.last().sentence
    assert world.alive() == [FIRST]
    assert world.seconds < asked_at[0] + 30


def test_a_second_driver_that_is_killed_while_it_waits_leaves_the_first(world: HandoverWorld) -> None:
    """Nobody is paused for a driver that is gone."""
    world.driver_ends(at=Phase.SWITCHING, driver=SECOND)
    assert world.carry(command()) is Phase.ROLLED_BACK
    assert world.alive() == [FIRST]
    assert not world.paused


def test_a_driver_that_cannot_hand_over_is_restarted(world: HandoverWorld) -> None:
    """A driver of an older version does not know the orders."""
    for token in world.control.runs():
        facts = world.control.running(token) or {}
        world.control.write_running(token, {name: value for name, value in facts.items() if name != "hands_over"})
    assert world.carry(command()) is Phase.VERIFIED
    assert world.last().way is Way.RESTART


@pytest.mark.parametrize("ways", [(Way.HANDOVER,), (Way.HANDOVER, Way.RESTART)])
def test_a_job_that_keeps_its_checkpoint_elsewhere_is_not_handed_over(
    world: HandoverWorld, ways: tuple[Way, ...]
) -> None:
    """The second driver would go on from another checkpoint than the first one's."""
    (token,) = world.control.runs()
    facts = world.control.running(token) or {}
    query = {"id": "a", "name": None, "checkpoint": "file:/tmp/temporary-1"}
    world.control.write_running(token, facts | {"queries": [query]})
    world.ways = ways
    assert world.carry(command()) is Phase.REJECTED
    assert world.last().code == CHECKPOINT_ELSEWHERE
    assert list(world.drivers) == world.alive() == [FIRST]


def test_a_successor_adopts_the_second_driver(world: HandoverWorld) -> None:
    """An actuator that finds a second driver under way does not start a third one."""
    world.die_at = ("before", Phase.SWITCHING)
    with pytest.raises(Died):
        world.carry(command())
    assert world.alive() == [FIRST, SECOND]
    assert world.carry(command(), owner="b") is Phase.VERIFIED
    assert world.alive() == [SECOND]
    assert len(world.drivers) == 2


def test_a_successor_waits_for_a_second_driver_that_has_not_arrived(
    world: HandoverWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The actuator died as it submitted it: nobody knows its id, and a third driver would find no room."""
    submit = HandoverWorld.submit

    def die(of: HandoverWorld, run: Submission) -> str:
        submit(of, run)
        raise Died

    monkeypatch.setattr(HandoverWorld, "submit", die)
    with pytest.raises(Died):
        world.carry(command())
    monkeypatch.setattr(HandoverWorld, "submit", submit)
    assert world.is_new(SECOND)
    assert world.carry(command(), owner="b") is Phase.VERIFIED
    assert world.alive() == [SECOND]
    assert len(world.drivers) == 2


def test_a_second_driver_whose_submission_was_not_answered_takes_over(
    world: HandoverWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it only waited until it ends by itself, the next change of size would have to be a restart."""
    submit = HandoverWorld.submit

    def unanswered(of: HandoverWorld, run: Submission) -> str:
        submit(of, run)
        raise BackendUnreachable("timed out")

    monkeypatch.setattr(HandoverWorld, "submit", unanswered)
    assert world.carry(command()) is Phase.VERIFIED
    assert world.phases() == HANDED_OVER
    assert world.alive() == [SECOND]
    assert len(world.drivers) == 2


def test_a_second_driver_that_came_too_late_does_not_stand_in_the_way(
    world: HandoverWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for a quarter of an hour; until then the next change of size would be a restart, or refused."""
    submit = HandoverWorld.submit

    def unanswered(of: HandoverWorld, run: Submission) -> str:
        of.asked_at[submit(of, run)] += ARRIVAL_SECONDS + 10
        raise BackendUnreachable("timed out")

    monkeypatch.setattr(HandoverWorld, "submit", unanswered)
    world.ways = (Way.HANDOVER,)
    assert world.carry(command()) is Phase.ROLLED_BACK
    assert world.last().code == "NOT_SUBMITTED"
    monkeypatch.setattr(HandoverWorld, "submit", submit)
    for _ in range(40):
        world.tick()
        world.seconds += 1
    assert world.control.ready(world.tokens[SECOND]) is not None
    assert world.alive() == [FIRST, SECOND]
    assert world.carry(command(epoch=8, command_id="next", expires_at=world.now() + MINUTE)) is Phase.VERIFIED
    assert world.last().way is Way.HANDOVER
    assert world.alive() == ["driver-1-2"]


@pytest.mark.parametrize("late", [0.0, 30.0])
def test_two_second_drivers_of_one_command_are_no_reason_for_a_restart(
    world: HandoverWorld, monkeypatch: pytest.MonkeyPatch, late: float
) -> None:
    """The actuator died, and the driver that it had submitted came late. The first that arrives takes over."""
    submit = HandoverWorld.submit

    def die(of: HandoverWorld, run: Submission) -> str:
        of.asked_at[submit(of, run)] += ARRIVAL_SECONDS + late
        raise Died

    monkeypatch.setattr(HandoverWorld, "submit", die)
    with pytest.raises(Died):
        world.carry(command())
    monkeypatch.setattr(HandoverWorld, "submit", submit)
    assert world.carry(command(), owner="b") is Phase.VERIFIED
    assert len(world.drivers) == 3
    assert world.phases() == HANDED_OVER
    for _ in range(60):
        world.tick()
        world.seconds += 1
    assert len(world.alive()) == 1


@pytest.mark.parametrize("works", [True, False])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("phase", ["accepted", "warming", "switching", "running", "retiring", "resuming"])
def test_an_actuator_may_die_at_any_point(world: HandoverWorld, phase: str, when: str, *, works: bool) -> None:
    """A successor carries the command to its end: one driver is left, one wrote at a time, each result once."""
    world.works = lambda size: works or size == 2
    world.die_at = (when, Phase(phase))
    reached = phase != ("resuming" if works else "retiring")
    if reached:
        with pytest.raises(Died):
            world.carry(command())
    end = world.carry(command(), owner="b")
    assert end is (Phase.VERIFIED if works else Phase.ROLLED_BACK)
    assert len(world.alive()) == 1
    told = [result.result_id for result in world.topic if result.command_id == "c"]
    assert len(told) == len(set(told))
    before, _ = read_mark(world.spec.application.checkpoint_location)
    for _ in range(3):
        world.tick()
    after, _ = read_mark(world.spec.application.checkpoint_location)
    assert after != before, "nobody writes any more"
