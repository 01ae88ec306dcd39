"""A trial: every recorded decision made again, by another spec or another engine, with what was seen then.

    until the first decision that changes something else   the recorded snapshots are the truth
    from there on                                          the calibrated twin with the engine's commands, once per seed

The recorded commands run on the twin as well, from the same instant on: what the twin then says of them, next to what
was measured, tells how far to trust it. What other jobs did, and what was seen of Redis, stays as it was. A cooldown
follows from the engine's own changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from tidegate.engine.decide import AlreadyDecided
from tidegate.engine.state import NEW_STATE
from tidegate.events.command import ScalingCommand
from tidegate.events.decision import Decision, Observed
from tidegate.events.job import JobSpec
from tidegate.events.result import ActionResult
from tidegate.events.snapshot import MetricSnapshot
from tidegate.twin.calibrate import Calibration, batch_error, calibrate
from tidegate.twin.load import BadLoad
from tidegate.twin.recorded import CannotCalibrate
from tidegate.whatif.continuation import Continuation, model_for
from tidegate.whatif.course import Course, course_of
from tidegate.whatif.engines import TrialEngine
from tidegate.whatif.recorded import Moment, Moments, RecordedJob
from tidegate.whatif.vary import Vary

SEEDS = 5
"""How often the twin runs, each time with other noise."""

Progress = Callable[[float], None]
"""Called with the completed share, 0..1."""


@dataclass(frozen=True, slots=True)
class Sureness:
    """How well the twin knows the job."""

    batch_error: float
    """Median relative error of a batch's duration, predicted from its records and the job's size."""
    control: Course
    """The recorded decisions, carried out on the twin."""
    sizes_seen: frozenset[int]
    """Sizes at which the job really ran; the capacity of any other size is an extrapolation."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What was, and what would have been."""

    job_id: str
    engine: str
    specs: tuple[tuple[JobSpec, JobSpec], ...]
    """The recorded versions of the spec, and what the trial made of each."""
    decisions: tuple[Decision, ...]
    """The recorded ones."""
    made: tuple[Decision, ...]
    """What would have been decided, in the first run of the twin; fewer if the trial ends before."""
    recorded: Course
    courses: tuple[Course, ...]
    """One for each run of the twin; exactly one without it."""
    leaves_at: int | None
    """Index of the first decision that changes something else than was changed; None: there is none."""
    sureness: Sureness | None
    """None if no twin was needed, or there could be none."""
    unknown_because: str = ""
    """Why nothing is known after the first different change, if so; the courses end with it."""
    left_out: tuple[str, ...] = ()
    """What of the recording could not be tried, in words."""


def attempt(
    recorded: RecordedJob,
    moments: Moments,
    engine: TrialEngine,
    vary: Vary,
    *,
    seeds: int = SEEDS,
    progress: Progress = lambda _share: None,
) -> Trial:
    """Return the trial of a job. Raises `CannotTry` if the spec or the engine is unusable."""
    each = moments.each
    specs: dict[int, tuple[JobSpec, JobSpec]] = {}
    for moment in each:
        if id(moment.spec) not in specs:
            specs[id(moment.spec)] = moment.spec, vary(moment.spec)
    new = {key: made for key, (_, made) in specs.items()}
    start = TrialLoop(engine, each, new, progress, runs=seeds + 1)
    leaves_at = start.as_recorded()
    made = tuple(start.true)
    courses: tuple[Course, ...] = (course_of((m.snapshot, d) for m, d in zip(each, made, strict=False)),)
    sureness, why = None, ""
    if leaves_at is not None and leaves_at + 1 < len(each):
        try:
            made, courses, sureness = _continued(start, recorded, leaves_at, seeds)
        except (CannotCalibrate, BadLoad) as error:
            why = str(error)
    progress(1.0)
    left = [f"{moments.before_keyframe} decisions before the first keyframe"] if moments.before_keyframe else []
    left += [f"{moments.without_inputs} decisions without their snapshot or spec"] if moments.without_inputs else []
    left += [f"{moments.without_state} decisions that follow missing ones"] if moments.without_state else []
    return Trial(
        each[0].snapshot.job_id,
        engine.name,
        tuple(specs.values()),
        tuple(m.decision for m in each),
        made,
        course_of((m.snapshot, m.decision) for m in each),
        courses,
        leaves_at,
        sureness,
        why,
        tuple(left),
    )


def _continued(
    start: TrialLoop, recorded: RecordedJob, leaves_at: int, seeds: int
) -> tuple[tuple[Decision, ...], tuple[Course, ...], Sureness]:
    """Return the first run's decisions, all courses, and how sure they are. Raises `CannotCalibrate`."""
    # One from the future, which the decider has refused, must not make the recording look years long.
    newest = start.each[-1].snapshot.sequence
    recorded = replace(recorded, snapshots=[s for s in recorded.snapshots if s.sequence <= newest])
    found = calibrate(recorded.snapshots, recorded.results)
    head = list(zip((m.snapshot for m in start.each), start.true, strict=False))
    made: list[Decision] = []

    def course(seed: int) -> Course:
        decided = chain(head, start.on_the_twin(found, recorded, leaves_at, seed))
        return course_of(decided if seed else _noting(decided, made))

    courses = tuple(map(course, range(seeds)))
    true = [(m.snapshot, m.decision) for m in start.each[: leaves_at + 1]]
    control = course_of(chain(true, start.on_the_twin(found, recorded, leaves_at, 0, as_recorded=True)))
    seen = frozenset(s.slots_granted for s in recorded.snapshots if s.slots_granted)
    error = batch_error(found, recorded.snapshots, recorded.results)
    return tuple(made), courses, Sureness(error, control, seen)


