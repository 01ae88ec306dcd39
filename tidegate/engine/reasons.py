"""Reason codes: one table of what each means, as a sentence a tired operator understands, and what can be done.

A sentence is a template over the numbers of its trail entry, so code, numbers and words can never disagree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidegate.events.decision import Figure, TrailEntry


@dataclass(frozen=True, slots=True)
class Reason:
    """What a code says, and what a person can do about it ("" when nothing needs to be done)."""

    sentence: str
    remedy: str = ""


REASONS: dict[str, Reason] = {
    # --- what the engine itself finds before any policy is asked
    "JOB_NOT_RUNNING": Reason("the job is meant to run and does not ({state}), so it is started with {size} slots"),
    "JOB_RESTARTING": Reason(
        "the job is on its way to {to} slots, ordered {age_seconds:.0f} s ago ({phase}), so nothing can be measured"
    ),
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
        "Redis does not answer as it should, so cooldown and pool cannot be checked and nothing is changed",
        "bring Redis back, or correct its address or password: the decider's log names the error",
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
    "MINIMUM_OUT_OF_REACH": Reason(
        "that is less than the {limit} slots the spec keeps at least",
        "lower `min_parallelism`, or lift the limit before",
    ),
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
    "EXCLUDED_PERIOD": Reason("it is within the excluded period {period} (UTC), in which nothing is changed"),
    "SCALE_DOWN_GRACE": Reason(
        "the last growth is {age_seconds:.0f} s old and nothing is taken away for {limit_seconds:.0f} s after one"
    ),
    "SCALE_DOWN_WINDOW": Reason(
        "fewer slots have been wanted for {age_seconds:.0f} s, and that must last {limit_seconds:.0f} s"
    ),
    "SCALE_DOWN_LARGEST": Reason("{largest} is the largest size wanted since fewer slots would do"),
    "STATE_PARTITIONS": Reason(
        "the state has {partitions} partitions, fixed in the checkpoint, and a slot without one has nothing to do",
        "start anew with a higher `spark.sql.shuffle.partitions`, or repartition the checkpoint's state offline",
    ),
    "SINGLE_TASK": Reason(
        "{share:.0%} of the time goes into stages of a single task, which more slots do not make faster",
        "a global aggregation runs in one task: group it by a key, or aggregate in two steps",
    ),
    "TASK_SKEW": Reason(
        "the slowest task takes {skew:.1f} times the median and sets the pace, so more slots do not help",
        "spread the data: salt hot keys, or split large groups",
    ),
    "PARTITION_SKEW": Reason(
        "{share:.0%} of the lag is in one of {partitions} partitions, and one slot reads a partition",
        "spread the producer's keys over the partitions; see whether that partition's records fail or hang",
    ),
    "CONSUMER_STUCK": Reason(
        "no offset has been committed for {age_seconds:.0f} s while {grown} records arrived: "
        "the job is stuck, not too small",
        "see the driver's log for a batch that hangs or is tried again and again (a poison record, a dead sink)",
    ),
    "SCALE_UP_INEFFECTIVE": Reason(
        "the growth from {before} to {after} slots brought {gain:.0%} of what was expected, so no more are added",
        "look for what bounds the job besides slots: the sink, skew, one slow stage; a manual size starts over",
    ),
    "DOWNSTREAM_BEHIND": Reason(
        "{job} downstream is {lag_seconds:.0f} s behind and falling back, so more from here would only wait there",
        "scale {job} first",
    ),
    "MEMORY_PRESSURE": Reason(
        "{gc:.0%} of the run time goes into garbage collection, so no memory is taken away",
        "give the executors more memory",
    ),
    "STATE_TOO_LARGE_TO_SHRINK": Reason(
        "{size_gb:.1f} GB of state at {target_gb:.0f} GB per executor need {needed} slots"
    ),
    "STATE_FORCES_GROWTH": Reason(
        "the executors hold {per_executor_gb:.1f} GB of state each and should hold {target_gb:.0f} GB, "
        "which asks for a size of {needed}"
    ),
    "STATE_NEAR_LIMIT": Reason(
        "the state of {size_gb:.0f} GB nears the limit of {limit_gb:.0f} GB, at which the job is stopped",
        "shorten watermarks or state time-outs, or split the job",
    ),
    "STATE_OVER_SOFT_LIMIT": Reason(
        "the state of {size_gb:.0f} GB is over the limit of {limit_gb:.0f} GB and the job runs on at its own risk; "
        "at {hard_gb:.0f} GB it fails for good",
        "shorten watermarks or state time-outs, or split the job",
    ),
    "STATE_LIMIT_STOP": Reason(
        "the state of {size_gb:.0f} GB is over the limit of {limit_gb:.0f} GB",
        "`tidegate resume JOB` lets it run on at its own risk; shorten watermarks or state time-outs first",
    ),
    "STATE_LIMIT_FAIL": Reason(
        "the state of {size_gb:.0f} GB is over the hard limit of {limit_gb:.0f} GB",
        "it is not resumed: remove the job, and start it anew under another name with an empty checkpoint",
    ),
    "HALTED_RESUMABLE": Reason(
        "it was stopped for the size of its state", "`tidegate resume JOB` lets it run on at its own risk"
    ),
    "HALTED_FOR_GOOD": Reason(
        "it failed for the size of its state and is no longer scaled",
        "remove the job, and start it anew under another name with an empty checkpoint",
    ),
    "DRAINS_SOONER": Reason(
        "the lag will be gone in {drain_seconds:.0f} s at the present size, and a restart takes {restart_seconds:.0f} s"
    ),
    "SAVES_TOO_LITTLE": Reason(
        "a restart of {restart_seconds:.0f} s costs {cost:.0f} slot-seconds, "
        "and {freed} slots fewer save {saving:.0f} in {horizon:.0f} s"
    ),
    "RESTART_BUDGET": Reason(
        "{used} of {limit} changes of the last 24 hours are used up",
        "raise `guards.restart_budget.per_day`, or see in the decisions why the size keeps changing",
    ),
    "QUOTA": Reason("the job's quota allows {limit} slots", "raise `guards.quota` if the job may use more"),
}


def register(reasons: Mapping[str, Reason]) -> None:
    """Add a policy's own codes to the table; a code means one thing, so a second meaning is refused."""
    for code, reason in reasons.items():
        if REASONS.setdefault(code, reason) != reason:
            raise ValueError(f"reason code {code} already means something else")


def entry(by: str, code: str, before: int, after: int, numbers: Mapping[str, Figure]) -> TrailEntry:
    """Return the trail entry of a code with its sentence filled in from `numbers`."""
    shown: Mapping[str, object] = numbers
    if None in numbers.values():
        shown = {name: _UNKNOWN if value is None else value for name, value in numbers.items()}
    return TrailEntry(by, code, before, after, REASONS[code].sentence.format_map(shown), dict(numbers))


class _Unknown:
    """Stands in a sentence for a figure that is not known."""

    def __format__(self, spec: str) -> str:
        return "?"


_UNKNOWN = _Unknown()
