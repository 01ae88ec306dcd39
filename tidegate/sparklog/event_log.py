"""The event log of one Spark application, read once from front to back while it grows.

Spark writes either one file (`<app>[.zstd][.inprogress]`) or a folder, `eventlog_v2_<app>/`, with the files
`events_<n>_<app>[.zstd]`, a new one every `spark.eventLog.rolling.maxFileSize`, and `appstatus_<app>[.inprogress]`. The
history server may replace the first n files by `events_<n>_<app>.compact`, which keeps what still matters.
(EventLogFileWriters.scala and EventLogFileCompactor.scala of Spark 4.2.)

Each file is read from the offset where the last read ended. A line or zstd frame that is cut off at the end of the file
waits for its rest. A log may be on this machine or elsewhere (`tidegate/remote/files.py`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import NoReturn

import zstandard

from tidegate.remote.files import Place, RemotePath, chunks, scan

ROLLING_PREFIX = "eventlog_v2_"
IN_PROGRESS = ".inprogress"
MAX_LINE = 16 * 1024 * 1024
"""A longer line is no event that is needed, but perhaps a plan; it is dropped instead of kept in memory."""

MAX_RATIO = 1000
"""To how many bytes a stored one may be unpacked, `MAX_LINE` aside. Spark's logs come to some twenty."""
_STORED_STEP = 256
"""Bytes as stored that are unpacked at once: a zstd block of four bytes can become 128 KiB."""
_UNPACKED_STEP = 1 << 20

_CODECS = (".lz4", ".lzf", ".snappy")
_ROLLED = re.compile(r"^events_(\d+)_(.+?)(\.compact)?$")


class UnreadableLog(OSError):
    """A log that cannot be followed any further: damaged, truncated, or in an unsupported codec."""


def log_stem(name: str) -> str:
    """Return the part of a log's file name that stays the same when the log is complete."""
    return name.removesuffix(IN_PROGRESS)


class FileTail:
    """The lines of one growing file, each returned once."""

    def __init__(self, path: Place, modified_at: float = 0.0) -> None:
        if path.name.removesuffix(IN_PROGRESS).removesuffix(".compact").endswith(_CODECS):
            raise UnreadableLog(
                f"{path}: only plain and zstd logs can be read; set spark.eventLog.compression.codec=zstd"
            )
        self.path = path
        self.modified_at = modified_at
        """When it, or the file before it, was last seen to grow, by this machine's clock, in seconds since 1970; until
        then when the file system says that it was written, but not later than now."""
        self._written_at: float | None = None
        """The file system's time of the last write, which may be by another clock."""
        self.offset = 0
        """How many bytes, as stored, have been read."""
        self.at_end = False
        """Whether the last read came to the end of the file."""
        self.rest = b""
        """The start of a line whose end is not written yet."""
        self._lags = isinstance(path, RemotePath) and path.lags
        self._dropping = False
        self._damage: str | None = None
        self._zstd = ".zstd" in PurePosixPath(path.name).suffixes
        self._context: zstandard.ZstdDecompressor | None = None
        self._frame: zstandard.ZstdDecompressionObj | None = None
        self._unpacked_bytes = 0

    def lines(self, limit_bytes: int) -> Iterator[bytes]:
        """Yield the complete lines among the next `limit_bytes` bytes, as stored.

        Raises `UnreadableLog` if the file is damaged or shrank.
        """
        self.at_end = False
        if not self._may_have_grown():
            self.at_end = True
            return
        left, known_since = limit_bytes, self.modified_at
        for raw in chunks(self.path, self.offset, limit_bytes):
            if self._lags:  # the listing's date is that of its creation
                self.modified_at = time.time() if known_since else self.path.stat().st_mtime
            self.offset += len(raw)
            left -= len(raw)
            for data in self._unpacked(raw) if self._zstd else (raw,):
                yield from self._split(data)
        self.at_end = left > 0
        if self._frame is None:
            # Spark's flushes mostly end between frames: keep nothing there, it would be 150 kB per job
            self._context = None

    def _may_have_grown(self) -> bool:
        """Whether the file has unread bytes; costs a stat call. Where listings lag behind, only a read can tell."""
        if self._damage is not None:
            raise UnreadableLog(self._damage)
        if self._lags:
            return True
        stat = self.path.stat()
        size, written_at, now = stat.st_size, stat.st_mtime, time.time()
        if written_at != self._written_at:
            self.modified_at = now if self._written_at is not None else max(self.modified_at, min(written_at, now))
            self._written_at = written_at
        if size < self.offset:
            self._give_up(f"shrank to {size} bytes after {self.offset} had been read")
        return size > self.offset

    def _unpacked(self, raw: bytes) -> Iterator[bytes]:
        """Yield what can be unpacked so far. Frames may be cut off anywhere, and closed at each flush or never."""
        unpacked = bytearray()
        for start in range(0, len(raw), _STORED_STEP):
            step = raw[start : start + _STORED_STEP]
            while step:
                if self._frame is None:
                    self._context = self._context or zstandard.ZstdDecompressor()
                    self._frame = self._context.decompressobj()
                try:
                    unpacked += self._frame.decompress(step)
                except zstandard.ZstdError as error:
                    self._give_up(f"damaged before byte {self.offset}: {error}")
                step = self._frame.unused_data if self._frame.eof else b""
                self._frame = None if self._frame.eof else self._frame
            if len(unpacked) > _UNPACKED_STEP:
                yield self._counted(bytes(unpacked))
                unpacked.clear()
        yield self._counted(bytes(unpacked))

    def _counted(self, unpacked: bytes) -> bytes:
        self._unpacked_bytes += len(unpacked)
        if self._unpacked_bytes > MAX_LINE + MAX_RATIO * self.offset:
            self._give_up(f"is no event log: its first {self.offset} bytes unpack to {self._unpacked_bytes}")
        return unpacked

    def _give_up(self, why: str) -> NoReturn:
        self._damage = f"{self.path}: {why}"
        raise UnreadableLog(self._damage) from None

    def _split(self, data: bytes) -> list[bytes]:
        first, newline, _ = data.partition(b"\n")
        if not newline:
            self.rest += data if not self._dropping else b""
            if len(self.rest) > MAX_LINE:
                self.rest, self._dropping = self.rest[:100], True  # its start counts as a broken line
            return []
        lines = data.split(b"\n")
        lines[0] = self.rest if self._dropping else self.rest + first
        self._dropping = False
        self.rest = lines.pop()
        return lines


