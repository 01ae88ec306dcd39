"""Looks into the Spark event log of an application for the streaming queries that it runs.

Spark writes either one file, `<app>[.zstd][.inprogress]`, or a folder `eventlog_v2_<app>/` with the files
`events_<n>_<app>[.zstd]`. The id of a query is in the event that says it has started, and in the properties of each of
its jobs, so it comes up early in every one of these files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from pathlib import Path

from services.actuator.checkpoint import CheckpointError, local_path
from tidegate.sparklog.event_log import FileTail

_READ_BYTES = 1024 * 1024
"""How much of a file is searched, as stored."""


def runs_query(event_log_dir: str, application_id: str, query_ids: Collection[str]) -> bool:
    """Return whether an application's log names one of the queries; False if there is no log that can be read."""
    wanted = [query_id.encode() for query_id in query_ids]
    with contextlib.suppress(CheckpointError, OSError):
        return any(_names(path, wanted) for path in _files(local_path(event_log_dir), application_id))
    return False


def _files(folder: Path, application_id: str) -> list[Path]:
    """Return the files of an application's log; of a rolled one, the first and the newest."""
    found: list[Path] = []
    for path in folder.iterdir():
        stem = path.name.removeprefix("eventlog_v2_")
        # after the id, there may be the number of the attempt, a codec, and a mark
        if stem != application_id and not stem.startswith((f"{application_id}_", f"{application_id}.")):
            continue
        if path.is_dir():
            rolled = [file for file in path.iterdir() if file.name.startswith("events_")]
            rolled.sort(key=lambda file: int(file.name.split("_")[1]))
            found += dict.fromkeys([*rolled[-1:], *rolled[:1]])
        else:
            found.append(path)
    return found


def _names(path: Path, wanted: list[bytes]) -> bool:
    """Return whether the start of a log contains one of the words."""
    tail = FileTail(path)
    return any(word in line for line in (*tail.lines(_READ_BYTES), tail.rest) for word in wanted)
