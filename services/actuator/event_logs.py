"""Looks into the Spark event log of an application for the streaming queries that it runs.

Spark writes either one file, `<app>[.zstd][.inprogress]`, or a folder `eventlog_v2_<app>/` with the files
`events_<n>_<app>[.zstd]`. The id of a query is in the event that says it has started, and in the properties of each of
its jobs, so it comes up early in every one of these files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence

from tidegate.remote.files import WITHOUT_OPTIONS, Entry, Files, Place, scan
from tidegate.sparklog.event_log import ROLLING_PREFIX, FileTail, rolled_files

_READ_BYTES = 1024 * 1024
"""How much of a file is searched, as stored."""


def running_query(
    event_log_dir: str, application_ids: Collection[str], query_ids: Collection[str], files: Files = WITHOUT_OPTIONS
) -> set[str]:
    """Return those of some applications whose logs name one of the queries; none whose log cannot be read."""
    wanted, found = [query_id.encode() for query_id in query_ids], set[str]()
    with contextlib.suppress(OSError):
        folder = files.log_place(event_log_dir)
        listed = scan(folder)  # once: there may be thousands of logs, and hundreds of applications
        for application_id in application_ids:
            with contextlib.suppress(OSError):
                if any(_names(path, wanted) for path in _files(folder, listed, application_id)):
                    found.add(application_id)
    return found


def _files(folder: Place, listed: Sequence[Entry], application_id: str) -> list[Place]:
    """Return the files of an application's log; of a rolled one, the first and the newest."""
    found: list[Place] = []
    for entry in listed:
        stem = entry.name.removeprefix(ROLLING_PREFIX)
        # after the id, there may be the number of the attempt, a codec, and a mark
        if stem != application_id and not stem.startswith((f"{application_id}_", f"{application_id}.")):
            continue
        path = folder / entry.name
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
