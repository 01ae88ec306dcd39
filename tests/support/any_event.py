"""Any event that can be built, as Hypothesis strategies by kind; events of chosen values are in `sample_events`."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from hypothesis import strategies as st

from tidegate.events.command import CommandKind, ScalingCommand
from tidegate.events.dead_letter import DeadLetter
from tidegate.events.decision import (
    Decision,
    Emission,
    EmissionStep,
    Evidence,
    Expectation,
    Keyframe,
    Neighbour,
    Observed,
    RedisView,
    Status,
    TrailEntry,
)
from tidegate.events.job import Application, JobSpec, ManualScale, Mode, Scaling
from tidegate.events.result import ActionResult, CheckpointMark, Phase, QueryCommit
from tidegate.events.snapshot import (
    ClusterState,
    MetricSnapshot,
    MicroBatch,
    Part,
    Pool,
    RunningBatch,
    SourceOffsets,
    StageTasks,
    StateOperator,
    snapshot_id,
)
from tidegate.events.wire import LONGEST_SECONDS, MOST_SLOTS

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
name = st.from_regex(r"[a-z0-9]([a-z0-9_-]{0,10}[a-z0-9])?", fullmatch=True)
topic = st.from_regex(r"[A-Za-z0-9_-]{1,12}", fullmatch=True)
path = st.from_regex(r"/[a-z]{1,8}\.py", fullmatch=True)
count = st.integers(0, 2**63 - 1)
size = st.integers(1, MOST_SLOTS)
figure = st.floats(allow_nan=False, allow_infinity=False)
seconds = st.floats(0, LONGEST_SECONDS)
slots = st.integers(0, MOST_SLOTS)
positive = st.floats(1e-9, 1e9)
scalar = st.one_of(text, st.booleans(), count, figure)
instant = st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
json_value: st.SearchStrategy[Any] = st.recursive(
    st.none() | scalar,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)


def optional(of: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return a strategy that also gives None."""
    return st.none() | of


def many(of: st.SearchStrategy[Any], least: int = 0) -> st.SearchStrategy[Any]:
    """Return a strategy of short tuples."""
    return st.lists(of, min_size=least, max_size=3).map(tuple)


@st.composite
def sources(draw: st.DrawFn) -> SourceOffsets:
    """A source whose lists of offsets are equally long."""
    n = draw(st.integers(0, 4))
    some = st.lists(optional(count), min_size=n, max_size=n).map(tuple)
    return SourceOffsets(
        topic=draw(topic), end_offsets=draw(some), committed_offsets=draw(some), first_offsets=draw(optional(some))
    )


