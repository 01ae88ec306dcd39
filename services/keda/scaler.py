"""What the external scaler answers: the size that the newest decision on a job ends with. Pure.

KEDA makes a HorizontalPodAutoscaler whose metric is an average per replica, so the HPA goes to

    desired = ceil(metric value / target size)

With the target size 1, the metric value is the number of slots itself. An old decision is no answer, nor is one that
was made while nobody knew the job's size: KEDA is told that there is none, and does what its `fallback` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from tidegate.fleet.fleet import Fleet

METRIC = "tidegate-slots"
TARGET = 1
JOB = "job"
"""The name in a trigger's metadata that says which job is meant; the scaled object's name when it is absent."""


class NoAnswer(RuntimeError):
    """There is no recommendation that holds now; the text says why, and what to do."""


def job_of(name: str, metadata: Mapping[str, str]) -> str:
    """Return the id of the job that a scaled object is about."""
    return metadata.get(JOB) or name


def recommended(fleet: Fleet, job_id: str, now: datetime) -> int:
    """Return the recommended size in task slots; raise `NoAnswer` if none holds now."""
    job = fleet.get(job_id)
    if job is None:
        raise NoAnswer(f"there is no job {job_id!r}: name it in the trigger's metadata as {JOB!r}, and apply its spec")
    if job.decision is None:
        raise NoAnswer(f"there is no decision on {job_id!r} yet: collector and decider must run")
    if job.is_silent(now):
        at = job.decision.decided_at
        raise NoAnswer(f"the newest decision on {job_id!r} is of {at:%Y-%m-%d %H:%M:%S} UTC: look at the decider")
    if not job.decision.size_is_known:
        raise NoAnswer(f"the cluster has not said how large {job_id!r} is: look at the collector's log")
    return job.decision.final_parallelism
