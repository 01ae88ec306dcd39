"""What is to be done for one StreamingJob, by the object and by what the topics say of its job. Pure.

The object and the command line write the same specs, and the newest request counts: an object is taken over when its
`spec` has changed, or when the job is not on the topic. What somebody changes elsewhere afterwards, as with `tidegate
pause`, stays, and the condition InSync says so.

`spec.slots` is both a request and an answer. A value that is not the one dealt with last is somebody's request for a
size. Once the job has settled at another size, by its policy or by a guard, that size is written back: else a second
request for the same size would change nothing, and an autoscaler would start from a size that the job does not have.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from services.operator.places import refused_places
from services.operator.resource import StreamingJob
from services.operator.status import Condition, healthy, status_of
from tidegate.events.job import JobSpec, ManualScale, SpecChange
from tidegate.events.snapshot import ClusterState
from tidegate.fleet.fleet import FleetJob
from tidegate.installed import engine
from tidegate.operate import differences, next_version, refused_move
from tidegate.specfields import SpecProblem, read_spec


@dataclass(frozen=True, slots=True)
class ObjectPlan:
    """What is to be done for one object, in this order. Each step may be repeated."""

    hold: bool = False
    """Have the object wait for us before it goes away."""
    publish: JobSpec | None = None
    """The next version of the job's spec."""
    remove: bool = False
    """Remove the job from Tidegate."""
    release: bool = False
    """Let the object go away."""
    slots: int | None = None
    """The size to write into the object."""
    status: dict[str, Any] | None = None


def plan(
    sj: StreamingJob,
    job: FleetJob | None,
    present: JobSpec | None,
    now: datetime,
    allowed: Collection[str] = (),
    *,
    unreadable: str | None = None,
    unknown: Sequence[str] = (),
    too_large: str | None = None,
) -> ObjectPlan:
    """Return what is to be done. `present` is the spec in force, which may be newer than that of `job`.

    `allowed` are the clusters and file systems that an object may name. `unreadable` is what is wrong with the newest
    spec on the topic, if this version of Tidegate cannot read it: nobody knows its version, so none is published.
    `unknown` are the fields of the spec in force that this version does not know. `too_large` is what Kafka said to the
    version that would be published.
    """
    namesake = _elsewhere(sj, present)
    if namesake is not None:
        job = present = unreadable = None
    if sj.deleting:
        is_there = present is not None or unreadable is not None
        return ObjectPlan(remove=sj.held and sj.taken_over and is_there, release=sj.held)
    if unreadable is not None:
        conditions = [*_not_readable(sj, unreadable), healthy(job, now)]
        return ObjectPlan(hold=not sj.held, status=status_of(sj, job, conditions, now))
    wanted, problems = (None, [SpecProblem((), namesake)]) if namesake is not None else _wanted(sj, present, allowed)
    new, refused = _next(sj, wanted, present, now, unknown)
    if too_large is not None:
        wanted, new = None, None
        refused = [*refused, f"the spec is larger than a record of the jobs topic may be: {too_large}"]
    named = {problem.text for problem in problems}  # what is in force may be from another version of Tidegate
    problems = [*problems, *(SpecProblem((), text) for text in refused if text not in named)]
    in_force = new or present
    applied: dict[str, Any] = {}
    if wanted is not None:
        applied["appliedSpec"] = sj.digest
    if sj.slots is not None and in_force is not None and not refused:
        applied["appliedSlots"] = sj.slots
    slots = _settled(job) if new is None and sj.request is None else None
    if slots is not None and slots != sj.slots:
        applied["appliedSlots"] = slots
    else:
        slots = None
    conditions = [
        _accepted(problems, in_force),
        _in_sync(wanted, in_force, unknown if new is None else ()),
        healthy(job, now),
    ]
    return ObjectPlan(
        hold=not sj.held,
        publish=new,
        slots=slots,
        status=status_of(sj, job, conditions, now, **applied),
    )


