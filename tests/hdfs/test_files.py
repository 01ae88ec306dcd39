"""What HDFS itself does with files that grow, with renames, and with waits."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Iterator

import pytest

from tests.hdfs.conftest import Hdfs
from tests.support.hadoop import BLOCK_BYTES
from tests.support.sides import Openers, StoresOfBothSides, check_that_a_checkpoint_is_repeated
from tidegate.launcher.spark.hadoop import HadoopPath, place_of
from tidegate.remote.files import RemotePath, chunks, names
from tidegate.runtime.poll import wait_until
from tidegate.sparklog.event_log import ApplicationLog


@pytest.fixture
def folder(hdfs: Hdfs) -> str:
    """The URI of a folder of the test's own."""
    return f"{hdfs.uri}/{uuid.uuid4().hex[:8]}"


@pytest.fixture
def writer(folder: str) -> Iterator[object]:
    """A file `log` that is being written by the JVM, as Spark writes an event log."""
    place = HadoopPath(f"{folder}/log.inprogress")
    with place._asked() as system:
        stream = system.files.create(system.path(str(place)))
        yield stream
        stream.close()


def test_a_log_is_read_as_far_as_it_is_flushed(hdfs: Hdfs, folder: str, writer: object) -> None:
    """What was flushed is read at once, in the first block and beyond, whatever length the listing tells."""
    log = ApplicationLog(hdfs.files().remote(folder) / "log.inprogress")
    line = b"x" * 999
    written, listed = 0, list[int]()
    for count in (1, 10, BLOCK_BYTES // 1000, 3, BLOCK_BYTES // 500):
        writer.write(bytearray((line + b"\n") * count))  # type: ignore[attr-defined]
        writer.hflush()  # type: ignore[attr-defined]
        written += 1000 * count
        assert list(log.lines(1 << 30)) == [line] * count
        assert log.caught_up()
        listed.append(written - (hdfs.files().remote(folder) / "log.inprogress").stat().st_size)
        assert list(log.lines(1 << 30)) == []
    print("bytes that the listing does not tell:", listed)
    assert max(listed) > 1000


def test_both_sides_see_the_same(hdfs: Hdfs, folder: str) -> None:
    """What the driver writes the services read, and the other way round."""
    ours, theirs = hdfs.files().remote(folder), place_of(folder)
    assert isinstance(theirs, HadoopPath)
    (theirs / "a b" / "ä").write_bytes(b"\0\xff1")
    assert (ours / "a b" / "ä").read_bytes() == b"\0\xff1"
    assert names(ours) == theirs.names() == ["a b"]
    (ours / "big").replace(os.urandom(300_000))
    assert theirs.exists()
    assert (theirs / "big").read_bytes() == b"".join(chunks(ours / "big", 0, 1 << 20))
    theirs.remove()
    assert not theirs.exists()
    assert names(ours) == []
    for place in (ours / "none", theirs / "none"):
        with pytest.raises(FileNotFoundError, match=r"hdfs://.*none"):
            place.read_bytes()


class TestStoresInHdfs(StoresOfBothSides):
    """Control files in HDFS."""

    view_seconds = 2.0

    @pytest.fixture
    def openers(self, hdfs: Hdfs) -> Openers:
        """An actuator opens a folder, and a driver."""
        return hdfs.files().remote, HadoopPath


def test_waits_are_bounded(hdfs: Hdfs, folder: str) -> None:
    """While the NameNode hangs, both sides are told so in seconds, and go on when it is back."""
    ours, theirs = hdfs.files(2.0).remote(folder), HadoopPath(folder)
    (theirs / "a").write_bytes(b"1")
    name_node = hdfs.daemons.processes["NameNode"]
    os.kill(name_node.pid, signal.SIGSTOP)
    try:
        for place in (ours / "a", theirs / "a"):
            started = time.monotonic()
            with pytest.raises(OSError, match=r"hdfs://") as told:
                place.read_bytes()
            assert not isinstance(told.value, FileNotFoundError)
            print(f"{time.monotonic() - started:.1f} s: {told.value}")
            assert time.monotonic() - started < 20
        assert isinstance(ours, RemotePath)
    finally:
        os.kill(name_node.pid, signal.SIGCONT)
    assert wait_until(lambda: (ours / "a").read_bytes() == (theirs / "a").read_bytes() == b"1", 20)


def test_the_end_of_a_checkpoint_is_repeated(folder: str) -> None:
    """A rehearsal's checkpoint is made from one in HDFS."""
    check_that_a_checkpoint_is_repeated(HadoopPath(folder))
