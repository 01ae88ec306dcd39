"""The archive's folder: new files and a new `archive.json` go in under one lock, the latter by a rename.

Whatever a killed writer leaves behind is not listed, so no reader sees it, and the next writer removes it.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from itertools import pairwise
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from pydantic import ValidationError

from tidegate.archive.durable import sync
from tidegate.archive.manifest import KEPT_FOR_READERS, LAYOUT, ArchivedAlready, DataFile, Manifest, Span
from tidegate.events.invalid import first_problem
from tidegate.runtime.lock_file import lock_file

if TYPE_CHECKING:
    import pyarrow as pa

MANIFEST = "archive.json"
SCRATCH = f"{MANIFEST}.tmp"
CHANGE_LOCK = "change.lock"
NO_FILES = {SCRATCH, CHANGE_LOCK, MANIFEST, "lost+found"}
"""What may be in the folder of a new archive: what an interrupted start leaves, and what a new volume has."""
RECORDS = "records"
CHECKPOINT = "checkpoint"
STAGING = "staging"
CHAIN = "chain"
"""Folder of the signed statements."""
LOCK_SECONDS = 60.0
"""How long to wait for another writer's change, which takes milliseconds."""


class BadArchive(ValueError):
    """A folder is not a usable archive; the text says why."""


class InUse(RuntimeError):
    """Another process does the same in this archive; the text says what."""


@dataclass(frozen=True, slots=True)
class Staged:
    """A Parquet file that Spark has written and that is not in the archive yet."""

    path: Path
    topic: str
    day: date
    spans: dict[int, Span]

    @property
    def records(self) -> int:
        """Number of records."""
        return sum(span.records for span in self.spans.values())


def is_archive(folder: Path) -> bool:
    """Whether a folder is an archive; what else holds records is a recording."""
    return (folder / MANIFEST).is_file()


def load(folder: Path) -> Manifest:
    """Return what an archive holds; raise `BadArchive` if the folder is none."""
    path = folder / MANIFEST
    if not path.is_file():
        run = f"tidegate archive run {quote(str(folder))}"
        why = f"it has no {MANIFEST}" if folder.exists() else "there is no such folder"
        raise BadArchive(f"{folder} is not an archive: {why}. `{run}` makes one")
    try:
        manifest = Manifest.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise BadArchive(f"{path}: {first_problem(error)}") from None
    if manifest.layout != LAYOUT:
        raise BadArchive(f"{path}: layout {manifest.layout} is unknown; this version reads layout {LAYOUT}")
    return manifest


def load_or_create(folder: Path, topic_prefix: str) -> Manifest:
    """Return what an archive holds, after making an empty one if the folder is new or empty."""
    if not (folder / MANIFEST).exists():
        if folder.exists() and (not folder.is_dir() or {each.name for each in folder.iterdir()} - NO_FILES):
            raise BadArchive(f"{folder} is neither an archive nor empty; give the archive a folder of its own")
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder / CHANGE_LOCK, LOCK_SECONDS):
            if not (folder / MANIFEST).exists():  # another process may have made it meanwhile
                _write(folder, Manifest(topic_prefix=topic_prefix, created_at=datetime.now(UTC)))
    manifest = load(folder)
    if manifest.topic_prefix != topic_prefix:
        raise BadArchive(
            f"{folder} is the archive of the topics {manifest.topic_prefix}*, not {topic_prefix}*: use another folder,"
            f" or --topic-prefix {manifest.topic_prefix}"
        )
    return manifest


def change(folder: Path, changed: Callable[[Manifest], Manifest], now: datetime) -> Manifest:
    """Replace the manifest by what `changed` makes of it, alone among all writers; return the new one.

    `changed` may move files into the archive with `adopt`. Files that no reader needs any more are deleted.
    """
    with _locked(folder / CHANGE_LOCK, LOCK_SECONDS):
        before = load(folder)
        after = changed(before)
        kept = tuple(each for each in after.retired if now - each.at < KEPT_FOR_READERS)
        deleted = set(after.retired) - set(kept)
        after = after.model_copy(update={"retired": kept, "version": before.version + 1})
        _write(folder, after)
        for each in deleted:
            (folder / each.path).unlink(missing_ok=True)
    return after


