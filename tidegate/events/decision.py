"""Decision: the outcome of one snapshot, always emitted, with everything needed to explain and to recompute it.

The values inside are plain dataclasses: see `tidegate.events.wire.value`.
"""

from __future__ import annotations

import json
from dataclasses import field
from enum import StrEnum
from math import isfinite
from typing import Annotated, Any

from pydantic import AfterValidator, Field, SerializeAsAny

from tidegate.events.command import ScalingCommand
from tidegate.events.job import JobSpec
from tidegate.events.result import ActionResult
from tidegate.events.way import Way
from tidegate.events.wire import Count, Identifier, Instant, Positive, Wire, identity, value

Figure = str | bool | int | float | None


class Status(StrEnum):
    """Scaling status; all but `UNKNOWN`, `LATE` and the state limits are those of Confluent's Autopilot."""

    FINE = "FINE"
    UNKNOWN = "UNKNOWN"
    """Nobody knows whether the job runs, or it starts, and no query of it runs yet."""
    LATE = "LATE"
    """The job is late, or does not run although it should, and nothing will change."""
    PENDING_SCALE_UP = "PENDING_SCALE_UP"
    PENDING_SCALE_DOWN = "PENDING_SCALE_DOWN"
    POOL_EXHAUSTED = "POOL_EXHAUSTED"
    STOPPED_STATE_LIMIT = "STOPPED_STATE_LIMIT"
    FAILED_STATE_LIMIT = "FAILED_STATE_LIMIT"


CHANGING = frozenset({Status.PENDING_SCALE_UP, Status.PENDING_SCALE_DOWN})
"""Statuses of a job whose size is being changed, or soon will be."""


class RedisView(StrEnum):
    """What the decider could see of Redis. Only `ok` lets a command out."""

    OK = "ok"
    UNREACHABLE = "unreachable"
    REBUILDING = "rebuilding"


@value
class Evidence:
    """What the engine concluded from the window of snapshots. None means unknown, never zero. Rates are records/s."""

    window_seconds: float = 0.0
    """Time before the snapshot that the figures cover."""
    snapshots: int = 0
    """Snapshots in that time."""
    arrival_rate: float | None = None
    """How fast the end offsets grow."""
    processing_rate: float | None = None
    """How fast the committed offsets grow."""
    true_processing_rate: float | None = None
    """Records per second of batch time: the rate at 100 % utilization."""
    utilization: float | None = None
    """Share of the window spent inside micro-batches, 0..1."""
    lag_records: int | None = None
    """End offsets minus committed offsets, over all partitions."""
    lag_trend: float | None = None
    """How fast the lag grows; negative while it falls."""
    lag_seconds: float | None = None
    """Lag over the true processing rate."""
    batch_seconds: float | None = None
    """Mean duration of a micro-batch."""
    batch_overhead_seconds: float | None = None
    """Part of it that does not depend on the number of records."""
    record_cost_seconds: float | None = None
    """Slot-seconds per record, without that part."""
    output_ratio: float | None = None
    """Records written per record read."""
    partitions: int | None = None
    """Partitions of the sources."""
    slots_granted: int | None = None
    """Task slots that the cluster has given to the job."""
    task_skew: float | None = None
    """Slowest task over median task of the busiest stage."""
    single_task_share: float | None = None
    """Share of stage time spent in stages of one task."""
    state_bytes: int | None = None
    """Size of the state of all stateful operators."""
    state_partitions: int | None = None
    """Partitions of that state, fixed in the checkpoint."""
    gc_ratio: float | None = None
    """Share of task time spent in garbage collection."""
    missing: tuple[str, ...] = ()
    """Parts of the snapshots that could not be measured."""
    running_tasks: int | None = None
    """Tasks of the running micro-batches, in the stages that have started; absent while they are shorter than an
    interval, or none of their tasks has read records."""
    running_tasks_finished: int | None = None
    """How many of these have finished."""
    running_rate: float | None = None
    """Records per second that the slots process by those tasks: an upper bound of the capacity, because the work of
    later stages is not known."""
    running_left_seconds: float | None = None
    """Time the slots need for the tasks left, those of later stages not counted."""
    delay_seconds: float | None = None
    """Age of the oldest record that is not committed, over all partitions; 0 when none waits."""
    delay_at_least: bool | None = None
    """True if `delay_seconds` is only a lower bound, because that record arrived before the job was first measured;
    absent otherwise."""
    lost_records: int | None = None
    """Records that Kafka removed before the job read them, until it commits beyond them; absent if there are none."""


@value
class TrailEntry:
    """One reason: who proposed, changed or stopped a size, from which size to which, and why."""

    by: str
    """The policy or guard."""
    code: str
    """The reason code; docs/policies/reasons.md lists all."""
    before: int
    """The size before this step."""
    after: int
    """The size after it."""
    sentence: str
    """The reason in words."""
    # As any: to try the types of `Figure` on each value would take as long as writing all the rest of a decision.
    numbers: dict[str, SerializeAsAny[Figure]] = field(default_factory=dict)
    """The values in the sentence, by name."""


@value
class Expectation:
    """What the engine expects of the final size, so that the outcome can be judged against it."""

    processing_rate: float | None = None
    """Capacity at the final size, records/s."""
    lag_seconds: float | None = None
    """Lag at that capacity."""
    catch_up_seconds: float | None = None
    """Time until the lag is gone."""
    restart_seconds: float | None = None
    """Outage of a restart; 0 where nothing restarts."""
    core_seconds: float | None = None
    """Slot-seconds over the policy's horizon."""
    way: Way | None = None
    """How the size should be changed; absent without a change."""
    outage_seconds: float | None = None
    """Expected time without commits."""
    delay_seconds: float | None = None
    """Expected time from the order until the new size works."""


