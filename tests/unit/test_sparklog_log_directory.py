"""A directory of logs: each job's newest run is found and followed; a log without new lines costs nothing."""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
import time
import tracemalloc
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

import pytest
import zstandard
from typing_extensions import override

from tests.support.eventlogs import APP_ID, as_app, recorded, rolling, up_to
from tests.support.fake_webhdfs import fake_webhdfs
from tidegate.remote import files
from tidegate.remote.files import Files
from tidegate.sparklog import event_log
from tidegate.sparklog.application_run import Interval, Reading
from tidegate.sparklog.log_directory import READERS, JobReading, LogDirectory

WHOLE = Interval(datetime(2026, 11, 21, tzinfo=UTC), datetime(2026, 11, 22, tzinfo=UTC), first=True)
LIMIT = 16_000_000


def read(directory: LogDirectory, *job_ids: str) -> dict[str, JobReading]:
    """Return the readings of jobs over the whole day."""
    return directory.read(dict.fromkeys(job_ids or ("recorded",), WHOLE))


def newest(reading: JobReading) -> Reading:
    """Return the reading of the newest run."""
    return reading.runs[-1]


def test_a_job_is_found_by_its_id(tmp_path: Path) -> None:
    """In a shared directory each job gets its own log, and a job without a log has no run."""
    rolling(tmp_path, as_app(recorded(), job_id="a", app_id="app-1"), app_id="app-1", codec=".zstd")
    rolling(tmp_path, as_app(recorded(), job_id="b", app_id="app-2"), app_id="app-2")
    (tmp_path / "README").write_text("no log\n")
    found = read(LogDirectory(tmp_path, limit_bytes=LIMIT), "a", "b", "never-started")
    assert newest(found["a"]).app_id == "app-1"
    assert newest(found["b"]).app_id == "app-2"
    assert found["never-started"] == JobReading((), complete=True, grown_at=None)


class Overlapping(list[str]):
    """Requests that take a while; `most` says how many there were at once."""

    now = most = 0

    @override
    def append(self, request: str, /) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        time.sleep(0.02)
        self.now -= 1


def test_logs_elsewhere_are_read_several_at_once(tmp_path: Path) -> None:
    """Jobs may share a directory in HDFS, with thousands of old logs: one after the other they would take minutes."""
    with fake_webhdfs() as hdfs:
        for number in range(12):
            rolling(tmp_path, as_app(recorded(), job_id=f"j{number}", app_id=f"app-{number}"), f"app-{number}")
        for file in tmp_path.glob("*/*"):
            hdfs.put(f"/logs/{file.relative_to(tmp_path)}", file.read_bytes())
        hdfs.requests = Overlapping()
        place = Files({"hdfs": {"url": hdfs.url}}).place("hdfs://nn:8020/logs")
        directory, jobs = LogDirectory(place, limit_bytes=LIMIT), [f"j{number}" for number in range(12)]
        assert directory.read({}) == {}  # what is found there belongs to others
        assert 1 < hdfs.requests.most <= READERS
        hdfs.requests.most = 0
        found = read(directory, *jobs)
    assert [newest(found[job_id]).app_id for job_id in jobs] == [f"app-{number}" for number in range(12)]
    assert 1 < hdfs.requests.most <= READERS


def test_the_application_name_replaces_a_missing_id(tmp_path: Path) -> None:
    """A job started without Tidegate is identified by its application's name."""
    lines = [line.replace(b'"spark.tidegate.job_id":"recorded",', b"") for line in recorded()]
    assert lines != recorded()
    rolling(tmp_path, lines)
    assert newest(read(LogDirectory(tmp_path, limit_bytes=LIMIT))["recorded"]).app_id == APP_ID


def test_a_log_without_read_permission_affects_only_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another user's log is reported once and ignored, and found once it becomes readable."""
    for name in ("a", "b"):
        rolling(tmp_path, as_app(recorded(), job_id=name, app_id=f"app-{name}"), app_id=f"app-{name}")
    opened = files.regular

    def guarded(path: Path) -> BinaryIO:
        if path.name.endswith("_app-b"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path)

    directory = LogDirectory(tmp_path, limit_bytes=LIMIT)
    with monkeypatch.context() as patched:
        patched.setattr(files, "regular", guarded)
        for _ in range(2):
            found = read(directory, "a", "b")
            assert newest(found["a"]).app_id == "app-a"
            assert found["b"].runs == ()
    assert len([record for record in caplog.records if "Permission denied" in record.message]) == 1
    assert newest(read(directory, "a", "b")["b"]).app_id == "app-b"


