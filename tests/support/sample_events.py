"""Events of each kind with hand-chosen values: what the golden payloads hold and tests vary.

A full event sets every field that existed when it was frozen, with a null wherever one may stand inside a tuple or a
dict. A minimal one sets only what is required. A field that came later is set in an event of its own.
"""

from __future__ import annotations

from base64 import b64encode
from datetime import UTC, datetime, timedelta
from typing import Any

from tidegate.events.command import CommandKind, ScalingCommand
from tidegate.events.dead_letter import DeadLetter, letter_id
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
    decision_id,
)
from tidegate.events.job import (
    Application,
    JobSpec,
    KubernetesPods,
    ManualScale,
    Mode,
    Scaling,
    SpecChange,
    Tariff,
    Volume,
)
from tidegate.events.result import ActionResult, CheckpointMark, Phase, QueryCommit, result_id
from tidegate.events.snapshot import (
    ClusterState,
    MetricSnapshot,
    MicroBatch,
    Part,
    Pool,
    RunningBatch,
    SnapshotWarning,
    SourceOffsets,
    StageTasks,
    StateOperator,
    WarningCode,
    snapshot_id,
)
from tidegate.events.way import Way
from tidegate.events.wire import Wire

T = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
SEQUENCE = int(T.timestamp())


APPLICATION = Application(
    script="/jobs/orders.py",
    checkpoint_location="/data/checkpoints/orders",
    event_log_dir="/data/events",
    control_dir="/data/control",
)


def _jobs() -> tuple[JobSpec, JobSpec]:
    full = JobSpec(
        job_id="orders",
        pipeline_id="shop",
        version=7,
        pool_id="blue",
        sources=("orders.raw", "prices"),
        sinks=("orders.clean",),
        running=True,
        interval_seconds=15,
        application=Application(
            script="/jobs/orders.py",
            checkpoint_location="/data/checkpoints/orders",
            event_log_dir="/data/events",
            control_dir="/data/control",
            backend="standalone",
            args=("--rate", "100", "naïve ünïcode"),
            master="spark://10.0.0.1:7077,10.0.0.2:7077",
            rest_url="http://10.0.0.1:6066",
            master_ui_url="http://10.0.0.1:8080/",
            jars=("/jars/kafka.jar",),
            py_files=("/jobs/lib.zip",),
            conf={"spark.sql.shuffle.partitions": "12"},
            env={"TZ": "UTC"},
            executor_cores=2,
            executor_memory_mb=1024,
            driver_memory_mb=768,
            stop_deadline_seconds=45.5,
            start_deadline_seconds=120.0,
        ),
        scaling=Scaling(
            mode=Mode.ADVISE,
            policy="flip271",
            policy_options={"target_utilization": 0.7, "vertex": "source", "aligned": True, "window": 6},
            guards={"cooldown": {"up_seconds": 30}},
            min_parallelism=2,
            max_parallelism=12,
            initial_parallelism=4,
            lag_objective_seconds=30.0,
            interactive=False,
            command_ttl_seconds=90.0,
        ),
        manual=ManualScale(request_id="r-1", parallelism=6, reason="sale begins", requested_at=T),
    )
    return full, JobSpec(job_id="orders", pipeline_id="orders", sources=("orders.raw",), application=APPLICATION)


def _snapshots() -> tuple[MetricSnapshot, MetricSnapshot]:
    full = MetricSnapshot(
        snapshot_id=snapshot_id("orders", SEQUENCE),
        job_id="orders",
        pipeline_id="shop",
        sequence=SEQUENCE,
        interval_seconds=15,
        observed_at=T + timedelta(milliseconds=250),
        state=ClusterState.RUNNING,
        incarnation="app-20260301115000-0003",
        incarnation_started_at=T - timedelta(minutes=10),
        query_id="3f8a6c1e-0f55-4b5c-9a3c-0d4a2f3e1b11",
        sources=(
            SourceOffsets(topic="orders.raw", end_offsets=(1000, 2000, None), committed_offsets=(990, None, 5)),
            SourceOffsets(topic="prices", end_offsets=(0,), committed_offsets=(0,)),
        ),
        batches=(
            MicroBatch(
                batch_id=41,
                started_at=T - timedelta(seconds=4),
                duration_seconds=1.875,
                add_batch_seconds=1.5,
                input_records=3000,
                output_records=2990,
            ),
            MicroBatch(batch_id=42, started_at=T - timedelta(seconds=2), duration_seconds=0.25, input_records=0),
        ),
        batches_left_out=3,
        current_batch_started_at=T - timedelta(seconds=1),
        stages=(
            StageTasks(
                name="start at <unknown>:0",
                tasks=8,
                runs=2,
                busy_seconds=12.5,
                median_task_seconds=0.75,
                slowest_task_seconds=1.25,
            ),
        ),
        state_operators=(StateOperator(name="stateStoreSave", rows=10, memory_bytes=4096, partitions=12),),
        slots_granted=4,
        gc_ratio=0.03125,
        pool=Pool(pool_id="blue", slots_total=12, slots_used=4, workers_alive=2),
        missing=(Part.TASKS,),
    )
    minimal = MetricSnapshot(
        snapshot_id=snapshot_id("orders", SEQUENCE),
        job_id="orders",
        pipeline_id="orders",
        sequence=SEQUENCE,
        interval_seconds=10,
        observed_at=T,
        state=ClusterState.UNKNOWN,
    )
    return full, minimal


