"""Recordings to audit: jobs whose snapshots, decisions, commands and results fit together, and ways to damage them.

Each job has a partition of its own on every topic, and event logs. Snapshots are cut from these by the collector's own
code, the engine decides, and the results are those of a restart.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.support.events import FAST_FLIP271, START
from tidegate.engine.state import JobState
from tidegate.events.command import CommandKind, ScalingCommand
from tidegate.events.dead_letter import DeadLetter, letter_id
from tidegate.events.decision import Observed
from tidegate.events.envelope import encode
from tidegate.events.job import Application, JobSpec, Scaling, SpecChange
from tidegate.events.result import ActionResult, Phase, result_id
from tidegate.events.snapshot import ClusterState, MetricSnapshot, Pool, SourceOffsets, snapshot_id
from tidegate.events.topics import TOPICS
from tidegate.events.way import Way
from tidegate.events.wire import Wire
from tidegate.installed import engine
from tidegate.replay.files import KafkaRecord, RecordingManifest
from tidegate.replay.record import write_recording
from tidegate.sparklog.application_run import ApplicationRun, Interval
from tidegate.sparklog.parse import parse

SNAPSHOTS = 44
INTERVAL = timedelta(seconds=10)
PER_SLOT = 250
COOLDOWN = 60.0
GROWS, SHRINKS, STOPS = 8, 24, 40
"""Numbers of the snapshots at which the load rises, falls, and the spec ends the job."""
END = START + SNAPSHOTS * INTERVAL
RESTART = (Phase.ACCEPTED, Phase.STOPPING, Phase.STOPPED, Phase.STARTING, Phase.RUNNING, Phase.VERIFIED)
STOP = (Phase.ACCEPTED, Phase.STOPPING, Phase.STOPPED, Phase.VERIFIED)


@dataclass
class AuditedJob:
    """The records of one job by topic, in the order of their offsets, and the lines of its event logs by run."""

    job_id: str
    partition: int
    records: dict[str, list[KafkaRecord]] = field(default_factory=lambda: {topic.suffix: [] for topic in TOPICS})
    logs: dict[str, list[bytes]] = field(default_factory=dict)

    def add(self, event: Wire, at: datetime, key: bytes | None = None) -> None:
        """Append an event to its topic."""
        made = encode(event, key=key)
        held = self.records[made.topic.suffix]
        moment = int(at.timestamp() * 1000)
        held.append(KafkaRecord(self.partition, len(held), moment, made.key, made.value, tuple(made.headers)))

    def add_unreadable(self, at: datetime, *, letter: bool) -> None:
        """Append a snapshot that is none, with or without its dead letter."""
        held = self.records["snapshots"]
        place = (self.partition, len(held))
        held.append(KafkaRecord(*place, int(at.timestamp() * 1000), self.job_id.encode(), b"{not JSON"))
        if letter:
            identity = letter_id("tidegate.snapshots", *place, "decider")
            self.add(
                DeadLetter(
                    letter_id=identity,
                    topic="tidegate.snapshots",
                    partition=place[0],
                    offset=place[1],
                    consumer="decider",
                    code="NOT_JSON",
                    error="it is not JSON",
                    seen_at=at,
                    value=b64encode(b"{not JSON"),
                ),
                at,
                self.job_id.encode(),
            )

    def renumber(self, topic: str) -> None:
        """Give the records of a topic consecutive offsets, in their order."""
        held = self.records[topic]
        held[:] = [replace(record, offset=number) for number, record in enumerate(held)]

    def edit(self, topic: str, number: int, **changes: Any) -> None:
        """Change fields of one event."""
        record = self.records[topic][number]
        value = json.loads(record.value or b"") | changes
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        self.records[topic][number] = replace(record, value=text.encode())

    def events(self, topic: str) -> list[dict[str, Any]]:
        """Return the events of a topic as JSON values."""
        return [json.loads(record.value or b"") for record in self.records[topic]]


def specs(job_id: str) -> list[JobSpec]:
    """Return three versions of a spec: small bounds, larger ones, and the end."""

    def change(by: str, why: str, at: datetime) -> SpecChange:
        return SpecChange(by=by, reason=why, at=at)

    first = JobSpec(
        job_id=job_id,
        sources=("in",),
        interval_seconds=10,
        application=Application(
            script="/jobs/rates.py",
            checkpoint_location=f"/checkpoints/{job_id}",
            event_log_dir="/events",
            control_dir="/control",
            rescale=(Way.RESTART,),
        ),
        scaling=Scaling(
            policy="flip271",
            policy_options=FAST_FLIP271,
            guards={
                "cooldown": {"up_seconds": COOLDOWN, "down_seconds": COOLDOWN},
                "stabilization": {"seconds": 0},
            },
            max_parallelism=6,
        ),
        change=change("anna", "first version", START - INTERVAL),
    )
    wider = first.scaling.model_copy(update={"max_parallelism": 16})
    second = first.model_copy(
        update={"version": 2, "scaling": wider, "change": change("ben", "sale on Sunday", START + 2 * INTERVAL)}
    )
    ends = change("anna", "season is over", START + STOPS * INTERVAL - timedelta(seconds=6))
    return [first, second, second.model_copy(update={"version": 3, "running": False, "change": ends})]


def audited_job(job_id: str, partition: int) -> AuditedJob:
    """Return a job that grows under a load, shrinks after it and is stopped."""
    made = AuditedJob(job_id, partition)
    first, second, third = specs(job_id)
    state, spec, size = JobState.new(), first, 4
    arrived = committed = 80_000
    run = _LoggedRun(made, "app-0", START - timedelta(minutes=5))
    made.add(first, START - INTERVAL)
    pending: list[tuple[datetime, ActionResult]] = []
    batch = 0
    busy_until = START
    for number in range(1, SNAPSHOTS):
        at = START + number * INTERVAL
        if number == 3:
            spec = second
            made.add(spec, START + 2 * INTERVAL + timedelta(seconds=1))
        if number == STOPS:
            spec = third
            made.add(spec, START + STOPS * INTERVAL - timedelta(seconds=5))
        arrived += (4000 if GROWS <= number < SHRINKS else 500) * 10 // 4
        if size and busy_until < at:
            done = min(arrived - committed, size * PER_SLOT * 9)
            committed += done
            run.batch(batch, at - timedelta(seconds=9.5), max(0.2, done / (size * PER_SLOT)), done, committed)
            batch += 1
        shot = _snapshot(made, run, at, size, arrived)
        results = tuple(result for done_at, result in pending if done_at <= at)
        pending = [(done_at, result) for done_at, result in pending if done_at > at]
        observed = Observed(at=at + timedelta(milliseconds=400), results=results)
        made.add(shot, at + timedelta(milliseconds=200))
        state, decision = engine().step(state, shot, spec, observed)
        made.add(decision, observed.at)
        if (command := decision.command) is not None:
            made.add(command, observed.at)
            if run.app_id and size:
                run.end(observed.at + timedelta(seconds=1))
            size = command.to_parallelism
            if size:
                run = _LoggedRun(made, f"app-{number}", observed.at + timedelta(seconds=2), run.committed)
            pending = list(_results(command, run.app_id if size else None))
            for done_at, result in pending:
                made.add(result, done_at)
            busy_until = at + timedelta(seconds=5)
    return made


def _results(command: ScalingCommand, incarnation: str | None) -> Iterable[tuple[datetime, ActionResult]]:
    phases = STOP if command.kind is CommandKind.STOP else RESTART
    for number, phase in enumerate(phases):
        at = command.issued_at + timedelta(milliseconds=300 * (number + 1))
        verified: dict[str, Any] = {
            "incarnation": incarnation,
            "downtime_seconds": 3.0,
            "outage_seconds": 3.0,
            "delay_seconds": 3.0,
        }
        yield (
            at,
            ActionResult(
                result_id=result_id(command.command_id, phase),
                command_id=command.command_id,
                job_id=command.job_id,
                pipeline_id=command.pipeline_id,
                kind=command.kind,
                phase=phase,
                epoch=command.epoch,
                at=at,
                parallelism=command.to_parallelism,
                way=command.way if phase is not Phase.ACCEPTED else None,
                **(verified if phase is Phase.VERIFIED and incarnation else {}),
            ),
        )


def forged_restart(job: AuditedJob) -> None:
    """Append a command and its results that nobody decided, 20 s after the job's first change of size."""
    real = next(c for c in job.events("commands") if c["kind"] == "rescale")
    at = datetime.fromisoformat(real["issued_at"]) + timedelta(seconds=20)
    command = ScalingCommand.model_validate_json(
        json.dumps(
            real
            | {
                "command_id": "00000000-0000-5000-8000-000000000000",
                "epoch": real["epoch"] + 20,
                "from_parallelism": real["to_parallelism"],
                "to_parallelism": real["to_parallelism"] - 1,
                "issued_at": at.isoformat(),
                "expires_at": (at + timedelta(minutes=2)).isoformat(),
            }
        )
    )
    place = 1 + next(n for n, c in enumerate(job.events("commands")) if c["command_id"] == real["command_id"])
    after = 1 + max(n for n, r in enumerate(job.events("results")) if r["command_id"] == real["command_id"])
    other = AuditedJob(job.job_id, job.partition)
    other.add(command, at)
    for done_at, result in _results(command, None):
        other.add(result, done_at)
    job.records["commands"][place:place] = other.records["commands"]
    job.records["results"][after:after] = other.records["results"]
    job.renumber("commands")
    job.renumber("results")


