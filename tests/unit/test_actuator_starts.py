"""Starts and stops that understand what they see, against the simulated cluster."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from services.actuator.actions.start_deadline import StartDeadline, StartProgress, going_back_could_help
from services.actuator.backends import BackendUnreachable, DriverState
from tests.support.events import command, with_application
from tests.support.fake_world import FakeWorld
from tidegate.events.command import CommandKind
from tidegate.events.job import JobSpec
from tidegate.events.result import ActionResult, Phase
from tidegate.events.way import Way
from tidegate.launcher.control.files import Token


@dataclass
class StartingWorld(FakeWorld):
    """A cluster whose drivers tell how far they have come."""

    says: Callable[[str], dict[str, Any]] = lambda _driver: {}
    """What a driver has written about itself, beyond its names."""
    tasks: Callable[[float], int | None] = lambda _seconds: None
    """How many of 100 tasks of its first batch a driver has finished so long after its submission; None: no batch."""
    committed: bool = False
    """Whether drivers say that they have committed a batch."""
    commits_late: bool = False
    """Whether a driver commits a batch when it is asked to stop."""
    extension: float | None = None
    """How many seconds longer than the deadline a driver needs to stop, and says so at the deadline."""
    stop_asked_at: dict[str, float] = field(default_factory=dict)
    log_text: str | Exception = ""
    hindrance: str = ""
    """Why no driver arrives, as the cluster says; if it is empty, drivers do."""

    @override
    def reason(self, spec: JobSpec, submission_id: str) -> str:
        return self.hindrance

    @override
    def log_tail(self, spec: JobSpec, submission_id: str, token: Token) -> str:
        if isinstance(self.log_text, Exception):
            raise self.log_text
        return self.log_text

    @override
    def tick(self) -> None:
        if self.hindrance:
            return
        marker = self.control.stop_marker()
        for driver in self.alive():
            token = self.tokens[driver]
            facts = self.control.running(token)
            if facts is None:
                continue
            if marker and marker[0] > token:
                if self.commits_late:
                    self.commit()
                if self.extension is not None:
                    self._take_longer(driver, marker[1], self.extension)
                continue
            if not self.says(driver).items() <= facts.items():
                self.control.write_running(token, {**facts, **self.says(driver)})
            done = self.tasks(self.seconds - self.asked_at[driver])
            batch = {"query_id": "q", "batch_id": 0, "done": done, "tasks": 100, "since": 0.0}
            told: dict[str, Any] = {"finished_tasks": done or 0, "committed": {"q": 0} if self.committed else {}}
            told["batches"] = [] if done is None else [batch]
            if self.control.progress(token) != told:
                self.control.write_progress(token, told)
        super().tick()

    def _take_longer(self, driver: str, deadline: float, extension: float) -> None:
        took = self.seconds - self.stop_asked_at.setdefault(driver, self.seconds)
        if took >= deadline:
            facts = self.control.running(self.tokens[driver]) or {}
            self.control.write_running(self.tokens[driver], {**facts, "stop_extended_seconds": max(10.0, extension)})
        if took >= deadline + extension:
            self.drivers[driver] = DriverState.ENDED


@pytest.fixture
def world(tmp_path: Path) -> StartingWorld:
    """An empty cluster; a new driver has 60 s to show progress, and 20 s to stop."""
    return StartingWorld(tmp_path)


def _one_task_each(every: float) -> Callable[[float], int | None]:
    """Return a batch of 100 tasks of which one finishes every so many seconds, and which is then committed."""
    return lambda seconds: int(seconds / every) if seconds < 100 * every else None


def _slowly(world: StartingWorld, every: float, before: int = 2) -> None:
    """Let a first batch take `every` seconds per task, except at the size `before`."""
    world.tasks = _one_task_each(every)
    world.works = lambda size: size == before or world.seconds - max(world.asked_at.values()) >= 100 * every


def test_a_slow_first_batch_that_makes_progress_is_waited_for(
    world: StartingWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """A batch of 500 s is no failure, although the deadline is 60 s; the log says now and then how far it is."""
    world.start()
    _slowly(world, 5)
    with caplog.at_level(logging.INFO):
        assert world.carry(command(first_batch_seconds=200.0)) is Phase.VERIFIED
    assert list(world.sizes.values()) == [2, 4]
    said = [line for line in caplog.messages if "tasks of the first batch have finished" in line]
    assert 10 < len(said) < 50
    assert "job rates: run 7-1 starts: 51 of 100 tasks of the first batch have finished" in said


def test_a_run_that_makes_progress_outlives_its_clusters_silence(world: StartingWorld) -> None:
    """A master or an API server that is away for minutes ends no driver, so a job that works is not stopped for it."""
    world.start()
    _slowly(world, 5)
    world.goes_silent(at=Phase.RUNNING, seconds=300)
    assert world.carry(command(first_batch_seconds=200.0)) is Phase.VERIFIED
    assert list(world.sizes.values()) == [2, 4]


def test_a_run_that_dies_while_its_cluster_is_silent_is_noticed(world: StartingWorld) -> None:
    """Then nothing new is in its files, for as long as a start may take without progress."""
    world.start()
    _slowly(world, 5)

    def away(result: ActionResult) -> None:
        if result.phase is Phase.RUNNING and result.attempt == 1:
            world.down_until = world.seconds + 400
            world.tasks = lambda seconds: min(3, int(seconds / 5))

    world.on_result = away
    assert world.carry(command()) is not Phase.VERIFIED
    running, stopping = (
        next(r for r in world.topic if (r.phase, r.attempt) == of) for of in [(Phase.RUNNING, 1), (Phase.STOPPING, 2)]
    )
    assert 60 < (stopping.at - running.at).total_seconds() < 120


def test_what_hinders_a_driver_is_in_the_log_long_before_its_deadline(
    world: StartingWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """A wrong image is told after 15 s, although the start goes on for 60: somebody may push the image."""
    world.hindrance = "ErrImagePull: no such image"
    assert world.carry(command(CommandKind.START, from_parallelism=0)) is Phase.FAILED
    said = [line.levelname for line in caplog.records if line.message.endswith("The reason: " + world.hindrance)]
    assert said == ["WARNING"] * 4


def test_a_failed_start_leaves_no_driver_that_has_not_arrived(world: StartingWorld) -> None:
    """It would look as if the job started, for ever, also after somebody has corrected the image in the spec."""
    world.hindrance = "ErrImagePull: no such image"
    assert world.carry(command(CommandKind.START, from_parallelism=0, epoch=1, command_id="first")) is Phase.FAILED
    assert not world.alive()
    assert world.topic[-1].sentence.endswith("The reason: ErrImagePull: no such image. The driver was ended.")
    world.hindrance = ""
    assert world.carry(command(CommandKind.START, from_parallelism=0)) is Phase.VERIFIED


def test_a_failed_start_leaves_a_driver_that_waits_for_room(
    world: StartingWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node autoscaler may need longer than the deadline, and another job may end: then it runs."""
    world.hindrance = "No node takes the driver's pod: 0/3 nodes are available"
    monkeypatch.setattr(world, "state", lambda _spec, _driver: DriverState.PENDING)
    assert world.carry(command(CommandKind.START, from_parallelism=0)) is Phase.FAILED
    assert len(world.alive()) == 1


