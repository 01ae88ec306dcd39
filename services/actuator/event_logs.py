"""Looks into the Spark event log of an application for the streaming queries that it runs.

Spark writes either one file, `<app>[.zstd][.inprogress]`, or a folder `eventlog_v2_<app>/` with the files
`events_<n>_<app>[.zstd]`. The id of a query is in the event that says it has started, and in the properties of each of
its jobs, so it comes up early in every one of these files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection

from tidegate.remote.files import WITHOUT_OPTIONS, Files, Place, scan
from tidegate.sparklog.event_log import ROLLING_PREFIX, FileTail, rolled_files

_READ_BYTES = 1024 * 1024
"""How much of a file is searched, as stored."""


def runs_query(
    event_log_dir: str, application_id: str, query_ids: Collection[str], files: Files = WITHOUT_OPTIONS
) -> bool:
    """Return whether an application's log names one of the queries; False if there is no log that can be read."""
    wanted = [query_id.encode() for query_id in query_ids]
    with contextlib.suppress(OSError):
        return any(_names(path, wanted) for path in _files(files.log_place(event_log_dir), application_id))
    return False


def _files(folder: Place, application_id: str) -> list[Place]:
    """Return the files of an application's log; of a rolled one, the first and the newest."""
    found: list[Place] = []
    for entry in scan(folder):
        stem, path = entry.name.removeprefix(ROLLING_PREFIX), folder / entry.name
        # after the id, there may be the number of the attempt, a codec, and a mark
        if stem != application_id and not stem.startswith((f"{application_id}_", f"{application_id}.")):
            continue
        if entry.is_dir():
            rolled = [file for _, file in sorted(rolled_files(path).items())]
            found += [*rolled[-1:], *rolled[:-1][:1]]
        else:
            found.append(path)
    return found


def _names(path: Place, wanted: list[bytes]) -> bool:
    """Return whether the start of a log contains one of the words."""
    tail = FileTail(path)
    return any(word in line for line in (*tail.lines(_READ_BYTES), tail.rest) for word in wanted)