def write_audited(directory: Path, jobs: Iterable[AuditedJob]) -> tuple[Path, Path]:
    """Write the jobs as a recording and a folder of event logs; return both."""
    recording, logs = directory / "recording", directory / "events"
    logs.mkdir()
    jobs = list(jobs)
    write_recording(
        recording,
        ((topic, [record for job in jobs for record in job.records[topic.suffix]]) for topic in TOPICS),
        lambda files: RecordingManifest(topic_prefix="tidegate.", recorded_at=END, files=files),
    )
    for job in jobs:
        for app_id, log in job.logs.items():
            (logs / f"{job.job_id}-{app_id}").write_bytes(b"".join(log))
    return recording, logs


class _LoggedRun:
    """One application: writes its event log, and reads it as the collector does."""

    def __init__(self, job: AuditedJob, app_id: str, at: datetime, committed: Any = None) -> None:
        self.app_id = app_id
        self._lines = job.logs.setdefault(app_id, [])
        self._run = ApplicationRun()
        self._run.inherited = committed or {}
        self._write(Event="SparkListenerEnvironmentUpdate", **{"Spark Properties": {"spark.app.name": job.job_id}})
        start = {"App Name": job.job_id, "App ID": app_id, "Timestamp": int(at.timestamp() * 1000)}
        self._write(Event="SparkListenerApplicationStart", **start)
        self._stream("QueryStarted", id=f"query of {job.job_id}", name=None, timestamp=_text(at))
        self._query = f"query of {job.job_id}"

    @property
    def committed(self) -> Any:
        return self._run.committed

    def batch(self, number: int, at: datetime, seconds: float, records: int, committed: int) -> None:
        share, rest = divmod(committed, 4)
        ends = {"in": {str(partition): share + (partition < rest) for partition in range(4)}}
        progress = {
            "id": self._query,
            "timestamp": _text(at),
            "batchId": number,
            "durationMs": {"triggerExecution": int(seconds * 1000), "addBatch": int(seconds * 900)},
            "sources": [{"endOffset": ends, "numInputRows": records}],
            "sink": {"numOutputRows": records},
        }
        self._stream("QueryProgress", progress=progress)

    def end(self, at: datetime) -> None:
        self._stream("QueryTerminated", id=self._query)
        self._write(Event="SparkListenerApplicationEnd", Timestamp=int(at.timestamp() * 1000))

    def cut(self, at: datetime) -> Any:
        return self._run.cut(Interval(at - INTERVAL, at))

    def _stream(self, kind: str, **fields: Any) -> None:
        self._write(Event=f"org.apache.spark.sql.streaming.StreamingQueryListener${kind}Event", **fields)

    def _write(self, **event: Any) -> None:
        line = json.dumps(event, separators=(",", ":")).encode() + b"\n"
        self._lines.append(line)
        read = parse(line)
        if read is not None:
            self._run.apply(read)


def _snapshot(job: AuditedJob, run: _LoggedRun, at: datetime, size: int, arrived: int) -> MetricSnapshot:
    made = run.cut(at)
    ends = [arrived // 4 + (partition < arrived % 4) for partition in range(4)]
    done = made.committed.get("in", {})
    return MetricSnapshot(
        snapshot_id=snapshot_id(job.job_id, int(at.timestamp())),
        job_id=job.job_id,
        pipeline_id=job.job_id,
        sequence=int(at.timestamp()),
        interval_seconds=10,
        observed_at=at + timedelta(milliseconds=100),
        state=ClusterState.RUNNING if size else ClusterState.STOPPED,
        incarnation=run.app_id,
        incarnation_started_at=made.started_at,
        query_id=made.query_id,
        sources=(
            SourceOffsets(
                topic="in", end_offsets=tuple(ends), committed_offsets=tuple(done.get(p, 20_000) for p in range(4))
            ),
        ),
        batches=made.batches,
        slots_granted=size,
        pool=Pool(pool_id="default", slots_total=100, slots_used=size, workers_alive=1),
    )


def _text(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


Damage = Callable[[AuditedJob], None]
