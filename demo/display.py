"""The live view: a panel on a terminal, otherwise a line every few seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from demo.watch import Timeline
from tidegate.events.decision import Decision
from tidegate.terminal import STYLES
from tidegate.words import size

PLAIN_SECONDS = 5.0
BARS = " ▁▂▃▄▅▆▇█"
HISTORY = 60
BESIDE_BARS = 46
"""Columns of the panel that are not bars: its frame, a name, and a figure such as "restarting with 12 slots"."""


@dataclass
class DemoProgress:
    """How far the run is."""

    phase: str = "starting"
    goal: str = ""
    elapsed: float = 0.0
    longest: float = 0.0
    number: int = 0
    phases: int = 0

    def __str__(self) -> str:
        return f"{self.number}/{self.phases} {self.phase}" if self.number else self.phase


class LiveDisplay:
    """Shows the timeline and progress of a run; `tell` adds a line that stays."""

    def __init__(self, console: Console, objective_seconds: float) -> None:
        self._console = console
        self._objective = objective_seconds
        self._began = time.monotonic()
        self._next_line = 0.0
        self._told = ""
        self._results_told = 0
        self.progress = DemoProgress()

    def tell(self, text: str) -> None:
        """Print a line that stays."""
        self._console.print(f"{time.monotonic() - self._began:6.0f} s  {text}")

    @contextmanager
    def live(self) -> Iterator[Callable[[Timeline], None]]:
        """Yield a function that shows the current timeline."""
        if not self._console.is_terminal:
            yield self._line
            return
        with Live(console=self._console, refresh_per_second=4, transient=True) as live:
            yield lambda timeline: live.update(self._panel(timeline))

    def _line(self, timeline: Timeline) -> None:
        decision = timeline.decisions[-1] if timeline.decisions else None
        if decision is not None and _gist(decision) != self._told:
            self._told = _gist(decision)
            self.tell(f"{decision.status.value}: {decision.sentence}")
        for result in timeline.results[self._results_told :]:
            self._results_told += 1
            if result.phase.terminal:
                self.tell(f"{result.kind.value} {result.phase.value}: {result.sentence or size(result.parallelism)}")
        if time.monotonic() < self._next_line:
            return
        self._next_line = time.monotonic() + PLAIN_SECONDS
        rate_in, rate_out, lag, seconds, slots = _now(timeline)
        p = self.progress
        where = f"[{p}, {p.elapsed:.0f} s]"
        self.tell(f"{where} in {rate_in}/s, out {rate_out}/s, lag {lag} records ({seconds}), {slots}")

    def _panel(self, timeline: Timeline) -> RenderableType:
        rate_in, rate_out, lag, seconds, slots = _now(timeline)
        figures = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        for _ in range(3):
            figures.add_column(no_wrap=True)  # a bar of zero is a space, at which a row would break
        bars = max(0, min(HISTORY, self._console.width - BESIDE_BARS))
        recent = range(max(0, len(timeline.samples) - bars), len(timeline.samples))
        both = [timeline.rates(i) for i in recent]
        top = max((max(pair) for pair in both), default=0.0)
        figures.add_row("records/s in", rate_in, Text(spark([a for a, _ in both], top), style="blue"))
        figures.add_row("records/s out", rate_out, Text(spark([b for _, b in both], top), style="green"))
        lags = [float(timeline.samples[i].lag) for i in recent]
        under = timeline.under_objective_since(self._objective) is not None
        style = "green" if under else "red"
        figures.add_row(
            "lag", Text(f"{lag} records", style=style), Text(spark(lags, max(lags, default=0)), style=style)
        )
        figures.add_row("", Text(seconds, style=style), f"objective {self._objective:g} s")
        sizes = [float(timeline.samples[i].slots) for i in recent]
        figures.add_row("size", slots, spark(sizes, max(sizes, default=0)))
        parts: list[RenderableType] = [figures, Text()]
        if timeline.decisions:
            decision = timeline.decisions[-1]
            parts.append(Text(decision.status.value, style=STYLES.get(decision.status.value, "")))
            parts.append(Text(decision.sentence))
        if timeline.results:
            result = timeline.results[-1]
            parts.append(Text(f"last result: {result.kind.value} {result.phase.value} {result.sentence}", style="dim"))
        p = self.progress
        done = min(1.0, p.elapsed / p.longest) if p.longest else 0.0
        bar = "━" * round(30 * done) + "╌" * (30 - round(30 * done))
        parts += [Text(), Text(f"{p}  {bar}  {p.elapsed:.0f} s  waiting until {p.goal}")]
        return Panel(Group(*parts), title="Tidegate demo", border_style="dim")


def spark(values: list[float], top: float) -> str:
    """Return values as a row of bars; `top` is a full bar."""
    if top <= 0:
        return BARS[0] * len(values)
    return "".join(BARS[min(len(BARS) - 1, max(0, round(v / top * (len(BARS) - 1))))] for v in values)


def _now(timeline: Timeline) -> tuple[str, str, str, str, str]:
    """Return (rate in, rate out, lag in records, delay, slots) as text."""
    if not timeline.samples:
        return ("?",) * 5
    last = timeline.samples[-1]
    rate_in, rate_out = timeline.rates()
    seconds = f"the oldest waits {last.delay_seconds:.1f} s"
    if last.slots:
        slots = size(last.slots)
    elif target := _target(timeline):
        slots = f"{'restarting' if timeline.size() else 'starting'} with {size(target)}"
    else:
        slots = "not running"
    return f"{rate_in:,.0f}", f"{rate_out:,.0f}", f"{last.lag:,}", seconds, slots


def _target(timeline: Timeline) -> int:
    return next((d.command.to_parallelism for d in reversed(timeline.decisions) if d.command is not None), 0)


def _gist(decision: Decision) -> str:
    sizes = (decision.current_parallelism, decision.final_parallelism)
    return f"{decision.status} {sizes} {[step.code for step in decision.trail]}"