def sweep(folder: Path, now: datetime) -> None:
    """Delete data files that are not listed: a writer was killed between moving them in and listing them."""

    def swept(manifest: Manifest) -> Manifest:
        known = {file.path for file in manifest.files} | {each.path for each in manifest.retired}
        for path in (folder / RECORDS).glob("*/*/*"):
            if path.relative_to(folder).as_posix() not in known:
                path.unlink()
        return manifest

    change(folder, swept, now)


def adopt(folder: Path, version: int, staged: list[Staged]) -> list[DataFile]:
    """Move files into the archive and return them as the manifest lists them; only within `change`.

    `version` is the manifest's before the change. It makes the names, so that a change that was not completed and is
    made again writes over what it left.
    """
    adopted = []
    for number, file in enumerate(staged):
        name = f"{RECORDS}/topic={file.topic}/day={file.day.isoformat()}/{version + 1:08}-{number:03}.parquet"
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with file.path.open("rb+") as written:
            os.fsync(written.fileno())
        file.path.replace(target)
        size = target.stat().st_size
        adopted.append(
            DataFile(topic=file.topic, day=file.day, path=name, records=file.records, bytes=size, spans=file.spans)
        )
    parents = {folder / parent for each in adopted for parent in Path(each.path).parents}
    for parent in sorted(parents, reverse=True):  # what is deeper first
        sync(parent)
    return adopted


def staged_files(staging: Path) -> list[Staged]:
    """Return the Parquet files that Spark has written to `staging`, partitioned by topic and day."""
    found = []
    for path in sorted(staging.glob("topic=*/day=*/*.parquet")):
        day = date.fromisoformat(path.parent.name.removeprefix("day="))
        found.append(Staged(path, path.parents[1].name.removeprefix("topic="), day, _spans(_offsets(path))))
    return found


def runs(staged: list[Staged]) -> dict[tuple[str, int], list[tuple[int, int]]]:
    """Return the runs of offsets without a hole, by topic and partition; raise `ArchivedAlready` if one repeats."""
    offsets: dict[tuple[str, int], list[int]] = {}
    for file in staged:
        table = _offsets(file.path)
        for partition, offset in zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True):
            offsets.setdefault((file.topic, partition), []).append(offset)
    return {place: _runs(place, sorted(found)) for place, found in sorted(offsets.items())}


def _runs(place: tuple[str, int], offsets: list[int]) -> list[tuple[int, int]]:
    starts, ends = [offsets[0]], []
    for one, two in pairwise(offsets):
        if two == one:
            raise ArchivedAlready(f"{place[0]}, partition {place[1]}: offset {one} came twice in one batch")
        if two > one + 1:
            ends.append(one)
            starts.append(two)
    return list(zip(starts, [*ends, offsets[-1]], strict=True))


def _offsets(path: Path) -> pa.Table:
    import pyarrow.parquet as pq  # noqa: PLC0415  (only in the extra `replay`)

    return pq.ParquetFile(path).read(columns=["partition", "offset"])


def _spans(offsets: pa.Table) -> dict[int, Span]:
    figures = offsets.group_by("partition").aggregate([("offset", "min"), ("offset", "max"), ("offset", "count")])
    return {
        row["partition"]: Span(row["offset_min"], row["offset_max"], row["offset_count"]) for row in figures.to_pylist()
    }


@contextmanager
def staging_folder(folder: Path, what: str) -> Iterator[Path]:
    """Yield a new folder to write into, on the archive's file system; it is removed at the end.

    Only within `alone(folder, what)`: what a killed process left of the same work is removed first.
    """
    shutil.rmtree(folder / STAGING / what, ignore_errors=True)
    made = folder / STAGING / what / uuid.uuid4().hex  # the Spark of a killed process may still write to the old one
    made.mkdir(parents=True)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def alone(folder: Path, what: str) -> AbstractContextManager[None]:
    """Be the only process that does `what` in this archive; raise `InUse` if another one does."""
    return _locked(folder / f"{what}.lock", 0.0)


def _locked(path: Path, wait_seconds: float) -> AbstractContextManager[None]:
    held = InUse(f"another process is doing the same in {path.parent}: it holds {path.name}")
    return lock_file(path, wait_seconds, held)


def _write(folder: Path, manifest: Manifest) -> None:
    scratch = folder / SCRATCH
    with scratch.open("wb") as file:
        file.write(manifest.model_dump_json(indent=1).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(folder / MANIFEST)
    sync(folder)
