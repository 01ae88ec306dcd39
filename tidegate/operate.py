"""What an operator does to a job: each request is a new version of its spec on the jobs topic.

The functions that make a version are pure; `publish` checks versions and sends them.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime

from tidegate.events.job import JobSpec, ManualScale, Mode, SpecChange
from tidegate.installed import engine
from tidegate.runtime.kafka import Publisher
from tidegate.runtime.settings import ServiceSettings


class SpecRefused(ValueError):
    """The engine would refuse a spec; the text names the job and every problem."""


def with_mode(spec: JobSpec, mode: Mode, change: SpecChange | None = None) -> JobSpec:
    """Return the next version of a spec in another mode, or in the same one.

    A job that waits for an operator resumes on a new version, whatever it holds.
    """
    scaling = spec.scaling.model_copy(update={"mode": mode})
    return spec.model_copy(update={"scaling": scaling, "version": spec.version + 1, "change": change})


def with_size(spec: JobSpec, parallelism: int, reason: str, at: datetime, change: SpecChange | None = None) -> JobSpec:
    """Return the next version of a spec, with a request for a size in task slots.

    Raises pydantic's `ValidationError` for a size or a reason that no event may hold.
    """
    manual = ManualScale(request_id=str(uuid.uuid4()), parallelism=parallelism, reason=reason, requested_at=at)
    return spec.model_copy(update={"manual": manual, "version": spec.version + 1, "change": change})


def publish(settings: ServiceSettings, specs: Sequence[JobSpec]) -> None:
    """Check specs, publish them, and wait for the acknowledgement; raise `SpecRefused` or `NotDelivered`."""
    for spec in specs:
        if problems := engine().check(spec):
            raise SpecRefused(f"{spec.job_id}: " + "; ".join(problems))
    publisher = Publisher(settings)
    for spec in specs:
        publisher.send(spec)
    publisher.flush()