def test_a_failed_start_leaves_a_driver_that_has_arrived(world: StartingWorld) -> None:
    """It may only be slow, and whoever looks finds what it does."""
    world.works = lambda _size: False
    assert world.carry(command(CommandKind.START, from_parallelism=0)) is Phase.FAILED
    assert len(world.alive()) == 1


@pytest.mark.parametrize(("every", "code"), [(5.0, "FIRST_BATCH"), (0.04, "OK")])
def test_a_start_is_over_when_its_first_batch_is_at_work(world: StartingWorld, every: float, code: str) -> None:
    """Half an interval after a task of a batch of 500 s has finished, the job is measured and may grow in place.

    A batch of four seconds is waited for: its commit says more.
    """
    world.resizable = True
    world.tasks = _one_task_each(every)
    world.works = lambda _size: bool(world.asked_at) and world.seconds - max(world.asked_at.values()) >= 100 * every
    assert world.carry(command(CommandKind.START, to=2, epoch=1, command_id="first")) is Phase.VERIFIED
    end = world.topic[-1]
    assert (end.code, end.parallelism, end.incarnation) == (code, 2, "app-driver-1-0")
    assert world.seconds < 25
    if code == "FIRST_BATCH":
        assert end.sentence == "The new driver works: 2 of 100 tasks of the first batch have finished."
    assert world.carry(command(to=4)) is Phase.VERIFIED
    assert (world.topic[-1].way, len(world.drivers)) == (Way.IN_PLACE, 1)
    assert world.seconds < 100


