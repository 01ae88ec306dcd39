"""Commands carried out against a simulated cluster and clock: no waiting, and faults in any order."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from services.actuator.actions import start_watch
from services.actuator.actions.moved import where_it_ran
from services.actuator.backends import Backend, DriverState, Submission
from services.actuator.backends.kubernetes import Kubernetes
from services.actuator.backends.local import Local
from services.actuator.backends.standalone import Standalone
from services.actuator.checkpoint import QueryCheckpoint, read_checkpoints
from services.actuator.command_log import CommandLog
from services.actuator.drivers import JobDrivers
from services.actuator.execute import CommandRunner
from services.actuator.task import Abandoned
from tests.support.clusters import on_kubernetes
from tests.support.command_log import command_log
from tests.support.events import START, command, with_application
from tests.support.fake_cluster import FakeCluster
from tests.support.fake_kubernetes import fake_kubernetes
from tests.support.fake_world import Died, FakeWorld, Waiting
from tidegate.events.command import CommandKind, ScalingCommand
from tidegate.events.job import Application, JobSpec, KubernetesPods
from tidegate.events.result import ActionResult, CheckpointMark, Phase
from tidegate.events.way import Way
from tidegate.launcher.control.claims import Claims
from tidegate.launcher.control.files import Control, Token
from tidegate.launcher.control.json_files import JsonFile, JsonFiles
from tidegate.remote.files import Files
from tidegate.runtime.producer import TooLarge


@pytest.fixture
def world(tmp_path: Path) -> FakeWorld:
    """An empty cluster."""
    return FakeWorld(tmp_path)


def test_a_rescale_stops_then_starts_then_verifies(world: FakeWorld) -> None:
    """The phases follow the protocol, the new driver has the new size, and two drivers are never alive at once."""
    world.start()
    assert world.carry(command()) is Phase.VERIFIED
    assert world.phases() == ["accepted", "stopping", "stopped", "starting", "running", "verified"]
    assert list(world.sizes.values()) == [2, 4]
    assert world.most_alive == 1
    last = world.topic[-1]
    assert last.incarnation == "app-driver-1-1"
    assert {"stop_seconds", "submit_seconds", "verify_seconds", "restart_seconds"} <= set(last.details)
    assert last.downtime_seconds is not None


def test_the_downtime_of_a_restart_is_the_gap_between_two_commits(
    world: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of that, the outage is what a batch would not have taken anyway; the engine learns what a change costs."""
    commit, instants = FakeWorld.commit, list[float]()

    def at_the_time_of_the_world(self: FakeWorld) -> None:
        commit(self)
        instants.append(self.now().timestamp())
        for name in ("offsets", "commits"):
            os.utime(self.folder / "ck" / name / str(len(instants) - 1), (instants[-1], instants[-1]))

    monkeypatch.setattr(FakeWorld, "commit", at_the_time_of_the_world)
    world.start()
    for _ in range(12):
        world.seconds += 2
        world.tick()
    assert world.carry(command()) is Phase.VERIFIED
    last, gap = world.topic[-1], max(later - earlier for earlier, later in pairwise(instants))
    assert last.downtime_seconds == gap > 4
    assert last.outage_seconds == gap - 2


def test_a_command_is_done_once(world: FakeWorld) -> None:
    """A command that is delivered again has no effect (I3)."""
    world.start()
    world.carry(command())
    told, drivers = len(world.topic), len(world.drivers)
    assert world.carry(command()) is None
    assert (len(world.topic), len(world.drivers)) == (told, drivers)


def _doubtful(world: FakeWorld, epoch: int, results: int) -> CommandLog:
    """Return the log of an actuator that has read some results, a record that cannot be read, and the others."""
    log = command_log(world.topic[:results])
    log.add_unreadable("rates", "rates", epoch)
    for one in world.topic[results:]:
        log.add(one)
    return log


@pytest.mark.parametrize("phase", ["accepted", "stopping", "stopped", "starting", "running", "verified"])
def test_a_command_whose_newest_result_cannot_be_read_is_not_repeated(world: FakeWorld, phase: str) -> None:
    """Whatever that result said, nothing is done (I3); a command ordered later finds what runs, and goes on."""
    world.start()
    known = len(world.topic)
    world.carry(command())
    del world.topic[known + world.phases().index(phase) :]
    drivers, log = dict(world.drivers), _doubtful(world, 60, len(world.topic))
    runner = CommandRunner(world, log, world, {"standalone": world}, world.publish, "b")
    assert runner.run(command(), world.spec, Waiting(world)) in {Phase.REJECTED, Phase.FAILED}
    assert world.topic[-1].code == "UNREADABLE_RESULT"
    assert world.drivers == drivers
    assert runner.run(command(), world.spec, Waiting(world)) is None
    later = command(to=6, epoch=61, command_id="later", expires_at=world.now() + timedelta(seconds=120))
    assert runner.run(later, world.spec, Waiting(world)) is Phase.VERIFIED
    assert world.most_alive == 1


def test_a_command_goes_on_from_a_result_that_came_after_the_one_that_cannot_be_read(world: FakeWorld) -> None:
    """The newest result tells how far it has come; so does the last one of a command that has ended."""
    world.start()
    known = len(world.topic)
    world.die_at = ("after", Phase.STARTING)
    with pytest.raises(Died):
        world.carry(command())
    log = _doubtful(world, 60, known + 1)
    runner = CommandRunner(world, log, world, {"standalone": world}, world.publish, "b")
    assert runner.run(command(), world.spec, Waiting(world)) is Phase.VERIFIED
    assert world.most_alive == 1
    log.add_unreadable("rates", "rates", 60)
    assert runner.run(command(), world.spec, Waiting(world)) is None


@pytest.mark.parametrize("late", [0.0, 1e6], ids=["in time", "expired"])
def test_a_command_that_was_taken_away_before_it_began_says_nothing(world: FakeWorld, late: float) -> None:
    """Whoever has its partition now may have ended it; a second last result would contradict that (I2)."""
    world.start()
    told, gone = len(world.topic), Waiting(world)
    gone.set()
    world.seconds += late
    log = command_log(world.topic)
    runner = CommandRunner(world, log, world, {"standalone": world}, world.publish, owner="a")
    with pytest.raises(Abandoned):
        runner.run(command(), world.spec, gone)
    assert len(world.topic) == told