def _commands() -> tuple[ScalingCommand, ScalingCommand]:
    full, minimal = (
        ScalingCommand(
            command_id=decision_id("orders", snapshot_id("orders", SEQUENCE), version, "1.0.0"),
            job_id="orders",
            pipeline_id=pipeline,
            snapshot_id=snapshot_id("orders", SEQUENCE),
            spec_version=version,
            kind=kind,
            from_parallelism=2 if manual else 0,
            to_parallelism=6,
            epoch=SEQUENCE,
            issued_at=T + timedelta(seconds=1),
            expires_at=T + timedelta(seconds=121),
            reason="lag of 90 s is above 30 s",
            manual=manual,
        )
        for version, pipeline, kind, manual in (
            (7, "shop", CommandKind.RESCALE, True),
            (1, "orders", CommandKind.START, False),
        )
    )
    return full, minimal


def _results() -> tuple[ActionResult, ActionResult]:
    command = _commands()[0].command_id
    full = ActionResult(
        result_id=result_id(command, Phase.ROLLED_BACK, 2),
        command_id=command,
        job_id="orders",
        pipeline_id="shop",
        kind=CommandKind.RESCALE,
        phase=Phase.ROLLED_BACK,
        attempt=2,
        epoch=SEQUENCE,
        at=T + timedelta(seconds=60, microseconds=1),
        parallelism=2,
        code="NO_BATCH_IN_TIME",
        sentence="No batch was committed in 180 s; back at 2 slots.",
        incarnation="app-20260301120030-0004",
        submission_id="driver-20260301120030-0004",
        downtime_seconds=31.5,
        details={"stop_seconds": 2.5, "last_batch_id": 42, "clean": True, "backend": "standalone"},
    )
    minimal = ActionResult(
        result_id=result_id(command, Phase.ACCEPTED),
        command_id=command,
        job_id="orders",
        pipeline_id="shop",
        kind=CommandKind.STOP,
        phase=Phase.ACCEPTED,
        epoch=SEQUENCE,
        at=T,
        parallelism=0,
    )
    return full, minimal


def _decisions() -> tuple[Decision, Decision]:
    snapshot, spec, command = _snapshots()[0], _jobs()[0], _commands()[0]
    evidence = Evidence(
        window_seconds=60.0,
        snapshots=4,
        arrival_rate=1234.5,
        processing_rate=800.0,
        true_processing_rate=1000.0,
        utilization=0.8,
        lag_records=90_000,
        lag_trend=434.5,
        lag_seconds=90.0,
        batch_seconds=1.875,
        batch_overhead_seconds=0.375,
        record_cost_seconds=0.0005,
        output_ratio=1.0,
        partitions=8,
        slots_granted=4,
        task_skew=1.5,
        single_task_share=0.0,
        state_bytes=4096,
        state_partitions=12,
        gc_ratio=0.03125,
        missing=("tasks",),
    )
    full = Decision(
        decision_id=command.command_id,
        job_id="orders",
        pipeline_id="shop",
        snapshot_id=snapshot.snapshot_id,
        sequence=SEQUENCE,
        decided_at=T + timedelta(seconds=1),
        engine_version="1.0.0",
        spec_version=7,
        policy="flip271",
        status=Status.PENDING_SCALE_UP,
        current_parallelism=2,
        proposed_parallelism=9,
        final_parallelism=6,
        sentence="Scale up from 2 to 6 slots: lag of 90 s is above 30 s.",
        trail=(
            TrailEntry("flip271", "TARGET", 2, 9, "9 slots hold 1234.5 records/s.", {"rate": 1234.5, "skew": None}),
            TrailEntry(
                "max_parallelism", "MAX", 9, 6, "At most 6.", {"max": 6, "aligned": True, "topic": "orders.raw"}
            ),
        ),
        evidence=evidence,
        expectation=Expectation(
            processing_rate=3000.0, lag_seconds=5.0, catch_up_seconds=51.0, restart_seconds=25.0, core_seconds=360.0
        ),
        command=command,
        observed=Observed(
            at=T + timedelta(seconds=1),
            redis=RedisView.OK,
            cooldown_until=T - timedelta(seconds=5),
            cooldown_owner="4f2b6d0c-2a53-5c5c-9d4e-0d6c0b1c9a01",
            pool_reserved=2,
            reservation_refused=False,
            results=_results(),
            neighbours=(
                Neighbour("prices", True, ("prices",), 2, Evidence(window_seconds=10.0)),
                Neighbour("reports", False, ("orders.clean",)),
            ),
        ),
        keyframe=Keyframe(state={"last_sequence": None, "window": [1, None, {"rate": None, "x": 0.5}]}, spec=spec),
    )
    minimal = Decision(
        decision_id=decision_id("orders", snapshot.snapshot_id, 1, "1.0.0"),
        job_id="orders",
        pipeline_id="orders",
        snapshot_id=snapshot.snapshot_id,
        sequence=SEQUENCE,
        decided_at=T,
        engine_version="1.0.0",
        spec_version=1,
        policy="flip271",
        status=Status.FINE,
        current_parallelism=0,
        proposed_parallelism=0,
        final_parallelism=0,
        sentence="Nothing is known yet.",
        trail=(),
        evidence=Evidence(),
        observed=Observed(at=T),
    )
    return full, minimal


