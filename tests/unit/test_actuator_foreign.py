"""Drivers that are not ours, known by what they do and not only by their name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import zstandard
from typing_extensions import override

from services.actuator import event_logs
from services.actuator.backends import DriverState
from services.actuator.event_logs import running_query
from tests.support.events import command, with_application
from tests.support.fake_world import FakeWorld
from tidegate.events.command import CommandKind
from tidegate.events.job import JobSpec
from tidegate.events.result import ActionResult, Phase
from tidegate.remote.files import Entry, Place, scan

STARTED = json.dumps({"Event": "org.apache.spark.sql.streaming.StreamingQueryListener$QueryStartedEvent", "id": "q-1"})


class WrittenWorld(FakeWorld):
    """A cluster where others may write to the job's checkpoint."""

    written_until: float = 0.0

    @property
    @override
    def spec(self) -> JobSpec:
        return with_application(super().spec, event_log_dir=f"file://{self.folder}/events")

    @override
    def tick(self) -> None:
        super().tick()
        if self.seconds < self.written_until:
            self.commit()

    def log(self, application: str, text: str) -> None:
        """Write the event log of an application."""
        (self.folder / "events").mkdir(exist_ok=True)
        (self.folder / "events" / f"{application}.inprogress").write_text(text)


@pytest.fixture
def world(tmp_path: Path) -> WrittenWorld:
    """An empty cluster."""
    return WrittenWorld(tmp_path, query_id="q-1")


@pytest.mark.parametrize(
    ("name", "packed"),
    [
        ("app-1", False),
        ("app-1.inprogress", False),
        ("app-1_2.zstd.inprogress", True),
        ("eventlog_v2_app-1/events_1_app-1", False),
        ("eventlog_v2_app-1/events_12_app-1.zstd", True),
    ],
)
def test_a_log_tells_the_queries_of_its_application(tmp_path: Path, name: str, packed: bool) -> None:
    """Whatever form Spark writes it in, and although it is not complete."""
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    text = f'{{"Event":"SparkListenerLogStart"}}\n{STARTED}\n{{"Event":"Spar'.encode()
    if packed:
        frame = zstandard.ZstdCompressor().compressobj()
        written = frame.compress(text) + frame.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        path.write_bytes(written + (frame.compress(b"more") + frame.flush())[:-2])
    else:
        path.write_bytes(text)
    if path.parent.name.startswith("eventlog"):
        (path.parent / "appstatus_app-1.inprogress").touch()
        (path.parent / "events_9_app-1").write_text("{}")
        (path.parent / "events_of_yesterday").touch()  # of whoever may write there, for whatever reason
    assert running_query(f"file://{tmp_path}", ["app-1"], ["q-0", "q-1"])
    assert not running_query(str(tmp_path), ["app-1"], ["q-2"])
    assert not running_query(str(tmp_path), ["app-10"], ["q-1"])


def test_without_a_readable_log_nothing_is_known(tmp_path: Path) -> None:
    """A missing folder, another file system and garbage are no evidence."""
    assert not running_query(str(tmp_path / "none"), ["app-1"], ["q-1"])
    assert not running_query("hdfs://name/logs", ["app-1"], ["q-1"])
    (tmp_path / "app-1.zstd").write_bytes(b"garbage")
    assert not running_query(str(tmp_path), ["app-1"], ["q-1"])


def test_an_application_that_runs_the_jobs_query_is_foreign_whatever_its_name(world: WrittenWorld) -> None:
    """Its event log names the query of the job's checkpoint, so nothing is stopped or started."""
    world.start()
    world.foreign = {"app-by-hand": "WordCount", "app-other": "WordCount"}
    world.log("app-by-hand", STARTED)
    world.log("app-other", STARTED.replace("q-1", "q-2"))
    assert world.carry(command()) is Phase.REJECTED
    assert world.topic[-1].code == "FOREIGN_DRIVER"
    assert "runs as app-by-hand, which Tidegate did not start" in world.topic[-1].sentence
    assert list(world.drivers.values()) == [DriverState.RUNNING]


