"""What an operator does to a job: each request is a new version of its spec on the jobs topic.

The functions that make a version are pure; `publish` and `publish_change` check versions and send them.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import datetime

from tidegate.events.job import JobSpec, ManualScale, Mode, SpecChange
from tidegate.events.topics import JOBS
from tidegate.installed import engine
from tidegate.runtime.jobs import JobsView
from tidegate.runtime.publisher import Publisher
from tidegate.runtime.settings import ServiceSettings

OF_ONE_VERSION = {"version", "change"}
"""Fields that say nothing about the job itself."""


class SpecRefused(ValueError):
    """A spec must not be published; the text names the job and every problem."""


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


def next_version(wanted: JobSpec, present: JobSpec | None) -> JobSpec | None:
    """Return the version to publish, or None if nothing changes. A request for a size that is still open is kept."""
    if present is None:
        return wanted.model_copy(update={"version": 1})
    manual = wanted.manual or present.manual
    new = wanted.model_copy(update={"version": present.version + 1, "manual": manual})
    same = new.model_dump(exclude=OF_ONE_VERSION) == present.model_dump(exclude=OF_ONE_VERSION)
    return None if same else new


def refused_move(wanted: JobSpec, present: JobSpec | None) -> str | None:
    """Return why a spec may not become the next version: it names another cluster, and the job is meant to run.

    Returns None if nothing is wrong with that. The cluster that a job runs on could not be asked to stop it any more.
    """
    moved = [] if present is None else wanted.application.moved_from(present.application.cluster)
    if present is None or not present.running or not moved:
        return None
    return (
        f"{'; '.join(moved)}: a job does not change its cluster while it runs. First apply version {present.version}"
        " with running: false and wait until the job has stopped"
    )


def next_on_topic(wanted: JobSpec, view: JobsView) -> JobSpec | None:
    """Return the version to publish over what is on the topic, or None if nothing changes; raise `SpecRefused`.

    A newest spec that cannot be read is replaced, also if the one before it says the same.
    """
    job, present = wanted.job_id, view.get(wanted.job_id)
    if (moved := refused_move(wanted, present)) is not None:
        raise SpecRefused(f"{job}: {moved}")
    new = next_version(wanted, present)
    if job not in view.unusable:
        return new
    highest = max(view.unusable_versions[job], 0 if present is None else present.version)
    return (new or present or wanted).model_copy(update={"version": highest + 1})


def differences(now: JobSpec, new: JobSpec) -> list[str]:
    """Return the differences between two versions, a line per field: `+` added, `-` removed, `~` changed."""
    before, after = dict(leaves(now.model_dump(mode="json"))), dict(leaves(new.model_dump(mode="json")))
    lines = []
    for field in sorted(before.keys() | after.keys()):
        if field.partition(".")[0] in OF_ONE_VERSION or before.get(field) == after.get(field):
            continue
        if before.get(field) is None:
            lines.append(f"+ {field}: {after[field]}")
        elif after.get(field) is None:
            lines.append(f"- {field}: {before[field]}")
        else:
            lines.append(f"~ {field}: {before[field]} -> {after[field]}")
    return lines


def leaves(value: object, place: str = "") -> Iterator[tuple[str, object]]:
    """Yield the way to each field of nested mappings, and its value; not those that hold nothing."""
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from leaves(inner, f"{place}.{name}" if place else str(name))
    elif value not in ({}, []):
        yield place, value


def publish(settings: ServiceSettings, specs: Sequence[JobSpec], publisher: Publisher | None = None) -> None:
    """Check specs, publish them, and wait for the acknowledgement; raise `SpecRefused` or `NotDelivered`.

    Who publishes again and again gives the same `publisher`: each has connections of its own.
    """
    for spec in specs:
        if problems := engine().check(spec):
            raise SpecRefused(f"{spec.job_id}: " + "; ".join(problems))
    publisher = publisher or Publisher(settings)
    for spec in specs:
        publisher.send(spec)
    publisher.flush()


def publish_change(settings: ServiceSettings, spec: JobSpec) -> None:
    """Publish a version that was made from the newest one, as `publish` does.

    Raise `SpecRefused` also if there is another newest one by now, which it would undo, or if that one cannot be read,
    or has fields of a newer Tidegate, which this version of it would lose. Kafka cannot compare and write at once: of
    two who write at the same moment, the later one counts.
    """
    with closing(JobsView(settings)) as present:
        present.load()
    if unreadable := present.unusable.get(spec.job_id):
        raise SpecRefused(
            f"{spec.job_id}: this version of Tidegate cannot read its newest spec: {unreadable}. Use the newer"
            " version that wrote it, or apply the job's file"
        )
    newest = present.get(spec.job_id)
    if newest is None or newest.version != spec.version - 1:
        done = "removed" if newest is None else "changed"
        raise SpecRefused(f"{spec.job_id}: somebody else has {done} the job just now: look at it, and try again")
    if unknown := present.unknown.get(spec.job_id):
        raise SpecRefused(
            f"{spec.job_id}: its spec has fields that this version of Tidegate does not know and would drop:"
            f" {', '.join(unknown)}. Use the newer version that wrote them, or apply the job's file"
        )
    publish(settings, [spec])


def remove(settings: ServiceSettings, job_id: str, publisher: Publisher | None = None) -> None:
    """Remove a job from Tidegate without stopping it; wait for the acknowledgement, or raise `NotDelivered`."""
    (publisher or Publisher(settings)).tombstone(JOBS.named(settings.topic_prefix), job_id.encode())
