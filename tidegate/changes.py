"""Changes of jobs from a program, as the commands make them: `apply`, `pause`, `resume`, `scale` and `remove`.

    from tidegate.changes import apply, scale
    apply({"job_id": "rates", ...}, reason="release 7")
    scale("rates", 6, reason="launch day")

Each returns when the broker has acknowledged. `bootstrap_servers` and `topic_prefix` default to the variables
`TIDEGATE_BOOTSTRAP_SERVERS` and `TIDEGATE_TOPIC_PREFIX`; SASL and TLS come from the same `TIDEGATE_…` variables as for
the services. All raise `Unreachable` or `NoSuchTopic` (of `tidegate.client`) if there is no topic to publish on,
`SpecRefused` for what must not be published, and `NotDelivered` if the broker does not acknowledge.
"""

from __future__ import annotations

import getpass
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from tidegate import operate
from tidegate.client import loaded_specs, settings_for
from tidegate.events.job import JobSpec, Mode, SpecChange
from tidegate.operate import SpecRefused, next_on_topic, publish, publish_change, with_mode, with_size
from tidegate.runtime.jobs import JobsView
from tidegate.runtime.producer import NotDelivered as NotDelivered  # noqa: PLC0414 - what the functions raise
from tidegate.runtime.settings import ServiceSettings
from tidegate.specfields import read_spec


def apply(
    spec: JobSpec | Mapping[str, Any],
    *,
    reason: str,
    bootstrap_servers: str | None = None,
    topic_prefix: str | None = None,
) -> JobSpec:
    """Add a job, or change its spec; return the version that is on the topic now. An unchanged spec does nothing.

    A mapping has the fields of a job file. What is not given gets its default, also the mode: this ends a pause.
    """
    settings = settings_for(bootstrap_servers, topic_prefix)
    view = loaded_specs(settings)
    wanted = spec if isinstance(spec, JobSpec) else _read(spec)
    new = next_on_topic(wanted, view)
    if new is None:
        return _newest(view, wanted.job_id)
    new = new.model_copy(update={"change": change_of_mine(reason)})
    publish(settings, [new])
    return new


def pause(job: str, *, reason: str, bootstrap_servers: str | None = None, topic_prefix: str | None = None) -> JobSpec:
    """Keep a job at its size: Tidegate still decides and explains, but only a request by hand changes the size."""
    settings = settings_for(bootstrap_servers, topic_prefix)
    return _published(settings, with_mode(_newest(loaded_specs(settings), job), Mode.PAUSED, change_of_mine(reason)))


def resume(
    job: str,
    *,
    reason: str,
    advise: bool = False,
    bootstrap_servers: str | None = None,
    topic_prefix: str | None = None,
) -> JobSpec:
    """Scale a paused job again, or retry one that Tidegate gave up on. With `advise`, decide but change nothing."""
    settings = settings_for(bootstrap_servers, topic_prefix)
    mode = Mode.ADVISE if advise else Mode.ACTIVE
    return _published(settings, with_mode(_newest(loaded_specs(settings), job), mode, change_of_mine(reason)))


def scale(
    job: str,
    parallelism: int,
    *,
    reason: str,
    bootstrap_servers: str | None = None,
    topic_prefix: str | None = None,
) -> JobSpec:
    """Request a size in task slots, once. It passes the same guards as any change; they may limit or delay it.

    Raises pydantic's `ValidationError` for a size or a reason that no event may hold.
    """
    settings, now = settings_for(bootstrap_servers, topic_prefix), datetime.now(UTC)
    new = with_size(_newest(loaded_specs(settings), job), parallelism, reason, now, change_of_mine(reason, now))
    return _published(settings, new)


def remove(job: str, *, bootstrap_servers: str | None = None, topic_prefix: str | None = None) -> None:
    """Remove a job from Tidegate without stopping it.

    To stop it as well, first apply its spec with `running: false`.
    """
    settings = settings_for(bootstrap_servers, topic_prefix)
    view = loaded_specs(settings)
    if view.get(job) is None and job not in view.unusable:
        raise SpecRefused(f"there is no job {job!r}")
    operate.remove(settings, job)


def change_of_mine(reason: str, at: datetime | None = None) -> SpecChange:
    """Return who asks for a version, and why: the user of this process. Raises pydantic's error for a bad reason."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # no user has this process's number, as in some containers
        user = "tidegate"
    return SpecChange(by=user[:100], reason=reason, at=at or datetime.now(UTC))


def _read(fields: Mapping[str, Any]) -> JobSpec:
    spec, problems = read_spec(fields)
    if spec is None or problems:
        raise SpecRefused("; ".join(problem.text for problem in problems))
    return spec


def _newest(view: JobsView, job: str) -> JobSpec:
    if (spec := view.get(job)) is not None:
        return spec
    if (unreadable := view.unusable.get(job)) is not None:
        raise SpecRefused(f"{job}: this version of Tidegate cannot read its spec: {unreadable}")
    raise SpecRefused(f"there is no job {job!r}")


def _published(settings: ServiceSettings, spec: JobSpec) -> JobSpec:
    publish_change(settings, spec)
    return spec
