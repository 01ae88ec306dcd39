"""One run of the demo from start to finish: environment, job, load, checks, report."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

from demo.audit import audit_records
from demo.display import LiveDisplay
from demo.environment import JOB, Environment, start_environment, start_services
from demo.failed import DemoFailed
from demo.job import spec_for
from demo.prove import audit_run, record_run
from demo.report import write_report
from demo.script import LoadPhase, LoadScript, Observations
from demo.verdict import Check, PhaseResult, judge
from demo.watch import Timeline, Watcher
from tidegate import interrupts
from tidegate.events.command import CommandKind
from tidegate.events.job import SpecChange
from tidegate.events.result import Phase
from tidegate.events.way import ALL_WAYS, Way
from tidegate.runtime.publisher import Publisher
from tidegate.stack import StackInfo

T = TypeVar("T")
START_SECONDS = 180.0
TRICKLE = 0.05
"""Share of the first load sent while the job starts: enough for a first batch, too little for a backlog."""
WARM_UP_SECONDS = 90.0
KEEPING_UP_LAG_SECONDS = 10.0
"""A job that keeps up lags by no more than this many seconds of arrivals: two triggers and a batch."""
KEEPING_UP_SECONDS = 15
DRAIN_SECONDS = 60.0
STOP_SECONDS = 90.0
TICK_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How to run the demo."""

    base: Path
    """The folder of all runs."""
    attach: StackInfo | None
    """The running stack to use; None starts one."""
    script: LoadScript
    keep: bool = False
    record_ms: float = 2.0
    time_factor: float = 1.0
    """Multiplies every time limit; more than 1 for a slow or busy machine."""
    ways: tuple[Way, ...] = ALL_WAYS
    """The allowed ways to change the size."""
    image: str | None = None
    """The image of the job's pods on Kubernetes."""
    manager: str | None = None
    """The ResourceManager's address on YARN; without it and an image, the job runs on Spark standalone."""
    files: str | None = None
    """A URI where the job keeps its files; None keeps them on this machine."""
    conf: Mapping[str, str] = field(default_factory=dict)
    """Further Spark settings of the job."""


@dataclass
class RunOutcome:
    """The outcome of a run."""

    environment: Environment
    timeline: Timeline
    phases: list[PhaseResult] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    png: Path | None = None
    page: Path | None = None
    recording: Path | None = None

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return bool(self.checks) and all(c.passed for c in self.checks)


def run_demo(options: RunOptions, display: LiveDisplay) -> RunOutcome:
    """Run the whole demo and, without `options.keep`, stop what it started; raises `DemoFailed` if it cannot finish."""
    name = datetime.now(UTC).strftime("run-%Y%m%d-%H%M%S")
    environment = start_environment(
        options.base,
        options.attach,
        name,
        display.tell,
        image=options.image,
        manager=options.manager,
        files=options.files,
        conf=options.conf,
        keep=options.keep,
    )
    watcher: Watcher | None = None
    finished = False
    try:
        start_services(environment, display.tell)
        watcher = Watcher(environment.settings, JOB, environment.source, environment.sink, environment.checkpoint)
        outcome = RunOutcome(environment, watcher.timeline)
        with display.live() as refresh:
            director = _Director(options, outcome, display, refresh)
            director.start()
            director.warm_up()
            director.play()
            director.wind_down()
        watcher.close()
        _prove(options, outcome, display)
        finished = True
        return outcome
    finally:
        if watcher is not None:
            watcher.close()
        if not (finished and options.keep):
            display.tell("stopping everything that the demo started")
            with interrupts.uninterrupted():
                environment.close(None if finished or watcher is None else _submission(watcher.timeline))