@pytest.mark.parametrize("name", ["mine", "eventlog_v2_mine"])
def test_a_circle_of_links_hides_no_log(tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str) -> None:
    """Whoever may write to the directory can make one; it is said once."""
    (tmp_path / name).symlink_to(name)
    rolling(tmp_path, recorded())
    directory = LogDirectory(tmp_path, limit_bytes=LIMIT)
    for _ in range(2):
        assert newest(read(directory)["recorded"]).app_id == APP_ID
    assert [said for said in caplog.messages if name in said] == caplog.messages
    assert len(caplog.messages) == 1


def test_unwanted_logs_are_not_kept_in_memory(tmp_path: Path) -> None:
    """Other applications leave nothing in memory; a log that is wanted later is found."""
    directory = LogDirectory(tmp_path, limit_bytes=LIMIT)
    for number in range(30):
        name = f"nightly-{number}"
        rolling(
            tmp_path, as_app(recorded(), job_id=name, app_id=f"app-{number}"), app_id=f"app-{number}", codec=".zstd"
        )
        read(directory, "mine")
        if number == 9:
            tracemalloc.start(8)
    # Only what the reader allocated: threads of other tests may run in this process.
    by_reader = tracemalloc.Filter(inclusive=True, filename_pattern="*/sparklog/*", all_frames=True)
    held = sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces([by_reader]).traces)
    tracemalloc.stop()
    assert held < 20 * 4_000, "of 20 logs"
    assert newest(read(directory, "nightly-3")["nightly-3"]).app_id == "app-3"
    assert read(directory, "mine")["mine"].runs == ()
    assert newest(read(directory, "nightly-3", "mine")["nightly-3"]).app_id == "app-3"


def test_the_newest_run_is_followed(tmp_path: Path) -> None:
    """After a start, the collector follows the newest application, whatever the order of the files."""
    for number, later in ((1, 200), (2, 300), (3, 100)):
        rolling(tmp_path, as_app(recorded(), app_id=f"app-{number}", later=later), app_id=f"app-{number}")
    reading = read(LogDirectory(tmp_path, limit_bytes=LIMIT))["recorded"]
    assert [run.app_id for run in reading.runs] == ["app-2"]


def test_a_restart_switches_to_the_new_run(tmp_path: Path) -> None:
    """The new run replaces the old one after its end, and starts with its committed offsets."""
    rolling(tmp_path, recorded())
    directory = LogDirectory(tmp_path, limit_bytes=LIMIT)
    assert len(newest(read(directory)["recorded"]).batches) == 5
    rolling(tmp_path, as_app(up_to(recorded(), "QueryStartedEvent"), app_id="app-2", later=500), app_id="app-2")
    reading = read(directory)["recorded"]
    assert [run.app_id for run in reading.runs] == ["app-2"]
    assert newest(reading).batches == ()
    assert newest(reading).committed == {"rec": {0: 3458, 1: 3458, 2: 3457, 3: 3457}}


def test_a_restart_on_a_machine_whose_clock_is_behind_switches_to_the_new_run(tmp_path: Path) -> None:
    """Drivers run on different machines: a log that appears later is of the newer run, whatever its times say."""
    rolling(tmp_path, as_app(recorded(), app_id="app-1", later=300), app_id="app-1")
    directory = LogDirectory(tmp_path, limit_bytes=LIMIT)
    assert newest(read(directory)["recorded"]).app_id == "app-1"
    rolling(tmp_path, as_app(recorded(), app_id="app-2", later=200), app_id="app-2")
    assert [run.app_id for run in read(directory)["recorded"].runs] == ["app-2"]
    assert [run.app_id for run in read(directory)["recorded"].runs] == ["app-2"]


def test_the_log_of_an_old_run_that_is_put_back_replaces_nothing(tmp_path: Path) -> None:
    """Somebody restores a log of last week: the run that was followed is still the newest."""
    rolling(tmp_path, as_app(recorded(), app_id="app-2", later=90_000), app_id="app-2")
    directory = LogDirectory(tmp_path, limit_bytes=LIMIT)
    assert newest(read(directory)["recorded"]).app_id == "app-2"
    rolling(tmp_path, as_app(recorded(), app_id="app-1", later=200), app_id="app-1")
    assert [run.app_id for run in read(directory)["recorded"].runs] == ["app-2"]


def test_a_directory_that_was_away_is_followed_where_it_was_left(tmp_path: Path) -> None:
    """A mount that is lost and comes back shows an empty folder meanwhile: no batch counts twice, no old run is new."""
    logs, away = tmp_path / "logs", tmp_path / "away"
    logs.mkdir()
    rolling(logs, as_app(recorded(), app_id="app-1"), app_id="app-1")
    directory = LogDirectory(logs, limit_bytes=LIMIT)
    read(directory)
    rolling(logs, as_app(recorded()[:-2], app_id="app-2", later=60), app_id="app-2")
    assert [(run.app_id, len(run.batches)) for run in read(directory)["recorded"].runs] == [("app-2", 5)]
    logs.rename(away)
    logs.mkdir()
    assert not read(directory)["recorded"].complete
    logs.rmdir()
    away.rename(logs)
    for _ in range(2):
        reading = read(directory)["recorded"]
        assert [(run.app_id, len(run.batches)) for run in reading.runs] == [("app-2", 0)]
        assert reading.complete


