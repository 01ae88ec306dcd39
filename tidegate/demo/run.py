"""The demo from beginning to end: house, job, load, verdict, report. Returns whether everything held."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from runtime.kafka import Publisher
from schemas.command import CommandKind
from schemas.job import JobSpec
from schemas.result import Phase
from tidegate.demo.house import DemoFailed, House, open_house, spec_for, start_services
from tidegate.demo.ledger import account
from tidegate.demo.prove import recompute_run, record_run
from tidegate.demo.report import write_report
from tidegate.demo.script import Script, Seen
from tidegate.demo.show import Show
from tidegate.demo.verdict import Check, Lived, judge
from tidegate.demo.watch import Timeline, Watcher
from tidegate.stack import StackInfo

T = TypeVar("T")
START_SECONDS = 180.0
TRICKLE = 0.05
"""Share of the first load that flows while the job starts: enough for the first batch, too little for a backlog."""
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


def run_demo(plan: Plan, show: Show, clock: Callable[[], float] = time.time) -> Outcome:
    """Run the whole demo; raises `DemoFailed` when it cannot go on. Ends what it started, unless `plan.keep`."""
    name = datetime.now(UTC).strftime("run-%Y%m%d-%H%M%S")
    house = open_house(plan.base, plan.attach, name, show.tell, worker_slots=plan.worker_slots, keep=plan.keep)
    watcher: Watcher | None = None
    finished = False
    try:
        spec = spec_for(house, plan.script.objective_seconds, plan.record_ms)
        start_services(house, show.tell)
        watcher = Watcher(house.settings, spec.job_id, house.source, house.sink, house.checkpoint)
        outcome = Outcome(house, watcher.timeline)
        trickle = plan.script.stages[0].rate * TRICKLE
        house.set_rate(trickle)
        _publish(house, spec)
        with show.live() as refresh:
            _await_start(outcome, trickle, show, refresh, clock)
            _play(plan.script, outcome, show, refresh, clock)
            _wind_down(plan, outcome, spec, show, refresh)
        watcher.close()
        _prove(plan, outcome, show)
        finished = True
        return outcome
    finally:
        if watcher is not None:
            watcher.close()
        if not (finished and plan.keep):
            show.tell("ending everything that was started")
            with _uninterrupted():
                house.close(None if finished or watcher is None else _submission(watcher.timeline))


def _publish(house: House, spec: JobSpec) -> None:
    publisher = Publisher(house.settings)
    publisher.publish(spec)
    publisher.close()


def _await_start(
    outcome: Outcome, trickle: float, show: Show, refresh: Callable[[Timeline], None], clock: Callable[[], float]
) -> None:
    """Wait until the services have started the job (the spec alone makes them) and its first, slow batches passed."""
    show.progress.stage, show.progress.aim = "start", "the services have started the job and it is warm"
    show.progress.longest = START_SECONDS
    began = clock()
    while True:
        ends = [r for r in outcome.timeline.results if r.kind is CommandKind.START and r.phase.terminal]
        started = any(r.phase is Phase.VERIFIED for r in ends)
        if started and _keeps_up(outcome.timeline, trickle):
            return
        if ends and not started:
            raise DemoFailed(f"the job could not be started: {ends[-1].code}: {ends[-1].sentence}")
        if clock() - began > START_SECONDS:
            steps = ", ".join(r.phase.value for r in outcome.timeline.results) or "none"
            decided = outcome.timeline.decisions[-1].sentence if outcome.timeline.decisions else "no decision"
            raise DemoFailed(
                f"the job did not start in {START_SECONDS:g} s (decided: {decided}; steps: {steps}); "
                f"logs: {outcome.house.logs}"
            )
        _tick(outcome, show, refresh, clock() - began)


def _keeps_up(timeline: Timeline, rate: float) -> bool:
    """Whether the newest samples all have less lag than a few seconds of `rate`."""
    newest = timeline.samples[-5:]
    return len(newest) == 5 and all(s.committed and s.lag <= 5 * rate for s in newest)


def _play(
    script: Script, outcome: Outcome, show: Show, refresh: Callable[[Timeline], None], clock: Callable[[], float]
) -> None:
    """Run the load through its stages; each ends early when its goal is met."""
    for number, stage in enumerate(script.stages, 1):
        progress = show.progress
        progress.stage, progress.aim, progress.longest = stage.name, stage.aim, stage.longest_seconds
        progress.number, progress.stages = number, len(script.stages)
        outcome.house.set_rate(stage.rate)
        show.tell(f"load: {stage.rate:g} records/s until {stage.aim}")
        began, reached = clock(), False
        size = outcome.timeline.size()
        while (elapsed := clock() - began) < stage.longest_seconds and not reached:
            _tick(outcome, show, refresh, elapsed)
            reached = elapsed >= stage.shortest_seconds and stage.reached(
                _seen(outcome.timeline, began, size, script, clock())
            )
        outcome.stages.append(Lived(stage.name, stage.rate, began, clock(), reached))
        if not reached:
            show.tell(f"{stage.name}: after {stage.longest_seconds:g} s it is not so that {stage.aim}")


def _seen(timeline: Timeline, began: float, size: int, script: Script, now: float) -> Seen:
    since = timeline.under_objective_since(script.objective_seconds)
    return Seen(
        size,
        [d for d in timeline.decisions if d.decided_at.timestamp() >= began],
        [r for r in timeline.results if r.at.timestamp() >= began],
        0.0 if since is None else now - max(since, began),
    )


def _wind_down(plan: Plan, outcome: Outcome, spec: JobSpec, show: Show, refresh: Callable[[Timeline], None]) -> None:
    """End the load, let the job take in what is left, and (unless kept) have the services stop it."""
    timeline, house, progress = outcome.timeline, outcome.house, show.progress
    house.set_rate(0)
    progress.number = 0
    progress.stage, progress.aim, progress.longest = "drain", "every record is committed", DRAIN_SECONDS
    # two equal samples without lag: nothing is on its way to the broker any more
    settled = _wait(outcome, show, refresh, DRAIN_SECONDS, lambda: _drained(timeline))
    if not settled:
        show.tell(f"after {DRAIN_SECONDS:g} s there is still lag")
    if plan.keep:
        return
    show.tell("load ended; asking for the job to be stopped")
    _publish(house, spec.model_copy(update={"running": False, "version": spec.version + 1}))
    progress.stage, progress.aim, progress.longest = "stop", "the services have stopped the job", STOP_SECONDS

    def stopped() -> bool:
        return any(r.kind is CommandKind.STOP and r.phase.terminal for r in timeline.results)

    if not _wait(outcome, show, refresh, STOP_SECONDS, stopped):
        raise DemoFailed(f"the job was not stopped after {STOP_SECONDS:g} s; logs: {house.logs}")


def _drained(timeline: Timeline) -> bool:
    newest = timeline.samples[-3:]
    return len(newest) == 3 and len({s.arrived for s in newest}) == 1 and newest[-1].lag == 0


def _wait(
    outcome: Outcome, show: Show, refresh: Callable[[Timeline], None], seconds: float, done: Callable[[], bool]
) -> bool:
    began = time.monotonic()
    while not done():
        elapsed = time.monotonic() - began
        if elapsed > seconds:
            return False
        _tick(outcome, show, refresh, elapsed)
    return True


def _tick(outcome: Outcome, show: Show, refresh: Callable[[Timeline], None], elapsed: float) -> None:
    outcome.house.check_alive()
    show.progress.elapsed = elapsed
    refresh(outcome.timeline)
    time.sleep(TICK_SECONDS)


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
        show.tell(f"could not be done: {type(error).__name__}: {error}")
        return None


def _submission(timeline: Timeline) -> str | None:
    """Return the driver's id of the newest run."""
    return next((r.submission_id for r in reversed(timeline.results) if r.submission_id), None)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let a second Ctrl-C not cut the clean-up short."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
