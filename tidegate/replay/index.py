"""An index of a recording: where the lines of each job are in its files, in the order in which they are verified.

So Spark sorts small rows, and the JVM never sees a value. Each task of the index goes through one range of a file and
finds job and sequence at the start of a line's value. Whoever verifies a job reads its lines from the files again, by
their places. Compressed files have no places to go back to: one task reads such a file, and Spark sorts its values too.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

from pydantic_core import from_json

from tidegate.events.topics import DECISIONS, SNAPSHOTS
from tidegate.replay.files import (
    LINE_ERRORS,
    BadRecording,
    RecordingManifest,
    check_length,
    in_words,
    is_compressed,
    next_line,
    opened,
    part_of,
)

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext

RANGE_BYTES = 16 * 2**20

NO_JOB = b"?"
"""Stands for the job of a value that names none."""

NO_SEQUENCE = -1
"""Stands for a sequence that is missing."""

OURS = re.compile(
    rb'\{"partition":(\d+),"offset":(\d+),[^{]*,"value":"'
    rb'\{\\"\w+_id\\":\\"[^"\\]*\\",\\"job_id\\":\\"([^"\\]*)\\",(?:\\"\w+_id\\":\\"[^"\\]*\\",)+'
    rb'\\"sequence\\":(\d{1,18})[,}]'
)
"""The start of a line as Tidegate writes it. Only lines of other writers have to be parsed for job and sequence.

Of a name that stands twice it finds the first, which Tidegate does not write and services do not heed. To look for a
second one would cost as much again as the rest of the index. Such a decision differs in any case, and one whose
snapshot is such a record counts as not recomputable; neither is ever taken for identical.
"""

Key = tuple[bytes, int, bool, int, int]
"""Job, sequence, whether the record is a decision, partition and offset: records are verified in this order."""

Place = tuple[int, int] | bytes
"""Position and length of a record's line, in bytes; of a compressed file, the value itself."""


class Range(NamedTuple):
    """A part of a file: the lines whose first byte is in it."""

    path: Path
    is_decision: bool
    start: int
    end: int


def files_of(directory: Path, manifest: RecordingManifest) -> tuple[Path, Path]:
    """Return the files of snapshots and decisions; raises `BadRecording` if one of them is missing."""
    snapshots, decisions = (_file_of(directory, manifest, topic.suffix) for topic in (SNAPSHOTS, DECISIONS))
    return snapshots, decisions


def _file_of(directory: Path, manifest: RecordingManifest, topic: str) -> Path:
    entry = manifest.of(topic)
    if entry is None or not (directory / entry.file).is_file():
        raise BadRecording(f"{directory} holds no {topic}")
    return (directory / entry.file).absolute()


def sorted_records(context: SparkContext, files: tuple[Path, Path], job: str | None) -> RDD[tuple[Key, bytes]]:
    """Return the records of all jobs, or of one. Those of a job are in one partition, and all partitions are sorted."""
    parts = ranges(files)
    only = None if job is None else job.encode()
    places = context.parallelize(parts, len(parts)).flatMap(partial(index, only))
    enough = max(len(parts), 4 * context.defaultParallelism)  # of a compressed recording there are but two parts
    ordered = places.repartitionAndSortWithinPartitions(enough, _partition)
    return ordered.mapPartitions(partial(with_values, files))


def _partition(key: Key) -> int:
    return zlib.crc32(key[0])


def ranges(files: tuple[Path, Path]) -> list[Range]:
    """Return the ranges of both files; a compressed file and an empty one are one range."""
    parts = []
    for is_decision, path in enumerate(files):
        size = max(1, path.stat().st_size)
        step = size if is_compressed(path) else RANGE_BYTES
        parts += [Range(path, bool(is_decision), start, start + step) for start in range(0, size, step)]
    return parts


def index(job: bytes | None, part: Range) -> Iterator[tuple[Key, Place]]:
    """Yield where the records of a range are, of all jobs or of one. Raises `BadRecording`."""
    path, is_decision, start, end = part
    compressed = is_compressed(path)
    position, line = start, b""
    with _opened(path) as file:
        try:
            for position, line in _lines(file, start, None if compressed else end):
                check_length(line)
                named, sequence, partition, offset = _found(line)
                if job in (None, named):
                    place = value_in(line) if compressed else (position, len(line))
                    yield (named, sequence, is_decision, partition, offset), place
        except (*LINE_ERRORS, EOFError, OSError, zlib.error) as error:
            raise _bad_line(path, position, line, error) from None


def _lines(file: IO[bytes], start: int, end: int | None) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that begin from `start` up to `end`, each after its position."""
    position = start
    if start:
        file.seek(start - 1)
        rest = next_line(file)  # of a line that began earlier
        if not rest.endswith(b"\n"):
            return  # it is too long, which is found where it begins
        position += len(rest) - 1
    while (end is None or position < end) and (line := next_line(file)):
        yield position, line
        position += len(line)


def _found(line: bytes) -> tuple[bytes, int, int, int]:
    """Return job, sequence, partition and offset of a line."""
    if ours := OURS.match(line):
        partition, offset, job, sequence = ours.groups()
        return job, int(sequence), int(partition), int(offset)
    fields = from_json(line)
    partition, offset, value = int(fields["partition"]), int(fields["offset"]), part_of(fields, "value")
    try:
        event = from_json(value or b"null")
    except ValueError:
        event = None
    named = event if isinstance(event, dict) else {}
    job, sequence = named.get("job_id"), named.get("sequence")
    known = job.encode() if isinstance(job, str) else NO_JOB
    return known, sequence if type(sequence) is int else NO_SEQUENCE, partition, offset


def value_in(line: bytes) -> bytes:
    """Return the value of the record in a line; no bytes if it has none. Raises one of the `LINE_ERRORS`."""
    return part_of(from_json(line), "value") or b""


def with_values(files: tuple[Path, Path], rows: Iterable[tuple[Key, Place]]) -> Iterator[tuple[Key, bytes]]:
    """Yield the records of an index with their values. Raises `BadRecording`."""
    with _opened(files[False]) as snapshots, _opened(files[True]) as decisions:
        handles = snapshots.fileno(), decisions.fileno()
        for key, place in rows:
            if isinstance(place, bytes):
                yield key, place
                continue
            position, length = place
            is_decision = key[2]
            line = b""
            try:
                line = os.pread(handles[is_decision], length, position)
                value = value_in(line)
            except (*LINE_ERRORS, OSError) as error:
                raise _bad_line(files[is_decision], position, line, error) from None
            yield key, value


def _opened(path: Path) -> IO[bytes]:
    try:
        return opened(path)
    except OSError as error:
        raise BadRecording(f"Spark's workers cannot read a file of the recording: {error}") from None


def _bad_line(path: Path, position: int, line: bytes, error: Exception) -> BadRecording:
    """Return the error for the line at a position, in bytes, of a file once unpacked."""
    number = 1
    with opened(path) as file:
        while file.tell() < position and (before := next_line(file)):
            number += before.endswith(b"\n")
    return BadRecording(f"{path}, line {number}: {in_words(line, error)}")
