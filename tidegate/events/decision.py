"""Decision: the outcome of one snapshot, always emitted, with everything needed to explain and to recompute it.

The values inside are plain dataclasses: see `tidegate.events.wire.value`.
"""

from __future__ import annotations

import json
from dataclasses import field
from enum import StrEnum
from math import isfinite
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from tidegate.events.command import ScalingCommand
from tidegate.events.job import JobSpec
from tidegate.events.result import ActionResult
from tidegate.events.way import Way
from tidegate.events.wire import Count, Identifier, Instant, Wire, identity, value

Figure = str | bool | int | float | None


class Status(StrEnum):
    """Scaling status; all but `LATE` and the state limits are those of Confluent's Autopilot."""

    FINE = "FINE"
    LATE = "LATE"
    """The job is late, or does not run although it should, and nothing will change."""
    PENDING_SCALE_UP = "PENDING_SCALE_UP"
    PENDING_SCALE_DOWN = "PENDING_SCALE_DOWN"
    POOL_EXHAUSTED = "POOL_EXHAUSTED"
    STOPPED_STATE_LIMIT = "STOPPED_STATE_LIMIT"
    FAILED_STATE_LIMIT = "FAILED_STATE_LIMIT"


class RedisView(StrEnum):
    """What the decider could see of Redis. Only `ok` lets a command out."""

    OK = "ok"
    UNREACHABLE = "unreachable"
    REBUILDING = "rebuilding"


@value
class Evidence:
    """What the engine concluded from the window of snapshots. None means unknown, never zero. Rates are records/s."""

    window_seconds: float = 0.0
    snapshots: int = 0
    arrival_rate: float | None = None
    processing_rate: float | None = None
    true_processing_rate: float | None = None
    """Records per second of batch time: the rate at 100 % utilization."""
    utilization: float | None = None
    """Share of the window spent inside micro-batches, 0..1."""
    lag_records: int | None = None
    lag_trend: float | None = None
    lag_seconds: float | None = None
    """Lag over the true processing rate."""
    batch_seconds: float | None = None
    batch_overhead_seconds: float | None = None
    record_cost_seconds: float | None = None
    output_ratio: float | None = None
    partitions: int | None = None
    slots_granted: int | None = None
    task_skew: float | None = None
    """Slowest task over median task of the busiest stage."""
    single_task_share: float | None = None
    """Share of stage time spent in stages of one task."""
    state_bytes: int | None = None
    state_partitions: int | None = None
    gc_ratio: float | None = None
    missing: tuple[str, ...] = ()
    running_tasks: int | None = None
    """Tasks of the running micro-batches, in the stages that have started; absent while they are shorter than an
    interval, or none of their tasks has read records."""
    running_tasks_finished: int | None = None
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
    before: int
    after: int
    sentence: str
    numbers: dict[str, Figure] = field(default_factory=dict)


@value
class Expectation:
    """What the engine expects of the final size, so that the outcome can be judged against it."""

    processing_rate: float | None = None
    """Capacity at the final size, records/s."""
    lag_seconds: float | None = None
    catch_up_seconds: float | None = None
    restart_seconds: float | None = None
    """Outage of a restart; 0 where nothing restarts."""
    core_seconds: float | None = None
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
    sequence: Count
    decided_at: Instant
    engine_version: str
    spec_version: Annotated[int, Field(ge=1)]
    policy: str
    status: Status
    current_parallelism: Count
    """Slots of the running job; 0 when it does not run."""
    proposed_parallelism: Count
    """What the policy asked for."""
    final_parallelism: Count
    """What the guards made of it."""
    sentence: str
    """The whole decision in one plain sentence."""
    trail: tuple[TrailEntry, ...]
    evidence: Evidence
    expectation: Expectation | None = None
    command: ScalingCommand | None = None
    observed: Observed
    keyframe: Keyframe | None = None
    emits: Emission | None = None
    """What the job will write; absent if no other job reads it."""


def decision_id(job_id: str, snapshot_id: str, spec_version: int, engine_version: str) -> str:
    """Return the id of the decision on a snapshot."""
    return identity("decision", job_id, snapshot_id, spec_version, engine_version)