class _Director:
    """Directs the run: publishes specs, sets the load, and waits for the goal of each step."""

    def __init__(
        self, options: RunOptions, outcome: RunOutcome, display: LiveDisplay, refresh: Callable[[Timeline], None]
    ) -> None:
        self._options, self._script = options, options.script
        self._outcome, self._environment, self._timeline = outcome, outcome.environment, outcome.timeline
        self._display, self._refresh = display, refresh
        spec = spec_for(self._environment, self._script.objective_seconds, options.record_ms, options.time_factor)
        application = spec.application.model_copy(update={"rescale": options.ways})
        self._spec = spec.model_copy(update={"application": application})

    def start(self) -> None:
        """Publish the spec, on which the services start the job; it keeps its first size until it has warmed up."""
        self._environment.set_rate(self._script.phases[0].rate * TRICKLE)
        pinned = self._spec.scaling.model_copy(update={"interactive": True})
        self._publish("the job starts, and keeps its size until it is warm", scaling=pinned)
        if not self._wait("start", "the services have started the job", START_SECONDS, self._started):
            phases = ", ".join(r.phase.value for r in self._timeline.results) or "none"
            decided = self._timeline.decisions[-1].sentence if self._timeline.decisions else "no decision"
            seen = f"last decision: {decided}; results: {phases}"
            raise DemoFailed(f"the job did not start in time ({seen}); see the logs in {self._environment.logs}")

    def warm_up(self) -> None:
        """Wait until the first, slow batches are over, so that they do not affect the measurements."""
        rate = self._script.phases[0].rate
        self._environment.set_rate(rate)
        self._wait(
            "warm-up",
            "the first, slow batches are over",
            WARM_UP_SECONDS,
            lambda: self._keeps_up(rate, KEEPING_UP_SECONDS),
        )
        self._publish("the job is warm, and may be scaled", version=self._spec.version + 1)
        self._display.tell(
            f"the job has warmed up; from now on it may grow to {self._spec.scaling.max_parallelism} slots"
        )

    def play(self) -> None:
        """Run the phases of the load; each ends as soon as its goal is met."""
        for number, phase in enumerate(self._script.phases, 1):
            self._display.progress.number, self._display.progress.phases = number, len(self._script.phases)
            self._environment.set_rate(phase.rate)
            self._display.tell(f"load: {phase.rate:g} records/s until {phase.goal}")
            began, size = time.time(), self._timeline.size()
            done = partial(self._reached, phase, began, size)
            reached = self._wait(phase.name, phase.goal, phase.longest_seconds, done)
            self._outcome.phases.append(PhaseResult(phase.name, phase.rate, began, time.time(), reached))
            if not reached:
                self._display.tell(f"{phase.name}: the goal ({phase.goal}) was not met in {time.time() - began:.0f} s")
        self._display.progress.number = 0

    def wind_down(self) -> None:
        """Stop the load, let the job process the rest and, without `keep`, have the services stop the job."""
        self._environment.set_rate(0)
        if not self._wait("drain", "every record is committed", DRAIN_SECONDS, self._drained):
            self._display.tell(f"there is still lag after {DRAIN_SECONDS * self._options.time_factor:g} s without load")
        if self._options.keep:
            return
        self._display.tell("the load has stopped; asking the services to stop the job")
        self._publish("the load has stopped", running=False, version=self._spec.version + 2)
        if not self._wait("stop", "the services have stopped the job", STOP_SECONDS, self._stopped):
            raise DemoFailed(f"the job did not stop in time; see the logs in {self._environment.logs}")

    def _publish(self, why: str, **changes: object) -> None:
        change = SpecChange(by="demo", reason=why, at=datetime.now(UTC))
        Publisher(self._environment.settings).publish(self._spec.model_copy(update={**changes, "change": change}))

    def _wait(self, step: str, goal: str, seconds: float, done: Callable[[], bool]) -> bool:
        """Show the run until it is `done` or time is up; return which. Raises `DemoFailed` if a process exits."""
        progress = self._display.progress
        seconds *= self._options.time_factor
        progress.phase, progress.goal, progress.longest = step, goal, seconds
        began = time.monotonic()
        while not done():
            progress.elapsed = time.monotonic() - began
            if progress.elapsed > seconds:
                return False
            self._environment.check_alive()
            self._refresh(self._timeline)
            interrupts.check()
            time.sleep(TICK_SECONDS)
        return True

    def _started(self) -> bool:
        ends = [r for r in self._timeline.results if r.kind is CommandKind.START and r.phase.terminal]
        if ends and ends[-1].phase is not Phase.VERIFIED:
            raise DemoFailed(f"the job did not start: {ends[-1].code}: {ends[-1].sentence}")
        return bool(ends)

    def _keeps_up(self, rate: float, seconds: int) -> bool:
        """Whether in the last `seconds` samples lag was no more than a few batches at this rate."""
        newest = self._timeline.samples[-seconds:]
        return len(newest) == seconds and all(s.committed and s.lag <= KEEPING_UP_LAG_SECONDS * rate for s in newest)

    def _reached(self, phase: LoadPhase, began: float, size: int) -> bool:
        now = time.time()
        since = self._timeline.under_objective_since(self._script.objective_seconds)
        # Time under the objective counts from the last change of size.
        ended = max((r.at.timestamp() for r in self._timeline.results if r.phase.terminal), default=began)
        seen = Observations(
            size,
            [d for d in self._timeline.decisions if d.decided_at.timestamp() >= began],
            [r for r in self._timeline.results if r.at.timestamp() >= began],
            0.0 if since is None else now - max(since, began, ended),
        )
        return now - began >= phase.shortest_seconds and phase.reached(seen)

    def _drained(self) -> bool:
        """Whether nothing arrives any more and everything is committed."""
        newest = self._timeline.samples[-3:]
        return len(newest) == 3 and len({s.arrived for s in newest}) == 1 and newest[-1].lag == 0

    def _stopped(self) -> bool:
        return any(r.kind is CommandKind.STOP and r.phase.terminal for r in self._timeline.results)


def _prove(options: RunOptions, outcome: RunOutcome, display: LiveDisplay) -> None:
    """Account for every record, audit every hop, run the checks, and write the report."""
    environment = outcome.environment
    if not options.keep:
        environment.end()
    display.tell("accounting for every record")
    records = _try(display, lambda: audit_records(environment.settings, environment.source, environment.sink))
    outcome.recording = _try(display, lambda: record_run(environment))
    display.tell("auditing every hop on Spark: logs, snapshots, decisions, commands, results, Redis")
    audited = _try(display, lambda: audit_run(environment))
    if options.keep:
        environment.set_rate(options.script.phases[-1].rate)
    objective = options.script.objective_seconds
    outcome.checks = judge(outcome.timeline, outcome.phases, records, audited, objective)
    outcome.png, outcome.page = write_report(
        environment.folder, outcome.timeline, outcome.phases, outcome.checks, objective
    )


def _try(display: LiveDisplay, look: Callable[[], T]) -> T | None:
    """Return the result of `look`; if it raises, say so and return None, which fails the check."""
    try:
        return look()
    except Exception as error:  # noqa: BLE001  (the other checks still run)
        interrupts.check()
        display.tell(f"this failed: {type(error).__name__}: {error}")
        return None


def _submission(timeline: Timeline) -> str | None:
    """Return the id of the newest driver."""
    return next((r.submission_id for r in reversed(timeline.results) if r.submission_id), None)
