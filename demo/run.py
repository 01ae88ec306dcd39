"""The demo from beginning to end: house, job, load, verdict, report. Returns whether everything held."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

from demo.house import JOB, DemoFailed, House, open_house, spec_for, start_services
from demo.ledger import account
from demo.prove import recompute_run, record_run
from demo.report import write_report
from demo.script import Script, Seen, Stage
from demo.show import Show
from demo.verdict import Check, Lived, judge
from demo.watch import Timeline, Watcher
from tidegate import interrupts
from tidegate.events.command import CommandKind
from tidegate.events.result import Phase
from tidegate.runtime.kafka import Publisher
from tidegate.stack import StackInfo

T = TypeVar("T")
START_SECONDS = 180.0
TRICKLE = 0.05
"""Share of the first load that flows while the job starts: enough for the first batch, too little for a backlog."""
WARM_SECONDS = 90.0
BATCHES_SECONDS = 10.0
"""A job that keeps up has no more lag than this many seconds of arrivals: two triggers and a batch."""
KEEPING_UP_SECONDS = 15
DRAIN_SECONDS = 60.0
STOP_SECONDS = 90.0
TICK_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run is to be."""

    base: Path
    """Where the folders of runs are made."""
    attach: StackInfo | None
    """The running stack to use; None starts one."""
    script: Script
    keep: bool = False
    record_ms: float = 2.0
    worker_slots: int = 12
    patience: float = 1.0
    """Multiplies every longest time: more than 1 for a slow or busy machine. Goals that are met end a step early."""


@dataclass
class Outcome:
    """What became of a run."""

    house: House
    timeline: Timeline
    stages: list[Lived] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    png: Path | None = None
    page: Path | None = None
    recording: Path | None = None

    @property
    def passed(self) -> bool:
        """Whether every check held."""
        return bool(self.checks) and all(c.passed for c in self.checks)


def run_demo(plan: Plan, show: Show) -> Outcome:
    """Run the whole demo; raises `DemoFailed` when it cannot go on. Ends what it started, unless `plan.keep`."""
    name = datetime.now(UTC).strftime("run-%Y%m%d-%H%M%S")
    house = open_house(plan.base, plan.attach, name, show.tell, worker_slots=plan.worker_slots, keep=plan.keep)
    watcher: Watcher | None = None
    finished = False
    try:
        start_services(house, show.tell)
        watcher = Watcher(house.settings, JOB, house.source, house.sink, house.checkpoint)
        outcome = Outcome(house, watcher.timeline)
        with show.live() as refresh:
            director = _Director(plan, outcome, show, refresh)
            director.start()
            director.warm_up()
            director.play()
            director.wind_down()
        watcher.close()
        _prove(plan, outcome, show)
        finished = True
        return outcome
    finally:
        if watcher is not None:
            watcher.close()
        if not (finished and plan.keep):
            show.tell("ending everything that was started")
            with interrupts.uninterrupted():
                house.close(None if finished or watcher is None else _submission(watcher.timeline))


