"""The picture of a run: rates, lag, delay and slots over time, with each change of size shaded by its way."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from demo.verdict import PhaseResult
from demo.watch import Timeline
from tidegate.events.way import Way

IN, OUT, LAG, SLOTS, LIMIT = "#1f77b4", "#2ca02c", "#d62728", "#444444", "#888888"
WAY_COLORS = {Way.IN_PLACE: "#9ad0a4", Way.HANDOVER: "#a9c7ec", Way.RESTART: "#f2c14e"}
# Text stays text in the SVG, and the same data gives the same ids.
STYLE = {"svg.fonttype": "none", "svg.hashsalt": "tidegate", "font.size": 9, "axes.grid": True, "grid.alpha": 0.25}


def draw(timeline: Timeline, phases: Sequence[PhaseResult], objective_seconds: float, title: str) -> Figure:
    """Return the figure: rates, lag, delay and slots, over seconds since the load started."""
    with rc_context(STYLE):
        figure = Figure(figsize=(11, 9), layout="constrained")
        rates, records, seconds, slots = figure.subplots(4, 1, sharex=True, height_ratios=[3, 2, 2, 2])
        figure.suptitle(title, fontsize=11)
        zero = phases[0].began if phases else (timeline.samples[0].at if timeline.samples else 0.0)
        at = [s.at - zero for s in timeline.samples]
        both = [timeline.rates(i) for i in range(len(at))]
        rates.plot(at, [rate for rate, _ in both], color=IN, label="arriving")
        rates.plot(at, [rate for _, rate in both], color=OUT, label="written")
        rates.set_ylabel("records/s")
        records.plot(at, [s.lag for s in timeline.samples], color=LAG, label="lag")
        records.set_ylabel("lag (records)")
        seconds.plot(at, [s.delay_seconds for s in timeline.samples], color=LAG, label="delay")
        seconds.axhline(objective_seconds, color=LIMIT, linestyle="--", label=f"objective {objective_seconds:g} s")
        seconds.set_ylabel("delay (s)")
        slots.step(at, [s.slots for s in timeline.samples], where="post", color=SLOTS, label="running")
        _ordered(slots, timeline, zero)
        slots.set_ylabel("slots")
        slots.set_xlabel("seconds since the load started")
        for axes in (rates, slots):
            axes.margins(y=0.2)  # room for the labels above the curve and the points
        for axes in (rates, records, seconds, slots):
            _mark(axes, timeline, phases, zero)
            axes.set_ylim(bottom=0)
            axes.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=8)  # next to the axes: it hides no label
        for phase in phases:
            rates.annotate(
                f"{phase.name}\n{phase.rate:,.0f}/s",
                (phase.began - zero, 1),
                xycoords=("data", "axes fraction"),
                xytext=(3, -3),
                textcoords="offset points",
                va="top",
                fontsize=8,
            )
        return figure


def _ordered(axes: Any, timeline: Timeline, zero: float) -> None:
    """Mark each command with its sizes."""
    label: str | None = "ordered"
    for decision in timeline.decisions:
        command = decision.command
        if command is None:
            continue
        x, y = command.issued_at.timestamp() - zero, command.to_parallelism
        marker = "v" if y < command.from_parallelism else "^"
        axes.plot([x], [y], marker=marker, color=IN, linestyle="none", label=label)
        label = None  # once in the legend
        axes.annotate(f" {command.from_parallelism} -> {y}", (x, y), fontsize=8, va="bottom")


def _mark(axes: Any, timeline: Timeline, phases: Sequence[PhaseResult], zero: float) -> None:
    end = timeline.samples[-1].at if timeline.samples else zero
    labels = {way: way.replace("_", " ") for way in Way}
    for span in timeline.changes_under_way():
        label = labels.pop(span.way, None)  # each way once in the legend
        color = WAY_COLORS[span.way]
        axes.axvspan(span.begin - zero, (span.end or end) - zero, color=color, alpha=0.45, lw=0, label=label)
    for phase in phases[1:]:
        axes.axvline(phase.began - zero, color=LIMIT, linewidth=0.8, linestyle=":")


def save_png(figure: Figure, path: Path) -> None:
    """Write the figure as PNG."""
    with rc_context(STYLE):
        figure.savefig(path, format="png", dpi=110)


def svg_of(figure: Figure) -> str:
    """Return the figure as an `<svg>` element for an HTML page."""
    text = io.StringIO()
    with rc_context(STYLE):
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    whole = text.getvalue()
    return whole[whole.index("<svg") :]