def _later() -> dict[str, Wire]:
    """Return the events whose fields came after the full ones were frozen."""
    full = _results()[0]
    begin = {name: getattr(full, name) for name in ("command_id", "job_id", "pipeline_id", "kind", "epoch")}

    def result(phase: Phase, seconds: int, parallelism: int, **others: Any) -> ActionResult:
        at, id_ = T + timedelta(seconds=seconds), result_id(full.command_id, phase)
        return ActionResult(result_id=id_, phase=phase, at=at, parallelism=parallelism, **begin, **others)

    def job(**others: Any) -> JobSpec:
        return _jobs()[1].model_copy(update=others)

    def snapshot(**others: Any) -> MetricSnapshot:
        return _snapshots()[1].model_copy(update=others)

    def decision(**others: Any) -> Decision:
        return _decisions()[1].model_copy(update=others)

    return {
        "job.changed": job(
            version=2,
            scaling=Scaling(mode=Mode.PAUSED),
            change=SpecChange(by="ada", reason="the sink is being repaired", at=T),
        ),
        "result.stopped": result(
            Phase.STOPPED,
            3,
            0,
            checkpoint=CheckpointMark(
                queries={
                    "clean": QueryCommit(query_id="0b6c1c0e-6f6f-4f43-9d0d-6a2f1a3c5e01", batch_id=42),
                    "late": QueryCommit(),
                },
                last_commit_at=T + timedelta(seconds=2, microseconds=500_000),
            ),
        ),
        "result.starting": result(Phase.STARTING, 4, 6, run=2),
        "result.resized": result(
            Phase.VERIFIED, 14, 6, downtime_seconds=0.0, way=Way.IN_PLACE, outage_seconds=0.0, delay_seconds=9.25
        ),
        "result.handed_over": result(
            Phase.VERIFIED,
            40,
            6,
            incarnation="app-20260301120000-0008",
            submission_id="driver-20260301120000-0008",
            downtime_seconds=2.5,
            way=Way.HANDOVER,
            outage_seconds=1.25,
            delay_seconds=38.5,
            application="0a1b2c3d-4e5f-5a6b-8c7d-9e0f1a2b3c4d",
        ),
        "snapshot.running": snapshot(
            state=ClusterState.RUNNING,
            current_batch_started_at=T - timedelta(seconds=30),
            running=(
                RunningBatch(
                    batch_id=43,
                    started_at=T - timedelta(seconds=30),
                    tasks=8,
                    tasks_finished=2,
                    busy_seconds=27.5,
                    read_tasks=6,
                    read_tasks_finished=1,
                    records_read=20_000,
                    read_seconds=18.25,
                    slowest_read_seconds=18.25,
                ),
            ),
        ),
        "snapshot.skewed": snapshot(
            state=ClusterState.RUNNING,
            stages=(
                StageTasks(
                    name="start at <unknown>:0",
                    tasks=8,
                    busy_seconds=12.5,
                    median_task_seconds=0.75,
                    slowest_task_seconds=6.25,
                    slowest_task_place=5,
                ),
            ),
        ),
        "snapshot.warned": snapshot(
            warnings=(
                SnapshotWarning(code=WarningCode.TOPIC_UNKNOWN, topics=("gone",)),
                SnapshotWarning(code=WarningCode.TOPIC_NOT_READ, topics=("orders.old", "orders.older")),
                SnapshotWarning(code=WarningCode.TOPIC_NOT_LISTED, topics=("orders.new",)),
            )
        ),
        "snapshot.clock_apart": snapshot(warnings=(SnapshotWarning(code=WarningCode.CLOCK_APART, seconds=-42.5),)),
        "snapshot.kafka_unknown": snapshot(warnings=(SnapshotWarning(code=WarningCode.KAFKA_UNKNOWN),)),
        "snapshot.real_time": snapshot(
            warnings=(SnapshotWarning(code=WarningCode.REAL_TIME),), missing=(Part.PROGRESS,)
        ),
        "snapshot.source_waits": snapshot(warnings=(SnapshotWarning(code=WarningCode.SOURCE_WAITS),)),
        "snapshot.source_limited": snapshot(
            warnings=(SnapshotWarning(code=WarningCode.SOURCE_LIMITED, topics=("orders.raw",)),)
        ),
        "snapshot.uncounted": snapshot(
            state_operators=(StateOperator(name="stateStoreSave", memory_bytes=4096, partitions=12),)
        ),
        "snapshot.removed": snapshot(
            sources=(
                SourceOffsets(
                    topic="orders.raw",
                    end_offsets=(1000, 2000, 30),
                    committed_offsets=(250, 1990, None),
                    first_offsets=(900, None, 10),
                ),
            )
        ),
        "job.growing_pool": job(pool_max_slots=64),
        "job.on_another_kafka": job(kafka_cluster="payments"),
        "job.read_committed": job(read_committed=True),
        "job.in_a_time_zone": job(scaling=Scaling(time_zone="Europe/Berlin")),
        "job.priced": job(scaling=Scaling(prices=Tariff(currency="EUR", slot_hour=0.05, late_minute=0.5, change=0.01))),
        "job.on_kubernetes": JobSpec(
            job_id="orders",
            sources=("orders.raw",),
            application=Application(
                backend="kubernetes",
                script="/jobs/orders.py",
                checkpoint_location="/data/checkpoints/orders",
                event_log_dir="/data/events",
                kubernetes=KubernetesPods(
                    namespace="shop",
                    image="registry.example/shop/spark:4.2.0",
                    service_account="spark-driver",
                    volumes=(
                        Volume(name="data", path="/data", claim="spark-data"),
                        Volume(name="jobs", path="/jobs", host_path="/srv/jobs"),
                    ),
                    driver_template={"spec": {"nodeSelector": {"disk": "ssd"}, "priority": 5, "tolerations": [None]}},
                ),
            ),
        ),
        "decision.delayed": decision(evidence=Evidence(lag_records=90_000, delay_seconds=42.5, delay_at_least=True)),
        "decision.removed": decision(evidence=Evidence(lag_records=100, lost_records=650)),
        "decision.in_a_time_zone": decision(observed=Observed(at=T, utc_offset_seconds=-18_000)),
        "decision.in_a_pipeline": decision(
            emits=Emission(
                steps=(EmissionStep(T, 2100.0), EmissionStep(T + timedelta(seconds=70), 4200.5)),
                topic="orders.clean",
                target_rate=2800.0,
                catch_up_rate=12.5,
            ),
            observed=Observed(
                at=T,
                neighbours=(
                    Neighbour(
                        "prices",
                        True,
                        ("prices",),
                        2,
                        emits=Emission((EmissionStep(T - timedelta(seconds=1), 300.0),), "prices"),
                        only_reader=True,
                    ),
                    Neighbour("reports", False, ("orders.clean",), 16, ceiling=5000.0),
                ),
            ),
        ),
        "command.in_place": _commands()[0].model_copy(update={"way": Way.IN_PLACE, "first_batch_seconds": 12.5}),
    }


