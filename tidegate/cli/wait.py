"""Following a manual request from the spec to the verified size, for `tidegate scale --wait`."""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from rich.live import Live
from rich.text import Text

from tidegate import interrupts
from tidegate.cli.problems import NO
from tidegate.client import ClientSettings, received, skip
from tidegate.events.decision import CHANGING, Decision
from tidegate.events.job import JobSpec, ManualScale
from tidegate.events.result import ActionResult, Phase
from tidegate.fleet.changes import result_in_words
from tidegate.terminal import stdout, styled
from tidegate.words import clock, size


@dataclass
class RequestTracker:
    """What is known of a manual request, from events in any order. Pure."""

    version: int
    """Version of the spec that carries it."""
    asked: ManualScale
    lines: list[tuple[datetime, str, str]] = field(default_factory=list)
    """What to show: (when, status or phase, text)."""
    ended: bool = False
    succeeded: bool = False
    _command: str | None = None
    _told: str = ""
    _early: list[ActionResult] = field(default_factory=list)

    def decision(self, decision: Decision) -> None:
        """Take in a decision on the job."""
        if self.ended or self._command or decision.spec_version < self.version:
            return
        if decision.sentence != self._told:
            self._told = decision.sentence
            self.lines.append((decision.decided_at, decision.status.value, decision.sentence))
        served = next((entry.numbers for entry in decision.trail if entry.code == "MANUAL"), None)
        asked = {"size": self.asked.parallelism, "reason": self.asked.reason}
        has_it = decision.size_is_known and decision.current_parallelism == self.asked.parallelism
        if served is not None and served != asked:
            self.lines.append((decision.decided_at, decision.status.value, "Another request has replaced this one."))
            self.ended = True
        elif decision.command is not None and served is not None:
            self._command = decision.command.command_id
            for result in self._early:
                self.result(result)
        elif decision.command is None and has_it:
            # The job has that size already; but another change that is under way comes first.
            self.ended = self.succeeded = decision.status not in CHANGING

    def result(self, result: ActionResult) -> None:
        """Take in a result; those of other commands do not count."""
        if self._command is None:
            self._early.append(result)  # results may be read before the decision
        if self.ended or result.command_id != self._command:
            return
        self.lines.append((result.at, result.phase.value, result_in_words(result, size(result.parallelism))))
        if result.phase.terminal:
            self.ended, self.succeeded = True, result.phase is Phase.VERIFIED


def follow_manual(settings: ClientSettings, spec: JobSpec, began: datetime, timeout_seconds: float) -> int:
    """Show the progress of a manual request until it ends; return the exit code."""
    assert spec.manual is not None  # noqa: S101  (the caller has just written it)
    request = RequestTracker(spec.version, spec.manual)
    events: queue.Queue[Decision | ActionResult | Exception] = queue.Queue()
    stop = threading.Event()
    deadline = time.monotonic() + timeout_seconds
    threads = [_pump(settings, model, spec.job_id, began, events, stop) for model in (Decision, ActionResult)]
    console = stdout()
    shown = 0
    try:
        with Live(console=console, refresh_per_second=4, transient=True) as live:
            while not request.ended and time.monotonic() < deadline:
                interrupts.check()
                live.update(Text(f"waiting for the services, {deadline - time.monotonic():.0f} s left"))
                try:
                    event = events.get(timeout=0.25)
                except queue.Empty:
                    continue
                if isinstance(event, Exception):
                    raise event
                if isinstance(event, Decision):
                    request.decision(event)
                else:
                    request.result(event)
                for at, word, sentence in request.lines[shown:]:
                    console.print(clock(at), styled(word), sentence)
                shown = len(request.lines)
    finally:
        stop.set()
        for thread in threads:
            thread.join(5)
    if request.succeeded:
        return 0
    if not request.ended:
        console.print(f"not finished after {timeout_seconds:g} s; `tidegate why {spec.job_id}` shows the state")
    return NO


def _pump(
    settings: ClientSettings,
    model: type[Decision | ActionResult],
    job: str,
    began: datetime,
    events: queue.Queue[Decision | ActionResult | Exception],
    stop: threading.Event,
) -> threading.Thread:
    def run() -> None:
        since = began - timedelta(seconds=5)
        try:
            for one in received(model, settings, job=job, since=since, follow=True, on_error=skip, stop=stop.is_set):
                events.put(one.event)
        except Exception as error:  # noqa: BLE001  (raised again by the waiting thread)
            events.put(error)

    thread = threading.Thread(target=run, name=f"follow-{model.__name__}", daemon=True)
    thread.start()
    return thread