def test_a_start_whose_tasks_never_finish_is_taken_back(world: StartingWorld) -> None:
    """A driver that shows no finished task has not worked: its start fails, after one more with the last good size."""
    world.start()
    assert world.carry(command(CommandKind.STOP, to=0, epoch=2, command_id="second")) is Phase.VERIFIED
    world.tasks = lambda _seconds: 0
    world.works = lambda _size: False
    assert world.carry(command(CommandKind.START, to=4, from_parallelism=0)) is Phase.FAILED
    assert list(world.sizes.values()) == [2, 4, 2]
    assert "0 of 100 tasks of the first batch have finished" in world.topic[-1].sentence


def test_growth_is_not_taken_back_because_its_first_batch_is_long(world: StartingWorld) -> None:
    """More came than was expected: a batch of 500 s instead of 5 s. With fewer slots it would take even longer."""
    world.start()
    _slowly(world, 5)
    assert world.carry(command(first_batch_seconds=5.0)) is Phase.VERIFIED
    assert list(world.sizes.values()) == [2, 4]


def test_a_second_attempt_is_not_given_up_because_its_first_batch_is_long(world: StartingWorld) -> None:
    """Nothing is left to go back to, and the work that it has done would be lost."""
    world.start(4)
    world.tasks = lambda seconds: int(seconds / 5.0) if list(world.sizes.values())[-1] == 4 else 0
    world.works = lambda size: size == 4 and world.seconds - max(world.asked_at.values()) >= 500.0
    assert world.carry(command(to=2, from_parallelism=4, first_batch_seconds=5.0)) is Phase.ROLLED_BACK
    assert list(world.sizes.values()) == [4, 2, 4]


def test_a_first_batch_with_fewer_slots_may_take_three_times_as_long_as_expected(world: StartingWorld) -> None:
    """A batch of 500 s, expected to take 50 s, ends the attempt after 60 + 3 * 50 s, with what it had done."""
    world.start(4)
    _slowly(world, 5, before=4)
    shrink = command(to=2, from_parallelism=4, first_batch_seconds=50.0)
    assert world.carry(shrink) is Phase.ROLLED_BACK
    failed = next(r for r in world.topic if r.attempt == 2)
    assert failed.code == "NOT_VERIFIED"
    assert failed.sentence == (
        "The new driver committed no batch within 210 s, although it made progress: 42 of 100 tasks of the first batch"
        " have finished; 50 s were expected for the first batch. If it needs longer, raise"
        " application.start_deadline_seconds."
    )
    assert failed.details["first_batch_tasks_done"] == 42
    assert failed.details["first_batch_tasks"] == 100
    assert failed.details["waits_for"] == "a finished task"


def test_progress_that_ends_is_noticed(world: StartingWorld) -> None:
    """The deadline counts from the last finished task: a batch that gets stuck is given up 60 s later."""
    world.start()
    world.tasks = lambda seconds: min(int(seconds), 30)
    world.works = lambda size: size == 2
    assert world.carry(command()) is Phase.ROLLED_BACK
    running, failed = (
        next(r for r in world.topic if (r.command_id, r.phase, r.attempt) == ("c", phase, attempt))
        for phase, attempt in ((Phase.RUNNING, 1), (Phase.STOPPING, 2))
    )
    assert 89 < (failed.at - running.at).total_seconds() < 95
    assert "30 of 100 tasks of the first batch have finished" in failed.sentence


@pytest.mark.parametrize(
    ("first_batch", "signs", "until"),
    [
        (None, {}, 60),
        (None, {5: StartProgress(arrived=True), 9: StartProgress(arrived=True, registered=True)}, 69),
        (100.0, {10: StartProgress(arrived=True, batches=1, tasks=6)}, 170),
        (None, {n: StartProgress(finished_tasks=n) for n in range(0, 5000, 10)}, 600),
        (20.0, {n: StartProgress(finished_tasks=n) for n in range(0, 5000, 10)}, 120),
    ],
    ids=["nothing", "registered", "few long tasks", "no expectation", "short expectation"],
)
def test_the_deadline_of_a_start(first_batch: float | None, signs: dict[int, StartProgress], until: int) -> None:
    """It counts from the last sign of progress, and has an end all the same."""
    deadline, seen = StartDeadline(60.0, first_batch, now=0.0, elapsed=0.0), StartProgress()
    for second in range(2000):
        seen = signs.get(second, seen)
        if deadline.see(seen, float(second)) is not None:
            assert second == until + 1
            return
    raise AssertionError("it never ends")