applications = st.builds(
    Application,
    backend=st.sampled_from(["standalone", "local"]),
    script=path,
    args=many(text),
    conf=st.dictionaries(text, text, max_size=2),
    env=st.dictionaries(text, text, max_size=2),
    checkpoint_location=path,
    event_log_dir=path,
    control_dir=path,
    stop_deadline_seconds=positive,
)
scalings = st.builds(
    Scaling,
    mode=st.sampled_from(Mode),
    policy=name,
    policy_options=st.dictionaries(text, scalar, max_size=3),
    guards=st.dictionaries(text, st.dictionaries(text, scalar, max_size=2), max_size=2),
    min_parallelism=st.integers(1, 5),
    max_parallelism=st.integers(6, 99),
    lag_objective_seconds=positive,
    interactive=st.booleans(),
)
jobs = st.builds(
    JobSpec,
    job_id=name,
    pipeline_id=name,
    version=size,
    sources=many(topic, 1),
    sinks=many(topic),
    application=applications,
    scaling=scalings,
    manual=optional(
        st.builds(
            ManualScale,
            request_id=text.filter(bool),
            parallelism=size,
            reason=text.filter(bool),
            requested_at=instant,
        )
    ),
)
batches = st.builds(
    MicroBatch,
    batch_id=count,
    started_at=instant,
    duration_seconds=seconds,
    add_batch_seconds=optional(seconds),
    input_records=count,
    output_records=optional(count),
)
snapshots = st.tuples(name, count).flatmap(
    lambda of: st.builds(
        MetricSnapshot,
        snapshot_id=st.just(snapshot_id(*of)),
        job_id=st.just(of[0]),
        pipeline_id=name,
        sequence=st.just(of[1]),
        interval_seconds=st.integers(1, 3600),
        observed_at=instant,
        state=st.sampled_from(ClusterState),
        incarnation=optional(text),
        sources=many(sources()),
        batches=many(batches),
        running=optional(
            many(
                st.builds(
                    RunningBatch,
                    batch_id=count,
                    started_at=instant,
                    tasks=count,
                    tasks_finished=count,
                    busy_seconds=seconds,
                    read_tasks=count,
                    read_tasks_finished=count,
                    records_read=count,
                    read_seconds=seconds,
                    slowest_read_seconds=seconds,
                )
            )
        ),
        stages=many(
            st.builds(
                StageTasks,
                name=text,
                tasks=size,
                busy_seconds=seconds,
                median_task_seconds=seconds,
                slowest_task_seconds=seconds,
            )
        ),
        state_operators=many(
            st.builds(StateOperator, name=text, rows=st.none() | count, memory_bytes=count, partitions=size)
        ),
        slots_granted=optional(slots),
        gc_ratio=optional(st.floats(0, 1)),
        pool=optional(st.builds(Pool, pool_id=name, slots_total=slots, slots_used=slots, workers_alive=count)),
        missing=many(st.sampled_from(Part)),
    )
)
commands = st.builds(
    ScalingCommand,
    command_id=text,
    job_id=name,
    pipeline_id=name,
    snapshot_id=text,
    spec_version=size,
    kind=st.sampled_from(CommandKind),
    from_parallelism=count,
    to_parallelism=count,
    epoch=count,
    issued_at=instant,
    expires_at=instant,
    reason=text,
    manual=st.booleans(),
)
results = st.builds(
    ActionResult,
    result_id=text,
    command_id=text,
    job_id=name,
    pipeline_id=name,
    kind=st.sampled_from(CommandKind),
    phase=st.sampled_from(Phase),
    attempt=size,
    epoch=count,
    at=instant,
    parallelism=count,
    sentence=text,
    incarnation=optional(text),
    downtime_seconds=optional(seconds),
    details=st.dictionaries(text, scalar, max_size=3),
    checkpoint=optional(
        st.builds(
            CheckpointMark,
            queries=st.dictionaries(
                text, st.builds(QueryCommit, query_id=optional(text), batch_id=optional(count)), max_size=3
            ),
            last_commit_at=optional(instant),
        )
    ),
    run=optional(count),
)
evidence = st.builds(
    Evidence,
    window_seconds=figure,
    snapshots=st.integers(0, 99),
    arrival_rate=optional(figure),
    lag_records=optional(st.integers(-(2**62), 2**62)),
    missing=many(text),
)
emissions = st.builds(
    Emission,
    steps=many(st.builds(EmissionStep, at=instant, rate=figure)),
    topic=optional(text),
    target_rate=optional(figure),
)
observed = st.builds(
    Observed,
    at=instant,
    redis=st.sampled_from(RedisView),
    cooldown_until=optional(instant),
    results=many(results),
    neighbours=many(
        st.builds(
            Neighbour,
            job_id=text,
            upstream=st.booleans(),
            topics=many(text),
            evidence=optional(evidence),
            emits=optional(emissions),
            ceiling=optional(figure),
        )
    ),
)
decisions = st.builds(
    Decision,
    decision_id=text,
    job_id=name,
    pipeline_id=name,
    snapshot_id=text,
    sequence=count,
    decided_at=instant,
    engine_version=text,
    spec_version=size,
    policy=text,
    status=st.sampled_from(Status),
    current_parallelism=count,
    proposed_parallelism=count,
    final_parallelism=count,
    sentence=text,
    trail=many(
        st.builds(
            TrailEntry,
            by=text,
            code=text,
            before=st.integers(0, 99),
            after=st.integers(0, 99),
            sentence=text,
            numbers=st.dictionaries(text, st.none() | scalar, max_size=3),
        )
    ),
    evidence=evidence,
    expectation=optional(st.builds(Expectation, processing_rate=optional(figure), core_seconds=optional(figure))),
    command=optional(commands),
    observed=observed,
    keyframe=optional(st.builds(Keyframe, state=st.dictionaries(text, json_value, max_size=3), spec=jobs)),
    emits=optional(emissions),
)
letters = st.builds(
    DeadLetter.model_validate_json,
    st.builds(
        lambda *v: json.dumps(
            dict(zip(("letter_id", "topic", "partition", "offset", "consumer", "code"), v, strict=True))
            | {"error": "e", "seen_at": "2026-01-01T00:00:00Z", "value": "/wA=", "headers": [["h", None]]}
        ),
        text,
        text,
        count,
        count,
        text,
        text,
    ),
)
EVENTS: dict[str, st.SearchStrategy[Any]] = {
    "job": jobs,
    "snapshot": snapshots,
    "decision": decisions,
    "command": commands,
    "result": results,
    "dead-letter": letters,
}