def test_a_successor_whose_clock_is_behind_ends_the_command(world: FakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A duration below zero is none: it cannot be published."""
    world.start()
    world.die_at = ("after", Phase.RUNNING)
    with pytest.raises(Died):
        world.carry(command())
    monkeypatch.setattr(FakeWorld, "now", lambda self: START + timedelta(seconds=self.seconds - 3600))
    assert world.carry(command(), owner="b") is Phase.VERIFIED
    assert world.topic[-1].delay_seconds == 0.0


def test_a_checkpoint_is_watched_no_longer_by_a_clock_that_is_behind(
    world: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stop may have been told by another machine's clock; a job that is asleep must start at once all the same."""
    world.start()
    assert world.carry(command(CommandKind.STOP, to=0, epoch=2, command_id="stop")) is Phase.VERIFIED
    monkeypatch.setattr(FakeWorld, "now", lambda self: START + timedelta(seconds=self.seconds - 3600))
    began = world.seconds
    assert world.carry(command(CommandKind.START, to=2, epoch=3, command_id="again")) is Phase.VERIFIED
    assert world.seconds - began < 60


def test_files_that_fail_for_a_moment_late_in_an_action_do_not_fail_the_command(
    world: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time for another try begins with the failure, not with the action: a first batch may take hours."""
    world.start()
    known, failures = read_checkpoints, [45.0, 130.0]

    def ends_tasks(_size: int) -> bool:
        world.control.write_progress(max(world.tokens.values()), {"finished_tasks": int(world.seconds)})
        return world.seconds > 180

    world.works = ends_tasks

    def fails_at_times(location: str, files: Files) -> list[QueryCheckpoint]:
        if failures and world.seconds > failures[0]:
            failures.pop(0)
            raise OSError(errno.EIO, "the disk does not answer")
        return known(location, files)

    monkeypatch.setattr(start_watch, "read_checkpoints", fails_at_times)
    assert world.carry(command()) is Phase.VERIFIED
    assert not failures


@pytest.mark.parametrize(
    ("seconds", "error", "code"),
    [
        (30, OSError(errno.EIO, "the disk does not answer"), "BROKEN_FILES"),
        (90, KeyError("queries"), "UNEXPECTED"),
    ],
)
def test_what_fails_slowly_fails_the_command_all_the_same(
    world: FakeWorld, monkeypatch: pytest.MonkeyPatch, seconds: int, error: Exception, code: str
) -> None:
    """Half a minute for a dead disk does not show that the files could be used meanwhile, nor any time a mistake."""
    world.start()
    tries: list[float] = []

    def hangs(location: str, files: Files) -> list[QueryCheckpoint]:
        tries.append(world.seconds)
        world.seconds += seconds
        if len(tries) > 10:
            raise Died  # it would be tried for ever
        raise error

    monkeypatch.setattr(start_watch, "read_checkpoints", hangs)
    assert world.carry(command()) is Phase.FAILED
    assert world.topic[-1].code == code
    assert len(tries) > 1


def test_a_command_for_an_unknown_backend_is_rejected_and_the_actuator_goes_on(world: FakeWorld) -> None:
    """This actuator may be of an older version than the spec; other jobs must not wait for it."""
    spec = with_application(world.spec, backend="yarn", master="yarn", rest_url="http://rm:8088", master_ui_url=None)
    assert world.carry(command(CommandKind.START), spec=spec) is Phase.REJECTED
    assert world.topic[-1].code == "NO_BACKEND"


@dataclass
class Moved:
    """The job runs on one cluster, and its spec names another one."""

    world: FakeWorld
    other: FakeCluster

    @property
    def spec(self) -> JobSpec:
        """The new spec."""
        moved = {"backend": "yarn", "master": "yarn", "rest_url": "http://rm:8088", "master_ui_url": None}
        return with_application(self.world.spec, **moved)

    def carry(self, of: ScalingCommand) -> Phase | None:
        """Carry out a command as another actuator that has the new spec."""
        clusters = {"standalone": self.world, "yarn": self.other}
        runner = CommandRunner(self.world, command_log(self.world.topic), self.world, clusters, self.world.publish, "b")
        return runner.run(of, self.spec, Waiting(self.world))


@pytest.fixture
def moved(world: FakeWorld) -> Moved:
    """A job that runs, and whose spec then names another cluster."""
    world.start()
    return Moved(world, FakeCluster(world.folder))


@pytest.mark.parametrize("kind", list(CommandKind))
def test_a_job_that_runs_on_another_cluster_is_left_alone(moved: Moved, kind: CommandKind) -> None:
    """Two drivers must not write to one checkpoint (I4): the refusal names the fields, and what to do."""
    world, asked_before = moved.world, moved.world.control.stop_marker()
    assert moved.carry(command(kind, to=0 if kind is CommandKind.STOP else 4)) is Phase.REJECTED
    last = world.topic[-1]
    assert last.code == "OTHER_CLUSTER"
    assert "application.master: spark://127.0.0.1:7077 -> yarn" in last.sentence
    assert "running: false" in last.sentence
    assert not moved.other.drivers
    assert world.control.stop_marker() == asked_before
    assert list(world.drivers.values()) == [DriverState.RUNNING]
    assert world.carry(command(epoch=8, command_id="back")) is Phase.VERIFIED, "with the old spec all goes on"


@pytest.mark.parametrize(
    "elsewhere",
    [
        {"backend": "standalone", "rest_url": "http://m:6066", "master_ui_url": "http://m:8080"},
        {"backend": "yarn", "rest_url": "http://rm:8088"},
        {"backend": "local", "master": "local[2]"},
        {"backend": "kubernetes", "kubernetes": KubernetesPods(namespace="jobs", image="spark")},
    ],
    ids=lambda elsewhere: str(elsewhere["backend"]),
)
def test_the_cluster_that_the_results_name_can_be_asked(world: FakeWorld, elsewhere: dict[str, Any]) -> None:
    """Whatever cluster the spec names now, the one of the results has a whole spec again."""
    places = {"script": "/r.py", "checkpoint_location": "/ck", "event_log_dir": "/events", "control_dir": "/control"}
    there = Application.model_validate(places | elsewhere)
    assert where_it_ran(world.spec, there.cluster).application.cluster == there.cluster
    here = world.spec.model_copy(update={"application": there})
    found = where_it_ran(here, world.spec.application.cluster).application
    assert found.cluster == world.spec.application.cluster
    assert found.kubernetes is None


def test_a_change_in_place_tells_on_which_cluster_the_job_runs(moved: Moved) -> None:
    """The result of the start may be gone: Kafka keeps results for 30 days, and older versions did not say it."""
    world = moved.world
    world.resizable = True
    world.topic = [r.model_copy(update={"details": {}}) if r.phase is Phase.STARTING else r for r in world.topic]
    facts = world.control.running(Token(1, 1))
    assert facts is not None
    world.control.write_running(Token(1, 1), {**facts, "max_parallelism": 8, "executor_cores": 1})
    assert world.carry(command(command_id="in place")) is Phase.VERIFIED
    assert "resizing" in world.phases("in place")
    assert moved.carry(command(epoch=8)) is Phase.REJECTED
    assert world.topic[-1].code == "OTHER_CLUSTER"


def test_a_job_that_has_ended_starts_on_another_cluster(moved: Moved) -> None:
    """The cluster on which it ran is asked: nobody runs there any more."""
    moved.world.drivers["driver-1-0"] = DriverState.ENDED
    moved.carry(command(CommandKind.START))
    assert moved.other.drivers
    assert moved.world.topic[-1].code != "OTHER_CLUSTER"


def test_a_job_that_was_stopped_starts_on_another_cluster_though_the_first_is_gone(moved: Moved) -> None:
    """The results say that it was stopped, so the cluster on which it ran is not asked."""
    assert moved.world.carry(command(CommandKind.STOP, to=0)) is Phase.VERIFIED
    moved.world.down_until = float("inf")
    moved.carry(command(CommandKind.START, epoch=8, command_id="on the other one"))
    assert moved.other.drivers


def test_a_cluster_under_another_name_is_the_one_that_knows_the_driver(moved: Moved) -> None:
    """The former name need not answer any more, such as that of a ResourceManager whose standby has taken over."""
    world = moved.world
    moved.other.drivers, moved.other.sizes, moved.other.tokens = world.drivers, world.sizes, world.tokens
    world.down_until = float("inf")
    assert moved.carry(command(CommandKind.START)) is Phase.REJECTED
    assert world.topic[-1].code == "ALREADY_RUNNING"


def test_a_cluster_that_does_not_answer_keeps_the_job_from_another_one(moved: Moved) -> None:
    """Nobody can tell whether it still runs there (F29, I4)."""
    moved.world.down_until = float("inf")
    assert moved.carry(command(CommandKind.START)) is Phase.FAILED
    assert moved.world.topic[-1].code == "STOP_FAILED"
    assert not moved.other.drivers


@pytest.mark.parametrize(
    ("phase", "end"),
    [
        (Phase.ACCEPTED, Phase.REJECTED),
        *((phase, Phase.FAILED) for phase in (Phase.STOPPING, Phase.STARTING, Phase.RUNNING)),
    ],
)
def test_a_command_does_not_continue_on_another_cluster(moved: Moved, phase: Phase, end: Phase) -> None:
    """The spec was changed while the actuator was down: what the command has changed is on the first cluster (I4)."""
    moved.world.die_at = ("after", phase)
    with pytest.raises(Died):
        moved.world.carry(command())
    assert moved.carry(command()) is end
    assert moved.world.topic[-1].code == "OTHER_CLUSTER"
    assert not moved.other.drivers


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("control/rates/fence", b"\xff"),
        ("control/rates/stop", b'{"epoch": 1e999, "run": 1, "deadline_seconds": 1}'),
        ("control/rates/running-1-1.json", b"{}"),
        ("ck/metadata", b"\xff"),
    ],
)
def test_files_of_another_kind_fail_the_command_and_not_the_actuator(
    world: FakeWorld, monkeypatch: pytest.MonkeyPatch, file: str, content: bytes
) -> None:
    """A disk may return anything, and another version of Tidegate may have written other fields."""
    world.start()
    monkeypatch.setattr(world, "tick", lambda: None)
    (world.folder / file).write_bytes(content)
    assert world.carry(command()) is Phase.FAILED
    assert (world.folder / file).name in world.topic[-1].sentence


@pytest.mark.parametrize(
    ("backend", "application", "code", "said"),
    [
        (
            "standalone",
            {"rest_url": "http://a:b:c", "master_ui_url": "http://a:b:c"},
            "STOP_FAILED",
            "Invalid port: 'b:c'",
        ),
        (
            "kubernetes",
            {"conf": {"spark.driver.memoryOverheadFactor": "a tenth"}},
            "UNEXPECTED",
            "could not convert string",
        ),
        ("local", {"env": {"PASSWORD": "hunter2\0"}}, "UNEXPECTED", "embedded null byte"),
    ],
)
def test_a_spec_that_nobody_expects_fails_its_command_and_not_the_actuator(
    world: FakeWorld, backend: str, application: dict[str, Any], code: str, said: str
) -> None:
    """Else the actuator would end, and its successor at the same command, for ever, and no job would be scaled."""
    world.rescale = (Way.RESTART,)
    with fake_kubernetes() as server:
        backends: dict[str, Backend] = {
            "standalone": Standalone(),
            "kubernetes": Kubernetes(server.api, world),
            "local": Local(world.folder),
        }
        spec = on_kubernetes(world.spec) if backend == "kubernetes" else world.spec
        fields = {"backend": backend, "control_dir": str(world.folder / "control"), **application}
        job_id = f"nobody-{os.getpid()}"  # a driver of that name which another test runs would be a foreign one
        spec = spec.model_copy(update={"job_id": job_id, "application": spec.application.model_copy(update=fields)})
        runner = CommandRunner(
            clock=world, log=CommandLog(), fence=world, backends=backends, publish=world.publish, owner="a"
        )
        assert runner.run(command(CommandKind.START, job_id=job_id), spec, Waiting(world)) is Phase.FAILED
    assert world.topic[-1].code == code
    assert said in world.topic[-1].sentence
    assert "hunter2" not in world.topic[-1].sentence


@pytest.mark.parametrize("phase", [Phase.ACCEPTED, Phase.STOPPED])
def test_a_place_that_is_none_any_more_fails_the_command_and_not_the_actuator(world: FakeWorld, phase: Phase) -> None:
    """The spec may have changed since the command began."""
    world.start()
    world.die_at = ("after", phase)
    with pytest.raises(Died):
        world.carry(command())
    app = world.spec.application.model_copy(update={"control_dir": "hdfs://[nn/control"})
    runner = CommandRunner(
        clock=world,
        log=command_log(world.topic),
        fence=world,
        backends={"standalone": world},
        publish=world.publish,
        owner="b",
    )
    assert runner.run(command(), world.spec.model_copy(update={"application": app}), Waiting(world)) is Phase.FAILED
    assert world.topic[-1].code == "BROKEN_FILES"


def test_files_that_cannot_be_used_fail_the_command_and_not_the_actuator(
    world: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Garbage in one job's control directory fails that command, with the file's name; the actuator goes on."""
    world.start()
    monkeypatch.setattr(world, "tick", lambda: None)
    (Path(world.control.place) / "fence").write_text("garbage")
    assert world.carry(command()) is Phase.FAILED
    assert world.topic[-1].code == "BROKEN_FILES"
    assert str(Path(world.control.place) / "fence") in world.topic[-1].sentence
    assert world.carry(command()) is None


@pytest.mark.parametrize("fact", ["application_id", "application"])
def test_a_driver_that_writes_what_no_result_can_hold_fails_its_command_and_not_the_actuator(
    world: FakeWorld, monkeypatch: pytest.MonkeyPatch, fact: str
) -> None:
    """Else the actuator would end, and its successor at the same command, for ever, and no job would be scaled."""
    write = Control.write_running
    monkeypatch.setattr(
        Control, "write_running", lambda control, token, facts: write(control, token, {**facts, fact: 7})
    )
    assert world.carry(command(CommandKind.START)) is Phase.FAILED
    assert world.topic[-1].code == "UNEXPECTED"
    assert "ActionResult" in world.topic[-1].sentence


def test_a_result_that_is_too_large_fails_its_command_and_not_the_actuator(
    world: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A location may hold the checkpoints of thousands of queries: the mark of all of them fits into no record."""
    world.start()
    publish = FakeWorld.publish

    def limited(world: FakeWorld, result: ActionResult, trace_id: str | None) -> None:
        if result.checkpoint is not None:
            raise TooLarge("results: Broker: Message size too large")
        publish(world, result, trace_id)

    monkeypatch.setattr(FakeWorld, "publish", limited)
    world.rescale = (Way.RESTART,)
    assert world.carry(command()) is Phase.FAILED
    assert "Message size too large" in world.topic[-1].sentence
    assert world.carry(command()) is None


def test_what_a_driver_may_have_linked_to_is_not_published(world: FakeWorld) -> None:
    """It may be a file that only the actuator may read; results are read by many."""
    world.start()
    world.control.write_running(Token(1, 2), {"auths": {"registry": {"auth": "hunter2"}}})
    assert world.carry(command()) is Phase.FAILED
    assert f"running-{Token(1, 2)}.json does not say who runs" in world.topic[-1].sentence
    assert "hunter2" not in world.topic[-1].sentence


@pytest.mark.parametrize("phase", ["accepted", "stopping", "stopped", "starting", "running"])
def test_files_that_come_back_let_the_command_go_on(
    world: FakeWorld, phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The actuator waits for a control directory that is unavailable for seconds, in any phase (I4)."""
    world.start()
    read, tick = JsonFiles.read, world.tick
    refused: list[str] = []

    def away(files: JsonFiles, name: str, **how: Any) -> JsonFile | None:
        if world.phases()[-1:] == [phase] and len(refused) < 3:
            refused.append(name)
            raise OSError(errno.ESTALE, "Stale file handle")
        return read(files, name, **how)

    def elsewhere() -> None:
        """The drivers run on other machines, where the directory is available."""
        with monkeypatch.context() as patched:
            patched.setattr(JsonFiles, "read", read)
            tick()

    monkeypatch.setattr(JsonFiles, "read", away)
    monkeypatch.setattr(world, "tick", elsewhere)
    assert world.carry(command()) is Phase.VERIFIED
    assert len(refused) == 3
    assert world.most_alive == 1


def test_an_older_epoch_is_rejected(world: FakeWorld) -> None:
    """Once epoch 7 is accepted, a command of epoch 6 is rejected and changes nothing (I5)."""
    world.start()
    world.carry(command())
    assert world.carry(command(epoch=6, command_id="old")) is Phase.REJECTED
    assert world.topic[-1].code == "STALE_EPOCH"
    assert len(world.drivers) == 2


def test_a_size_that_does_not_work_is_rolled_back_once(world: FakeWorld) -> None:
    """If no batch is committed in time, the job goes back to the last good size, and the result says so."""
    world.start()
    world.works = lambda size: size == 2
    assert world.carry(command()) is Phase.ROLLED_BACK
    assert list(world.sizes.values()) == [2, 4, 2]
    assert (world.topic[-1].parallelism, world.topic[-1].attempt) == (2, 2)
    silent = next(r for r in world.topic if r.attempt == 2)
    assert (silent.phase, silent.code) == (Phase.STOPPING, "NOT_VERIFIED")
    assert "within 60 s" in silent.sentence
    assert world.topic[-1].code == "NOT_VERIFIED"
    assert silent.sentence in world.topic[-1].sentence, "the reason for the rollback"
    assert world.most_alive == 1


def test_a_size_from_before_larger_executors_is_rolled_back_to_whole_ones(world: FakeWorld) -> None:
    """A job of two slots gets executors of four cores: half of one would be none, and the job would have no slot."""
    world.start(2)
    world.works = lambda size: size == 4
    scaling = world.spec.scaling.model_copy(update={"min_parallelism": 4, "max_parallelism": 8})
    spec = with_application(world.spec, executor_cores=4).model_copy(update={"scaling": scaling})
    assert world.carry(command(to=8), spec=spec) is Phase.ROLLED_BACK
    assert list(world.sizes.values()) == [2, 8, 4]


def test_a_new_driver_that_ends_is_not_waited_for(world: FakeWorld) -> None:
    """If the new driver dies before its first batch, the job goes back at once, long before the start deadline."""
    world.start()
    world.driver_ends(at=Phase.RUNNING, driver="driver-1-1", attempt=1)
    assert world.carry(command()) is Phase.ROLLED_BACK
    running, failed = [r for r in world.topic if (r.phase, r.attempt) in {(Phase.RUNNING, 1), (Phase.STOPPING, 2)}][-2:]
    assert failed.sentence == "The new driver ended before its first batch."
    assert (failed.at - running.at).total_seconds() < 10


def test_a_checkpoint_of_another_query_does_not_verify_a_run(world: FakeWorld) -> None:
    """A commit counts only if the checkpoint still belongs to the query that ran before."""
    world.start()

    def replace_checkpoint(result: ActionResult) -> None:
        if (result.phase, result.attempt, result.command_id) == (Phase.RUNNING, 1, "c"):
            world.query_id = "other"

    world.on_result = replace_checkpoint
    assert world.carry(command()) is Phase.ROLLED_BACK
    failed = next(r for r in world.topic if r.attempt == 2)
    assert (failed.code, failed.sentence) == (
        "OTHER_QUERY",
        f"{world.folder / 'ck'} belongs to query other; before, it was q.",
    )


def test_a_second_failure_is_the_end(world: FakeWorld) -> None:
    """If the last good size fails too, the command fails and nothing else is tried (F33)."""
    world.start()
    world.works = lambda _size: False
    assert world.carry(command()) is Phase.FAILED
    assert list(world.sizes.values()) == [2, 4, 2]
    assert world.topic[-1].code == "NOT_VERIFIED"


def test_a_first_start_that_fails_has_nothing_to_go_back_to(world: FakeWorld) -> None:
    """Without a last good size there is no rollback; the command fails."""
    world.works = lambda _size: False
    assert world.carry(command(CommandKind.START, from_parallelism=0)) is Phase.FAILED
    assert list(world.sizes.values()) == [4]


def test_only_a_run_that_works_tells_how_long_it_took_to_work(world: FakeWorld) -> None:
    """A start that failed has no delay; the way back has one, from the order until the job went on."""
    world.start()
    world.works = lambda size: size == 2
    world.carry(command())
    assert [result.phase for result in world.topic if result.delay_seconds is not None][1:] == [Phase.ROLLED_BACK]


def test_a_driver_that_does_not_obey_is_killed(world: FakeWorld) -> None:
    """After the stop deadline and the grace period the driver is killed; then the new one starts (F27)."""
    world.start()
    world.obeys = False
    assert world.carry(command()) is Phase.VERIFIED
    stopped = next(r for r in world.topic if r.command_id == "c" and r.phase is Phase.STOPPED)
    assert stopped.details["killed"] is True
    assert float(stopped.details["stop_seconds"]) >= 20
    assert world.most_alive == 1


def test_a_job_that_ended_by_itself_is_started(world: FakeWorld) -> None:
    """A rescale of a job that does not run starts it at the new size."""
    world.start()
    world.drivers["driver-1-0"] = DriverState.ENDED
    assert world.carry(command()) is Phase.VERIFIED
    assert world.phases() == ["accepted", "stopped", "starting", "running", "verified"]


def test_a_job_that_ends_again_and_again_does_not_fill_its_control_files(world: FakeWorld) -> None:
    """Nobody stops it, and a ConfigMap holds 1 MiB; each run that is remembered is also asked about at each start."""
    for number in range(30):
        world.seconds = 0.0
        start = command(CommandKind.START, to=2, epoch=number + 1, command_id=f"c{number}")
        assert world.carry(start) is Phase.VERIFIED
        world.drivers = dict.fromkeys(world.drivers, DriverState.ENDED)
    assert world.control.runs() == [Token(epoch) for epoch in range(10, 31)], "the newest one, and 20 before it"


def test_a_job_that_runs_is_not_started_again(world: FakeWorld) -> None:
    """A `start` for a job that only seemed dead leaves its driver alone."""
    world.start()
    assert world.carry(command(CommandKind.START)) is Phase.REJECTED
    assert world.topic[-1].code == "ALREADY_RUNNING"
    assert list(world.drivers.values()) == [DriverState.RUNNING]


def test_a_stop_leaves_nothing_running(world: FakeWorld) -> None:
    """A `stop` ends the driver and starts none."""
    world.start()
    assert world.carry(command(CommandKind.STOP, to=0)) is Phase.VERIFIED
    assert world.phases() == ["accepted", "stopping", "stopped", "verified"]
    assert not world.alive()


def test_a_cluster_that_does_not_answer_is_not_touched(world: FakeWorld) -> None:
    """If nobody can tell what runs, the command fails and nothing is started (F29, I4)."""
    world.start()
    world.down_until = float("inf")
    assert world.carry(command()) is Phase.FAILED
    assert world.topic[-1].code == "STOP_FAILED"
    assert len(world.drivers) == 1


@pytest.mark.parametrize("after", [8.0, 15.0], ids=["while it answers", "while it does not"])
def test_a_command_that_expires_while_the_cluster_is_asked_does_not_begin(world: FakeWorld, after: float) -> None:
    """It was decided on figures of before the outage: whenever the cluster tells what runs, it must be in time (I8)."""
    world.start()
    world.down_until = world.seconds + after
    world.foreign, world.leave_at = {"app-by-hand": "rates"}, world.down_until + 5
    late = command(expires_at=world.now() + timedelta(seconds=10))
    assert world.carry(late) is Phase.REJECTED
    assert world.topic[-1].code == "EXPIRED"
    assert list(world.drivers.values()) == [DriverState.RUNNING]


def test_a_refused_submission_is_tried_at_the_last_good_size(world: FakeWorld) -> None:
    """If the cluster refuses both attempts, the command fails with the cluster's message."""
    world.start()
    world.refuses = True
    assert world.carry(command()) is Phase.FAILED
    assert world.topic[-1].code == "NOT_SUBMITTED"
    assert [r.attempt for r in world.topic if r.phase is Phase.STARTING and r.command_id == "c"] == [1, 2]


def test_a_removed_job_ends_its_command(world: FakeWorld) -> None:
    """If the job is removed between crash and restart, the command fails and does not hang for ever (I2)."""
    world.start()
    world.die_at = ("after", Phase.STOPPED)
    with pytest.raises(Died):
        world.carry(command())
    assert world.carry(command(), owner="b", spec=None) is Phase.FAILED
    assert world.topic[-1].code == "NO_SUCH_JOB"


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("phase", ["accepted", "stopping", "stopped", "starting", "running", "verified"])
@pytest.mark.parametrize("seconds", [0, 30], ids=["at once", "after 30 s"])
def test_a_death_anywhere_is_survived(world: FakeWorld, when: str, phase: str, seconds: int) -> None:
    """Wherever the actuator dies, its successor ends the command, and the cluster sees one start (I2, I3, I4)."""
    world.start()
    world.die_at = (when, Phase(phase))
    with pytest.raises(Died):
        world.carry(command())
    for _ in range(seconds * 2):
        Waiting(world).wait(0.5)
    end = world.carry(command(), owner="b")
    assert end is (None if (when, phase) == ("after", "verified") else Phase.VERIFIED)
    assert list(world.sizes.values()) == [2, 4]
    assert world.most_alive == 1
    assert len({r.result_id for r in world.topic}) == len(world.topic)


def taken_over_late(world: FakeWorld, after: Phase) -> Phase | None:
    """Return how a rescale ends if the actuator dies after a phase, and another takes it over an hour later."""
    world.start()
    world.die_at = ("after", after)
    with pytest.raises(Died):
        world.carry(command())
    world.seconds += 3600
    return world.carry(command(), owner="b")


def test_a_command_that_has_changed_something_goes_on_after_its_expiry(world: FakeWorld) -> None:
    """A command expires only before it changes anything; a job left in the middle of a restart is brought up again."""
    assert taken_over_late(world, Phase.STOPPED) is Phase.VERIFIED


def test_a_command_that_expired_before_anything_was_done_is_refused_by_the_successor(world: FakeWorld) -> None:
    """It was decided on figures of long ago, and the decider may have given it up: nothing begins after expiry (I8)."""
    assert taken_over_late(world, Phase.ACCEPTED) is Phase.REJECTED
    assert world.topic[-1].code == "EXPIRED"
    assert list(world.sizes.values()) == [2]


def test_a_paused_actuator_finds_itself_overtaken(world: FakeWorld) -> None:
    """An actuator that was paused during a takeover leaves the job alone when it wakes (F6, I3, I5)."""
    world.start()
    world.die_at = ("after", Phase.STARTING)
    with pytest.raises(Died):
        world.carry(command())

    held = world.control.fence()
    assert held is not None
    assert held[1] == "a"
    assert world.carry(command(), owner="b") is Phase.VERIFIED
    overtaken = world.control.fence()
    assert overtaken is not None
    assert overtaken[1] == "b"
    assert overtaken[0] > held[0]


@pytest.mark.parametrize("newer", [False, True])
def test_a_successor_that_has_claimed_nothing_finds_itself_overtaken(
    world: FakeWorld, monkeypatch: pytest.MonkeyPatch, *, newer: bool
) -> None:
    """It was paused while it watched a start; another one has gone back, or a newer command has been carried out."""
    world.start()
    world.die_at = ("after", Phase.RUNNING)
    with pytest.raises(Died):
        world.carry(command())
    world.works = lambda size: size == 2
    tick, paused = world.tick, iter([True])

    def pause() -> None:
        tick()
        if next(paused, False):
            other = command(CommandKind.STOP, to=0, epoch=8, command_id="newer") if newer else command()
            assert world.carry(other, owner="c") is (Phase.VERIFIED if newer else Phase.ROLLED_BACK)

    monkeypatch.setattr(world, "tick", pause)
    if newer:
        assert world.carry(command(), owner="b") is Phase.FAILED
        assert world.topic[-1].code == "OUTFENCED"
        return
    with pytest.raises(Abandoned, match="overtaken"):
        world.carry(command(), owner="b")
    assert [phase for phase in world.phases() if phase in ("verified", "rolled_back", "failed")] == ["rolled_back"]


def test_a_stop_that_finds_nothing_running_forbids_the_start_of_an_older_command(
    world: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are carried out at once if the pipeline of the job has changed between them (I5)."""
    world.start()
    newer = command(CommandKind.STOP, to=0, epoch=8, command_id="newer")
    tick, stops = world.tick, iter([True])

    def stop() -> None:
        tick()
        if not world.alive() and next(stops, False):
            assert world.carry(newer, owner="c") is Phase.VERIFIED

    monkeypatch.setattr(world, "tick", stop)
    with pytest.raises(Abandoned, match="overtaken"):
        world.carry(command())
    assert world.phases("newer") == ["accepted", "stopped", "verified"]
    assert world.carry(command(), owner="d") is Phase.FAILED
    assert world.topic[-1].code == "OUTFENCED"
    assert not world.alive()


def test_an_overtaken_actuator_abandons_its_action(world: FakeWorld) -> None:
    """When another actuator takes the fence during an action, the action ends without a result."""
    world.start()
    works = world.works

    def stolen(size: int) -> bool:
        if size == 4:
            Claims(world.control).raise_fence(Token(7, 99), "b")
            return False
        return works(size)

    world.works = stolen
    with pytest.raises(Abandoned, match="overtaken"):
        world.carry(command())
    assert world.phases()[-1] == "running"


def _submitted_twice(world: FakeWorld, of: ScalingCommand) -> str:
    """Have an actuator publish late what it has submitted, and its successor die; return the driver of the successor.

    The driver of the first one does not arrive, and has seen no fence.
    """
    world.die_at = ("before", Phase.RUNNING)
    with pytest.raises(Died):
        world.carry(of)
    (first,) = world.alive()
    world.asked_at[first], world.tokens[first] = 1e9, Token(99)

    def wake(result: ActionResult) -> None:
        if result.phase is Phase.RUNNING:
            world.topic.insert(-1, result.model_copy(update={"submission_id": first, "run": 1}))

    world.on_result, world.die_at = wake, ("after", Phase.RUNNING)
    with pytest.raises(Died):
        world.carry(of, owner="b")
    return max(world.alive())


def test_a_late_result_of_an_overtaken_actuator_does_not_stop_the_run_of_its_successor(world: FakeWorld) -> None:
    """Whoever goes on would watch the driver that does not arrive, and stop the one that works."""
    world.start()
    second = _submitted_twice(world, command())
    assert world.carry(command(), owner="c") is Phase.VERIFIED
    assert world.phases() == ["accepted", "stopping", "stopped", "starting", "running", "running", "verified"]
    assert world.topic[-1].submission_id == second
    assert world.drivers[second].alive


def test_a_driver_that_has_arrived_is_not_ended_for_another_one_that_has_not(world: FakeWorld) -> None:
    """The start has failed, but the driver may only be slow."""
    world.works = lambda _size: False
    start = command(CommandKind.START, from_parallelism=0)
    second = _submitted_twice(world, start)
    assert world.carry(start, owner="c") is Phase.FAILED
    assert world.topic[-1].code == "NOT_VERIFIED"
    assert world.drivers[second].alive


def test_an_actuator_that_is_overtaken_as_it_sees_the_commit_says_nothing(
    world: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was paused in between; the other one tells how the command ends (I2)."""
    world.start()
    commits: list[int | None] = []

    def paused(location: str, files: Files) -> list[QueryCheckpoint]:
        (found,) = read_checkpoints(location, files)
        commits.append(found.newest_commit)
        if commits[-1] != commits[0]:
            Claims(world.control).raise_fence(Token(7, 99), "b")
        return [found]

    monkeypatch.setattr(start_watch, "read_checkpoints", paused)
    with pytest.raises(Abandoned, match="overtaken"):
        world.carry(command())
    assert world.phases()[-1] == "running"


def test_a_driver_that_the_cluster_has_forgotten_is_asked_to_stop_before_the_next_one_starts(world: FakeWorld) -> None:
    """A master that has lost its state does not know it; it may run all the same, and looks for the marker (I4)."""
    world.start()
    forgotten = world.tokens["driver-1-0"]
    del world.drivers["driver-1-0"]
    asked: list[bool] = []

    def note(result: ActionResult) -> None:
        marker = world.control.stop_marker()
        if result.phase is Phase.STARTING:
            asked.append(marker is not None and marker[0] > forgotten)

    world.on_result = note
    assert world.carry(command(CommandKind.START)) is Phase.VERIFIED
    assert asked == [True]


def test_a_restart_forgets_the_runs_of_long_ago(world: FakeWorld) -> None:
    """A ConfigMap holds 1 MiB, and a job may be restarted for years."""
    world.start()
    for number in range(1, 40):
        world.control.write_running(Token(0, number), {"submission_id": f"driver-0-{number}"})
    assert world.carry(command()) is Phase.VERIFIED
    runs = world.control.runs()
    assert len(runs) <= 21
    assert runs[-2:] == list(world.tokens.values())


def test_a_cluster_that_does_not_answer_for_a_moment_does_not_cost_the_driver_its_batch(world: FakeWorld) -> None:
    """The driver is not killed before the stop deadline, because nobody can tell whether it has stopped (F29)."""
    world.start()
    world.obeys = False

    def tick() -> None:
        asked = world.control.stop_marker()
        if not world.down_until and asked is not None and asked[0].epoch == 7:
            world.down_until = world.seconds + 4
        world.obeys = 0 < world.down_until < world.seconds - 4
        FakeWorld.tick(world)

    world.tick = tick  # type: ignore[method-assign]
    assert world.carry(command()) is Phase.VERIFIED
    stopped = next(r for r in world.topic if r.phase is Phase.STOPPED and r.command_id == "c")
    assert stopped.details["killed"] is False
    assert 8 < float(str(stopped.details["stop_seconds"])) < 20


def test_a_cluster_that_does_not_answer_for_a_moment_is_asked_again_to_kill(world: FakeWorld) -> None:
    """A driver that ignores the marker is killed as soon as the cluster can be reached (F27, F29)."""
    world.start()
    world.obeys = False
    world.on_result = lambda result: (
        setattr(world, "down_until", world.seconds + 32) if result.phase is Phase.STOPPING else None
    )
    assert world.carry(command()) is Phase.VERIFIED
    stopped = next(r for r in world.topic if r.phase is Phase.STOPPED and r.command_id == "c")
    assert stopped.details["killed"] is True
    assert world.most_alive == 1


def test_a_start_does_not_wait_for_drivers_of_others(world: FakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has submitted the run yet, so none of them can be it."""
    monkeypatch.setattr(JobDrivers, "unclaimed", lambda _self: frozenset({"driver-of-others"}))
    world.start()
    assert world.asked_at == {"driver-1-0": 0.0}


def test_a_driver_whose_submission_broke_is_fenced_before_another_one_is_submitted(
    world: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be on its way: when it arrives, it finds a newer run and writes nothing (I4)."""
    world.start()
    submit = world.submit

    def breaks(run: Submission) -> str:
        driver = submit(run)
        if len(world.drivers) == 2:
            world.asked_at[driver] += 1000  # it arrives late
            raise OSError(errno.ECONNRESET, "the connection broke")
        return driver

    monkeypatch.setattr(world, "submit", breaks)
    assert world.carry(command()) is Phase.VERIFIED
    assert list(world.tokens.values()) == [Token(1, 1), Token(7, 1), Token(7, 2)]
    assert list(world.drivers.values()) == [DriverState.ENDED, DriverState.ENDED, DriverState.RUNNING]


def test_an_overtaken_actuator_submits_nothing(world: FakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks whether the job is still its own after it has asked the cluster, which may take long (I3)."""
    world.start()
    applications = world.applications

    def overtaken(spec: JobSpec) -> Mapping[str, str]:
        if world.phases()[-1:] == ["starting"]:
            Claims(world.control).raise_fence(Token(7, 99), "b")
        return applications(spec)

    monkeypatch.setattr(world, "applications", overtaken)
    with pytest.raises(Abandoned, match="overtaken"):
        world.carry(command())
    assert list(world.drivers) == ["driver-1-0"]


@pytest.mark.parametrize("broken", [False, True], ids=["waits for a commit", "waits for the files"])
def test_an_actuator_that_is_to_end_leaves_its_command_at_once(
    world: FakeWorld, monkeypatch: pytest.MonkeyPatch, *, broken: bool
) -> None:
    """Whoever stops the service does not wait for a deadline of hours; the next actuator goes on (I2)."""
    world.start()
    gone, asked_at = Waiting(world), world.seconds

    def works(size: int) -> bool:
        nonlocal asked_at
        if size == 4 and not gone.is_set():
            asked_at = world.seconds
            gone.set()
        return size != 4

    def fails(location: str, files: Files) -> list[QueryCheckpoint]:
        raise OSError(errno.EIO, "the disk does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(world, "works", works)
        if broken:
            patched.setattr(start_watch, "read_checkpoints", fails)
        runner = CommandRunner(world, command_log(world.topic), world, {"standalone": world}, world.publish, owner="a")
        with pytest.raises(Abandoned, match="left to the next actuator"):
            runner.run(command(), world.spec, gone)
    assert world.phases()[-1] == "running"
    assert world.seconds - asked_at < 5
    assert world.carry(command(), owner="b") is Phase.VERIFIED


def test_a_newer_command_fences_an_older_one(world: FakeWorld) -> None:
    """If the fence is at a newer epoch, the command is rejected before anything changes."""
    world.start()
    Claims(world.control).raise_fence(Token(8, 1), "b")
    assert world.carry(command()) is Phase.REJECTED
    assert world.topic[-1].code == "OUTFENCED"
    assert len(world.drivers) == 1


def test_an_actuator_that_loses_the_race_for_the_fence_stops_nothing(
    world: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two may hold the same claim of a command; the one that writes it second leaves job and command alone (I2-I4)."""
    world.start()
    claim = FakeWorld.claim

    def overtaken(world: FakeWorld, control: Control, job_id: str, epoch: int, owner: str) -> Token | None:
        token = claim(world, control, job_id, epoch, owner)
        assert token is not None
        assert Claims(control).raise_fence(token, "b")
        return token

    world.rescale = (Way.RESTART,)
    with monkeypatch.context() as patched:
        patched.setattr(FakeWorld, "claim", overtaken)
        with pytest.raises(Abandoned, match="another actuator carries out the same command"):
            world.carry(command())
    assert world.phases() == ["accepted", "stopping"]
    assert world.control.fence() == (Token(7, 1), "b")
    assert list(world.drivers.values()) == [DriverState.RUNNING]
    assert world.carry(command(), owner="b") is Phase.VERIFIED


def test_results_are_readable(world: FakeWorld) -> None:
    """Results say in a sentence what happened, and the result of a stop says where the checkpoint stood."""
    world.start()
    world.carry(command())
    told: dict[str, Any] = {r.phase.value: r.sentence for r in world.topic if r.command_id == "c"}
    assert told["accepted"] == "From size 2 to 4."
    assert told["stopped"].startswith("The old driver stopped at a batch boundary after")
    assert told["verified"].startswith("The new driver committed batch ")
    first, second = (r.checkpoint for r in world.topic if r.phase is Phase.STOPPED)
    assert first == CheckpointMark(), "before the first run there is no checkpoint"
    assert second is not None
    assert second.queries["ck"].query_id == "q"
    assert second.last_commit_at is not None


@pytest.mark.parametrize("asked", [False, True], ids=["before it was asked", "after"])
def test_a_successor_asks_no_driver_to_stop_while_its_cluster_is_silent(world: FakeWorld, asked: bool) -> None:
    """Nobody could tell that it has ended, nor start another one; what was asked already is waited for."""
    world.start()
    world.die_at = ("after", Phase.STOPPING)
    with pytest.raises(Died):
        world.carry(command())
    if asked:
        world.control.request_stop(Token(7, 1), "c", 20.0)
    world.down_until = world.seconds + (65 if asked else float("inf"))
    spec = with_application(world.spec, stop_deadline_seconds=60.0)
    assert world.carry(command(), owner="b", spec=spec) is (Phase.VERIFIED if asked else Phase.FAILED)
    assert world.most_alive == 1
    if not asked:
        assert (world.topic[-1].code, world.drivers) == ("STOP_FAILED", {"driver-1-0": DriverState.RUNNING})
        assert "The job runs on as it was." in world.topic[-1].sentence


@pytest.mark.parametrize("phase", ["accepted", "stopping", "stopped", "starting", "running"])
def test_a_restart_that_0_1_0_left_open_is_verified(world: FakeWorld, phase: str) -> None:
    """0.1.0 wrote into `details` where the checkpoint stood, as JSON, and the number of the run."""
    world.start()
    world.die_at = ("after", Phase(phase))
    with pytest.raises(Died):
        world.carry(command())
    world.topic = [_by_0_1_0(result) for result in world.topic]
    assert world.carry(command(), owner="b") is Phase.VERIFIED
    assert list(world.sizes.values()) == [2, 4]
    assert world.topic[-1].downtime_seconds is not None


def _by_0_1_0(result: ActionResult) -> ActionResult:
    """Return a result as 0.1.0 would have written it."""
    details = dict(result.details)
    if result.run is not None:
        details["run"] = result.run
    if (mark := result.checkpoint) is not None:
        batches = {name: [query.query_id, query.batch_id] for name, query in mark.queries.items()}
        details["last_batches"] = json.dumps(batches, separators=(",", ":"))
        if mark.last_commit_at is not None:
            details["last_commit_at"] = mark.last_commit_at.timestamp()
    return result.model_copy(update={"details": details, "checkpoint": None, "run": None, "way": None})


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.RUNNING])
@pytest.mark.parametrize(
    "said",
    [{}, {"last_batches": "{", "run": 1}, {"last_batches": "[1]", "run": 1}, {"last_batches": '{"ck":["q",-4]}'}],
)
def test_results_that_do_not_tell_what_to_verify_against_end_in_a_run_that_is_verified(
    world: FakeWorld, said: dict[str, Any], phase: Phase
) -> None:
    """A run that cannot be compared with recorded commits is stopped in good order; the last good size then runs."""
    world.start()
    world.die_at = ("after", phase)
    with pytest.raises(Died):
        world.carry(command())
    world.topic = [r.model_copy(update={"checkpoint": None, "run": None, "details": said}) for r in world.topic]
    assert world.carry(command(), owner="b") is Phase.ROLLED_BACK
    assert list(world.sizes.values()) == [2, 4, 2]
    assert world.most_alive == 1
    failed = next(r for r in world.topic if r.attempt == 2)
    assert (failed.phase, failed.code) == (Phase.STOPPING, "NOT_VERIFIED")
    assert "do not say what to compare" in failed.sentence


@pytest.mark.parametrize("kind", [CommandKind.START, CommandKind.RESCALE, CommandKind.STOP])
def test_a_foreign_driver_is_left_alone(world: FakeWorld, kind: CommandKind) -> None:
    """No driver is started while a foreign application has the job's name; the result says what to do (I4)."""
    world.foreign = {"app-by-hand": "rates", "app-other": "orders"}
    of = command(kind, to=0 if kind is CommandKind.STOP else 4)
    assert world.carry(of) is Phase.REJECTED
    assert not world.drivers
    assert world.topic[-1].code == "FOREIGN_DRIVER"
    assert "runs as app-by-hand, which Tidegate did not start" in world.topic[-1].sentence
    assert world.phases() == ["accepted", "rejected"]


def test_a_rescale_next_to_a_foreign_driver_stops_nothing(world: FakeWorld) -> None:
    """A rescale is rejected before anything is stopped; a stop ends our own driver."""
    world.start()
    world.foreign = {"app-by-hand": "rates"}
    assert world.carry(command()) is Phase.REJECTED
    assert list(world.drivers.values()) == [DriverState.RUNNING]
    assert world.carry(command(CommandKind.STOP, to=0, epoch=8, command_id="stop")) is Phase.VERIFIED
    assert list(world.drivers.values()) == [DriverState.ENDED]


def test_an_application_that_is_ending_does_not_count(world: FakeWorld) -> None:
    """The actuator waits for the application of a driver that ended before it could name it."""
    world.start()
    facts = {"submission_id": "driver-1-0", "epoch": 1, "run": 1}
    world.control.write_running(world.tokens["driver-1-0"], facts)
    world.foreign = {"app-unnamed": "rates"}

    def linger(result: ActionResult) -> None:
        if result.phase is Phase.STOPPED:
            world.leave_at = world.seconds + 5

    world.on_result = linger
    assert world.carry(command()) is Phase.VERIFIED
    assert world.leave_at is not None
    assert world.asked_at["driver-1-1"] >= world.leave_at
    assert world.most_alive == 1


def test_an_application_of_another_job_is_not_foreign(world: FakeWorld) -> None:
    """Scripts may give several jobs the same name; an application verified for one job does not count for another."""
    world.start()
    theirs = {"command_id": "theirs", "result_id": "theirs", "job_id": "orders", "incarnation": "app-orders"}
    world.topic.append(world.topic[-1].model_copy(update=theirs))
    world.foreign = {"app-orders": "rates"}
    assert world.carry(command()) is Phase.VERIFIED


@pytest.mark.parametrize("attempt", [1, 2], ids=["ordered size", "rollback"])
def test_a_foreign_driver_that_appears_during_the_restart_prevents_the_start(world: FakeWorld, attempt: int) -> None:
    """Just before each start the actuator looks again; if a foreign driver runs, the command fails."""
    world.start()
    world.works = lambda size: size == 2
    world.on_result = lambda result: (
        world.foreign.update({"app-by-hand": "rates"})
        if (result.phase, result.attempt) == (Phase.STARTING, attempt)
        else None
    )
    assert world.carry(command()) is Phase.FAILED
    assert world.topic[-1].code == "FOREIGN_DRIVER"
    assert len(world.sizes) == attempt
    assert not world.alive()


@pytest.mark.parametrize("seconds", [30, 600])
def test_a_cluster_that_does_not_answer_is_asked_again_before_a_start(world: FakeWorld, seconds: int) -> None:
    """Nothing is started while nobody can tell what runs; the actuator waits for an answer, but not for ever (F29)."""
    world.start()
    world.on_result = lambda result: (
        setattr(world, "down_until", world.seconds + seconds)
        if (result.phase, result.attempt) == (Phase.STARTING, 1)
        else None
    )
    end = world.carry(command())
    assert (end, world.topic[-1].code) == ((Phase.VERIFIED, "OK") if seconds == 30 else (Phase.FAILED, "NOT_SUBMITTED"))
    assert list(world.sizes.values()) == ([2, 4] if seconds == 30 else [2])
