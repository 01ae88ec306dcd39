"""The tail of an event log: every line once, whatever happens to the file."""

from __future__ import annotations

import json
import tracemalloc
from collections import deque
from pathlib import Path

import pytest
import zstandard

from tests.support.eventlogs import APP_ID, recorded, rolling
from tidegate.remote.files import scan
from tidegate.sparklog.event_log import ApplicationLog, FileTail, UnreadableLog

ALL = 1 << 30


def drain(log: ApplicationLog | FileTail) -> list[bytes]:
    """Return the lines that can be read now."""
    return [line + b"\n" for line in log.lines(ALL)]


def test_an_incomplete_line_waits_for_its_rest(tmp_path: Path) -> None:
    """A line that is still being written is returned once, when it is complete."""
    file = tmp_path / "app-1.inprogress"
    file.write_bytes(b'{"Event":"A"}\n{"Eve')
    tail = FileTail(file)
    assert drain(tail) == [b'{"Event":"A"}\n']
    assert tail.rest == b'{"Eve'
    with file.open("ab") as out:
        out.write(b'nt":"B"}\n')
    assert drain(tail) == [b'{"Event":"B"}\n']
    assert drain(tail) == []


@pytest.mark.parametrize("one_frame", [False, True], ids=["a frame a flush", "one frame flushed as it grows"])
@pytest.mark.parametrize("step", [7, 1000, 65_536])
def test_zstd_is_read_while_it_is_written(tmp_path: Path, one_frame: bool, step: int) -> None:
    """Frames cut off anywhere, closed or not, give every line once and in order."""
    lines = recorded()[:20]
    if one_frame:
        packer = zstandard.ZstdCompressor().compressobj()
        packed = b"".join(packer.compress(line) + packer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK) for line in lines)
    else:
        packed = b"".join(zstandard.ZstdCompressor().compress(line) for line in lines)
    file = tmp_path / "app-1.zstd.inprogress"
    file.touch()
    tail = FileTail(file)
    seen = []
    for start in range(0, len(packed), step):
        with file.open("ab") as out:
            out.write(packed[start : start + step])
        seen += drain(tail)
    assert seen == lines
    assert tail.offset == len(packed)


def test_rolled_files_are_one_stream(tmp_path: Path) -> None:
    """Nothing is lost or repeated when Spark continues in a new file, even between two reads."""
    lines = recorded()
    rolling(tmp_path, lines[:30], index=1, codec=".zstd")
    log = ApplicationLog(tmp_path / f"eventlog_v2_{APP_ID}")
    seen = drain(log)
    assert log.caught_up()
    rolling(tmp_path, lines[30:40], index=1, codec=".zstd")
    rolling(tmp_path, lines[40:60], index=2, codec=".zstd")
    rolling(tmp_path, lines[60:], index=10, codec=".zstd")
    seen += drain(log)
    assert seen == lines
    assert log.caught_up()


