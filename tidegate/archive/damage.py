"""Finding damage: the records of a partition against the heads that were signed of them, pure.

The links alone prove that nothing was changed; the sums of a block say where something was. If one record was altered,
removed or inserted, both sums differ, and the quotient of the differences is its offset. If records were exchanged,
`total` is the same and `weighted` is not. After a damaged block, checking goes on from the link that its head states,
so that each block is judged on its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

from tidegate.archive.chain import PRIME, Block, Head, Mark, Seen, place


class Kind(StrEnum):
    """What happened to records after they were signed."""

    ALTERED = "altered"
    REMOVED = "removed"
    INSERTED = "inserted"
    REORDERED = "reordered"
    SEVERAL = "damaged in several places"
    DISCONNECTED = "signed by heads that do not connect"
    MISFILED = "filed under another day"


@dataclass(frozen=True, slots=True)
class Damage:
    """Something that does not fit what was signed, and its place."""

    kind: Kind
    topic: str
    partition: int
    first_offset: int
    last_offset: int
    """The damage lies between these offsets, both included; they are equal if one record is known to be it."""
    signed: int
    """Number of records in the block that were signed."""
    found: int
    """Number of records in the block that are there now."""
    first_ms: int
    last_ms: int
    """Kafka timestamps between which the damage lies, in milliseconds since the epoch."""


ONE_RECORD = {(0, True): Kind.ALTERED, (1, False): Kind.REMOVED, (-1, True): Kind.INSERTED}
"""The kind of damage to a single record, by the number of records that are missing and whether its offset is there."""


class _Signed(NamedTuple):
    """A block as a head states it."""

    after: int
    """The last offset before the block."""
    before: bytes
    """The link of that offset."""
    first: int
    """Offset of the block's first record, as far as it is known."""
    since_ms: int
    """Timestamp of about that record."""
    mark: Mark


class Checker:
    """Checks one partition's records against its heads; `check` yields the damage, the figures stand afterwards."""

    def __init__(self, topic: str, partition: int, heads: Sequence[Head], expired_before: int = 0) -> None:
        """Create a checker.

        Args:
            topic: without its prefix.
            partition: of the topic.
            heads: trusted heads of this partition, in any order.
            expired_before: records with a smaller offset are said to have expired; what was signed of them is skipped.
        """
        self._topic, self._partition = topic, partition
        self._heads = sorted(heads, key=lambda each: each.last_offset)
        self._expired_before = expired_before
        self.proved = 0
        """Number of records that are exactly the signed ones."""
        self.unsigned = 0
        """Number of records that no head covers: newer than the last one, or between heads that do not connect."""

    def check(self, records: Iterable[Seen]) -> Iterator[Damage]:
        """Yield the damage, in the order of offsets. `records` must be sorted by offset."""
        yield from self._disconnected()
        at = place(self._topic, self._partition)
        coming = iter(records)
        record = next(coming, None)
        for signed in self._blocks():
            while record is not None and record.offset <= signed.after:
                yield from self._uncovered(record)
                record = next(coming, None)
            block = Block(at, signed.before)
            while record is not None and record.offset <= signed.mark.offset:
                block.take(record)
                record = next(coming, None)
            if block.records == signed.mark.records and block.link == signed.mark.link:
                self.proved += block.records
            else:
                yield from self._placed(block, signed)
        while record is not None:
            yield from self._uncovered(record)
            record = next(coming, None)

    def _uncovered(self, record: Seen) -> Iterator[Damage]:
        """Take a record that no head covers."""
        if record.offset < self._expired_before:  # nobody archives an offset again
            times = record.timestamp_ms, record.timestamp_ms
            yield self._damage(Kind.INSERTED, record.offset, record.offset, 0, 1, *times)
        else:
            self.unsigned += 1

    def _blocks(self) -> Iterator[_Signed]:
        """Yield the signed blocks, without what has expired."""
        for each in self._heads:
            after, before, first, since_ms = each.after, each.before, each.first_offset, each.marks[0].timestamp_ms
            for mark in each.marks:
                if mark.offset >= self._expired_before:
                    yield _Signed(after, before, first, since_ms, mark)
                after, before, first, since_ms = mark.offset, mark.link, mark.offset + 1, mark.timestamp_ms

    def _disconnected(self) -> Iterator[Damage]:
        for one, two in pairwise(self._heads):
            if (two.after, two.before) != (one.last_offset, one.link):
                first, last = sorted((one.last_offset, two.first_offset))
                times = sorted((one.marks[-1].timestamp_ms, two.marks[0].timestamp_ms))
                yield self._damage(Kind.DISCONNECTED, first, last, 0, 0, *times)

    def _placed(self, block: Block, signed: _Signed) -> Iterator[Damage]:
        """Yield the damage of one block: single offsets where they are certain, otherwise the whole block."""
        mark, first = signed.mark, signed.after + 1
        missing = mark.records - block.records
        changed = (block.total - mark.total) % PRIME
        moved = (block.weighted - mark.weighted) % PRIME
        holes = list(_holes(block.runs, signed.first, mark.offset))
        one = moved * pow(changed, -1, PRIME) % PRIME if changed else None
        if one is not None and not first <= one <= mark.offset:
            one = None  # more than one record is damaged
        here = one is not None and any(low <= one <= high for low, high in block.runs)
        places = [(first, mark.offset)]
        if not block.records:
            kind, places = Kind.REMOVED, [(signed.first, mark.offset)]
        elif missing == 0 and not changed:
            kind = Kind.REORDERED
        elif one is not None and (missing, here) in ONE_RECORD:
            kind, places = ONE_RECORD[missing, here], [(one, one)]
        elif block.overflow:
            kind = Kind.SEVERAL
        elif missing < -1 and len(block.repeated) == -missing:
            kind, places = Kind.INSERTED, [(offset, offset) for offset in block.repeated]
        elif missing > 1 and sum(high - low + 1 for low, high in holes) == missing:
            kind, places = Kind.REMOVED, holes
        else:
            kind = Kind.SEVERAL
        times = (block.first_ms, block.last_ms) if block.records else (signed.since_ms, mark.timestamp_ms)
        for low, high in places:
            yield self._damage(kind, low, high, mark.records, block.records, *sorted(times))

    def _damage(
        self, kind: Kind, first: int, last: int, signed: int, found: int, first_ms: int, last_ms: int
    ) -> Damage:
        return Damage(kind, self._topic, self._partition, first, last, signed, found, first_ms, last_ms)


def _holes(runs: Sequence[Sequence[int]], first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yield the runs of offsets from `first` to `last` that are in none of the runs."""
    following = first
    for low, high in runs:
        if low > following:
            yield following, low - 1
        following = high + 1
    if following <= last:
        yield following, last