class _Director:
    """Leads the run: publishes the spec, sets the load, waits for what each step is to bring about."""

    def __init__(self, plan: Plan, outcome: Outcome, show: Show, refresh: Callable[[Timeline], None]) -> None:
        self._plan, self._script = plan, plan.script
        self._outcome, self._house, self._timeline = outcome, outcome.house, outcome.timeline
        self._show, self._refresh = show, refresh
        self._spec = spec_for(self._house, self._script.objective_seconds, plan.record_ms, plan.patience)

    def start(self) -> None:
        """Publish the spec, which alone makes the services start the job; kept to its first size until it is warm."""
        scaling = self._spec.scaling
        self._house.set_rate(self._script.stages[0].rate * TRICKLE)
        self._publish(scaling=scaling.model_copy(update={"max_parallelism": scaling.min_parallelism}))
        if not self._wait("start", "the services have started the job", START_SECONDS, self._started):
            steps = ", ".join(r.phase.value for r in self._timeline.results) or "none"
            decided = self._timeline.decisions[-1].sentence if self._timeline.decisions else "no decision"
            said = f"decided: {decided}; steps: {steps}"
            raise DemoFailed(f"the job did not start in time ({said}); logs: {self._house.logs}")

    def warm_up(self) -> None:
        """Let the first, slow batches pass under the steady load, so that nothing is judged by them."""
        rate = self._script.stages[0].rate
        self._house.set_rate(rate)
        self._wait(
            "warm-up",
            "the first, slow batches are over",
            WARM_SECONDS,
            lambda: self._keeps_up(rate, KEEPING_UP_SECONDS),
        )
        self._publish(version=self._spec.version + 1)
        self._show.tell(
            f"the job is warm; from now on it may be scaled up to {self._spec.scaling.max_parallelism} slots"
        )

    def play(self) -> None:
        """Run the load through its stages; each ends early when its goal is met."""
        for number, stage in enumerate(self._script.stages, 1):
            self._show.progress.number, self._show.progress.stages = number, len(self._script.stages)
            self._house.set_rate(stage.rate)
            self._show.tell(f"load: {stage.rate:g} records/s until {stage.aim}")
            began, size = time.time(), self._timeline.size()
            done = partial(self._reached, stage, began, size)
            reached = self._wait(stage.name, stage.aim, stage.longest_seconds, done)
            self._outcome.stages.append(Lived(stage.name, stage.rate, began, time.time(), reached))
            if not reached:
                self._show.tell(f"{stage.name}: after {time.time() - began:.0f} s it is not so that {stage.aim}")
        self._show.progress.number = 0

    def wind_down(self) -> None:
        """End the load, let the job take in what is left, and (unless kept) have the services stop it."""
        self._house.set_rate(0)
        if not self._wait("drain", "every record is committed", DRAIN_SECONDS, self._drained):
            self._show.tell("the time to drain is over, and there is still lag")
        if self._plan.keep:
            return
        self._show.tell("the load has ended; asking for the job to be stopped")
        self._publish(running=False, version=self._spec.version + 2)
        if not self._wait("stop", "the services have stopped the job", STOP_SECONDS, self._stopped):
            raise DemoFailed(f"the job was not stopped in time; logs: {self._house.logs}")

    def _publish(self, **changes: object) -> None:
        publisher = Publisher(self._house.settings)
        publisher.publish(self._spec.model_copy(update=changes))
        publisher.close()

    def _wait(self, step: str, aim: str, seconds: float, done: Callable[[], bool]) -> bool:
        """Show the run until `done` or the time is over; return which. Raises `DemoFailed` when a process ends."""
        progress = self._show.progress
        seconds *= self._plan.patience
        progress.stage, progress.aim, progress.longest = step, aim, seconds
        began = time.monotonic()
        while not done():
            progress.elapsed = time.monotonic() - began
            if progress.elapsed > seconds:
                return False
            self._house.check_alive()
            self._refresh(self._timeline)
            interrupts.check()
            time.sleep(TICK_SECONDS)
        return True

    def _started(self) -> bool:
        ends = [r for r in self._timeline.results if r.kind is CommandKind.START and r.phase.terminal]
        if ends and ends[-1].phase is not Phase.VERIFIED:
            raise DemoFailed(f"the job could not be started: {ends[-1].code}: {ends[-1].sentence}")
        return bool(ends)

    def _keeps_up(self, rate: float, seconds: int) -> bool:
        """Whether for so many samples there was no more lag than a few batches of `rate` bring."""
        newest = self._timeline.samples[-seconds:]
        return len(newest) == seconds and all(s.committed and s.lag <= BATCHES_SECONDS * rate for s in newest)

    def _reached(self, stage: Stage, began: float, size: int) -> bool:
        now = time.time()
        since = self._timeline.under_objective_since(self._script.objective_seconds)
        # the time under the objective counts from the last change of size: what went before was another job
        ended = max((r.at.timestamp() for r in self._timeline.results if r.phase.terminal), default=began)
        seen = Seen(
            size,
            [d for d in self._timeline.decisions if d.decided_at.timestamp() >= began],
            [r for r in self._timeline.results if r.at.timestamp() >= began],
            0.0 if since is None else now - max(since, began, ended),
        )
        return now - began >= stage.shortest_seconds and stage.reached(seen)

    def _drained(self) -> bool:
        """Whether nothing arrives any more and all is committed."""
        newest = self._timeline.samples[-3:]
        return len(newest) == 3 and len({s.arrived for s in newest}) == 1 and newest[-1].lag == 0

    def _stopped(self) -> bool:
        return any(r.kind is CommandKind.STOP and r.phase.terminal for r in self._timeline.results)


def _prove(plan: Plan, outcome: Outcome, show: Show) -> None:
    """Account for every record, recompute every decision, judge, and write the report."""
    house = outcome.house
    if not plan.keep:
        house.end()
    show.tell("accounting for every record")
    ledger = _try(show, lambda: account(house.settings, house.source, house.sink))
    outcome.recording = _try(show, lambda: record_run(house))
    show.tell("recomputing every decision on Spark")
    recomputed = _try(show, lambda: recompute_run(house))
    if plan.keep:
        house.set_rate(plan.script.stages[-1].rate)
    objective = plan.script.objective_seconds
    outcome.checks = judge(outcome.timeline, outcome.stages, ledger, recomputed, objective)
    outcome.png, outcome.page = write_report(house.folder, outcome.timeline, outcome.stages, outcome.checks, objective)


def _try(show: Show, look: Callable[[], T]) -> T | None:
    """Return what a look at the run gives; what cannot be looked at is told and fails its check."""
    try:
        return look()
    except Exception as error:  # noqa: BLE001  (whatever it was, the other checks are still made)
        interrupts.check()
        show.tell(f"could not be done: {type(error).__name__}: {error}")
        return None


def _submission(timeline: Timeline) -> str | None:
    """Return the driver's id of the newest run."""
    return next((r.submission_id for r in reversed(timeline.results) if r.submission_id), None)
