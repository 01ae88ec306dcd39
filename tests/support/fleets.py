"""Fleets for tests: jobs whose events the engine and the twin made, moved so that the last is from just now."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from tests.support.events import job
from tidegate.events.decision import Decision, Evidence, Expectation, Observed, Status, TrailEntry, decision_id
from tidegate.events.job import JobSpec
from tidegate.events.result import ActionResult
from tidegate.events.snapshot import snapshot_id
from tidegate.fleet.fleet import Fleet
from tidegate.lab.simulate import JobRecording, Scenario, TopicPlan, simulate
from tidegate.twin.model import JobModel, StageModel
from tidegate.twin.topic import even
from tidegate.twin.workloads import SHAPES
from tidegate.whatif.recorded import RecordedJob, job_of


def spec(number: int) -> JobSpec:
    """Return the spec of a job in a large fleet."""
    return job(f"job-{number:04}", max_parallelism=32)


def decision(of: JobSpec, at: datetime, **evidence: float | None) -> Decision:
    """Return a small decision of usual shape: it explains itself, and has no keyframe."""
    sequence = int(at.timestamp())
    seen = {"arrival_rate": 500.0, "true_processing_rate": 800.0, "delay_seconds": 4.0, "lag_records": 2000} | evidence
    snapshot = snapshot_id(of.job_id, sequence)
    return Decision(
        decision_id=decision_id(of.job_id, snapshot, of.version, "7"),
        job_id=of.job_id,
        pipeline_id=of.pipeline_id,
        snapshot_id=snapshot,
        sequence=sequence,
        decided_at=at,
        engine_version="7",
        spec_version=of.version,
        policy=of.scaling.policy,
        status=Status.FINE,
        current_parallelism=4,
        proposed_parallelism=4,
        final_parallelism=4,
        sentence=f"{of.job_id} keeps 4 slots: they process 800 records/s, and 500 arrive.",
        trail=(
            TrailEntry(
                by=of.scaling.policy,
                code="KEEPS_UP",
                before=4,
                after=4,
                sentence="The size keeps up with the load.",
                numbers={"capacity": 800.0, "arrival_rate": 500.0},
            ),
        ),
        evidence=Evidence(window_seconds=60.0, snapshots=6, **seen),  # type: ignore[arg-type]
        expectation=Expectation(processing_rate=800.0, lag_seconds=2.5),
        observed=Observed(at=at),
    )


def hour_of(specs: list[JobSpec], end: datetime) -> Iterator[Decision]:
    """Yield a decision per job and ten seconds, in the order of time, up to `end`."""
    for step in range(360, -1, -1):
        at = end - timedelta(seconds=step * 10)
        for place, each in enumerate(specs):
            yield decision(each, at, lag_records=2000 + (step * 37 + place) % 900)


@dataclass
class SimulatedTopics:
    """The topics of a simulated fleet, without a broker; what is published is in `published` and joins the fleet."""

    fleet: Fleet = field(default_factory=Fleet)
    recordings: dict[str, JobRecording] = field(default_factory=dict)
    published: list[JobSpec] = field(default_factory=list)
    recalled: list[str] = field(default_factory=list)
    state: str = "live"
    refusal: Exception | None = None
    """Raised by all that goes to the broker."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def revision(self) -> int:
        """See `tidegate.console.topics.ConsoleTopics`."""
        return self.fleet.revision

    @contextmanager
    def reading(self) -> Iterator[Fleet]:
        """See `tidegate.console.topics.ConsoleTopics`."""
        with self._lock:
            yield self.fleet

    def recall(self, job_id: str) -> None:
        """See `tidegate.console.topics.ConsoleTopics`."""
        self.recalled.append(job_id)

    def decision(self, job_id: str, sequence: int) -> Decision | None:
        """See `tidegate.console.topics.ConsoleTopics`."""
        if self.refusal is not None:
            raise self.refusal
        made = self.recordings[job_id].decisions if job_id in self.recordings else []
        return next((one for one in made if one.sequence == sequence), None)

    def results(self, decision: Decision) -> list[ActionResult]:
        """See `tidegate.console.topics.ConsoleTopics`."""
        return [r for r in self.recordings[decision.job_id].results if r.command_id == decision.decision_id]

    def recorded(self, job_id: str, since: datetime, until: int | None = None) -> RecordedJob:
        """See `tidegate.console.topics.ConsoleTopics`."""
        made = self.recordings[job_id]
        some = made.snapshots if until is None else [one for one in made.snapshots if one.sequence <= until]
        events = [one for one in some if one.observed_at >= since]
        return job_of([*events, *made.decisions, *made.commands, *made.results], job_id)

    def publish(self, spec: JobSpec) -> None:
        """See `tidegate.console.topics.ConsoleTopics`."""
        if self.refusal is not None:
            raise self.refusal
        self.published.append(spec)
        with self.reading() as fleet:
            fleet.take_spec(spec)


LOADS = {"clicks": "diurnal", "orders": "flash_crowd", "payments": "step", "rates": "sawtooth", "sessions": "ramp"}
"""Jobs of the simulated fleet, and their loads."""


def simulated_events(end: datetime, hours: float = 1.0) -> tuple[list[JobSpec], dict[str, JobRecording]]:
    """Return five jobs that the engine scaled in one pool on the twin, until `end`."""
    seconds, specs, models, topics, sizes = hours * 3600, [], [], {}, {}
    for place, (name, load) in enumerate(sorted(LOADS.items())):
        model = JobModel(name, (name,), (StageModel("map", 0.002),), overhead_seconds=0.4, trigger_interval_seconds=2.0)
        most = 4 if name == "payments" else 12
        made = job(name, policy="tide", policy_options={}, guards={}, max_parallelism=most, lag_objective_seconds=30.0)
        specs.append(made.model_copy(update={"sources": (name,), "sinks": ()}))
        models.append(model)
        topics[name] = TopicPlan(even(12), SHAPES[load](2600.0 - 200 * place, seconds))
        sizes[name] = 2
    epoch = int(end.timestamp() - seconds)
    scenario = Scenario(tuple(models), tuple(specs), topics, {"default": 40}, sizes, seconds, epoch=epoch)
    return specs, simulate(scenario, keep_snapshots=True)


def simulated_topics(end: datetime) -> SimulatedTopics:
    """Return the topics of the simulated fleet."""
    specs, recordings = simulated_events(end)
    topics = SimulatedTopics(recordings=recordings)
    for each in specs:
        topics.fleet.take_spec(each)
        recording = recordings[each.job_id]
        for event in (*recording.snapshots, *recording.decisions, *recording.results):
            topics.fleet.take(event)
    return topics
