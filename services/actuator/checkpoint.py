"""What a streaming query's checkpoint on a file system says: newest offset, newest commit, query id, pinned state.

Layout: Spark's "Recovery semantics"; `offsets/<n>` is written before batch n runs, `commits/<n>` after it. Reading
only: nothing here ever writes to a checkpoint.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit


class CheckpointError(RuntimeError):
    """The checkpoint cannot be read; the text names the file and what was found."""


@dataclass(frozen=True, slots=True)
class QueryCheckpoint:
    """One query's checkpoint at one moment. Batch ids are None before the first."""

    path: Path
    query_id: str | None
    newest_offset: int | None
    newest_commit: int | None
    commit_times: dict[int, float]
    """Seconds since the epoch at which each commit still kept was written, by batch id."""

    @property
    def clean(self) -> bool:
        """Whether no batch was begun that is not committed."""
        return self.newest_offset == self.newest_commit

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
        f"checkpoint_location {location!r}: only a path or a file: URI can be read, not {parts.scheme}:"
    )


def read_checkpoints(location: str) -> list[QueryCheckpoint]:
    """Return the checkpoint of every query of a job: the location itself, or each folder in it that is one."""
    root = local_path(location)
    if _is_checkpoint(root):
        return [_read(root)]
    if not root.is_dir():
        return []
    return [_read(path) for path in sorted(root.iterdir()) if _is_checkpoint(path)]


def pinned_state_partitions(path: Path) -> int | None:
    """Return the number of state partitions the checkpoint is bound to, or None before its first batch."""
    newest = max(_batches(path / "offsets"), default=None)
    if newest is None:
        return None
    file = path / "offsets" / str(newest)
    lines = file.read_text(encoding="utf-8").splitlines()
    try:
        conf = json.loads(lines[1])["conf"]
        # since 4.1 the state's own setting wins over that of shuffles (SPARK-53942)
        pinned = conf.get("spark.sql.streaming.internal.stateStore.partitions", conf["spark.sql.shuffle.partitions"])
        return int(pinned)
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{file}: line 2 holds no shuffle partitions ({error!r})") from None


def _is_checkpoint(path: Path) -> bool:
    return (path / "metadata").is_file() or (path / "offsets").is_dir()


def _read(path: Path) -> QueryCheckpoint:
    # commits are read first: a batch that begins in between makes the checkpoint look unclean, never clean
    times = {}
    for batch_id in _batches(path / "commits"):
        try:
            times[batch_id] = (path / "commits" / str(batch_id)).stat().st_mtime
        except FileNotFoundError:  # Spark removes old entries as it goes
            continue
    return QueryCheckpoint(
        path, _query_id(path), max(_batches(path / "offsets"), default=None), max(times, default=None), times
    )


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
        raise CheckpointError(f"{file}: a JSON object with `id` is expected, found {text[:80]!r}") from None
