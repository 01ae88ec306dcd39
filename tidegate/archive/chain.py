"""The hash chain over a partition's records, pure: what is hashed, and what is signed.

    content = SHA-256(timestamp, key, value, headers)                      of a record
    link    = SHA-256(link before, topic, partition, offset, content)      32 zero bytes come before the first

Every part is preceded by its length, so that no two records have the same input. The chain is over records in the order
of their offsets, not over files: compaction does not change it.

A *head* states where the chain of a partition stood after some records. It is cut into *blocks* of at most 4,096
records. For each block it states the last link, the number of records, and two sums by which damage is placed:

    total    = Σ content               modulo the prime 2^255 - 19
    weighted = Σ offset · content      modulo the same prime
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

GENESIS = bytes(32)
BLOCK = 4096
"""Most records of a block."""
PRIME = 2**255 - 19
ABSENT = b"\xff" * 8
"""In place of a length: there is no key, value or header value."""
NAMED = 1000
"""Most runs of offsets, and most repeated offsets, that are kept of one block."""


class Seen(NamedTuple):
    """A record as it is found: all that the chain needs of it."""

    offset: int
    content: bytes
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Mark:
    """The state of the chain after a block of records."""

    offset: int
    """Of the block's last record."""
    records: int
    """In the block."""
    link: bytes
    total: int
    weighted: int
    timestamp_ms: int
    """Of the block's last record."""


@dataclass(frozen=True, slots=True)
class Head:
    """The chain of one partition over the records after offset `after`, up to that of the last mark."""

    topic: str
    """Without its prefix."""
    partition: int
    after: int
    """The last offset that an earlier head covers; -1 if there is none."""
    before: bytes
    """The link after that offset."""
    first_offset: int
    """Of the first record; more than `after + 1` if offsets are missing."""
    marks: tuple[Mark, ...]

    @property
    def last_offset(self) -> int:
        """Offset of the last record."""
        return self.marks[-1].offset

    @property
    def link(self) -> bytes:
        """The link of the last record."""
        return self.marks[-1].link

    @property
    def records(self) -> int:
        """Number of records."""
        return sum(mark.records for mark in self.marks)


def part(raw: bytes | None) -> bytes:
    """Return bytes with their length in front."""
    return ABSENT if raw is None else len(raw).to_bytes(8, "big") + raw


def number(value: int) -> bytes:
    """Return an integer in 8 bytes."""
    return value.to_bytes(8, "big", signed=True)


def content(
    timestamp_ms: int, key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]
) -> bytes:
    """Return the hash of what a record holds. `tidegate.archive.prove` has the same formula for Spark."""
    parts = [number(timestamp_ms), part(key), part(value), number(len(headers))]
    for name, raw in headers:
        parts += [part(name.encode()), part(raw)]
    return hashlib.sha256(b"".join(parts)).digest()


def place(topic: str, partition: int) -> bytes:
    """Return a partition as it stands in each of its links."""
    return part(topic.encode()) + number(partition)


def link(before: bytes, at: bytes, offset: int, held: bytes) -> bytes:
    """Return the link of the record that holds `held`, at an offset of the partition `at`; see `place`."""
    return hashlib.sha256(before + at + number(offset) + held).digest()


@dataclass(slots=True)
class Block:
    """Records taken so far: the chain over them and what else a mark states."""

    at: bytes
    link: bytes
    records: int = 0
    total: int = 0
    weighted: int = 0
    offset: int = -1
    first_ms: int = 0
    last_ms: int = 0
    runs: list[list[int]] = field(default_factory=list)
    """First and last offset of each run of offsets without a hole."""
    repeated: list[int] = field(default_factory=list)
    """Offsets that come more than once."""
    overflow: bool = False
    """Whether there were too many of them to keep."""

    def take(self, record: Seen) -> None:
        """Add the next record."""
        offset, held, timestamp_ms = record
        self.link = link(self.link, self.at, offset, held)
        figure = int.from_bytes(held, "big")
        self.total += figure
        self.weighted += offset * figure
        if not self.records:
            self.first_ms = self.last_ms = timestamp_ms
        self.first_ms = min(self.first_ms, timestamp_ms)
        self.last_ms = max(self.last_ms, timestamp_ms)
        if len(self.runs) + len(self.repeated) >= NAMED:
            self.overflow = True
        elif self.records and offset == self.offset:
            self.repeated.append(offset)
        elif self.records and offset == self.offset + 1:
            self.runs[-1][1] = offset
        else:
            self.runs.append([offset, offset])
        self.offset = offset
        self.records += 1

    def mark(self, timestamp_ms: int) -> Mark:
        """Return what a head states of the block."""
        return Mark(self.offset, self.records, self.link, self.total % PRIME, self.weighted % PRIME, timestamp_ms)


def head(
    topic: str, partition: int, records: Iterable[Seen], *, after: int = -1, before: bytes = GENESIS, block: int = BLOCK
) -> Head | None:
    """Return the head over records in the order of their offsets, or None if there are none.

    `after` and `before` are the last offset and link of the head that comes before it.
    """
    at, marks, first = place(topic, partition), [], None
    building = Block(at, before)
    last_ms = 0
    for record in records:
        if building.records == block:
            marks.append(building.mark(last_ms))
            building = Block(at, building.link)
        building.take(record)
        last_ms = record.timestamp_ms
        first = record.offset if first is None else first
    if first is None:
        return None
    marks.append(building.mark(last_ms))
    return Head(topic, partition, after, before, first, tuple(marks))
