"""Reads a streaming query's checkpoint wherever it is: newest offset, newest commit, query id.

Spark writes `offsets/<n>` before batch n runs and `commits/<n>` after it. Nothing here ever writes to a checkpoint.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path, PurePosixPath
from statistics import median
from urllib.parse import urlsplit

from tidegate.events.result import CheckpointMark, QueryCommit
from tidegate.remote.checkpoints import query_id
from tidegate.remote.files import WITHOUT_OPTIONS, Files, Place, entries, names

_PACE_COMMITS = 20


class CheckpointError(RuntimeError):
    """The checkpoint cannot be read; the message names the file and what is wrong."""


@dataclass(frozen=True, slots=True)
class QueryCheckpoint:
    """One query's checkpoint at one moment. Batch ids are None before the first."""

    path: Place
    name: str
    """The name of its folder, as in a `CheckpointMark`."""
    query_id: str | None
    newest_offset: int | None
    newest_commit: int | None
    commit_times: dict[int, float]
    """When each commit that Spark still keeps was written, in seconds since 1970, by batch id."""

    @property
    def clean(self) -> bool:
        """Whether every batch that was started is committed."""
        return self.newest_offset == self.newest_commit

    @property
    def position(self) -> tuple[str, str | None, int | None, int | None]:
        """What changes when somebody works on the checkpoint."""
        return self.name, self.query_id, self.newest_offset, self.newest_commit

    def pace(self, batch_id: int | None = None) -> float:
        """Return the median time in seconds between the newest commits, or those before a batch; 0 without two."""
        batches = [n for n in sorted(self.commit_times) if batch_id is None or n < batch_id]
        times = [self.commit_times[n] for n in batches[-_PACE_COMMITS:]]
        return median(later - earlier for earlier, later in pairwise(times)) if len(times) > 1 else 0.0

    def first_commit_after(self, batch_id: int | None) -> tuple[int, float] | None:
        """Return (batch id, instant) of the oldest commit newer than `batch_id`, or None."""
        newer = [n for n in self.commit_times if batch_id is None or n > batch_id]
        return (min(newer), self.commit_times[min(newer)]) if newer else None


def read_checkpoints(location: str, files: Files = WITHOUT_OPTIONS) -> list[QueryCheckpoint]:
    """Return the checkpoint of every query of a job: the location itself, and each folder in it, if it is one."""
    root = files.place(location)
    inside = _folders(root)
    found = [_read(root, root.name)] if _is_checkpoint(root) else []
    prefix = f"{root.name}/" if found else ""
    return found + [_read(root / name, prefix + name) for name in inside if _is_checkpoint(root / name)]


def holds(location: str, reported: str) -> bool:
    """Return whether `read_checkpoints(location)` finds a checkpoint that Spark reports at `reported`."""
    where, told = urlsplit(location), urlsplit(reported)
    if where.scheme in ("", "file"):
        if not reported.startswith(("/", "file:")):
            return False
        # what Spark reports is not percent-encoded
        path = Path("/" + reported.removeprefix("file:").lstrip("/"))
        root = WITHOUT_OPTIONS.place(location)
        assert isinstance(root, Path)  # noqa: S101 - by its scheme
        return any(at in (folder, folder.parent) for at, folder in ((root, path), (root.resolve(), path.resolve())))
    # without an authority, a URI means that of Hadoop's settings
    if told.scheme != where.scheme or (where.netloc and told.netloc and where.netloc != told.netloc):
        return False
    folder = PurePosixPath(_path_of(reported))
    return PurePosixPath(_path_of(location)) in (folder, folder.parent)


def read_mark(location: str, files: Files = WITHOUT_OPTIONS) -> tuple[CheckpointMark, bool]:
    """Return the newest commits of a job's queries, as a result carries them, and whether every batch is committed."""
    checkpoints = read_checkpoints(location, files)
    times = [max(c.commit_times.values()) for c in checkpoints if c.commit_times]
    mark = CheckpointMark(
        queries={c.name: QueryCommit(query_id=c.query_id, batch_id=c.newest_commit) for c in checkpoints},
        last_commit_at=datetime.fromtimestamp(max(times), UTC) if times else None,
    )
    return mark, all(c.clean for c in checkpoints)


def committed_since(before: CheckpointMark, now: CheckpointMark) -> int | None:
    """Return a batch that a query has committed between two marks; None if there is none."""
    for name, newest in now.queries.items():
        known = before.queries.get(name, QueryCommit())
        same = known.query_id in (None, newest.query_id)
        if same and newest.batch_id is not None and (known.batch_id is None or newest.batch_id > known.batch_id):
            return newest.batch_id
    return None


def _is_checkpoint(path: Place) -> bool:
    found = {entry.name: entry for entry in entries(path)}
    return ("metadata" in found and found["metadata"].is_file()) or ("offsets" in found and found["offsets"].is_dir())


def _folders(path: Place) -> list[str]:
    return sorted(entry.name for entry in entries(path) if entry.is_dir())


def _read(path: Place, name: str) -> QueryCheckpoint:
    # commits come first: a batch that starts in between makes the checkpoint look unclean, never clean
    times = {}
    for entry in entries(path / "commits"):
        if entry.name.isdigit():
            with contextlib.suppress(FileNotFoundError):  # Spark removes old commits
                times[int(entry.name)] = entry.stat().st_mtime
    offsets = [int(name) for name in names(path / "offsets") if name.isdigit()]
    return QueryCheckpoint(
        path=path,
        name=name,
        query_id=_query_id(path),
        newest_offset=max(offsets, default=None),
        newest_commit=max(times, default=None),
        commit_times=times,
    )


def _query_id(path: Place) -> str | None:
    try:
        return query_id(path)
    except ValueError as error:
        raise CheckpointError(str(error)) from None


def _path_of(uri: str) -> str:
    """Return the path of a URI of Hadoop's, which is not percent-encoded."""
    return "/" + uri.partition("://")[2].partition("/")[2]
