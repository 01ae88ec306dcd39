"""Which commands may start: pure rules in order, each with its code. A command that has started always goes on."""

from __future__ import annotations

from datetime import datetime

from tidegate.events.command import CommandKind, ScalingCommand
from tidegate.events.job import JobSpec, Mode
from tidegate.launcher.store import CONFIG_MAP
from tidegate.remote.files import WITHOUT_OPTIONS, Files, FilesError

CODES: dict[str, str] = {
    "NO_SUCH_JOB": "there is no job of that id",
    "OTHER_PIPELINE": "the command names another pipeline than the job",
    "STALE_EPOCH": "a command with the same or a newer epoch has already been accepted",
    "EXPIRED": "the command expired before it could start",
    "PAUSED": "the job is in mode paused or advise, and the command was not given by hand",
    "NOT_MEANT_TO_RUN": "the job's spec says that it should not run",
    "INVALID_SIZE": "the size is outside the spec's bounds, or not a whole number of executors",
    "NO_BACKEND": "this actuator has no backend of the kind that the spec names",
    "ALREADY_RUNNING": "the command is a start, and the job already runs",
    "FOREIGN_DRIVER": "the job runs in an application that Tidegate did not start",
    "UNREADABLE_CHECKPOINT": "the actuator cannot read the job's checkpoint location or control directory",
    "BROKEN_FILES": "the job's control directory or checkpoint cannot be used",
    "OUTFENCED": "a newer command or another actuator holds the job's fence",
    "STOP_FAILED": "the old driver could not be stopped, or nobody can tell what runs; nothing was started",
    "NOT_SUBMITTED": "the cluster did not accept the new driver",
    "NOT_VERIFIED": "the new driver ended, or committed no batch in time",
    "FIRST_BATCH": "the new run is at work on its first batch, whose commit is still to come",
    "CHECKPOINT_ELSEWHERE": "a query keeps its checkpoint elsewhere than the spec says; the job is not restarted",
    "NOT_WARM": "a second driver failed before it could take over; the first one was not touched",
    "NO_ROOM": "the cluster has no room for a second driver next to the first one",
    "NOT_SWITCHED": "the first driver did not pause in time, or the second one ended; the first one goes on",
    "NOT_RESUMED": "after a failed handover the first driver did not go on, so the job is restarted",
    "NO_WAY": "none of the ways that the spec allows can change the size of the running job",
    "GRANTED_FEWER": "the cluster had fewer slots than ordered; the job runs at the size that was granted",
    "EXECUTORS_DIED": "new executors died as they came; the job keeps the size that worked last",
    "NOT_WORKING": "the ordered executors did not come, or did no work, in time",
    "NO_ANSWER": "the running driver did not obey the order for a size, or nobody can tell what runs",
    "DRIVER_ENDED": "the driver ended while its executors were being changed",
    "OTHER_QUERY": "the checkpoint belongs to another query than before",
}


def refusal(
    command: ScalingCommand,
    spec: JobSpec | None,
    *,
    epoch: int,
    backends: frozenset[str],
    now: datetime,
    files: Files = WITHOUT_OPTIONS,
) -> tuple[str, str] | None:
    """Return a code and a sentence if the command may not start. `epoch` is the highest accepted for the job so far."""
    if spec is None:
        return "NO_SUCH_JOB", f"There is no job {command.job_id}."
    if command.pipeline_id != spec.pipeline_id:
        return "OTHER_PIPELINE", f"The job belongs to pipeline {spec.pipeline_id}, not to {command.pipeline_id}."
    if command.epoch <= epoch:
        return (
            "STALE_EPOCH",
            f"A command of epoch {epoch} has already been accepted; this one has epoch {command.epoch}.",
        )
    if now >= command.expires_at:
        late = (now - command.expires_at).total_seconds()
        return "EXPIRED", f"The command expired {late:.1f} s before it could start."
    if spec.application.backend not in backends:
        return "NO_BACKEND", f"This actuator has no {spec.application.backend} backend."
    try:
        for location in (spec.application.checkpoint_location, spec.application.control_place):
            files.place(location.removeprefix(CONFIG_MAP))
    except FilesError as error:
        return "UNREADABLE_CHECKPOINT", f"The job's files cannot be read: {error}."
    if command.kind is CommandKind.STOP:
        return _refused_stop(command, spec)
    if not spec.running:
        return "NOT_MEANT_TO_RUN", "The job's spec says that it should not run."
    if command.kind is CommandKind.RESCALE and spec.scaling.mode is not Mode.ACTIVE and not command.manual:
        return "PAUSED", f"The job is in mode {spec.scaling.mode}; only a manual command may change its size."
    low, high, cores = spec.smallest_size, spec.scaling.max_parallelism, spec.application.executor_cores
    size = command.to_parallelism
    if not low <= size <= high or size % cores:
        return "INVALID_SIZE", f"Size {size} is not a multiple of {cores} between {low} and {high}."
    return None


def _refused_stop(command: ScalingCommand, spec: JobSpec) -> tuple[str, str] | None:
    """Return why a job that is meant to run may not be stopped; a job that is not meant to may always be."""
    if not spec.running or spec.scaling.mode is Mode.ACTIVE or command.manual:
        return None
    return "PAUSED", f"The job is in mode {spec.scaling.mode}; only a manual command may stop it."