class ApplicationLog:
    """All files of one application's log as one stream of lines."""

    def __init__(self, path: Place) -> None:
        self.path = path
        self._caught_up = False
        self._rolling = path.is_dir()
        self._index = 0
        self._finished_bytes = 0
        self._tail: FileTail | None = None if self._rolling else FileTail(path)
        self._files: dict[int, Place] = {}
        self._listed_at: int | None = None

    @property
    def bytes_read(self) -> int:
        """How many bytes, as stored, have been read of all files."""
        return self._finished_bytes + (self._tail.offset if self._tail else 0)

    @property
    def rest_bytes(self) -> int:
        """How many bytes, as unpacked, are kept of a line whose end is not written yet."""
        return len(self._tail.rest) if self._tail else 0

    @property
    def modified_at(self) -> datetime | None:
        """When the log was last seen to grow, by this machine's clock; until then when it was written."""
        return datetime.fromtimestamp(self._tail.modified_at, UTC) if self._tail else None

    def lines(self, limit_bytes: int) -> Iterator[bytes]:
        """Yield the next complete lines, up to about `limit_bytes` bytes per file as stored.

        Raises `UnreadableLog` or `OSError`; a damaged file is skipped as soon as a newer one exists.
        """
        self._caught_up = False
        while True:
            newer = self._newer()  # look first: if there is one, the current file no longer grows
            if self._tail is not None:
                try:
                    yield from self._tail.lines(limit_bytes)
                    if not self._tail.at_end:
                        return  # more than the limit
                except FileNotFoundError:
                    newer = self._newer()
                    if self._files.get(self._index, self._tail.path) != self._tail.path:
                        newer = self._index  # its rest is in the compact file that has taken its place
                    if newer is None:
                        raise
                    self._tail.rest = b""
                except UnreadableLog:
                    if newer is None:
                        raise
                if newer is not None and self._tail.rest:
                    yield self._tail.rest  # a line that will never be complete: the parser counts it as broken
            if newer is None:
                self._caught_up = self._tail is not None
                return
            self._finished_bytes = self.bytes_read
            self._index = newer
            self._tail = FileTail(self._files[newer], self._tail.modified_at if self._tail else 0.0)

    def caught_up(self) -> bool:
        """Whether the last read came to the end of all that was written."""
        return self._caught_up

    def renamed(self, path: Place) -> None:
        """Follow a single file to its final name."""
        if not self._rolling and self._tail is not None:
            self.path = self._tail.path = path

    def skip_to_recent(self) -> None:
        """Skip all but the two newest files: a snapshot needs the newest batches, not all of them.

        Two, because the newest file may not contain a batch yet.
        """
        indices = sorted(self._files)
        if len(indices) > 2 and indices[-2] > self._index:
            self._finished_bytes = self.bytes_read
            self._tail, self._index = None, indices[-2] - 1

    def _newer(self) -> int | None:
        """Return the index of the file after the current one; costs a stat call if a local folder has not changed."""
        if not self._rolling:
            return None
        changed_at = self.path.stat().st_mtime_ns if isinstance(self.path, Path) else None
        if changed_at is None or changed_at != self._listed_at:
            self._files = rolled_files(self.path)
            # folder and first file may appear within one tick of the file system's clock, so do not keep an empty list
            self._listed_at = changed_at if self._files else None
        return min((index for index in self._files if index > self._index), default=None)


def rolled_files(folder: Place) -> dict[int, Place]:
    """Return the files to read by index; a compact file replaces all files up to its own index."""
    plain: dict[int, Place] = {}
    compact: dict[int, Place] = {}
    for entry in scan(folder):
        match = _ROLLED.match(entry.name)
        if match and not entry.name.endswith(IN_PROGRESS):  # so a compact file is called while it is being written
            (compact if match.group(3) else plain)[int(match.group(1))] = folder / entry.name
    if not compact:
        return plain
    newest = max(compact)
    return {newest: compact[newest]} | {index: path for index, path in plain.items() if index > newest}
