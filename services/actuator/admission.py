"""Which commands may start: pure rules in order, each with its code. A command that has changed something goes on."""

from __future__ import annotations

from datetime import datetime

from tidegate.events.command import CommandKind, ScalingCommand
from tidegate.events.job import JobSpec, Mode
from tidegate.launcher.control.store import CONFIG_MAP
from tidegate.remote.files import WITHOUT_OPTIONS, Files, FilesError

DOES = {CommandKind.START: "start it", CommandKind.RESCALE: "change its size", CommandKind.STOP: "stop it"}


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
    if (late := expired(command, now)) is not None:
        return late
    if spec.application.backend not in backends:
        return "NO_BACKEND", f"This actuator has no {spec.application.backend} backend."
    try:
        for location in (spec.application.checkpoint_location, spec.application.control_place):
            files.place(location.removeprefix(CONFIG_MAP))
    except FilesError as error:
        return "UNREADABLE_CHECKPOINT", f"The job's files cannot be read: {error}."
    if command.kind is CommandKind.STOP:
        return _paused(command, spec)
    if spec.version < command.spec_version:
        decided, known = command.spec_version, spec.version
        return "OLD_SPEC", f"It was decided on version {decided} of the spec; this actuator knows only version {known}."
    if not spec.running:
        return "NOT_MEANT_TO_RUN", "The job's spec says that it should not run."
    if (paused := _paused(command, spec)) is not None:
        return paused
    low, high, cores = spec.smallest_size, spec.scaling.max_parallelism, spec.application.executor_cores
    size = command.to_parallelism
    if not low <= size <= high or size % cores:
        return "INVALID_SIZE", f"Size {size} is not a multiple of {cores} between {low} and {high}."
    return None


def expired(command: ScalingCommand, now: datetime) -> tuple[str, str] | None:
    """Return a code and a sentence if the command may not start any more."""
    if now < command.expires_at:
        return None
    late = (now - command.expires_at).total_seconds()
    return "EXPIRED", f"The command expired {late:.1f} s before it could start."


def _paused(command: ScalingCommand, spec: JobSpec) -> tuple[str, str] | None:
    """Return why a job that is meant to run may not be changed; one that is not meant to may always be stopped."""
    if not spec.running or spec.scaling.mode is Mode.ACTIVE or command.manual:
        return None
    return "PAUSED", f"The job is in mode {spec.scaling.mode}; only a manual command may {DOES[command.kind]}."