def _dead_letters() -> tuple[DeadLetter, DeadLetter]:
    full = DeadLetter(
        letter_id=letter_id("tidegate.snapshots", 3, 99, "decider"),
        topic="tidegate.snapshots",
        partition=3,
        offset=99,
        consumer="decider",
        code="NOT_JSON",
        error="expected value at line 1 column 1",
        seen_at=T,
        key=b64encode(b"shop"),
        value=b64encode(b"\xff\x00 not json"),
        headers=(("ce_type", b64encode(b"tidegate.snapshot.v1")), ("empty", None)),
    )
    minimal = DeadLetter(
        letter_id=letter_id("tidegate.jobs", 0, 0, "collector"),
        topic="tidegate.jobs",
        partition=0,
        offset=0,
        consumer="collector",
        code="NO_VALUE",
        error="the record has no value",
        seen_at=T,
    )
    return full, minimal


def sample_events() -> dict[str, Wire]:
    """Return every sample by name, such as `decision.full` and `decision.minimal`."""
    pairs = {
        "job": _jobs(),
        "snapshot": _snapshots(),
        "decision": _decisions(),
        "command": _commands(),
        "result": _results(),
        "dead-letter": _dead_letters(),
    }
    first = {f"{name}.{kind}": pair[n] for name, pair in pairs.items() for n, kind in enumerate(("full", "minimal"))}
    return first | _later()
