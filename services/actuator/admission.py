"""Which commands may begin: pure rules in one order, each with its reason code. A command that began goes on."""

from __future__ import annotations

from datetime import datetime

from services.actuator.checkpoint import CheckpointError, local_path
from tidegate.events.command import CommandKind, ScalingCommand
from tidegate.events.job import JobSpec, Mode

CODES: dict[str, str] = {
    "NO_SUCH_JOB": "no JobSpec of that id is known",
    "OTHER_PIPELINE": "the command's pipeline is not the job's",
    "STALE_EPOCH": "a command with the same or a newer epoch was accepted before",
    "EXPIRED": "the command was not begun in time",
    "PAUSED": "the job is paused or advise-only, and the command is not a manual one",
    "NOT_MEANT_TO_RUN": "the JobSpec says the job is not to run",
    "INVALID_SIZE": "the size is outside the spec's bounds or not whole executors",
    "NO_BACKEND": "no backend of the spec's kind is set up in this actuator",
    "ALREADY_RUNNING": "a start of a job that runs; it is left alone",
    "FOREIGN_DRIVER": "the job runs in an application that Tidegate did not start; nothing is started beside it",
    "UNREADABLE_CHECKPOINT": "the checkpoint is where this actuator cannot read",
    "BROKEN_FILES": "the job's control directory or checkpoint cannot be read or written, or holds what is not ours",
    "OUTFENCED": "a newer epoch or another actuator holds the job's fence",
    "STOP_FAILED": "the old run could not be ended; nothing was started",
    "NOT_SUBMITTED": "the cluster did not take the new run",
    "NOT_VERIFIED": "the new run committed no batch in time, or ended",
    "OTHER_QUERY": "the checkpoint's query id is not the one that ran before",
}


def refusal(
    command: ScalingCommand, spec: JobSpec | None, *, epoch: int, backends: frozenset[str], now: datetime
) -> tuple[str, str] | None:
    """Return (code, sentence) if the command may not begin, else None. `epoch` is the highest accepted for the job."""
    if spec is None:
        return "NO_SUCH_JOB", f"There is no job {command.job_id}."
    if command.pipeline_id != spec.pipeline_id:
        return "OTHER_PIPELINE", f"The job belongs to pipeline {spec.pipeline_id}, not {command.pipeline_id}."
    if command.epoch <= epoch:
        return "STALE_EPOCH", f"Epoch {command.epoch} is not newer than {epoch}, which was accepted before."
    if now >= command.expires_at:
        late = (now - command.expires_at).total_seconds()
        return "EXPIRED", f"The command expired {late:.1f} s before it could begin."
    if spec.application.backend not in backends:
        return "NO_BACKEND", f"This actuator has no {spec.application.backend} backend."
    try:
        local_path(spec.application.checkpoint_location)
    except CheckpointError as error:
        return "UNREADABLE_CHECKPOINT", str(error)
    if command.kind is CommandKind.STOP:
        return None
    if not spec.running:
        return "NOT_MEANT_TO_RUN", "The job is not meant to run."
    if command.kind is CommandKind.RESCALE and spec.scaling.mode is not Mode.ACTIVE and not command.manual:
        return "PAUSED", f"The job is in mode {spec.scaling.mode}; only a manual command may change its size."
    low, high, cores = spec.scaling.min_parallelism, spec.scaling.max_parallelism, spec.application.executor_cores
    size = command.to_parallelism
    if not low <= size <= high or size % cores:
        return "INVALID_SIZE", f"Size {size} is not a multiple of {cores} within {low}..{high}."
    return None
