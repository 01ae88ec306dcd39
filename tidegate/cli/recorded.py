"""Events of jobs from a recording or an archive."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TypeVar

from tidegate.archive.store import BadArchive, is_archive
from tidegate.cli.problems import Problem
from tidegate.client import BadRecord
from tidegate.events.envelope import Unreadable, decode
from tidegate.events.snapshot import MetricSnapshot
from tidegate.events.topics import BY_MODEL
from tidegate.events.wire import Wire
from tidegate.replay.archived import archived
from tidegate.replay.files import BadRecording, Skipped, none_skipped, read
from tidegate.whatif.recorded import EVENTS, CannotTry, RecordedJob, job_of, only_job

log = logging.getLogger(__name__)

_Event = TypeVar("_Event", bound=Wire)

_JOB = re.compile(rb'"job_id\\?":\\?"([^"\\]+)')
"""The job that a snapshot names, in its value or in the line of a recording, where a value is text."""


def recorded_job(directory: Path, job: str | None = None) -> RecordedJob:
    """Return the events of a job, by default of the only one.

    Raises `Problem` if the directory holds no such job, and `BadRecording` if it is no usable recording or archive.
    """
    try:
        name = job or only_job(_jobs_in(directory))
        found = [event for model in EVENTS for event in recorded(directory, model, [name])]
        if not any(isinstance(event, MetricSnapshot) for event in found):
            only_job(_jobs_in(directory), name)
        return job_of(found, name)
    except CannotTry as error:
        raise Problem(f"{directory}: {error}", "name a job that it holds, or give another recording") from None


def _jobs_in(directory: Path) -> set[str]:
    """Return the jobs of which there are snapshots: of each job, only one that can be read is decoded."""
    found = set[bytes]()

    def known(raw: bytes) -> bool:
        named = _JOB.search(raw)
        return named is not None and named[1] in found

    for snapshot in recorded(directory, MetricSnapshot, in_order=False, skipped=known):
        found.add(snapshot.job_id.encode())
    return {job.decode() for job in found}


def recorded(
    directory: Path,
    model: type[_Event],
    jobs: Collection[str] | None = None,
    *,
    in_order: bool = True,
    skipped: Skipped = none_skipped,
) -> Iterator[_Event]:
    """Yield the events of a kind in a recording or an archive, of all jobs or of some.

    Of 1,000 jobs, those of one are found without reading what the others' events say. `in_order` is of an archive:
    without it, events come as they are in the files. Those which `skipped` says yes to are not decoded. An event that
    cannot be read is left out, with a line in the log.
    Raises `BadRecording` for what is no usable recording or archive.
    """
    topic = BY_MODEL[model].suffix
    try:
        if is_archive(directory):
            names = None if jobs is None else [f'"{job}"'.encode() for job in jobs]
            records = archived(directory, topic, names, in_order=in_order)
        else:
            records = read(directory, topic, jobs, skipped)
        for record in records:
            if record.value is None or skipped(record.value):
                continue
            try:
                event = decode(model, record.value)
            except Unreadable as error:
                bad = BadRecord(topic, record.partition, record.offset, error, record.value)
                log.warning("%s: skipped %s", directory, bad)
                continue
            if jobs is None or getattr(event, "job_id", None) in jobs:
                yield event
    except BadArchive as error:
        raise BadRecording(str(error)) from None