def test_both_runs_are_read_in_a_handover(tmp_path: Path) -> None:
    """While the new driver warms up, the old one still works: both are read until the new one commits."""
    rolling(tmp_path, up_to(recorded(), "QueryProgressEvent", 2))
    directory = LogDirectory(tmp_path, limit_bytes=LIMIT)
    read(directory)
    second = as_app(recorded(), app_id="app-2", later=60)
    warm = up_to(second, "QueryStartedEvent")
    rolling(tmp_path, warm, app_id="app-2")
    reading = read(directory)["recorded"]
    assert [run.app_id for run in reading.runs] == [APP_ID, "app-2"]
    assert reading.runs[0].query_active
    rolling(tmp_path, second[len(warm) :], app_id="app-2")
    read(directory)
    assert [run.app_id for run in read(directory)["recorded"].runs] == ["app-2"]


def test_the_log_of_a_killed_run_may_be_deleted_while_the_new_one_is_idle(tmp_path: Path) -> None:
    """A driver that was killed says no end: once its log is gone, what the new one says is complete all the same."""
    file = rolling(tmp_path, up_to(recorded(), "QueryProgressEvent", 2))
    directory = LogDirectory(tmp_path, limit_bytes=LIMIT)
    committed = newest(read(directory)["recorded"]).committed
    rolling(tmp_path, up_to(as_app(recorded(), app_id="app-2", later=60), "QueryStartedEvent"), app_id="app-2")
    assert [run.app_id for run in read(directory)["recorded"].runs] == [APP_ID, "app-2"]
    shutil.rmtree(file.parent)
    reading = [read(directory)["recorded"] for _ in range(3)][-1]
    assert ([run.app_id for run in reading.runs], reading.complete) == (["app-2"], True)
    assert newest(reading).committed == committed


def test_a_log_without_its_start_is_read_again_later(tmp_path: Path) -> None:
    """A log seen in its first milliseconds is identified as soon as it names its job."""
    lines = recorded()
    rolling(tmp_path, lines[:2])
    directory = LogDirectory(tmp_path, limit_bytes=LIMIT)
    assert read(directory)["recorded"].runs == ()
    rolling(tmp_path, lines[2:])
    assert len(newest(read(directory)["recorded"]).batches) == 5


def test_a_file_that_has_only_just_been_made_is_looked_at_again(tmp_path: Path) -> None:
    """Spark buffers what it writes: whose log it is may come some time after the file."""
    file, lines = tmp_path / f"{APP_ID}.inprogress", recorded()
    directory = LogDirectory(tmp_path, limit_bytes=LIMIT)
    for written in (b"", lines[0][:20]):
        file.write_bytes(written)
        assert read(directory)["recorded"].runs == ()
    file.write_bytes(b"".join(lines))
    assert newest(read(directory)["recorded"]).app_id == APP_ID


def test_a_single_file_is_followed_when_it_is_renamed(tmp_path: Path) -> None:
    """A log in a single file is read to the end, although the file is renamed."""
    lines = recorded()
    file = tmp_path / f"{APP_ID}.inprogress"
    file.write_bytes(b"".join(lines[:60]))
    directory = LogDirectory(tmp_path, limit_bytes=LIMIT)
    first = newest(read(directory)["recorded"])
    with file.open("ab") as out:
        out.writelines(lines[60:])
    file.rename(tmp_path / APP_ID)
    second = newest(read(directory)["recorded"])
    assert (first.ended, second.ended) == (False, True)
    assert len(first.batches) + len(second.batches) == 5


