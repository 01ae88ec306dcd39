"""The loop in simulated time: snapshots from the twin, decisions from the engine, commands back to the twin.

Function calls replace the topics, in the services' order: first the results, then the decision on the snapshot with
what the decider would have seen (cooldown, reservations, results, neighbours), then the command. The decision on a late
snapshot is made when it arrives.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Protocol

from tidegate.engine.engine import Engine
from tidegate.engine.links import NO_OUTLOOK, Link, Outlook, find_links, upstream_first
from tidegate.engine.plan import Policies
from tidegate.engine.state import JobState
from tidegate.events.command import CommandKind, ScalingCommand
from tidegate.events.decision import Decision, Neighbour, Observed
from tidegate.events.job import JobSpec
from tidegate.events.result import ActionResult, Phase
from tidegate.events.snapshot import MetricSnapshot
from tidegate.events.wire import identity
from tidegate.installed import engine
from tidegate.lab.reservations import MemoryReservations
from tidegate.twin.job import Life
from tidegate.twin.load import Load
from tidegate.twin.model import JobModel
from tidegate.twin.pool import SlotPool
from tidegate.twin.topic import TwinTopic
from tidegate.twin.world import EPOCH, Truth, World

Progress = Callable[[float], None]
"""Called with the completed share, 0..1."""


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """A topic to create: its partitions' shares, its load, and its size if finite."""

    shares: tuple[float, ...]
    load: Load | None = None
    capacity_records: int | None = None
    waiting_records: int = 0
    """Records that are in it at the start."""

    def topic(self, name: str) -> TwinTopic:
        """Return the topic at the start."""
        topic = TwinTopic(name, self.shares, self.load, self.capacity_records)
        topic.written = self.waiting_records
        return topic


@dataclass(frozen=True, slots=True)
class Scenario:
    """One simulation; the same scenario gives the same recording."""

    models: tuple[JobModel, ...]
    specs: tuple[JobSpec, ...]
    topics: Mapping[str, TopicPlan]
    pools: Mapping[str, int]
    sizes: Mapping[str, int]
    """Each job's size at the start."""
    seconds: float
    seed: int = 0
    epoch: int = EPOCH

    def world(self) -> World:
        """Return the scenario's world at its start."""
        return World(
            self.models,
            [plan.topic(name) for name, plan in self.topics.items()],
            [SlotPool(pool_id, slots) for pool_id, slots in self.pools.items()],
            sizes=self.sizes,
            seed=self.seed,
            epoch=self.epoch,
        )

    def with_policy(
        self, policy: str, options: Mapping[str, object] = {}, guards: Mapping[str, Mapping[str, object]] = {}
    ) -> Scenario:
        """Return the scenario with all jobs under another policy."""
        specs = []
        for spec in self.specs:
            merged = {**spec.scaling.guards, **{name: dict(raw) for name, raw in guards.items()}}
            changes = {"policy": policy, "policy_options": dict(options), "guards": merged}
            specs.append(spec.model_copy(update={"scaling": spec.scaling.model_copy(update=changes)}))
        return replace(self, specs=tuple(specs))


@dataclass(slots=True)
class JobRecording:
    """Everything that happened to one job."""

    ticks: list[Truth] = field(default_factory=list)
    """At the end of each interval."""
    commits: list[tuple[float, float]] = field(default_factory=list)
    """(second of a commit, second at which the oldest record arrived that was not committed until then); at last the
    end of the run with the oldest record that is left."""
    snapshots: list[MetricSnapshot] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    commands: list[ScalingCommand] = field(default_factory=list)
    results: list[ActionResult] = field(default_factory=list)


class Decider(Protocol):
    """What decides in a simulation: the engine, or a plan made in advance."""

    def decide(self, spec: JobSpec, snapshot: MetricSnapshot, now: float, seen: Sequence[ActionResult]) -> Decided:
        """Decide on a snapshot at `now` (epoch seconds), given the results since the last one."""


@dataclass(frozen=True, slots=True)
class Decided:
    """A decider's answer to a snapshot."""

    decision: Decision | None
    command: ScalingCommand | None


