"""Reads a streaming query's checkpoint on a file system: newest offset, newest commit, query id.

Spark writes `offsets/<n>` before batch n runs and `commits/<n>` after it. Nothing here ever writes to a checkpoint.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from urllib.parse import unquote, urlsplit

from tidegate.events.result import CheckpointMark, QueryCommit

_PACE_COMMITS = 20


class CheckpointError(RuntimeError):
    """The checkpoint cannot be read; the message names the file and what it holds."""


@dataclass(frozen=True, slots=True)
class QueryCheckpoint:
    """One query's checkpoint at one moment. Batch ids are None before the first."""

    path: Path
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


def local_path(location: str) -> Path:
    """Return the local path of a checkpoint location; raise `CheckpointError` for one on another file system."""
    parts = urlsplit(location)
    if parts.scheme == "":
        return Path(location)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return Path(unquote(parts.path))
    raise CheckpointError(
        f"checkpoint_location {location!r} cannot be read: it must be a path or a file: URI, not {parts.scheme}:"
    )


def read_checkpoints(location: str) -> list[QueryCheckpoint]:
    """Return the checkpoint of every query of a job: the location itself, and each folder in it, if it is one."""
    root = local_path(location)
    found = [_read(root, root.name)] if _is_checkpoint(root) else []
    prefix = f"{root.name}/" if found else ""
    if root.is_dir():
        found += [_read(path, prefix + path.name) for path in sorted(root.iterdir()) if _is_checkpoint(path)]
    return found


def holds(location: str, reported: str) -> bool:
    """Return whether `read_checkpoints(location)` finds a checkpoint that Spark reports at `reported`."""
    if not reported.startswith(("/", "file:")):
        return False
    # what Spark reports is not percent-encoded
    path = Path("/" + reported.removeprefix("file:").lstrip("/"))
    root = local_path(location)
    return any(at in (folder, folder.parent) for at, folder in ((root, path), (root.resolve(), path.resolve())))


def read_mark(location: str) -> tuple[CheckpointMark, bool]:
    """Return the newest commits of a job's queries, as a result carries them, and whether every batch is committed."""
    checkpoints = read_checkpoints(location)
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


def _is_checkpoint(path: Path) -> bool:
    return (path / "metadata").is_file() or (path / "offsets").is_dir()


def _read(path: Path, name: str) -> QueryCheckpoint:
    # commits come first: a batch that starts in between makes the checkpoint look unclean, never clean
    times = {}
    for batch_id in _batches(path / "commits"):
        try:
            times[batch_id] = (path / "commits" / str(batch_id)).stat().st_mtime
        except FileNotFoundError:  # Spark removes old commits
            continue
    newest_offset = max(_batches(path / "offsets"), default=None)
    return QueryCheckpoint(path, name, _query_id(path), newest_offset, max(times, default=None), times)


def _batches(folder: Path) -> list[int]:
    try:
        return [int(entry.name) for entry in folder.iterdir() if entry.name.isdigit()]
    except FileNotFoundError:
        return []


def _query_id(path: Path) -> str | None:
    file = path / "metadata"
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        return str(json.loads(text)["id"])
    except (ValueError, KeyError, TypeError):
        raise CheckpointError(f"{file}: expected a JSON object with `id`, found {text[:80]!r}") from None