@pytest.mark.parametrize(("to", "attempt", "could"), [(4, 1, False), (2, 1, True), (1, 1, True), (1, 2, False)])
def test_going_back_could_help_against_fewer_slots_or_another_application(to: int, attempt: int, could: bool) -> None:
    """From size 2; a second attempt has nothing to go back to."""
    assert going_back_could_help(command(to=to), attempt) is could


STARTED = StartProgress(arrived=True, registered=True, queries=1)


@pytest.mark.parametrize(
    ("progress", "waits_for", "text"),
    [
        (StartProgress(), "the driver", "the driver has not arrived"),
        (StartProgress(arrived=True), "the application", "the driver has arrived, but has not started a query"),
        (replace(STARTED, queries=0), "the first batch", "the application has registered, but no query has started"),
        (STARTED, "the first batch", "the query has started, but no task has"),
        (replace(STARTED, batches=1), "a finished task", "the query has started, but no task has"),
        (
            replace(STARTED, batches=1, tasks=1000, tasks_done=1),
            "a finished task",
            "1 of 1,000 tasks of the first batch have finished",
        ),
    ],
)
def test_a_start_says_how_far_it_has_come(progress: StartProgress, waits_for: str, text: str) -> None:
    """And what comes next: each needs another look by whoever reads that it came no further."""
    assert (progress.waits_for, progress.text) == (waits_for, text)
    assert ("first_batch_tasks" in progress.details) is (progress.tasks > 0)


