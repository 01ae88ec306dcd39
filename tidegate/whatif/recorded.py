"""One job's recorded events, and its decisions with what each was made from. Pure.

A decision can be made again from the first keyframe on: a keyframe holds the engine's state before its decision and the
spec in force. A later keyframe brings a new version of the spec, or an empty state if the decider had lost the old one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter
from typing import Any

from tidegate.engine.engine import Engine
from tidegate.engine.options import BadOption
from tidegate.engine.plan import UnknownPolicy
from tidegate.engine.state import NEW_STATE, JobState, from_wire
from tidegate.events.command import ScalingCommand
from tidegate.events.decision import Decision
from tidegate.events.envelope import value_of
from tidegate.events.job import JobSpec
from tidegate.events.result import ActionResult
from tidegate.events.snapshot import MetricSnapshot
from tidegate.events.wire import Wire
from tidegate.twin.recorded import of_one_time
from tidegate.words import some

EVENTS = (MetricSnapshot, ScalingCommand, ActionResult, Decision)
"""The events of a job that are needed here."""


class CannotTry(ValueError):
    """The question cannot be answered; the text says why, and what to change."""


@dataclass(frozen=True, slots=True)
class RecordedJob:
    """The recorded events of one job, oldest first, each once."""

    snapshots: Sequence[MetricSnapshot]
    commands: Sequence[ScalingCommand]
    results: Sequence[ActionResult]
    decisions: Sequence[Decision] = ()


@dataclass(frozen=True, slots=True)
class Moment:
    """A recorded decision and what it was made from."""

    snapshot: MetricSnapshot
    decision: Decision
    spec: JobSpec
    state: dict[str, Any] | None
    """The state before it, as on the wire, where it starts from a recorded one: the first moment, the first one after a
    gap, and one at which the decider started with a new state. None where it follows from the decision before."""


@dataclass(frozen=True, slots=True)
class Moments:
    """What can be decided again, oldest first, and what cannot."""

    each: tuple[Moment, ...]
    before_keyframe: int
    """Decisions before the first keyframe."""
    without_inputs: int
    """Decisions whose snapshot or spec was not recorded."""
    without_state: int
    """Decisions that follow others that were not recorded, or were without inputs, up to the next keyframe."""


def job_of(events: Iterable[Wire], job: str | None = None) -> RecordedJob:
    """Return the events of a job, by default of the only one. Raises `CannotTry` if that is not one job."""
    snapshots: dict[str, dict[int, MetricSnapshot]] = {}
    commands: dict[str, ScalingCommand] = {}
    results: dict[str, ActionResult] = {}
    decisions: dict[tuple[str, int], Decision] = {}
    for event in events:
        match event:
            case MetricSnapshot():
                snapshots.setdefault(event.job_id, {}).setdefault(event.sequence, event)  # as the decider does
            case ScalingCommand():
                commands.setdefault(event.command_id, event)  # as the actuator does
            case ActionResult():
                results.setdefault(event.result_id, event)
            case Decision():
                decisions[event.job_id, event.sequence] = event  # the decider went on from the newest
            case _:
                pass
    name = only_job(snapshots, job)
    return RecordedJob(
        of_one_time(snapshots[name].values()),
        sorted((c for c in commands.values() if c.job_id == name), key=attrgetter("issued_at")),
        sorted((r for r in results.values() if r.job_id == name), key=attrgetter("at")),
        sorted((d for d in decisions.values() if d.job_id == name), key=attrgetter("sequence")),
    )


def only_job(jobs: Collection[str], job: str | None = None) -> str:
    """Return the job that was asked for, by default the only one of `jobs`. Raises `CannotTry` if that is not one."""
    if not jobs:
        raise CannotTry("the recording holds no snapshot")
    if job is None and len(jobs) > 1:
        raise CannotTry(f"the recording holds {len(jobs)} jobs; choose one of {some(jobs)}")
    name = job or next(iter(jobs))
    if name not in jobs:
        raise CannotTry(f"the recording does not hold job {name!r}, but {some(jobs)}")
    return name


def moments_of(recorded: RecordedJob) -> Moments:
    """Return the recorded decisions that can be made again. Raises `CannotTry` if there are none."""
    snapshots = {snapshot.sequence: snapshot for snapshot in recorded.snapshots}
    specs: dict[int, JobSpec] = {}
    found: list[Moment] = []
    before = without = stateless = 0
    known, gaps = False, _gaps(recorded.decisions)
    sequences, since = [decision.sequence for decision in recorded.decisions], 0
    for place, decision in enumerate(recorded.decisions):
        frame = decision.keyframe
        known = known and place not in gaps and not _follows_others(decision, sequences, since, place)
        if frame is not None and specs.get(decision.spec_version) != frame.spec:
            specs[decision.spec_version] = frame.spec
        spec, snapshot = specs.get(decision.spec_version), snapshots.get(decision.sequence)
        if not specs:
            before += 1
        elif spec is None or snapshot is None:
            without += 1
            known = False
        elif not known and frame is None:
            stateless += 1
        else:
            starts = frame is not None and (not known or frame.state == NEW_STATE)
            since, known = since if known else place, True
            found.append(Moment(snapshot, decision, spec, frame.state if frame is not None and starts else None))
    if not recorded.decisions:
        raise CannotTry("no decision on the job was recorded, so there is none to make again")
    if not found:
        raise CannotTry(
            f"none of the {len(recorded.decisions)} recorded decisions has a keyframe and its snapshot: "
            "start earlier, a keyframe comes with every hundredth decision"
        )
    return Moments(tuple(found), before, without, stateless)


def _gaps(decisions: Sequence[Decision]) -> set[int]:
    """Return the places before which decisions were not recorded: the states in keyframes count them."""
    frames = [(place, each.keyframe.state) for place, each in enumerate(decisions) if each.keyframe is not None]
    gaps: set[int] = set()
    for (start, was), (end, now) in pairwise(frames):
        made, before = now.get("decisions"), was.get("decisions")
        if isinstance(made, int) and isinstance(before, int) and made - before > end - start:
            steps = [two.sequence - one.sequence for one, two in pairwise(decisions[start : end + 1])]
            gaps.add(start + 1 + next((place for place, step in enumerate(steps) if step > min(steps)), 0))
    return gaps


def _follows_others(decision: Decision, sequences: Sequence[int], since: int, place: int) -> bool:
    """Whether decisions between two places were not recorded: the window of the last one holds more snapshots.

    So a gap is found that no keyframe follows. A time without snapshots leaves none in the window either.
    """
    began = decision.sequence - decision.evidence.window_seconds - 1  # a snapshot is measured within its second
    recorded = place + 1 - bisect_left(sequences, began, since, place)
    return began >= sequences[since] and recorded < decision.evidence.snapshots


def state_before(recorded: RecordedJob, sequence: int, engine: Engine) -> tuple[JobState, Moment]:
    """Return the state before the decision on a snapshot, and its moment, from the last keyframe until then.

    Raises `CannotTry` if what lies between was not recorded, or if this engine does not make the recorded decisions.
    """
    until = [decision for decision in recorded.decisions if decision.sequence <= sequence]
    frames = [place for place, decision in enumerate(until) if decision.keyframe is not None]
    if not until or until[-1].sequence != sequence or not frames:
        raise CannotTry(f"no recorded decision with sequence {sequence} follows a keyframe")
    moments = moments_of(replace(recorded, decisions=until[frames[-1] :]))
    if moments.without_inputs:
        raise CannotTry(f"snapshots since the last keyframe that were not recorded: {moments.without_inputs}")
    *before, last = moments.each
    state = JobState.new()
    for moment in before:
        state = _after(_begun(state, moment), moment, engine)
    state = _begun(state, last)
    _after(state, last, engine)
    return state, last


def _begun(state: JobState, moment: Moment) -> JobState:
    return state if moment.state is None else from_wire(moment.state)


def _after(state: JobState, moment: Moment, engine: Engine) -> JobState:
    try:
        state, made = engine.step(state, moment.snapshot, moment.spec, moment.decision.observed)
    except (BadOption, UnknownPolicy) as error:
        raise CannotTry(f"this engine refuses version {moment.spec.version} of the spec: {error}") from None
    if value_of(made) != value_of(moment.decision):
        raise CannotTry(
            f"this engine does not make the recorded decision of sequence {moment.decision.sequence} "
            f"(engine {moment.decision.engine_version} there, {made.engine_version} here), so its state is not known"
        )
    return state
