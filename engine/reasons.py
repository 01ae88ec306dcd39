"""Reason codes: one table of what each means, as a sentence a tired operator understands, and what can be done.

A sentence is a template over the numbers of its trail entry, so code, numbers and words can never disagree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from schemas.decision import Figure, TrailEntry


@dataclass(frozen=True, slots=True)
class Reason:
    """What a code says, and what a person can do about it ("" when nothing needs to be done)."""

    sentence: str
    remedy: str = ""


REASONS: dict[str, Reason] = {
    # --- what the engine itself finds before any policy is asked
    "JOB_NOT_RUNNING": Reason("the job is meant to run and does not ({state}), so it is started with {size} slots"),
    "JOB_TO_STOP": Reason("the spec says that the job is not to run"),
    "JOB_STOPPED": Reason("the job is stopped, as its spec wants"),
    "JOB_STARTING": Reason("the job is starting; there is nothing to measure yet"),
    "JOB_STATE_UNKNOWN": Reason(
        "the cluster could not say whether the job runs", "see whether the Spark master answers on its web port"
    ),
    "NEEDS_A_HUMAN": Reason(
        "the job ended {failures} times in a row without committing a batch, so it is not started again",
        "read the driver's log, mend the cause, then `tidegate resume JOB` or apply a new version of the spec",
    ),
    "MANUAL": Reason("an operator asked for {size} slots: {reason}"),
    "NO_EVIDENCE": Reason("there are not enough measurements to judge the job yet ({snapshots} snapshots)"),
    # --- guards
    "SNAPSHOT_STALE": Reason(
        "the measurements are {age_seconds:.0f} s old, more than the {limit_seconds:.0f} s they may be",
        "the decider or the collector is behind: look at their lag and logs",
    ),
    "SNAPSHOT_FROM_FUTURE": Reason(
        "the measurements are {ahead_seconds:.0f} s in the future",
        "the clocks of collector and decider disagree: check time synchronisation",
    ),
    "METRICS_INCOMPLETE": Reason(
        "measurements are missing ({missing}), and what is unknown is not acted on",
        "see the collector's log for the source that does not answer",
    ),
    "PAUSED": Reason("the job is paused", "`tidegate resume JOB` when it may be scaled again"),
    "INTERACTIVE": Reason(
        "the job is interactive, so it is pinned to its size of {pinned} slots",
        "write it as a job with `interactive: false` to have it scaled",
    ),
    "ADVISE_ONLY": Reason(
        "the job is in advise mode, so the change is only shown", "set `mode: active` to have it done"
    ),
    "REDIS_UNREACHABLE": Reason(
        "Redis does not answer, so cooldown and pool cannot be checked and nothing is changed", "bring Redis back"
    ),
    "REDIS_REBUILDING": Reason("Redis was emptied and is being rebuilt from the topics; nothing is changed until then"),
    "COMMAND_IN_FLIGHT": Reason(
        "the change to {to} slots ordered {age_seconds:.0f} s ago is still under way ({phase})"
    ),
    "STABILIZING": Reason("the job started {age_seconds:.0f} s ago and is given {limit_seconds:.0f} s to settle"),
    "COOLDOWN": Reason("the last change is {age_seconds:.0f} s old and the cooldown lasts {limit_seconds:.0f} s"),
    "STEP_UP_LIMIT": Reason("at most {limit} slots may be added at a time"),
    "STEP_DOWN_LIMIT": Reason("at most {limit} slots may be taken away at a time"),
    "AT_MAXIMUM": Reason("the spec allows at most {limit} slots", "raise `max_parallelism` if more may be used"),
    "AT_MINIMUM": Reason("the spec keeps at least {limit} slots"),
    "SOURCE_PARTITIONS": Reason(
        "the sources have {partitions} partitions, and a slot without a partition has nothing to read",
        "add partitions to the source topic, or set Spark's `minPartitions` to split them",
    ),
    "EXECUTOR_CORES": Reason("an executor has {cores} cores, so sizes are multiples of it"),
    "POOL_EXHAUSTED": Reason(
        "pool {pool} has {free} free slots of {total}, and {wanted} more are wanted",
        "add workers to the pool, or stop or shrink other jobs in it",
    ),
    "POOL_UNKNOWN": Reason(
        "the pool's free slots could not be seen, so nothing is added",
        "see whether the Spark master answers on its web port",
    ),
    "RESERVATION_LOST": Reason(
        "another job took the slots or the cooldown first; it is tried again at the next snapshot"
    ),
}


def register(reasons: Mapping[str, Reason]) -> None:
    """Add a policy's own codes to the table; a code means one thing, so a second meaning is refused."""
    for code, reason in reasons.items():
        if REASONS.setdefault(code, reason) != reason:
            raise ValueError(f"reason code {code} already means something else")


def entry(by: str, code: str, before: int, after: int, numbers: Mapping[str, Figure] | None = None) -> TrailEntry:
    """Return the trail entry of a code with its sentence filled in from `numbers`."""
    figures = dict(numbers or {})
    shown = {name: _UNKNOWN if value is None else value for name, value in figures.items()}
    return TrailEntry(by, code, before, after, REASONS[code].sentence.format_map(shown), figures)


class _Unknown:
    """Stands in a sentence for a figure that is not known."""

    def __format__(self, spec: str) -> str:
        return "?"


_UNKNOWN = _Unknown()