class EngineDecider:
    """The engine with the state of all jobs. It takes the same round as the decider, on reservations in memory."""

    def __init__(self, specs: Sequence[JobSpec], policies: Policies | None = None) -> None:
        """Take the installed `policies` unless others are given, as on a machine where Tidegate is not installed.

        Raise `ValueError` with every problem of the specs' policies, guards and options.
        """
        self._engine = engine() if policies is None else Engine(policies)
        problems = [f"{spec.job_id}: {problem}" for spec in specs for problem in self._engine.check(spec)]
        if problems:
            raise ValueError("; ".join(problems))
        self._pools = {spec.job_id: spec.pool_id for spec in specs}
        self._links = find_links(specs)
        self._states = {spec.job_id: JobState.new() for spec in specs}
        self._outlooks: dict[str, Outlook] = {}
        self._reservations = MemoryReservations()

    def decide(self, spec: JobSpec, snapshot: MetricSnapshot, now: float, seen: Sequence[ActionResult]) -> Decided:
        """Take the results in, then go through one decision round."""
        for result in seen:
            self._follow(result)
        at = datetime.fromtimestamp(now, UTC)
        known = Observed(
            at=at,
            results=tuple(seen),
            neighbours=tuple(self.neighbour(link) for link in self._links.get(spec.job_id, ())),
            utc_offset_seconds=spec.scaling.utc_offset_seconds(at),
        )
        state, decision = self._reservations.finish(
            self._engine.round(self._states[spec.job_id], snapshot, spec, known), now
        )
        self._states[spec.job_id] = state
        self._outlooks[spec.job_id] = self._outlooks.get(spec.job_id, NO_OUTLOOK).after(decision, spec)
        return Decided(decision, decision.command)

    def _follow(self, result: ActionResult) -> None:
        """Follow a result: while the job is down all its slots are a promise, once it holds them none are.

        In the twin an order has its slots at once.
        """
        hold = (result.job_id, self._pools[result.job_id], result.command_id)
        if result.phase.terminal:
            self._reservations.release(*hold)
        elif result.phase is Phase.STOPPED:
            self._reservations.adjust(*hold, result.parallelism)
        elif result.phase in (Phase.STARTING, Phase.RESIZING, Phase.WARMING):
            self._reservations.adjust(*hold, 0)

    def neighbour(self, link: Link) -> Neighbour:
        """Return a linked job as its newest decision shows it."""
        return link.neighbour(self._outlooks.get(link.job_id, NO_OUTLOOK))


def simulate(
    scenario: Scenario,
    decider: Decider | None = None,
    *,
    keep_snapshots: bool = False,
    progress: Progress | None = None,
) -> dict[str, JobRecording]:
    """Run a scenario; return each job's recording by id.

    Without a `decider`, the engine decides by the scenario's specs. Raises `ValueError` for a spec that the engine
    rejects, or that names an unknown job, topic or pool.
    """
    loop = _Loop(scenario, decider or EngineDecider(scenario.specs), keep_snapshots=keep_snapshots)
    told = 0.0
    while loop.due and loop.due[0][0] <= loop.end:
        share = (loop.turn() - scenario.epoch) / scenario.seconds
        if progress is not None and share >= told + 0.01:
            told = share
            progress(share)
    loop.finish()
    if progress is not None:
        progress(1.0)
    return loop.recordings


Move = tuple[float, int]
"""(seconds since the start, size)."""


def play(scenario: Scenario, moves: Sequence[Move]) -> JobRecording:
    """Run the only job of a scenario by a plan, which needs no measurements; return its recording without snapshots.

    A move is ordered at the first interval's end at or after its time at which the job runs and is not changing.
    """
    world, spec = scenario.world(), scenario.specs[0]
    job, recording, due = world.job(spec.job_id), JobRecording(), deque(sorted(moves))
    wanted: int | None = None
    for step in range(1, int(scenario.seconds / spec.interval_seconds) + 1):
        now = scenario.epoch + step * spec.interval_seconds
        recording.results += world.advance(now)
        recording.ticks.append(world.truth(spec.job_id))
        while due and due[0][0] <= world.now + 1e-6:
            wanted = due.popleft()[1]
        if wanted is not None and job.life is Life.RUNNING and not world.changing(spec.job_id):
            if wanted != job.size:
                recording.commands.append(_ordered(spec, job.size, wanted, now))
                world.order(recording.commands[-1])
            wanted = None
    recording.results += world.advance(scenario.epoch + scenario.seconds)
    recording.commits += [*job.commits, (world.now, job.oldest_at())]
    return recording


