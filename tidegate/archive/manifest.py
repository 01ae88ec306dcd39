"""What an archive holds, as `archive.json` says it: the only truth. A file that it does not list is not in the archive.

The data files and the position in each partition stand in one document, which is replaced as a whole. A batch is
therefore archived completely or not at all, and every offset once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict

from tidegate.events.wire import Instant

LAYOUT = 1
KEPT_FOR_READERS = timedelta(hours=6)
"""How long a file stays after another one has taken its place, for readers that started before."""


class ArchivedAlready(RuntimeError):
    """Offsets come a second time; the text says where, and what to do."""


class Span(NamedTuple):
    """The records of one partition in one file."""

    first: int
    """Smallest offset."""
    last: int
    """Largest offset; not all in between need be in this file."""
    records: int


class Why(StrEnum):
    """Why offsets are not in the archive."""

    BEFORE = "dropped by the broker before archiving began"
    GONE = "dropped by the broker before archiving came to it"


def _inside(path: str) -> str:
    if path.startswith("/") or ".." in path.split("/"):
        raise ValueError(f"{path!r} is outside of the archive")
    return path


PathInside = Annotated[str, AfterValidator(_inside)]
"""A file, relative to the archive's folder: it may be deleted later."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DataFile(_Part):
    """One Parquet file: records of one topic and one day."""

    topic: str
    """Without its prefix."""
    day: date
    """UTC day of the records' Kafka timestamps."""
    path: PathInside
    records: int
    bytes: int
    spans: dict[int, Span]
    """By partition."""


class Gap(_Part):
    """Offsets that were never archived."""

    topic: str
    partition: int
    first: int
    last: int
    why: Why
    found_at: Instant

    def __str__(self) -> str:
        offsets = f"offset {self.first}" if self.first == self.last else f"offsets {self.first} to {self.last}"
        return f"{self.topic}, partition {self.partition}, {offsets}: {self.why}"


class Retired(_Part):
    """A file that is not in the archive any more, and is deleted once no reader needs it."""

    path: PathInside
    at: Instant


class Manifest(_Part):
    """The content of `archive.json`."""

    layout: int = LAYOUT
    topic_prefix: str
    created_at: Instant
    version: int = 0
    """Grows with every change."""
    positions: dict[str, dict[int, int]] = {}
    """The next offset to archive, by topic (without prefix) and partition."""
    topic_ids: dict[str, str] = {}
    """Kafka's id of each topic that is archived here: one that was created again has another."""
    files: tuple[DataFile, ...] = ()
    retired: tuple[Retired, ...] = ()
    gaps: tuple[Gap, ...] = ()
    expired: dict[str, dict[int, int]] = {}
    """Records with a smaller offset have expired, by topic and partition."""

    def of(
        self, topics: Collection[str] | None = None, first_day: date | None = None, last_day: date | None = None
    ) -> list[DataFile]:
        """Return the files of these topics (None: all) and days (both included; None: no limit)."""
        return [
            file
            for file in self.files
            if (topics is None or file.topic in topics)
            and (first_day is None or file.day >= first_day)
            and (last_day is None or file.day <= last_day)
        ]

    def position(self, topic: str, partition: int) -> int | None:
        """Return the next offset to archive, or None if nothing of the partition was archived."""
        return self.positions.get(topic, {}).get(partition)

    def extended(
        self, files: Iterable[DataFile], runs: Mapping[tuple[str, int], Sequence[tuple[int, int]]], now: datetime
    ) -> Manifest:
        """Return the manifest after a batch.

        Args:
            files: the batch's files.
            runs: first and last offset of each run of offsets without a hole in the batch, by topic and partition.
            now: when gaps count as found.

        Raises:
            ArchivedAlready: an offset of the batch lies before the partition's position.
        """
        positions = {topic: dict(known) for topic, known in self.positions.items()}
        gaps = list(self.gaps)
        for (topic, partition), found in runs.items():
            known = self.position(topic, partition)
            gaps += _gaps(topic, partition, known, found, now)
            positions.setdefault(topic, {})[partition] = found[-1][1] + 1
        return self.model_copy(
            update={"files": (*self.files, *files), "positions": positions, "gaps": tuple(gaps)},
        )

    def without_records_before(self, topic: str, partition: int, first: int, now: datetime) -> Manifest:
        """Return the manifest after the broker has dropped all records before offset `first`."""
        known = self.position(topic, partition)
        if first <= (known or 0):
            return self
        gap = _gap(topic, partition, known, first - 1, now)
        positions = {**self.positions, topic: {**self.positions.get(topic, {}), partition: first}}
        return self.model_copy(update={"positions": positions, "gaps": (*self.gaps, gap)})

    def of_topics(self, ids: Mapping[str, str]) -> Manifest:
        """Return the manifest with the ids of the topics; raise `ArchivedAlready` if one was created again."""
        for topic, made in ids.items():
            if self.topic_ids.get(topic, made) != made and self.positions.get(topic):
                raise ArchivedAlready(
                    f"{topic} was deleted and created again since it was archived. Archive it into another folder"
                )
        return self.model_copy(update={"topic_ids": {**self.topic_ids, **ids}})

    def replaced(self, old: Collection[str], new: Iterable[DataFile], now: datetime) -> Manifest:
        """Return the manifest with `new` files in the place of those with the paths `old`."""
        gone = tuple(Retired(path=path, at=now) for path in sorted(old))
        kept = tuple(file for file in self.files if file.path not in old)
        return self.model_copy(update={"files": (*kept, *new), "retired": (*self.retired, *gone)})


def _gaps(
    topic: str, partition: int, position: int | None, runs: Sequence[tuple[int, int]], now: datetime
) -> Iterable[Gap]:
    first = runs[0][0]
    if first < (position or 0):
        raise ArchivedAlready(
            f"{topic}, partition {partition}: offset {first} comes again, but everything before offset {position} is"
            " archived. If the topic was deleted and created again, archive it into another folder"
        )
    if first > (position or 0):
        yield _gap(topic, partition, position, first - 1, now)
    for one, two in pairwise(runs):
        yield Gap(topic=topic, partition=partition, first=one[1] + 1, last=two[0] - 1, why=Why.GONE, found_at=now)


def _gap(topic: str, partition: int, position: int | None, last: int, now: datetime) -> Gap:
    why = Why.BEFORE if position is None else Why.GONE
    return Gap(topic=topic, partition=partition, first=position or 0, last=last, why=why, found_at=now)