def _wanted(
    sj: StreamingJob, present: JobSpec | None, allowed: Collection[str]
) -> tuple[JobSpec | None, list[SpecProblem]]:
    """Return the spec that the object asks for, or what is wrong with it or with moving the job there."""
    wanted, problems = _read(sj, allowed)
    if wanted is not None and (moved := _of_others(sj, wanted, present) or refused_move(wanted, present)) is not None:
        return None, [SpecProblem(("application",), moved)]
    return wanted, problems


def _next(
    sj: StreamingJob, wanted: JobSpec | None, present: JobSpec | None, now: datetime, unknown: Sequence[str]
) -> tuple[JobSpec | None, list[str]]:
    """Return the version of the spec to publish, or why it cannot be; neither if nothing is to change."""
    taken = wanted if sj.changed or present is None else None
    base = taken or present
    if base is None:
        return None, []
    if sj.request is not None and (wanted is not None or sj.taken_over):
        base = base.model_copy(update={"manual": _request(sj, present, now)})
    new = next_version(base, present)
    if new is None:
        return None, []
    if refused := _refused(sj, new, unknown if taken is None else ()):
        return None, refused
    change = SpecChange(by=sj.asked_by(scaled=taken is None or not sj.changed), reason=sj.reason, at=now)
    return new.model_copy(update={"change": change}), []


def _elsewhere(sj: StreamingJob, present: JobSpec | None) -> str | None:
    """Return what is wrong if the job of this name is in another namespace, where others have the rights; else None."""
    pods = None if present is None else present.application.kubernetes
    if pods is None or pods.namespace == sj.namespace:
        return None
    return (
        f"there is a job {sj.name} in namespace {pods.namespace}: give the object another name, or remove that job"
        f" with `tidegate remove {sj.name}`"
    )


def _of_others(sj: StreamingJob, wanted: JobSpec, present: JobSpec | None) -> str | None:
    """Return what is wrong if an object that has not taken over the job of its name would move it; else None.

    Whoever has applied that job has rights on its cluster, and has not asked for another one.
    """
    if sj.taken_over or present is None or not (moved := wanted.application.moved_from(present.application.cluster)):
        return None
    return (
        f"there is a job {sj.name} on another cluster ({'; '.join(moved)}): give the object another name, or remove"
        f" that job with `tidegate remove {sj.name}`"
    )


def _refused(sj: StreamingJob, new: JobSpec, unknown: Sequence[str]) -> list[str]:
    """Return why a version is not published; `unknown` are fields of the version before that it would lack."""
    if not unknown:
        return engine().check(new)
    text = (
        f"slots: {sj.slots} is not requested, because the spec in force has fields that this version of Tidegate does"
        f" not know and would drop: {', '.join(unknown)}. Upgrade the operator"
    )
    return [text]


def _not_readable(sj: StreamingJob, what: str) -> list[Condition]:
    """Return what an object says whose job has a spec that cannot be read, such as one of a newer Tidegate."""
    reason, text = "UnreadableSpec", "This version of Tidegate cannot read the job's newest spec on the topic."
    advice = (
        "Nothing is published over it: upgrade the operator, if a newer Tidegate wrote it. If it is damaged, run"
        f" `tidegate remove {sj.name}`: then the spec of this object is published."
    )
    return [
        Condition("Accepted", status=False, reason=reason, message=f"{text[:-1]}: {what}. {advice}"),
        Condition("InSync", status=None, reason=reason, message=text),
    ]