@pytest.mark.parametrize("byte", [b"\0", b"\n"], ids=["one endless line", "nothing but lines"])
def test_a_small_file_cannot_unpack_to_more_than_there_is_memory(tmp_path: Path, byte: bytes) -> None:
    """What no event log unpacks to is not unpacked: a job's own log must not end the collector of all jobs."""
    file = tmp_path / "app-1.zstd"
    with file.open("wb") as out, zstandard.ZstdCompressor().stream_writer(out) as into:
        for _ in range(512):
            into.write(byte * (1 << 20))
    log = ApplicationLog(file)
    tracemalloc.start()
    with pytest.raises(UnreadableLog, match="is no event log"):
        deque(log.lines(ALL), maxlen=0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200_000_000
    with pytest.raises(UnreadableLog, match="is no event log"):
        deque(log.lines(ALL), maxlen=0)


def test_a_limit_stops_in_the_middle(tmp_path: Path) -> None:
    """A long backlog is read in pieces, and counts as caught up only after the last one."""
    lines = recorded()
    rolling(tmp_path, lines)
    log = ApplicationLog(tmp_path / f"eventlog_v2_{APP_ID}")
    seen: list[bytes] = []
    pieces = 0
    while not log.caught_up():
        seen += [line + b"\n" for line in log.lines(20_000)]
        pieces += 1
    assert seen == lines
    assert pieces > 2


def test_a_compact_file_stands_for_those_before_it(tmp_path: Path) -> None:
    """The history server's compact file is read instead of the files it replaced."""
    lines = recorded()
    folder = rolling(tmp_path, lines[:5], index=1).parent
    rolling(tmp_path, lines[5:20], index=2)
    (folder / f"events_2_{APP_ID}.compact").write_bytes(b"".join(lines[:7]))
    rolling(tmp_path, lines[20:], index=3)
    assert drain(ApplicationLog(folder)) == lines[:7] + lines[20:]


def test_a_compact_file_that_is_being_written_replaces_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The history server writes it under another name first, and leaves it there if it is killed."""
    lines = recorded()
    folder = rolling(tmp_path, lines[:5], index=1).parent
    rolling(tmp_path, lines[5:20], index=2)
    (folder / f"events_2_{APP_ID}.compact.inprogress").write_bytes(b"".join(lines[:3]))
    rolling(tmp_path, lines[20:], index=3)
    monkeypatch.setattr(
        "tidegate.sparklog.event_log.scan", lambda place: sorted(scan(place), key=lambda entry: entry.name)
    )
    assert drain(ApplicationLog(folder)) == lines


@pytest.mark.parametrize("index", [1, 2])
def test_what_is_left_of_a_file_removed_by_compaction_is_read(tmp_path: Path, index: int) -> None:
    """A reader in the middle of a file goes on with the compact one in its place, though that repeats lines."""
    lines = recorded()
    first = rolling(tmp_path, [*lines[:5], lines[5][:20]], index=1)
    log = ApplicationLog(first.parent)
    assert drain(log) == lines[:5]
    first.unlink()
    (first.parent / f"events_{index}_{APP_ID}.compact").write_bytes(b"".join(lines[:20]))
    rolling(tmp_path, lines[20:], index=index + 1)
    assert drain(log) == lines


@pytest.mark.parametrize("index", [1, 2])
def test_a_file_that_is_compacted_while_it_is_read_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index: int
) -> None:
    """The history server may put the compact file in its place between the listing and the reading."""
    lines = recorded()
    first = rolling(tmp_path, lines[:10], index=1)
    plain = [first, rolling(tmp_path, lines[10:20], index=2)][:index]
    rolling(tmp_path, lines[20:], index=3)
    log, listed = ApplicationLog(first.parent), ApplicationLog._newer

    def compacted(log: ApplicationLog) -> int | None:
        found = listed(log)
        if log._tail is not None and plain:
            (first.parent / f"events_{index}_{APP_ID}.compact").write_bytes(b"".join(lines[: 10 * index]))
            while plain:
                plain.pop().unlink()
        return found

    monkeypatch.setattr(ApplicationLog, "_newer", compacted)
    assert drain(log) == lines


def test_a_finished_single_file_is_followed_to_its_new_name(tmp_path: Path) -> None:
    """Spark renames a single file when the application ends; its lines are not read again."""
    lines = recorded()
    file = tmp_path / f"{APP_ID}.inprogress"
    file.write_bytes(b"".join(lines[:50]))
    log = ApplicationLog(file)
    assert drain(log) == lines[:50]
    final = file.rename(tmp_path / APP_ID)
    log.renamed(final)
    with final.open("ab") as out:
        out.writelines(lines[50:])
    assert drain(log) == lines[50:]


def test_old_files_are_left_out(tmp_path: Path) -> None:
    """After a restart only the two newest files of a long log are read."""
    lines = recorded()
    for index in range(1, 5):
        rolling(tmp_path, lines[index * 10 : index * 10 + 10], index=index)
    log = ApplicationLog(tmp_path / f"eventlog_v2_{APP_ID}")
    next(log.lines(100), None)
    log.skip_to_recent()
    assert drain(log) == lines[30:50]


def test_an_unsupported_codec_is_named(tmp_path: Path) -> None:
    """An lz4 log is refused with its path and the setting that helps."""
    with pytest.raises(UnreadableLog, match=r"app-1\.lz4.*spark\.eventLog\.compression\.codec=zstd"):
        FileTail(tmp_path / "app-1.lz4.inprogress")


def test_a_log_that_shrank_is_refused(tmp_path: Path) -> None:
    """A truncated file is no longer followed, even if it grows again: its lines may be mixed."""
    file = tmp_path / "app-1"
    file.write_bytes(b'{"Event":"A"}\n' * 3)
    tail = FileTail(file)
    drain(tail)
    file.write_bytes(b"{")
    with pytest.raises(UnreadableLog, match="shrank to 1 bytes after 42 had been read"):
        drain(tail)
    file.write_bytes(b"x" * 100)
    with pytest.raises(UnreadableLog, match="shrank"):
        drain(tail)


def test_a_damaged_file_is_skipped_once_there_is_a_newer_one(tmp_path: Path) -> None:
    """Garbage in a zstd file makes each read of that file fail, and does not affect the next file."""
    lines = recorded()
    first = rolling(tmp_path, lines[:5], index=1, codec=".zstd")
    with first.open("ab") as out:
        out.write(b"garbage, no frame" * 10)
    log = ApplicationLog(first.parent)
    seen: list[bytes] = []
    for _ in range(2):
        with pytest.raises(UnreadableLog, match="damaged"):
            seen += drain(log)
    rolling(tmp_path, lines[5:], index=2, codec=".zstd")
    assert drain(log) == lines[5:]


def test_a_line_that_stays_incomplete_is_returned(tmp_path: Path) -> None:
    """A driver killed in the middle of a line leaves a broken line, not a silent gap."""
    file = rolling(tmp_path, [b'{"Event":"A"}\n{"Event":"Spark'], index=1)
    rolling(tmp_path, [b'{"Event":"B"}\n'], index=2)
    events = list(ApplicationLog(file.parent).lines(ALL))
    assert events == [b'{"Event":"A"}', b'{"Event":"Spark', b'{"Event":"B"}']
    assert json.loads(events[2]) == {"Event": "B"}
