"""Events of jobs from a recording or an archive."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from tidegate.archive.store import BadArchive, is_archive
from tidegate.client import BadRecord
from tidegate.events.envelope import Unreadable, decode
from tidegate.events.topics import BY_MODEL
from tidegate.events.wire import Wire
from tidegate.replay.archived import archived
from tidegate.replay.files import BadRecording, read
from tidegate.whatif.recorded import EVENTS, CannotTry, RecordedJob, job_of

log = logging.getLogger(__name__)

_Event = TypeVar("_Event", bound=Wire)


def recorded_job(directory: Path, job: str | None = None) -> RecordedJob:
    """Return the events of a job, by default of the only one.

    Raises `BadRecording` if the directory holds no such job, or no usable recording or archive.
    """
    try:
        return job_of((event for model in EVENTS for event in recorded(directory, model)), job)
    except CannotTry as error:
        raise BadRecording(f"{directory}: {error}") from None


def recorded(directory: Path, model: type[_Event]) -> Iterator[_Event]:
    """Yield the events of a kind in a recording or an archive.

    An event that cannot be read is skipped, with a line in the log.
    Raises `BadRecording` for what is no usable recording or archive.
    """
    topic = BY_MODEL[model].suffix
    try:
        for record in (archived if is_archive(directory) else read)(directory, topic):
            if record.value is None:
                continue
            try:
                yield decode(model, record.value)
            except Unreadable as error:
                bad = BadRecord(topic, record.partition, record.offset, error, record.value)
                log.warning("%s: skipped %s", directory, bad)
    except BadArchive as error:
        raise BadRecording(str(error)) from None