def test_the_event_logs_are_listed_once_for_all_applications(
    world: WrittenWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster may run hundreds, next to thousands of logs on S3: a job that is down must not wait for all of that."""
    world.start()
    world.foreign = {f"app-{number}": "WordCount" for number in range(100)}
    for id_ in world.foreign:
        world.log(id_, STARTED.replace("q-1", "q-2"))
    listed: list[Place] = []

    def noted(folder: Place) -> Sequence[Entry]:
        listed.append(folder)
        return scan(folder)

    monkeypatch.setattr(event_logs, "scan", noted)
    assert world.carry(command()) is Phase.VERIFIED
    assert len(listed) == 2, "when it looked what runs, and before it submitted"


def test_our_own_applications_are_not_foreign(world: WrittenWorld) -> None:
    """The logs of our own runs name the query, too, while they run and after that."""
    world.start()
    for driver in range(3):
        world.log(f"app-driver-1-{driver}", STARTED)
    assert world.carry(command()) is Phase.VERIFIED
    assert world.carry(command(to=2, epoch=8, command_id="d")) is Phase.VERIFIED


def test_a_checkpoint_that_changes_is_somebody_elses(world: WrittenWorld) -> None:
    """Without a name and without a log, the commits of a foreign driver give it away; then nothing is started."""
    world.start()
    world.drivers["driver-1-0"] = DriverState.ENDED
    world.written_until = world.seconds + 1000
    assert world.carry(command(CommandKind.START)) is Phase.REJECTED
    assert world.topic[-1].code == "FOREIGN_DRIVER"
    assert f"The checkpoint {world.folder / 'ck'} changes, although no driver that" in world.topic[-1].sentence
    assert len(world.sizes) == 1


def test_a_stop_of_what_has_ended_watches_no_checkpoint(world: WrittenWorld) -> None:
    """It starts nothing, so it does not matter who writes."""
    world.start()
    world.drivers["driver-1-0"] = DriverState.ENDED
    world.written_until = world.seconds + 1000
    assert world.carry(command(CommandKind.STOP, to=0)) is Phase.VERIFIED


@pytest.mark.parametrize("clean", [True, False])
def test_a_job_that_was_scaled_to_zero_starts_without_a_watch(world: WrittenWorld, clean: bool) -> None:
    """The checkpoint stands where the stop left it, and would have moved, but for a batch that still runs."""
    world.start()
    world.commit()
    world.seconds += 300
    world.commit()
    late = world.now().replace(year=2099)
    assert world.carry(command(CommandKind.STOP, to=0, expires_at=late)) is Phase.VERIFIED
    world.seconds += 60
    if not clean:
        (world.folder / "ck/offsets/1000").touch()
    asked_at = world.seconds
    assert world.carry(command(CommandKind.START, epoch=8, command_id="d", expires_at=late)) is Phase.VERIFIED
    assert (world.asked_at["driver-1-1"] - asked_at < 1.0) is clean


@pytest.mark.parametrize("idle_seconds", [0, 60])
def test_a_writer_at_a_job_that_was_scaled_to_zero_is_seen(world: WrittenWorld, idle_seconds: int) -> None:
    """Somebody started the stopped job by hand: the checkpoint moves, now or since the stop."""
    world.start()
    assert world.carry(command(CommandKind.STOP, to=0)) is Phase.VERIFIED
    world.written_until = world.seconds + 1000
    world.seconds += idle_seconds
    world.commit()
    assert world.carry(command(CommandKind.START, epoch=8, command_id="d")) is Phase.REJECTED
    assert world.topic[-1].code == "FOREIGN_DRIVER"


def test_the_last_words_of_our_own_driver_are_not_foreign(world: WrittenWorld) -> None:
    """A JVM that lives on for some seconds after the cluster has given it up delays the start, no more."""
    world.start()
    world.drivers["driver-1-0"] = DriverState.ENDED
    world.written_until = world.seconds + 4
    assert world.carry(command(CommandKind.START)) is Phase.VERIFIED
    assert world.asked_at["driver-1-1"] >= world.written_until


@pytest.mark.parametrize(("seconds", "end"), [(1000, Phase.FAILED), (4, Phase.VERIFIED)])
def test_a_checkpoint_that_changes_between_stop_and_start_prevents_the_start(
    world: WrittenWorld, seconds: int, end: Phase
) -> None:
    """After the stop nobody may write; if somebody does for long, the command fails and nothing is started."""
    world.start()

    def write(result: ActionResult) -> None:
        if (result.phase, result.command_id) == (Phase.STARTING, "c"):
            world.commit()
            world.written_until = world.seconds + seconds

    world.on_result = write
    assert world.carry(command()) is end
    assert world.topic[-1].code == ("OK" if end is Phase.VERIFIED else "FOREIGN_DRIVER")
    assert len(world.sizes) == (2 if end is Phase.VERIFIED else 1)


def test_clocks_do_not_matter(world: WrittenWorld) -> None:
    """The actuator's clock may be years away from that of the checkpoint's file system: two looks are compared."""
    world.start()
    world.drivers["driver-1-0"] = DriverState.ENDED
    world.seconds += 3600 * 24 * 365
    assert world.carry(command(CommandKind.START, expires_at=world.now().replace(year=2099))) is Phase.VERIFIED


def test_a_restart_does_not_wait_for_the_watch(world: WrittenWorld) -> None:
    """Between stop and start, a checkpoint that has not moved costs no time."""
    world.start()
    assert world.carry(command()) is Phase.VERIFIED
    stopped, running = (
        next(r for r in world.topic if (r.command_id, r.phase) == ("c", phase))
        for phase in (Phase.STOPPED, Phase.RUNNING)
    )
    assert running.at == stopped.at