def test_a_deadline_without_limit_counts_from_the_last_sign_alone() -> None:
    """A task every 10 s for an hour is enough, however long the batch was expected to take; then 60 s are not."""
    deadline = StartDeadline(60.0, None, now=0.0, elapsed=0.0, limited=False)
    for second in range(3600):
        assert deadline.see(StartProgress(finished_tasks=second // 10), float(second)) is None
    assert deadline.see(StartProgress(finished_tasks=359), 3660.0) is not None


@pytest.mark.parametrize(("first_batch", "hours"), [(None, 24), (3600.0, 24), (36_000.0, 30)])
def test_a_deadline_without_limit_has_an_end_all_the_same(first_batch: float | None, hours: int) -> None:
    """A job that finishes tasks but never a batch cannot be stopped, scaled or handed over while it is verified."""
    deadline = StartDeadline(60.0, first_batch, now=0.0, elapsed=0.0, limited=False)
    ended = None
    for minute in range(3 * 24 * 60):
        ended = deadline.see(StartProgress(finished_tasks=minute), 60.0 * minute)
        if ended is not None:
            assert minute == hours * 60 + (2 if hours == 30 else 1)
            assert "although it made progress" in ended
            return
    raise AssertionError("it never ends")


def test_a_commit_during_the_rollback_ends_the_rollback(world: StartingWorld) -> None:
    """The batch that was given up is committed by the stop, so the ordered size is started again, and verified."""
    world.start()
    world.commits_late = True
    world.works = lambda size: size == 2 or len(world.sizes) == 3
    assert world.carry(command()) is Phase.VERIFIED
    assert list(world.sizes.values()) == [2, 4, 4]
    assert [r.attempt for r in world.topic if r.command_id == "c"][-4:] == [3, 3, 3, 3]
    stopped = next(r for r in world.topic if (r.phase, r.attempt) == (Phase.STOPPED, 3))
    assert "had committed batch" in stopped.sentence
    assert (world.topic[-1].parallelism, world.topic[-1].code) == (4, "OK")
    assert world.most_alive == 1


def test_a_commit_of_the_old_run_is_none_of_the_new_one(world: StartingWorld) -> None:
    """The old driver commits its last batch as it stops; a new one that never comes up is rolled back all the same."""
    world.start()
    world.commits_late = True
    world.driver_ends(at=Phase.RUNNING, driver="driver-1-1", attempt=1)
    assert world.carry(command()) is Phase.ROLLED_BACK


@pytest.mark.parametrize(("extension", "killed"), [(9.0, False), (60.0, True)])
def test_a_stop_waits_for_a_batch_that_is_nearly_done(world: StartingWorld, extension: float, killed: bool) -> None:
    """The driver says at its deadline that it needs longer; the kill waits for half the deadline, and no longer."""
    world.start()
    world.obeys, world.extension = False, extension
    assert world.carry(command(CommandKind.STOP, to=0)) is Phase.VERIFIED
    stopped = next(r for r in world.topic if r.command_id == "c" and r.phase is Phase.STOPPED)
    assert stopped.details["extended_seconds"] == 10.0
    assert stopped.details["killed"] is killed
    assert 29 <= float(stopped.details["stop_seconds"]) < 45


def _says(world: StartingWorld, checkpoint: str) -> None:
    """Let every driver of the world keep its checkpoint there, where the actuator does not look."""
    world.says = lambda _driver: {"queries": [{"id": "q", "name": None, "checkpoint": checkpoint}]}


def test_a_checkpoint_elsewhere_is_told_and_no_failure(world: StartingWorld) -> None:
    """A run with a temporary checkpoint is verified by what its driver says; the result has both paths."""
    _says(world, "file:/tmp/temporary-1")
    world.works, world.committed = (lambda _size: False), True
    assert world.carry(command(CommandKind.START, from_parallelism=0)) is Phase.VERIFIED
    end = world.topic[-1]
    assert end.code == "CHECKPOINT_ELSEWHERE"
    assert "file:/tmp/temporary-1, a temporary folder; the spec says" in end.sentence
    assert f"{world.folder / 'ck'}." in end.sentence
    assert end.incarnation == "app-driver-1-0"


def test_an_idle_query_with_a_checkpoint_elsewhere_is_told_too(world: StartingWorld) -> None:
    """Without data there is no commit anywhere."""
    query = {"id": "q", "name": "counts", "checkpoint": "s3a://bucket/ck"}
    world.says = lambda _driver: {"idle_at": "now", "queries": [query]}
    world.works = lambda _size: False
    assert world.carry(command(CommandKind.START, from_parallelism=0)) is Phase.VERIFIED
    assert world.topic[-1].code == "CHECKPOINT_ELSEWHERE"
    assert "Query counts keeps its checkpoint at s3a://bucket/ck; the spec says" in world.topic[-1].sentence


def test_a_job_with_its_checkpoint_elsewhere_is_not_restarted(world: StartingWorld) -> None:
    """A rescale is rejected before anything is stopped; a stop is carried out."""
    _says(world, "file:/tmp/temporary-1")
    world.start()
    assert world.carry(command()) is Phase.REJECTED
    assert world.topic[-1].code == "CHECKPOINT_ELSEWHERE"
    assert list(world.drivers.values()) == [DriverState.RUNNING]
    assert world.carry(command(CommandKind.STOP, to=0, epoch=8, command_id="stop")) is Phase.VERIFIED


def test_a_job_with_its_checkpoint_elsewhere_is_not_scaled_to_zero(world: StartingWorld) -> None:
    """Its next run would start from scratch, so it runs on; with `running: false` it is stopped all the same."""
    _says(world, "file:/tmp/temporary-1")
    world.start()
    world.wanted = {"min_parallelism": 0}
    assert world.carry(command(CommandKind.STOP, to=0, command_id="zero")) is Phase.FAILED
    assert world.topic[-1].code == "CHECKPOINT_ELSEWHERE"
    assert list(world.drivers.values()) == [DriverState.RUNNING]
    world.wanted = {"min_parallelism": 0, "running": False}
    assert world.carry(command(CommandKind.STOP, to=0, epoch=8, command_id="stop")) is Phase.VERIFIED


def test_a_job_goes_to_zero_and_back_through_the_actuator(world: StartingWorld) -> None:
    """The stop leaves no driver and a mark of the checkpoint; the start goes on from it with a newer fence."""
    world.start()
    world.wanted = {"min_parallelism": 0}
    assert world.carry(command(CommandKind.STOP, to=0, command_id="zero")) is Phase.VERIFIED
    assert set(world.drivers.values()) == {DriverState.ENDED}
    assert world.topic[-1].parallelism == 0
    stopped = next(r for r in world.topic if r.command_id == "zero" and r.phase is Phase.STOPPED)
    wake = command(CommandKind.START, epoch=8, from_parallelism=0, command_id="wake", first_batch_seconds=3.0)
    assert world.carry(wake) is Phase.VERIFIED
    assert (world.topic[-1].parallelism, world.topic[-1].delay_seconds is not None) == (4, True)
    again = next(r for r in world.topic if r.command_id == "wake" and r.phase is Phase.STOPPED)
    assert again.checkpoint == stopped.checkpoint
    assert world.carry(command(CommandKind.STOP, to=0, epoch=7, command_id="late")) is Phase.REJECTED


def test_a_job_with_its_checkpoint_elsewhere_is_not_restarted_by_another_way_either(
    world: StartingWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that has come to the stop by itself stops there: it fails, and the job runs on."""
    _says(world, "file:/tmp/temporary-1")
    world.start()
    monkeypatch.setattr("services.actuator.ways.first_elsewhere", lambda *_: None)
    assert world.carry(command()) is Phase.FAILED
    assert world.topic[-1].code == "CHECKPOINT_ELSEWHERE"
    assert world.topic[-1].sentence.endswith("The job runs on as it was.")
    assert list(world.drivers.values()) == [DriverState.RUNNING]
    marker = world.control.stop_marker()
    assert marker is None or marker[0] <= max(world.tokens.values()), "it is not asked to stop"


@pytest.mark.parametrize("below", ["", "/counts"])
def test_a_checkpoint_in_its_place_is_nothing_to_tell(world: StartingWorld, below: str) -> None:
    """The location itself and the folders in it are where the spec says."""
    _says(world, f"file:{world.folder}/ck{below}")
    world.start()
    assert world.carry(command()) is Phase.VERIFIED
    assert world.topic[-1].code == "OK"


@pytest.mark.parametrize(
    ("error", "log", "reason"),
    [
        ("x.TopicException: no such topic", "KeyError: 'a'\n", "x.TopicException: no such topic"),
        ("", "Traceback (most recent call last):\nKeyError: 'a'\n", "KeyError: 'a'"),
        ("", "Caused by: x.YException: no login with s3cr3t\n", "x.YException: no login with *****"),
    ],
    ids=["from the driver", "from its log", "without secrets"],
)
def test_a_failed_start_says_why(world: StartingWorld, error: str, log: str, reason: str) -> None:
    """The result of the failure and that of the rollback carry the exception."""
    world.start()
    app = world.spec.application
    spec = world.spec.model_copy(update={"application": app.model_copy(update={"env": {"DB_PASSWORD": "s3cr3t"}})})

    def die(result: ActionResult) -> None:
        if (result.phase, result.attempt, result.command_id) == (Phase.RUNNING, 1, "c"):
            world.drivers["driver-1-1"] = DriverState.ENDED
            world.log_text = log
            if error:
                facts = {"submission_id": "driver-1-1", "epoch": 7, "run": 1, "error": error}
                world.control.write_running(Token(7, 1), facts)

    world.on_result = die
    assert world.carry(command(), spec=spec) is Phase.ROLLED_BACK
    failed = next(r for r in world.topic if r.attempt == 2)
    assert failed.sentence == f"The new driver ended before its first batch. The reason: {reason}"
    end = world.topic[-1]
    assert end.code == "NOT_VERIFIED"
    assert end.sentence.startswith(f"Size 4 failed: {failed.sentence} Back at the last good size: The new driver")


def test_a_log_that_cannot_be_read_is_no_reason(world: StartingWorld) -> None:
    """If nobody knows why a driver ended, the result says only that it did."""
    world.log_text = BackendUnreachable("no answer")
    world.on_result = lambda result: (
        world.drivers.update({"driver-1-0": DriverState.ENDED}) if result.phase is Phase.RUNNING else None
    )
    assert world.carry(command(CommandKind.START, from_parallelism=0)) is Phase.FAILED
    assert world.topic[-1].sentence == "The new driver ended before its first batch."


def test_a_driver_that_has_not_arrived_does_not_outlive_its_clusters_silence(world: StartingWorld) -> None:
    """After a minute without an answer the attempt is given up, however long a start may take."""
    world.seconds, world.hindrance = 100.0, "no node has room"
    world.goes_silent(at=Phase.RUNNING, seconds=float("inf"))
    spec = with_application(world.spec, start_deadline_seconds=600.0)
    assert world.carry(command(CommandKind.START, from_parallelism=0), spec=spec) is Phase.FAILED
    running = next(r for r in world.topic if r.phase is Phase.RUNNING)
    assert "The cluster has not answered for 60 s." in world.topic[-1].sentence
    assert 60 < (world.topic[-1].at - running.at).total_seconds() < 65


def test_a_driver_that_the_cluster_has_forgotten_is_not_waited_for_long(world: StartingWorld) -> None:
    """If the master loses its state before the driver arrives, the attempt is given up after 30 s, not after 60."""
    world.on_result = lambda result: world.drivers.clear() if result.phase is Phase.RUNNING else None
    assert world.carry(command(CommandKind.START, from_parallelism=0)) is Phase.FAILED
    running = next(r for r in world.topic if r.phase is Phase.RUNNING)
    assert "has not known driver driver-1-0 for 30 s" in world.topic[-1].sentence
    assert (world.topic[-1].at - running.at).total_seconds() < 40