def _read(sj: StreamingJob, allowed: Collection[str]) -> tuple[JobSpec | None, list[SpecProblem]]:
    """Return the spec that the object asks for, or what is wrong with it.

    Its pods are in the object's own namespace: who may write objects here must not start pods elsewhere, nor have the
    services ask what is not allowed.
    """
    fields = {**sj.fields, "job_id": sj.name}
    application = fields.get("application")
    if isinstance(application, dict) and isinstance(pods := application.get("kubernetes"), dict):
        found = pods.get("namespace", sj.namespace)
        if found != sj.namespace:
            text = f"application.kubernetes.namespace: must be the object's own, {sj.namespace!r}, found {found!r}"
            return None, [SpecProblem(("application", "kubernetes", "namespace"), text)]
        fields["application"] = {**application, "kubernetes": {**pods, "namespace": sj.namespace}}
    spec, problems = read_spec(fields)
    if spec is not None:
        problems = [*problems, *refused_places(spec.application, allowed)]
    return (None if problems else spec), problems


def _request(sj: StreamingJob, present: JobSpec | None, now: datetime) -> ManualScale:
    """Return the request for `slots`; the one that is already on the topic, if it is there."""
    if present is not None and present.manual is not None and present.manual.request_id == sj.request_id:
        return present.manual
    by = sj.asked_by(scaled=True)
    reason = f"{by} set {sj.slots} slots on StreamingJob {sj.namespace}/{sj.name}"[:500]
    return ManualScale(request_id=sj.request_id, parallelism=sj.slots or 0, reason=reason, requested_at=now)


def _settled(job: FleetJob | None) -> int | None:
    """Return the size of a job that has the size decided on, with no request and no command open; else None."""
    if job is None or job.decision is None or job.decision.spec_version < job.spec.version:
        return None
    decision = job.decision
    if any(entry.code == "MANUAL" for entry in decision.trail) or _under_way(job, decision.decided_at):
        return None
    size, final = decision.current_parallelism, decision.final_parallelism
    runs = job.state is ClusterState.RUNNING and size > 0
    sleeps = job.state is ClusterState.STOPPED and job.spec.running and job.spec.scaling.min_parallelism == 0
    return size if size == final and (runs or (sleeps and size == 0 and decision.size_is_known)) else None


def _under_way(job: FleetJob, decided_at: datetime) -> bool:
    """Return whether a command has been ordered and had not ended when what was decided on was measured."""
    ordered = next((span.sequence for span in reversed(job.spans) if span.orders), None)
    result = job.last_result
    interval = timedelta(seconds=job.spec.interval_seconds)
    if result is not None and (not result.phase.terminal or decided_at < result.at + interval):
        return True
    # A command's epoch is its decision's sequence; the times are of two machines, whose clocks may differ.
    return ordered is not None and (result is None or result.epoch < ordered)


def _accepted(problems: list[SpecProblem], in_force: JobSpec | None) -> Condition:
    if not problems and in_force is not None:
        return Condition(
            "Accepted", status=True, reason="Valid", message=f"Version {in_force.version} of the spec is in force."
        )
    stays = f"Version {in_force.version} stays in force." if in_force is not None else "The job is not started."
    text = "; ".join(problem.text for problem in problems)
    return Condition(
        "Accepted", status=False, reason="Invalid", message=f"{text}. Correct that and apply the object again. {stays}"
    )


def _in_sync(wanted: JobSpec | None, in_force: JobSpec | None, unknown: Sequence[str]) -> Condition:
    if wanted is None or in_force is None:
        return Condition("InSync", status=None, reason="Invalid", message="The object's spec is not valid.")
    found = [line for line in differences(wanted, in_force) if not line[2:].startswith("manual.")]
    found += [f"{name}, which this version of Tidegate does not know" for name in unknown]
    if not found:
        return Condition("InSync", status=True, reason="Same", message="The job's spec is that of the object.")
    change = in_force.change
    who = f"{change.by} ({change.reason})" if change is not None else "somebody"
    what = "; ".join(line.removeprefix("~ ") for line in found)
    text = f"{who} has changed the job elsewhere: {what}. The object's next change replaces that."
    return Condition("InSync", status=False, reason="ChangedElsewhere", message=text)