def _noting(
    decided: Iterable[tuple[MetricSnapshot, Decision]], made: list[Decision]
) -> Iterator[tuple[MetricSnapshot, Decision]]:
    """Yield what was decided, and keep the decisions."""
    for snapshot, decision in decided:
        made.append(decision)
        yield snapshot, decision


class TrialLoop:
    """The recorded moments, gone through as often as needed."""

    def __init__(
        self, engine: TrialEngine, each: Sequence[Moment], specs: dict[int, JobSpec], progress: Progress, runs: int
    ) -> None:
        self.engine = engine
        self.each = each
        self.specs = specs
        self.state: Any = None
        """After the newest decision."""
        self.true: list[Decision] = []
        """Decisions on recorded snapshots."""
        self.ids: dict[str, str] = {}
        """Of the recorded commands that were ordered here too: their ids here."""
        self._progress = progress
        self._total = (runs + 1) * len(each)
        self._done = 0

    def as_recorded(self) -> int | None:
        """Decide up to the first decision that changes something else than was changed; return its index."""
        for place, moment in enumerate(self.each):
            observed = moment.decision.observed
            results = tuple(self._ours(result) for result in observed.results)
            made = self._step(moment, moment.snapshot, replace(observed, results=results))
            self.true.append(made)
            if _changes(made) != _changes(moment.decision):
                return place
            if made.decision_id != moment.decision.decision_id:
                self.ids[moment.decision.decision_id] = made.decision_id
        return None

    def on_the_twin(
        self, found: Calibration, recorded: RecordedJob, leaves_at: int, seed: int, *, as_recorded: bool = False
    ) -> Iterator[tuple[MetricSnapshot, Decision]]:
        """Yield the snapshots and decisions after the one at which the trial leaves what was recorded.

        With `as_recorded`, the recorded decisions are carried out, and nothing is decided.
        """
        first, state = self.each[leaves_at], self.state
        spec = first.spec if as_recorded else self.specs[id(first.spec)]
        size = first.snapshot.slots_granted
        twin = Continuation(
            [moment.snapshot for moment in self.each[leaves_at:]],
            model_for(spec, found),
            found.shares,
            size=first.decision.current_parallelism if size is None else size,
            most=max(each.scaling.max_parallelism for each in (*self.specs.values(), first.spec)),
            last_batch=max((b.batch_id for s in recorded.snapshots for b in s.batches), default=0),
            seed=seed,
        )
        last = first.decision if as_recorded else self.true[-1]
        for command in (*self._under_way(leaves_at), last.command):
            if command is not None:
                twin.order(command)
        for moment in self.each[leaves_at + 1 :]:
            snapshot, results = twin.advance(moment.snapshot)
            decision = moment.decision
            if as_recorded:
                self._tell()
            else:
                seen = replace(
                    moment.decision.observed,
                    results=results,
                    cooldown_until=None,
                    cooldown_owner=None,
                    reservation_refused=False,
                )
                decision = self._step(moment, snapshot, seen)
            if decision.command is not None:
                twin.order(decision.command)
            yield snapshot, decision
        self.state = state

    def _under_way(self, leaves_at: int) -> list[ScalingCommand]:
        """Return the command that was ordered before, by both, and had not ended."""
        newest: ScalingCommand | None = None
        ended: set[str] = set()
        for moment in self.each[: leaves_at + 1]:
            ended |= {r.command_id for r in moment.decision.observed.results if r.phase.terminal}
        for moment in self.each[:leaves_at]:
            command = moment.decision.command
            if command is not None:
                newest = None if command.command_id in ended else command
        if newest is None:
            return []
        return [newest.model_copy(update={"command_id": self.ids.get(newest.command_id, newest.command_id)})]

    def _step(self, moment: Moment, snapshot: MetricSnapshot, seen: Observed) -> Decision:
        # On the twin the job has taken another course than that of the recorded state after a gap.
        if moment.state is not None and (snapshot is moment.snapshot or moment.state == NEW_STATE):
            self.state = self.engine.read(moment.state)
        spec = self.specs[id(moment.spec)]
        if spec.scaling.time_zone != moment.spec.scaling.time_zone:
            seen = replace(seen, utc_offset_seconds=spec.scaling.utc_offset_seconds(seen.at))
        try:
            self.state, made = self.engine.step(self.state, snapshot, spec, seen)
        except AlreadyDecided as error:
            raise AssertionError("moments rise") from error
        self._tell()
        return made

    def _tell(self) -> None:
        self._done += 1
        if self._done % 50 == 0:
            self._progress(min(1.0, self._done / self._total))

    def _ours(self, result: ActionResult) -> ActionResult:
        ours = self.ids.get(result.command_id)
        return result if ours is None else result.model_copy(update={"command_id": ours})


def _changes(decision: Decision) -> tuple[object, ...] | None:
    """Return what a decision changes; None if nothing."""
    command = decision.command
    return None if command is None else (command.kind, command.to_parallelism, command.way)
