"""Keeping an archive in order: small files of past days become one per topic and day, and old days expire.

Both put new files in the place of old ones by one change of `archive.json`. A reader that started before still finds
the old files for some hours.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.archive import store
from tidegate.archive.manifest import DataFile, Manifest, Span
from tidegate.archive.read import read_files
from tidegate.archive.stream import first_line, write
from tidegate.interrupts import check

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

OnProgress = Callable[[int, int], None]
"""Called with the number of steps done and of all steps."""
Boundaries = Mapping[int, int]
"""By partition, the first offset that does not expire."""


@dataclass(frozen=True, slots=True)
class Expiry:
    """What expires of one topic."""

    topic: str
    before: date
    """The first day that is kept."""
    boundaries: dict[int, int]
    dropped: tuple[DataFile, ...]
    """Files all of whose records expire."""
    trimmed: tuple[DataFile, ...]
    """Files some of whose records expire."""

    @property
    def bytes(self) -> int:
        """Size of the files that are dropped or trimmed."""
        return sum(file.bytes for file in (*self.dropped, *self.trimmed))


class Incomplete(RuntimeError):
    """The files of a day cannot be put together, and stay as they are; the text says which, and why."""


def compact(
    spark: SparkSession, folder: Path, *, before: date, on_progress: OnProgress = lambda _done, _all: None
) -> tuple[int, int]:
    """Put the files of each topic and day into one, for the days before one; return how many files became how many.

    Raises `BadArchive`, `InUse`, or, once all other days are done, `Incomplete`.
    """
    failed = []
    with store.alone(folder, "compact"):
        store.sweep(folder, datetime.now(UTC))
        days = scattered(store.load(folder), before)
        on_progress(0, len(days))
        for done, files in enumerate(days, 1):
            try:
                _put_together(spark, folder, files)
            except Exception as error:  # noqa: BLE001 - whatever Spark says of a damaged file, the other days are fine
                check()
                failed.append(f"{files[0].topic} of {files[0].day}: {first_line(error)}")
            on_progress(done, len(days))
    if failed:
        more = f", and {len(failed) - 1} days more" if len(failed) > 1 else ""
        raise Incomplete(f"these files stay as they are: {failed[0]}{more}")
    return sum(map(len, days)), len(days)


def scattered(manifest: Manifest, before: date) -> list[list[DataFile]]:
    """Return the files of each topic and day that has several, for the days before one."""
    days: dict[tuple[str, date], list[DataFile]] = {}
    for file in manifest.of(last_day=before - timedelta(days=1)):
        days.setdefault((file.topic, file.day), []).append(file)
    return [files for _, files in sorted(days.items()) if len(files) > 1]


def _put_together(spark: SparkSession, folder: Path, files: Sequence[DataFile]) -> None:
    """Put one new file in the place of those of a topic and day, if it has all of their records."""
    with store.staging_folder(folder, "compact") as staging:
        write(read_files(spark, folder, files), staging)
        staged = store.staged_files(staging)
        if _merged(staged) != _merged(files):
            raise Incomplete("not all records are there")
        _replace(folder, files, staged)


def expiries(
    manifest: Manifest, first_kept: Mapping[str, date], signed: Mapping[tuple[str, int], Sequence[int]] | None
) -> list[Expiry]:
    """Return what expires.

    A partition's records expire from the smallest offset on, so that what is left is one piece of the chain. A record
    of a day before its time stays if one with a smaller offset stays.

    Args:
        manifest: what the archive holds.
        first_kept: the first day that is kept, by topic without prefix; other topics do not expire.
        signed: the last offset of each signed block, sorted, by topic and partition. If given, only whole blocks
            expire, so that what is left can be checked from its first record on.
    """
    found = []
    for topic, before in sorted(first_kept.items()):
        old = [file for file in manifest.of([topic]) if file.day < before]
        kept = [file for file in manifest.of([topic]) if file.day >= before]
        boundaries = dict(manifest.positions.get(topic, {}))
        for file in kept:
            for partition, span in file.spans.items():
                boundaries[partition] = min(boundaries[partition], span.first)
        if signed is not None:
            boundaries = {p: _block_end(signed.get((topic, p), ()), offset) for p, offset in boundaries.items()}
        dropped = tuple(f for f in old if all(span.last < boundaries[p] for p, span in f.spans.items()))
        gone = {file.path for file in dropped}
        trimmed = tuple(
            f for f in old if f.path not in gone and any(span.first < boundaries[p] for p, span in f.spans.items())
        )
        if dropped or trimmed:
            found.append(Expiry(topic, before, boundaries, dropped, trimmed))
    return found


def expire(
    spark: SparkSession, folder: Path, planned: Sequence[Expiry], *, on_progress: OnProgress = lambda _done, _all: None
) -> None:
    """Take what expires out of the archive. Raises `BadArchive` or `InUse`."""
    with store.alone(folder, "expire"):
        on_progress(0, len(planned))
        for done, step in enumerate(planned, 1):
            with store.staging_folder(folder, "expire") as staging:
                if step.trimmed:
                    write(read_files(spark, folder, step.trimmed).where(_kept(step.boundaries)), staging)
                _replace(folder, (*step.dropped, *step.trimmed), store.staged_files(staging), step)
            on_progress(done, len(planned))


def _replace(folder: Path, files: Sequence[DataFile], staged: list[store.Staged], expiry: Expiry | None = None) -> None:
    """Put new files in the place of some of the archive's."""
    now, old = datetime.now(UTC), {file.path for file in files}

    def replaced(manifest: Manifest) -> Manifest:
        if not old <= {file.path for file in manifest.files}:
            raise store.InUse(f"another process has just changed {files[0].path}: try again")
        after = manifest.replaced(old, store.adopt(folder, manifest.version, staged), now)
        if expiry is None:
            return after
        # A partition without an old record has nothing that expired.
        had = {partition for file in files for partition in file.spans}
        known = manifest.expired.get(expiry.topic, {})
        first = {p: max(known.get(p, 0), expiry.boundaries[p]) for p in had} | {
            p: offset for p, offset in known.items() if p not in had
        }
        return after.model_copy(update={"expired": {**after.expired, expiry.topic: first}})

    store.change(folder, replaced, now)


def _kept(boundaries: Boundaries) -> Column:
    from pyspark.sql import functions as f  # noqa: PLC0415  (takes seconds to import)

    conditions = [(f.col("partition") == p) & (f.col("offset") >= offset) for p, offset in boundaries.items()]
    return reduce(or_, conditions)


def _merged(files: Iterable[DataFile | store.Staged]) -> dict[int, Span]:
    """Return the spans of several files as if they were one."""
    merged: dict[int, Span] = {}
    for file in files:
        for partition, span in file.spans.items():
            known = merged.get(partition, Span(span.first, span.last, 0))
            merged[partition] = Span(
                min(known.first, span.first), max(known.last, span.last), known.records + span.records
            )
    return merged


def _block_end(blocks: Sequence[int], boundary: int) -> int:
    """Return the largest offset up to `boundary` before which whole blocks lie; 0 if there is none."""
    at = bisect_right(blocks, boundary - 1)
    return blocks[at - 1] + 1 if at else 0
