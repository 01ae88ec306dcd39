"""A short recorded history of one job: held at four slots by its spec, then allowed to grow, then stopped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.support.engine import step
from tests.support.events import NO_WAIT, job, observed, result, steady
from tidegate.engine.state import JobState
from tidegate.events.decision import Decision
from tidegate.events.envelope import encode
from tidegate.events.job import JobSpec, Scaling
from tidegate.events.result import ActionResult, Phase
from tidegate.events.snapshot import ClusterState, MetricSnapshot
from tidegate.events.topics import TOPICS
from tidegate.events.wire import Wire
from tidegate.replay.files import KafkaRecord, RecordingManifest
from tidegate.replay.record import write_recording

GROWS, STOPS, ENDS = 9, 14, 17
"""Numbers of the snapshots first decided with versions 2 and 3 of the spec, and how many there are."""

LIVELY = Scaling(
    policy="flip271",
    policy_options={"metrics_window_seconds": 60.0, "stabilization_interval_seconds": 0.0},
    guards=NO_WAIT,
    min_parallelism=1,
    max_parallelism=32,
)
"""For `bench.streams`: times so short that a few hundred snapshots cover many rescales."""


@dataclass(frozen=True, slots=True)
class Step:
    """A snapshot, the results that came before it, and what was decided."""

    spec: JobSpec
    snapshot: MetricSnapshot
    results: Sequence[ActionResult]
    decision: Decision


def specs() -> list[JobSpec]:
    """Return the three versions. Snapshots may be old: the clock of a test is not that of the history."""
    guards = NO_WAIT | {"fresh": {"max_age_seconds": 3600}}
    held = job(max_parallelism=4, guards=guards)
    free = job(version=2, max_parallelism=16, guards=guards)
    return [held, free, free.model_copy(update={"version": 3, "running": False})]


def history() -> list[Step]:
    """Return the engine's decisions, each command carried out before the next snapshot."""
    held, free, stopped = specs()
    state, size, incarnation = JobState.new(), 4, "app-1"
    results: tuple[ActionResult, ...] = ()
    steps: list[Step] = []
    lagging = steady(ENDS, rate=3000, capacity=1000)
    for number in range(ENDS):
        now: dict[str, Any] = {"slots_granted": size, "incarnation": incarnation}
        if size == 0:
            now |= {"state": ClusterState.STOPPED, "batches": ()}
        shot = lagging[number].model_copy(update=now)
        spec = held if number < GROWS else free if number < STOPS else stopped
        state, decision = step(state, shot, spec, observed(shot, results=results))
        steps.append(Step(spec, shot, results, decision))
        results = ()
        if (command := decision.command) is not None:
            size = command.to_parallelism
            incarnation = f"app-{number}"
            done: dict[str, Any] = {"kind": command.kind, "parallelism": size, "epoch": command.epoch}
            ended: dict[str, Any] = {"incarnation": incarnation, "downtime_seconds": 2.0} if size else {}
            results = (
                result(command.command_id, Phase.ACCEPTED, number, **done),
                result(command.command_id, Phase.VERIFIED, number, **done, **ended),
            )
    return steps


def decided_twice() -> tuple[list[Step], int, Decision]:
    """Return the history, the number of its first command, and that decision as made again three seconds later.

    So it is if the decider died between publishing a decision and saving its state. The state remembers the time.
    """
    steps, state = history(), JobState.new()
    at = next(number for number, each in enumerate(steps) if each.decision.command is not None)
    for each in steps[:at]:
        state, _ = step(state, each.snapshot, each.spec, each.decision.observed)
    ordered, seen = steps[at], steps[at].decision.observed
    _, other = step(state, ordered.snapshot, ordered.spec, replace(seen, at=seen.at + timedelta(seconds=3)))
    assert encode(other) != encode(ordered.decision)
    return steps, at, other


def write_history(directory: Path, *, compacted: bool = False) -> list[Step]:
    """Write the history as a recording; `compacted` leaves only the last version of the spec on its topic.

    Version 2 is written just before the last snapshot decided with version 1: the decider saw it too late.
    """
    steps = history()
    written: list[tuple[datetime, Wire]] = []
    held, free, stopped = specs()
    written += [(steps[0].snapshot.observed_at - timedelta(days=1), held)] if not compacted else []
    written += [(_before(steps[GROWS - 1]), free)] if not compacted else []
    written.append((_before(steps[STOPS]), stopped))
    for each in steps:
        written.append((each.snapshot.observed_at, each.snapshot))
        written += [(_before(each), one) for one in each.results]
        written.append((each.decision.decided_at, each.decision))
        if each.decision.command is not None:
            written.append((each.decision.decided_at, each.decision.command))
    write_events(directory, written)
    return steps


def write_events(directory: Path, written: Sequence[tuple[datetime, Wire]]) -> None:
    """Write events with their times as a recording."""
    records = (
        (topic, [_record(at, n, event) for n, (at, event) in enumerate(written) if isinstance(event, topic.model)])
        for topic in TOPICS
    )
    now = datetime.now(UTC)
    write_recording(
        directory, records, lambda files: RecordingManifest(topic_prefix="tidegate.", recorded_at=now, files=files)
    )


def _before(each: Step) -> datetime:
    return each.snapshot.observed_at - timedelta(milliseconds=200)


def _record(at: datetime, offset: int, event: Wire) -> KafkaRecord:
    made = encode(event)
    return KafkaRecord(0, offset, int(at.timestamp() * 1000), made.key, made.value, tuple(made.headers))