@value
class EmissionStep:
    """The rate of a job's output from one moment on."""

    at: Instant
    rate: float
    """Records/s."""


@value
class Emission:
    """What a job will write, as planned: its size, capacity, backlog and output ratio, and what will reach it."""

    steps: tuple[EmissionStep, ...] = ()
    """Oldest first, the first from the snapshot on; empty while the plan is not known."""
    topic: str | None = None
    """Its only sink; absent if there are several, because their shares are not known."""
    target_rate: float | None = None
    """Records/s that the job should read in the long run, whether it can or not."""
    catch_up_rate: float | None = None
    """Records/s that it should read besides to work off the backlog, its own and that upstream."""


@value
class Neighbour:
    """What was known of a job that shares a topic with this one, or is further downstream, as the decider saw it."""

    job_id: str
    upstream: bool
    """True when its sink is one of our sources."""
    topics: tuple[str, ...]
    parallelism: int | None = None
    evidence: Evidence | None = None
    distance: int | None = None
    """Links to a job further downstream, 2 or more; absent for a job that shares a topic with this one."""
    emits: Emission | None = None
    """What it plans to write, of its newest decision that said so."""
    ceiling: float | None = None
    """Records/s that it could process at most: at its largest size, or at the present one if it cannot grow."""
    only_reader: bool | None = None
    """True for a job upstream of which no other job reads."""


@value
class Observed:
    """Everything a decision depended on besides state, snapshot and spec, recorded for replays."""

    at: Instant
    """The decider's clock."""
    redis: RedisView = RedisView.OK
    cooldown_until: Instant | None = None
    cooldown_owner: str | None = None
    pool_reserved: int = 0
    """Slots of the pool promised to other jobs and not yet visible at the master."""
    reservation_refused: bool = False
    """The reservation was refused because another decision was faster."""
    results: tuple[ActionResult, ...] = ()
    """Results since the last snapshot, oldest first."""
    neighbours: tuple[Neighbour, ...] = ()
    utc_offset_seconds: Annotated[int, Field(ge=-86_400, le=86_400)] | None = None
    """By how many seconds the time zone of the spec was ahead of UTC; absent if it names none. It is recorded because
    the database of time zones changes."""


def _json(state: dict[str, Any]) -> dict[str, Any]:
    """Refuse what JSON cannot hold, such as NaN and infinity, in a fifth of the time that `JsonValue` takes."""
    try:
        json.dumps(state, allow_nan=False)
    except ValueError:
        _refuse(state)
    except TypeError as error:
        raise ValueError(str(error)) from None
    return state


def _refuse(state: dict[str, Any]) -> None:
    """Raise with the place of the number that JSON cannot hold."""
    left: list[tuple[str, Any]] = list(state.items())
    while left:
        at, value = left.pop()
        if isinstance(value, float) and not isfinite(value):
            raise ValueError(f"{at} must be a finite number, found {value}")
        if isinstance(value, dict):
            left += [(f"{at}.{name}", item) for name, item in value.items()]
        elif isinstance(value, list):
            left += [(f"{at}.{place}", item) for place, item in enumerate(value)]


class Keyframe(Wire):
    """The engine's whole state before this decision, and the spec in force: a replay can start here."""

    state: Annotated[dict[str, Any], AfterValidator(_json)]
    spec: JobSpec


class Decision(Wire):
    """The outcome of one snapshot. `decision_id` is a function of job, snapshot, spec version and engine version."""

    decision_id: str
    job_id: Identifier
    pipeline_id: Identifier
    snapshot_id: str
    """The snapshot that was decided on."""
    sequence: Count
    """That of the snapshot: the second in which its interval ended."""
    decided_at: Instant
    engine_version: str
    spec_version: Positive
    policy: str
    """The policy of the spec."""
    status: Status
    """Where the job stands; docs/policies/reasons.md explains each."""
    current_parallelism: Count
    """Slots of the running job; 0 when it does not run, and also when they are not known: then the first reason is
    `JOB_STATE_UNKNOWN`, `JOB_STARTING` or `SIZE_UNKNOWN`."""
    proposed_parallelism: Count
    """What the policy asked for."""
    final_parallelism: Count
    """What the guards made of it."""
    sentence: str
    """The whole decision in one plain sentence."""
    trail: tuple[TrailEntry, ...]
    """The reasons, in order."""
    evidence: Evidence
    expectation: Expectation | None = None
    command: ScalingCommand | None = None
    """What is to be done; absent if nothing is."""
    observed: Observed
    keyframe: Keyframe | None = None
    """With every hundredth decision, and after a change of the spec or the engine."""
    emits: Emission | None = None
    """What the job will write; absent if no other job reads it."""

    @property
    def size_is_known(self) -> bool:
        """Whether the size of the job is known; 0 may also mean that the cluster has never said."""
        unknown = self.trail and self.trail[0].code in {"SIZE_UNKNOWN", "JOB_STATE_UNKNOWN", "JOB_STARTING"}
        return self.current_parallelism > 0 or not unknown


def decision_id(job_id: str, snapshot_id: str, spec_version: int, engine_version: str) -> str:
    """Return the id of the decision on a snapshot."""
    return identity("decision", job_id, snapshot_id, spec_version, engine_version)
