"""What the services rely on, wherever a job keeps its files: every file system passes these tests."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import Any

import fsspec
import pytest

from services.actuator.checkpoint import read_mark
from services.actuator.event_logs import running_query
from services.collector.checkpoint import checkpoint_offsets
from tests.support.fake_s3 import BUCKET, ENVIRONMENT, FakeS3, fake_s3
from tests.support.fake_webhdfs import MTIME, FakeWebHdfs, fake_webhdfs
from tidegate.launcher.control.store import FolderStore
from tidegate.remote.files import Files, FilesError, Place, RemotePath, chunks, contents, log_uri, names, scan
from tidegate.remote.webhdfs import open_hdfs
from tidegate.sparklog.event_log import ApplicationLog
from tidegate.sparklog.log_directory import LogDirectory


class Folder:
    """A folder of some kind that a test fills, and the place at which the services see it."""

    def __init__(self, kind: str, tmp_path: Path, hdfs: FakeWebHdfs | None, s3: FakeS3 | None) -> None:
        self._tmp_path = tmp_path
        self._s3 = s3
        self._memory = fsspec.filesystem("memory") if kind == "memory" else None
        self._hdfs = hdfs
        hdfs_files = Files({"hdfs": {"url": hdfs.url}} if hdfs is not None else {})
        self.files = hdfs_files if s3 is None else _s3_files(s3.url)
        roots = {"local": "", "memory": "memory://", "hdfs": "hdfs://nn:8020", "s3": f"s3a://{BUCKET}"}
        self.uri = f"{roots[kind]}{tmp_path}"

    @property
    def place(self) -> Place:
        """What the services see."""
        return self.files.place(self.uri)

    def put(self, name: str, data: bytes) -> None:
        """Write a file, as Spark would."""
        path = self._tmp_path / name
        if self._hdfs is not None:
            self._hdfs.put(str(path), data)
        elif self._s3 is not None:
            self._s3.put(str(path), data)
        elif self._memory is not None:
            self._memory.pipe_file(str(path), data)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


@pytest.fixture(scope="module")
def s3_server() -> Iterator[FakeS3]:
    """An S3, with credentials in the environment. A client costs a second: the tests share one."""
    with fake_s3() as server, pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        yield server


@pytest.fixture
def s3(s3_server: FakeS3) -> Iterator[FakeS3]:
    """An empty S3."""
    yield s3_server
    s3_server.reset()


@pytest.fixture(params=["local", "memory", "hdfs", "s3"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Folder]:
    """An empty folder of each kind."""
    with ExitStack() as stack:
        hdfs = stack.enter_context(fake_webhdfs()) if request.param == "hdfs" else None
        yield Folder(request.param, tmp_path, hdfs, request.getfixturevalue("s3") if request.param == "s3" else None)


class TestFiles:
    """The contract."""

    def test_what_is_there_is_found(self, folder: Folder) -> None:
        """Names, kinds, sizes and times of a folder's entries come from one look."""
        folder.put("a/b", b"12345")
        folder.put("c d", b"1")
        entries = {entry.name: entry for entry in scan(folder.place)}
        assert sorted(entries) == sorted(names(folder.place)) == ["a", "c d"]
        assert (entries["a"].is_dir(), entries["a"].is_file()) == (True, False)
        assert (entries["c d"].is_dir(), entries["c d"].is_file()) == (False, True)
        (inside,) = scan(folder.place / "a")
        assert inside.name == "b"
        assert inside.stat().st_size == 5
        assert inside.stat().st_mtime == (folder.place / "a" / "b").stat().st_mtime > 1_700_000_000

    def test_what_is_absent_is_absent(self, folder: Folder) -> None:
        """An absent file is an error of its own, and never an empty file; neither is a file a folder."""
        folder.put("a/b", b"12345")
        for place in (folder.place / "nowhere", folder.place / "a" / "c"):
            with pytest.raises(FileNotFoundError):
                list(scan(place))
            with pytest.raises(FileNotFoundError):
                place.read_bytes()
            with pytest.raises(FileNotFoundError):
                list(chunks(place, 0, 10))
            with pytest.raises(FileNotFoundError):
                place.stat()
            assert (place.is_dir(), place.is_file(), names(place)) == (False, False, [])
        with pytest.raises(NotADirectoryError):
            list(scan(folder.place / "a" / "b"))
        assert names(folder.place / "a" / "b") == []

    def test_a_file_is_read_from_an_offset(self, folder: Folder) -> None:
        """All of it, or from a byte to a limit; at its end there is nothing."""
        data = bytes(range(256)) * 10_000
        folder.put("big", data)
        file = folder.place / "big"
        assert file.read_bytes() == b"".join(chunks(file, 0, len(data) + 1)) == data
        assert b"".join(chunks(file, 1_000_001, 1_500_000)) == data[1_000_001:2_500_001]
        assert b"".join(chunks(file, 7, 3)) == data[7:10]
        assert list(chunks(file, len(data), 10)) == []
        folder.put("text", "äöü".encode())
        assert (folder.place / "text").read_text(encoding="utf-8") == "äöü"

    def test_a_file_that_is_read_whole_is_small(self, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
        """One that is larger than those of a checkpoint is refused, by name; an empty one is read."""
        monkeypatch.setattr("tidegate.remote.files.WHOLE_BYTES", 9)
        folder.put("small", b"123456789")
        folder.put("large", b"1234567890")
        folder.put("empty", b"")
        assert (contents(folder.place / "small"), contents(folder.place / "empty")) == (b"123456789", b"")
        with pytest.raises(OSError, match="large has more than 9 bytes"):
            contents(folder.place / "large")

    def test_a_log_is_followed_while_it_grows(self, folder: Folder) -> None:
        """Every line comes once, from a file to the next one."""
        folder.put("eventlog_v2_app/appstatus_app.inprogress", b"")
        folder.put("eventlog_v2_app/events_1_app", b"one\ntw")
        log = ApplicationLog(folder.place / "eventlog_v2_app")
        assert list(log.lines(1000)) == [b"one"]
        assert log.caught_up()
        folder.put("eventlog_v2_app/events_1_app", b"one\ntwo\nthree\n")
        assert list(log.lines(5)) == [b"two"]
        assert not log.caught_up()
        folder.put("eventlog_v2_app/events_2_app", b"four\n")
        assert list(log.lines(1000)) == [b"three", b"four"]
        assert list(log.lines(1000)) == []
        assert log.caught_up()
        assert log.bytes_read == 19
        assert log.modified_at is not None

    def test_a_checkpoint_is_read(self, folder: Folder) -> None:
        """Collector and actuator read batches, query and offsets; a folder without one tells nothing."""
        assert read_mark(folder.uri, folder.files)[0].queries == {}
        assert checkpoint_offsets(folder.place, {"in"}) == {}
        folder.put("ck/q/metadata", b'{"id":"q-1"}')
        folder.put("ck/q/sources/0/0", b'\0v1\n{"in":{"0":3}}')
        assert checkpoint_offsets(folder.place / "ck", {"in"}) == {"in": {0: 3}}
        folder.put("ck/q/offsets/0", b'v1\n{}\n{"in":{"0":7}}')
        mark, clean = read_mark(f"{folder.uri}/ck", folder.files)
        assert (clean, mark.queries["q"].query_id, mark.queries["q"].batch_id) == (False, "q-1", None)
        folder.put("ck/q/commits/0", b"v1\n{}")
        mark, clean = read_mark(f"{folder.uri}/ck", folder.files)
        assert (clean, mark.queries["q"].batch_id) == (True, 0)
        assert mark.last_commit_at is not None
        assert checkpoint_offsets(folder.place / "ck", {"in"}) == {"in": {0: 7}}

    def test_a_log_tells_whose_it_is(self, folder: Folder) -> None:
        """The actuator finds a query's id in the log of the application that runs it."""
        assert not running_query(folder.uri, ["app-1"], ["q-1"], folder.files)
        folder.put("eventlog_v2_app-1/events_1_app-1", b'{"id":"q-1"}\n')
        folder.put("app-2.inprogress", b'{"id":"q-2"}')
        assert running_query(folder.uri, ["app-1"], ["q-0", "q-1"], folder.files)
        assert running_query(folder.uri, ["app-2"], ["q-2"], folder.files)
        assert not running_query(folder.uri, ["app-2"], ["q-1"], folder.files)


@pytest.mark.timeout(60)
def test_a_pipe_or_a_device_in_the_place_of_a_file_holds_nobody_up(tmp_path: Path) -> None:
    """Whoever runs a job can put them there: to open a pipe would wait for a writer, a device may never end."""
    for name in ("offsets", "commits", "sources/0"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "commits" / "0").touch()
    for special in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        for name in ("offsets/0", "metadata", "log.inprogress", "stop"):
            (tmp_path / name).unlink(missing_ok=True)
            special(tmp_path / name)
        for read in (
            lambda: checkpoint_offsets(tmp_path, {"in"}),
            lambda: read_mark(str(tmp_path)),
            lambda: list(chunks(tmp_path / "log.inprogress", 0, 10)),
            lambda: FolderStore(tmp_path).read("stop"),
        ):
            with pytest.raises(OSError, match="is a pipe or a device, not a file"):
                read()
    with pytest.raises(IsADirectoryError):
        list(chunks(tmp_path / "commits", 0, 10))


def test_a_file_without_end_fills_no_memory(tmp_path: Path) -> None:
    """Whoever runs a job can put it there; without blocks on the disk it costs them nothing."""
    for name in ("metadata", "stop"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(1 << 40)
    for read in (
        lambda: contents(tmp_path / "metadata"),
        lambda: read_mark(str(tmp_path)),
        lambda: FolderStore(tmp_path).read("stop"),
    ):
        with pytest.raises(OSError, match=r"(metadata|stop) has more than \d+ (bytes|characters)"):
            read()


class TestWebHdfs:
    """What is peculiar to HDFS."""

    @pytest.fixture
    def hdfs(self) -> Iterator[FakeWebHdfs]:
        """A server."""
        with fake_webhdfs() as server:
            yield server

    @pytest.mark.parametrize("listed", [0, 4], ids=["first block", "second block"])
    def test_what_was_flushed_is_read(self, hdfs: FakeWebHdfs, listed: int) -> None:
        """The listing tells only the complete blocks of a file that is being written; the log is followed beyond."""
        hdfs.put("/log.inprogress", b"one\ntwo\nth", listed)
        log = ApplicationLog(_hdfs(hdfs) / "log.inprogress")
        assert list(log.lines(1000)) == [b"one", b"two"]
        assert log.modified_at is not None
        assert log.modified_at.timestamp() == MTIME
        hdfs.files["/log.inprogress"].data += b"ree\n"
        assert list(log.lines(1000)) == [b"three"]
        assert list(log.lines(1000)) == []
        assert log.modified_at.timestamp() > MTIME + 1000

    def test_a_swap_needs_what_was_there(self, hdfs: FakeWebHdfs) -> None:
        """HDFS cannot compare and write at once, so the file is read just before: another's content stays."""
        hdfs.put("/fence", b"theirs")
        place = _hdfs(hdfs) / "fence"
        assert isinstance(place, RemotePath)
        assert not place.swap(b"ours", b"next")
        assert place.read_bytes() == b"theirs"
        assert place.swap(b"theirs", b"next")
        assert place.read_bytes() == b"next"

    def test_a_truncated_log_is_an_error(self, hdfs: FakeWebHdfs) -> None:
        """Bytes that were read and are gone are told, not taken for a log without news."""
        hdfs.put("/log", b"one\ntwo\n")
        log = ApplicationLog(_hdfs(hdfs) / "log")
        assert list(log.lines(1000)) == [b"one", b"two"]
        hdfs.put("/log", b"one\n")
        with pytest.raises(OSError, match=r"hdfs://nn:8020/log: shorter than what has been read of it"):
            list(log.lines(1000))

    def test_silence_is_an_error_that_says_what_to_do(self, hdfs: FakeWebHdfs) -> None:
        """The wait is bounded, and the text names the file, the server and the setting."""
        hdfs.silent.set()
        with pytest.raises(OSError, match=r"hdfs://nn:8020/a: http://.* not answer \(not in 0\.2 s\).*TIDEGATE_FILES"):
            (_hdfs(hdfs, timeout_seconds=0.2) / "a").read_bytes()
        hdfs.silent.clear()
        nobody = Files({"hdfs": {"url": "http://127.0.0.1:9"}}).place("hdfs://nn:8020/a")
        with pytest.raises(OSError, match=r"http://127\.0\.0\.1:9 does not answer \(ConnectionError\).*TIDEGATE_FILES"):
            nobody.stat()

    def test_a_refusal_is_no_absence(self, hdfs: FakeWebHdfs) -> None:
        """Who may not read a file is told as whom HDFS knows him."""
        hdfs.put("/a", b"x")
        hdfs.forbidden = True
        with pytest.raises(PermissionError, match=r"hdfs://nn:8020/a: Permission denied: user=etl"):
            (_hdfs(hdfs, user="etl") / "a").read_bytes()

    def test_the_active_name_node_is_found(self, hdfs: FakeWebHdfs) -> None:
        """One that is on standby or dead is passed over, and not asked first again."""
        with fake_webhdfs() as standby:
            standby.standby = True
            hdfs.put("/a", b"x")
            place = _hdfs(hdfs, url=["http://127.0.0.1:9", standby.url, hdfs.url])
            assert (place / "a").read_bytes() == b"x"
            assert (place / "a").read_bytes() == b"x"
            assert len(standby.requests) == 1
            hdfs.standby = True
            with pytest.raises(OSError, match=r"/a: http://127\.0\.0\.1:9 does not answer \(ConnectionError\)"):
                (place / "a").read_bytes()  # the one that is to take over is not to blame

    def test_writes_are_whole_and_creation_is_exclusive(self, hdfs: FakeWebHdfs) -> None:
        """No reader sees a part of a file, one of two creates it, and nothing is left over."""
        place = _hdfs(hdfs) / "control" / "turn"
        assert isinstance(place, RemotePath)
        assert place.create(b"1")
        assert not place.create(b"2")
        assert place.read_bytes() == b"1"
        place.replace(b"3")
        assert place.read_bytes() == b"3"
        assert list(hdfs.files) == ["/control/turn"]
        place.unlink()
        place.unlink(missing_ok=True)
        with pytest.raises(FileNotFoundError):
            place.unlink()

    @pytest.mark.parametrize("fails", ["CREATE", "RENAME"])
    def test_a_write_that_fails_leaves_nothing(self, hdfs: FakeWebHdfs, fails: str) -> None:
        """Whether the DataNode is full or the rename is refused: no hidden file stays."""
        place = _hdfs(hdfs) / "control" / "turn"
        assert isinstance(place, RemotePath)
        hdfs.fails = fails
        for write in (place.create, place.replace):
            with pytest.raises(OSError, match="The quota is exceeded"):
                write(b"1")
            assert list(hdfs.files) == []

    def test_a_name_node_has_a_default_address(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Port 9870 of the host that Spark's URI names, as the user that Hadoop would take."""
        monkeypatch.setenv("HADOOP_USER_NAME", "etl")
        found = open_hdfs("namenode:8020")
        assert (found.url, found.pars) == ("http://namenode:9870/webhdfs/v1", {"user.name": "etl"})


class TestS3:
    """What is peculiar to S3."""

    def test_creation_and_swap_are_exclusive(self, s3: FakeS3) -> None:
        """Of many that create a file, or replace the same content, one succeeds: S3 decides, not a look before."""
        place = _s3(s3) / "control" / "fence"
        assert isinstance(place, RemotePath)
        assert not place.swap(b"0", b"1")
        for act in (place.create, partial(place.swap, b"first")):
            start, won = threading.Barrier(6), list[int]()

            def race(number: int, act: Callable[[bytes], bool] = act, start: Any = start, won: Any = won) -> None:
                start.wait(10)
                if act(str(number).encode()):
                    won.append(number)

            threads = [threading.Thread(target=race, args=(number,)) for number in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(20)
            assert len(won) == 1
            place.replace(b"first")
        assert not place.swap(b"second", b"third")
        assert place.read_bytes() == b"first"

    def test_a_look_is_one_request(self, s3: FakeS3) -> None:
        """Requests have a price: a folder is one, a file that has not grown is one, new bytes are one more."""
        s3.put("eventlog_v2_a/events_1_a", b"one\n")
        log = ApplicationLog(_s3(s3) / "eventlog_v2_a")
        assert list(log.lines(1000)) == [b"one"]
        s3.requests.clear()
        assert list(log.lines(1000)) == []
        assert s3.requests == ["LIST", "HEAD eventlog_v2_a/events_1_a"]
        s3.put("eventlog_v2_a/events_1_a", b"one\ntwo\n")
        s3.requests.clear()
        assert list(log.lines(1000)) == [b"two"]
        assert s3.requests == ["LIST", "HEAD eventlog_v2_a/events_1_a", "GET eventlog_v2_a/events_1_a"]

    def test_hadoop_s_marks_of_folders_are_no_files(self, s3: FakeS3) -> None:
        """S3A puts an empty object where a folder was made."""
        s3.put("ck/", b"")
        assert names(_s3(s3) / "ck") == []
        s3.put("ck/commits/", b"")
        assert [(entry.name, entry.is_dir()) for entry in scan(_s3(s3) / "ck")] == [("commits", True)]

    def test_a_folder_without_files_is_empty(self, s3: FakeS3) -> None:
        """There are no folders on S3: nobody can make that of the first event log before there is one."""
        logs = LogDirectory(_s3(s3) / "events", limit_bytes=1000)
        assert logs.read({"rates": None}) == {}
        with pytest.raises(OSError, match="NoSuchBucket"):
            LogDirectory(_s3_files(s3.url).place("s3a://jbos/events"), limit_bytes=1000).read({})

    def test_a_missing_bucket_is_no_empty_folder(self, s3: FakeS3) -> None:
        """A name that is misspelled must not look like a job without a checkpoint."""
        nowhere = _s3_files(s3.url).place("s3a://jbos/ck")
        for ask in (nowhere.stat, nowhere.read_bytes, partial(names, nowhere), nowhere.is_dir):
            with pytest.raises(OSError, match=r"s3a://jbos/ck: .*NoSuchBucket") as told:
                ask()
            assert not isinstance(told.value, FileNotFoundError)

    def test_silence_and_refusal_say_what_to_do(self, s3: FakeS3) -> None:
        """The wait is bounded, and the text names the file, the server and the variables."""
        s3.put("a", b"x")
        s3.forbidden = True
        with pytest.raises(PermissionError, match=rf"s3a://{BUCKET}/a: .*{s3.url} was asked.*AWS_ENDPOINT_URL"):
            (_s3(s3) / "a").read_bytes()
        s3.forbidden = False
        s3.silent.set()
        impatient = Files({"s3a": {"endpoint_url": s3.url, "timeout_seconds": 0.2}})
        with pytest.raises(OSError, match=rf"s3a://{BUCKET}/a: .*imeout.*AWS_ENDPOINT_URL"):
            impatient.place(f"s3a://{BUCKET}/a").read_bytes()


@pytest.mark.parametrize(
    ("location", "options", "told"),
    [
        ("hdfs:///ck", {}, "nothing says where its NameNode is: set TIDEGATE_FILES"),
        ("hdfs://nn/ck", {"hdfs": {"url": "nn:9870"}}, "url 'nn:9870' of TIDEGATE_FILES must be like"),
        ("hdfs://nn/ck", {"hdfs://nn": {"token": "t", "user": "u"}}, "must not set user"),
        ("ftp://nn/ck", {"ftp": {"host": "127.0.0.1", "port": 9}}, "Connection refused"),
        ("nfs://nn/ck", {}, "use a path, a file:, hdfs: or s3a: URI"),
        ("hdfs:/ck", {}, "must be like hdfs://host:port/path"),
        ("hdfs://[nn/ck", {}, "Invalid IPv6 URL"),
        ("file://elsewhere/ck", {}, "a path of this machine, not of elsewhere"),
    ],
)
def test_an_unusable_location_is_refused(location: str, options: dict[str, Any], told: str) -> None:
    """The text names the location, and says what to set or to write."""
    with pytest.raises(FilesError) as refused:
        Files(options).place(location)
    assert location in str(refused.value)
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("/a/b", "/a/b"),
        ("/a/b c%20d#e", "/a/b c%20d#e"),
        ("file:///a/b", "/a/b"),
        ("file:/a/b c%20d#e", "/a/b c%20d#e"),
        ("FILE://localhost/a%2Fb?c", "/a%2Fb?c"),
    ],
)
def test_a_path_or_file_uri_is_on_this_machine(given: str, path: str) -> None:
    """Whatever Spark accepts for a local path is one, read directly; as in Hadoop, nothing in it is decoded."""
    assert Files().place(given) == Path(path)


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("/a/b c%20d#e", "/a/b c%20d#e"),
        ("events%20", "events%20"),
        ("file:///a/b%20c%2520d%23e", "/a/b c%20d#e"),
        ("file:/a/b c", "/a/b c"),
        ("hdfs://nn:8020/a%20b%25", "hdfs://nn:8020/a b%"),
    ],
)
def test_spark_decodes_the_uri_of_event_logs(given: str, path: str) -> None:
    """Unlike a path; and unlike any other URI, such as that of a checkpoint."""
    place = Files({"hdfs": {"url": "http://127.0.0.1:9"}}).log_place(given)
    assert str(place) == path
    assert str(Files({"hdfs": {"url": "http://127.0.0.1:9"}}).log_place(log_uri(path))) == path


def _hdfs(server: FakeWebHdfs, **options: Any) -> Place:
    return Files({"hdfs": {"url": server.url} | options}).place("hdfs://nn:8020/")


@cache
def _s3_files(url: str) -> Files:
    return Files({"s3a": {"endpoint_url": url}})


def _s3(server: FakeS3) -> Place:
    return _s3_files(server.url).place(f"s3a://{BUCKET}/")