def _ordered(spec: JobSpec, size: int, wanted: int, now: int) -> ScalingCommand:
    """Return the command of a plan's move."""
    at = datetime.fromtimestamp(now, UTC)
    return ScalingCommand(
        command_id=identity("plan", spec.job_id, now),
        job_id=spec.job_id,
        pipeline_id=spec.pipeline_id,
        snapshot_id=identity("snapshot", spec.job_id, now),
        spec_version=spec.version,
        kind=CommandKind.RESCALE,
        from_parallelism=size,
        to_parallelism=wanted,
        way=spec.application.ways[0],
        epoch=now,
        issued_at=at,
        expires_at=at + timedelta(seconds=spec.scaling.command_ttl_seconds),
        reason="planned by the oracle",
    )


class _Loop:
    """One running simulation. `due` holds (epoch seconds, rank, job's index, snapshot or None for "measure now")."""

    def __init__(self, scenario: Scenario, decider: Decider, *, keep_snapshots: bool) -> None:
        self.world = scenario.world()
        self.specs = upstream_first(scenario.specs)
        self.decider = decider
        self.keep_snapshots = keep_snapshots
        self.end = scenario.epoch + scenario.seconds
        self.recordings = {spec.job_id: JobRecording() for spec in self.specs}
        self.pending: dict[str, list[ActionResult]] = {spec.job_id: [] for spec in self.specs}
        self.decided: dict[str, int] = {}
        self.due: list[tuple[float, int, int, MetricSnapshot | None]] = []
        for place, spec in enumerate(self.specs):
            self.world.job(spec.job_id)
            heapq.heappush(self.due, (scenario.epoch + spec.interval_seconds, 0, place, None))

    def turn(self) -> float:
        """Process what is due next; return its epoch second."""
        now, _, place, snapshot = heapq.heappop(self.due)
        self.take_results(now)
        if snapshot is None:
            snapshot = self._measure(now, place)
        if snapshot is not None:
            self._decide(now, self.specs[place], snapshot)
        return now

    def take_results(self, until: float) -> None:
        """Advance the world, and keep the results for their jobs' next snapshots."""
        for result in self.world.advance(until):
            self.pending[result.job_id].append(result)
            self.recordings[result.job_id].results.append(result)

    def finish(self) -> None:
        """Advance to the end, and keep what each job has committed."""
        self.take_results(self.end)
        for job_id, recording in self.recordings.items():
            job = self.world.job(job_id)
            recording.commits += [*job.commits, (self.world.now, job.oldest_at())]

    def _measure(self, now: float, place: int) -> MetricSnapshot | None:
        """Return the interval's snapshot; None if it is lost or delayed."""
        spec = self.specs[place]
        self.recordings[spec.job_id].ticks.append(self.world.truth(spec.job_id))
        heapq.heappush(self.due, (now + spec.interval_seconds, 0, place, None))
        snapshot = self.world.snapshot(spec.job_id, int(now), spec.interval_seconds)
        if snapshot is None:
            return None
        delay = self.world.delay_seconds(spec.job_id, int(now))
        if delay > 0:
            heapq.heappush(self.due, (now + delay, snapshot.sequence, place, snapshot))
            return None
        return snapshot

    def _decide(self, now: float, spec: JobSpec, snapshot: MetricSnapshot) -> None:
        if snapshot.sequence <= self.decided.get(spec.job_id, -1):
            return  # a newer snapshot arrived first: the decider drops this one
        self.decided[spec.job_id] = snapshot.sequence
        recording = self.recordings[spec.job_id]
        decided = self.decider.decide(spec, snapshot, now, self.pending[spec.job_id])
        self.pending[spec.job_id] = []
        if self.keep_snapshots:
            recording.snapshots.append(snapshot)
        if decided.decision is not None:
            recording.decisions.append(decided.decision)
        if decided.command is not None:
            recording.commands.append(decided.command)
            self.world.order(decided.command)
