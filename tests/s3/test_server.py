"""What a real S3 server does with conditional writes, folders and waits, as the services and as a driver see it."""

from __future__ import annotations

import threading
import time
import uuid

import pytest

from tests.s3.conftest import S3Server
from tests.support.sides import Openers, StoresOfBothSides, check_that_a_checkpoint_is_repeated
from tidegate.launcher.spark.hadoop import S3aPath, place_of
from tidegate.remote.files import Files, names
from tidegate.runtime.poll import wait_until

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def folder(s3: S3Server) -> str:
    """The URI of a folder of the test's own."""
    return f"{s3.root}/{uuid.uuid4().hex[:8]}"


def test_both_sides_see_the_same(folder: str) -> None:
    """What the driver writes the services read, and the other way round; marks of folders are no files."""
    ours, theirs = Files().remote(folder), place_of(folder)
    assert isinstance(theirs, S3aPath)
    (theirs / "a b" / "ä").write_bytes(b"\0\xff1")
    assert (ours / "a b" / "ä").read_bytes() == b"\0\xff1"
    with theirs._asked() as system:
        assert system.files.mkdirs(system.path(f"{folder}/empty"))
    assert sorted(names(ours)) == sorted(theirs.names()) == ["a b", "empty"]
    assert names(ours / "empty") == []
    (ours / "big").replace(b"x" * 300_000)
    assert (theirs / "big").read_bytes() == b"x" * 300_000
    theirs.remove()
    assert not theirs.exists()
    for place in (ours / "none", theirs / "none"):
        with pytest.raises(FileNotFoundError, match=r"s3a://.*none"):
            place.read_bytes()


def test_a_missing_bucket_is_no_empty_folder() -> None:
    """Neither side takes a misspelled bucket for a job without a checkpoint."""
    for place in (Files().remote("s3a://no-such-bucket/ck/metadata"), S3aPath("s3a://no-such-bucket/ck/metadata")):
        with pytest.raises(OSError, match="s3a://no-such-bucket") as told:
            place.read_bytes()
        assert not isinstance(told.value, FileNotFoundError)


class TestStoresOnS3(StoresOfBothSides):
    """Control files on S3."""

    view_seconds = 4.0

    @pytest.fixture
    def openers(self) -> Openers:
        """An actuator opens a folder, and a driver."""
        return Files().remote, S3aPath


def test_waits_are_bounded(s3: S3Server, folder: str) -> None:
    """While the server hangs, both sides are told so, and go on when it is back."""
    ours, theirs = Files({"s3a": {"timeout_seconds": 2.0}}).remote(folder), S3aPath(folder)
    (theirs / "a").write_bytes(b"1")
    assert (ours / "a").read_bytes() == b"1"
    away = threading.Thread(target=s3.pause, args=(50.0,), daemon=True)
    away.start()
    time.sleep(0.5)
    for place, longest in ((ours / "a", 8.0), (theirs / "a", 40.0)):
        started = time.monotonic()
        with pytest.raises(OSError, match="s3a://") as told:
            place.read_bytes()
        assert not isinstance(told.value, FileNotFoundError)
        print(f"{time.monotonic() - started:.1f} s: {told.value}")
        assert time.monotonic() - started < longest
    away.join(60)
    assert wait_until(lambda: (ours / "a").read_bytes() == (theirs / "a").read_bytes() == b"1", 20)


def test_the_end_of_a_checkpoint_is_repeated(folder: str) -> None:
    """A rehearsal's checkpoint is made from one on S3."""
    check_that_a_checkpoint_is_repeated(S3aPath(folder))
