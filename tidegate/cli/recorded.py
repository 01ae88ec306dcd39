"""One job's recorded events, from a recording or from the topics."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from tidegate.client import BadRecord, ClientSettings, received
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


def received_job(settings: ClientSettings, job: str, since: datetime | None) -> RecordedJob:
    """Return the events of a job on the topics; raises `CannotTry` if there are none."""
    events: list[Wire] = []
    for model in EVENTS:
        events += [one.event for one in received(model, settings, job=job, since=since, on_error=_skip)]
    return job_of(events, job)


def _events(directory: Path) -> Iterator[Wire]:
    for model in EVENTS:
        topic = BY_MODEL[model].suffix
        for record in read(directory, topic):
            if record.value is not None:
                try:
                    yield decode(model, record.value)
                except Unreadable as error:
                    raise BadRecording(f"{directory}: {topic}, offset {record.offset}: {error.detail}") from None


def _skip(_bad: BadRecord) -> None:
    """Skip an unreadable record: the services write dead letters of those."""