def test_a_log_without_new_lines_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that has not grown is not opened."""
    rolling(tmp_path, recorded(), codec=".zstd")
    directory = LogDirectory(tmp_path, limit_bytes=LIMIT)
    read(directory)
    opened: list[Path] = []
    real = files.regular

    def counting(path: Path) -> BinaryIO:
        opened.append(path)
        return real(path)

    monkeypatch.setattr(files, "regular", counting)
    listed: list[Path] = []
    monkeypatch.setattr(event_log, "rolled_files", listed.append)
    assert read(directory)["recorded"].complete
    assert (opened, listed) == ([], [])


def test_broken_lines_are_counted_reported_and_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Garbage between good lines changes no figure; it is counted and logged."""
    clean = tmp_path / "clean"
    dirty = tmp_path / "dirty"
    clean.mkdir()
    dirty.mkdir()
    rolling(clean, recorded())
    garbage = [b"\x00\xff\n", b'{"Event":"SparkListenerTaskEnd","Stage ID":\n', b"]]]\n"]
    mixed = [line for number, good in enumerate(recorded()) for line in (good, garbage[number % 3])]
    rolling(dirty, mixed)
    broken: list[int] = []
    with caplog.at_level(logging.WARNING):
        directory = LogDirectory(dirty, limit_bytes=LIMIT, on_broken=lambda: broken.append(1))
        reading = read(directory)["recorded"]
    assert newest(reading) == newest(read(LogDirectory(clean, limit_bytes=LIMIT))["recorded"])
    assert len(broken) == len(recorded())
    named = [record.getMessage() for record in caplog.records if "broken line" in record.getMessage()]
    assert len(named) == 5
    assert f"eventlog_v2_{APP_ID}: skipped broken line 1: not an event" in named[0]


@pytest.mark.parametrize("figure", [b"addBatch", b"Executor Run Time"])
def test_figures_that_no_snapshot_may_hold_hide_no_other_job(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, figure: bytes
) -> None:
    """Whoever may write to the directory writes them; the log says which job it is."""
    absurd = [re.sub(rb'"%s":\d+' % figure, rb'"%s":%d' % (figure, 2 * 10**12), line) for line in recorded()]
    rolling(tmp_path, as_app(absurd, job_id="a", app_id="app-1"), app_id="app-1")
    rolling(tmp_path, as_app(recorded(), job_id="b", app_id="app-2"), app_id="app-2")
    found = read(LogDirectory(tmp_path, limit_bytes=LIMIT), "a", "b")
    assert newest(found["b"]).batches
    assert "a" not in found or not newest(found["a"]).batches
    assert any("app-1" in said or "job a" in said for said in caplog.messages)


def test_a_long_backlog_is_read_in_pieces_and_marked_incomplete(tmp_path: Path) -> None:
    """Until a log has been read to its end, the reading is incomplete and missing events mean nothing."""
    rolling(tmp_path, recorded())
    directory = LogDirectory(tmp_path, limit_bytes=40_000)
    reads = [read(directory)["recorded"].complete for _ in range(10)]
    assert reads[0] is False
    assert reads[-1] is True


def test_a_damaged_log_is_reported_once_and_incomplete(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Damage does not look like idleness, and does not flood the log."""
    file = rolling(tmp_path, up_to(recorded(), "QueryProgressEvent", 2), codec=".zstd")
    directory = LogDirectory(tmp_path, limit_bytes=LIMIT)
    assert read(directory)["recorded"].complete
    with file.open("ab") as out:
        out.write(b"no frame" * 20)
    with caplog.at_level(logging.WARNING):
        assert [read(directory)["recorded"].complete for _ in range(3)] == [False] * 3
    assert [r.getMessage() for r in caplog.records if "cannot follow" in r.getMessage()] == [
        caplog.records[0].getMessage()
    ]
    assert str(file) in caplog.records[0].getMessage()


def test_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    """A missing directory raises an error with its path; it does not look empty."""
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read(LogDirectory(tmp_path / "nowhere", limit_bytes=LIMIT))


@pytest.mark.parametrize("skew", [-3600.0, 3600.0], ids=["behind", "ahead"])
def test_a_log_that_grows_is_fresh_whatever_the_clock_of_its_file_system_says(tmp_path: Path, skew: float) -> None:
    """An hour off, and still a log that grew between two looks has just grown; another one is as old as it says."""
    file = rolling(tmp_path, recorded()[:-2])
    written = time.time() + skew
    os.utime(file, (written, written))
    directory = LogDirectory(tmp_path, limit_bytes=LIMIT)
    first = read(directory)["recorded"].grown_at
    assert first is not None
    assert first.timestamp() == pytest.approx(min(written, time.time()), abs=5), "not in the future"
    assert read(directory)["recorded"].grown_at == first
    with file.open("ab") as log:
        log.write(b"\n")
    os.utime(file, (written + 10, written + 10))
    grown = read(directory)["recorded"].grown_at
    assert grown is not None
    assert grown.timestamp() == pytest.approx(time.time(), abs=5)


def test_what_is_no_log_yet_is_not_kept_in_memory(tmp_path: Path) -> None:
    """A folder that several jobs can write must not fill the collector's memory with starts of endless lines."""
    for number in range(4):
        packed = zstandard.compress(b'{"Event":"SparkListenerLogStart"}\n{"Event":"' + b"x" * 15_000_000)
        (tmp_path / f"app-{number}.zstd.inprogress").write_bytes(packed)
    directory = LogDirectory(tmp_path, limit_bytes=LIMIT)
    tracemalloc.start()
    read(directory)
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert kept < 1_000_000
