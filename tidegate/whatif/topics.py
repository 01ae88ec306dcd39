"""One job's recorded events from the topics of a broker."""

from __future__ import annotations

from contextlib import closing
from datetime import datetime, timedelta

from tidegate.client import received, skip, up_to
from tidegate.engine.decide import KEYFRAME_EVERY
from tidegate.events.decision import Decision
from tidegate.events.job import JobSpec
from tidegate.events.wire import Wire
from tidegate.runtime.settings import ServiceSettings
from tidegate.whatif.recorded import EVENTS, RecordedJob, job_of

SLACK = timedelta(minutes=1)
"""How much earlier to read, for what was written late."""


def received_job(settings: ServiceSettings, job: str, since: datetime | None, until: int | None = None) -> RecordedJob:
    """Return the events of a job, up to the snapshot of sequence `until` and its decision.

    Raises `CannotTry` if there are none, `TimeoutError` if reading takes too long.
    """
    events: list[Wire] = []
    for model in EVENTS:
        with closing(received(model, settings, job=job, since=since, on_error=skip)) as found:
            events += [one.event for one in (found if until is None else up_to(found, until))]
    return job_of(events, job)


def since_keyframe(decision: Decision, spec: JobSpec) -> datetime:
    """Return from when on to read, so that the keyframe before a decision is among its job's events."""
    return decision.decided_at - timedelta(seconds=(KEYFRAME_EVERY + 1) * spec.interval_seconds) - SLACK
