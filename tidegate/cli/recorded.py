"""One job's events from a recording."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tidegate.events.envelope import Unreadable, decode
from tidegate.events.topics import BY_MODEL
from tidegate.events.wire import Wire
from tidegate.replay.files import BadRecording, read
from tidegate.whatif.recorded import EVENTS, CannotTry, RecordedJob, job_of


def recorded_job(directory: Path, job: str | None = None) -> RecordedJob:
    """Return the events of a recording's job, by default of the only one; raises `BadRecording`."""
    try:
        return job_of(_events(directory), job)
    except CannotTry as error:
        raise BadRecording(f"{directory}: {error}") from None


def _events(directory: Path) -> Iterator[Wire]:
    for model in EVENTS:
        topic = BY_MODEL[model].suffix
        for record in read(directory, topic):
            if record.value is not None:
                try:
                    yield decode(model, record.value)
                except Unreadable as error:
                    raise BadRecording(f"{directory}: {topic}, offset {record.offset}: {error.detail}") from None
