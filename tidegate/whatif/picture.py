"""The picture of a trial: what ran and what would have run, over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from matplotlib.dates import ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tidegate.lab.picture import CHANGE, LATE, png
from tidegate.whatif.course import Point
from tidegate.whatif.trial import Trial

HEADROOM = 0.3
"""Room above the highest line, for the legend; a share of the height that the lines take."""
WAS, TRIED = "#333333", "#1f5fa8"
Value = Callable[[Point], float | None]


def draw(trial: Trial) -> bytes:
    """Return size, delay and lag of both as PNG; a band shows what the twin's runs differ by."""
    return png(figure_of(trial))


def figure_of(trial: Trial) -> Figure:
    """Return that picture before it is printed."""
    was, tried = trial.recorded, trial.courses
    objective = trial.specs[-1][0].scaling.lag_objective_seconds
    figure = Figure(figsize=(10, 8), layout="constrained")
    panels: Any = figure.subplots(3, 1, sharex=True)
    values: Sequence[tuple[str, Value]] = (
        ("size, slots", lambda p: p.slots),
        ("delay, s", lambda p: p.delay_seconds),
        ("lag, records", lambda p: p.lag_records),
    )
    for panel, (name, value) in zip(panels, values, strict=True):
        stepped = name.startswith("size")
        _line(panel, was, value, "recorded", WAS, stepped=stepped, width=1.8)
        _line(panel, tried[0], value, "what if", TRIED, stepped=stepped, width=1.3)
        _band(panel, tried, value, stepped=stepped)
        if trial.leaves_at is not None:
            at = _when(trial.recorded[trial.leaves_at].at)
            panel.axvline(at, color=CHANGE, linewidth=0.9, linestyle=":")
            if stepped:
                place = {"xy": (at, 1), "xycoords": ("data", "axes fraction"), "va": "top", "fontsize": 8}
                panel.annotate(" first different change", **place)
        panel.set_ylabel(name)
        panel.margins(y=HEADROOM)
        panel.autoscale_view(scalex=False)
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.25)
    panels[0].yaxis.set_major_locator(MaxNLocator(integer=True))
    panels[1].axhline(objective, color=LATE, linewidth=0.9, linestyle="--", label=f"objective {objective:g} s")
    for panel in panels[:2]:
        panel.legend(loc="upper right", fontsize=8)
    locator = panels[2].xaxis.get_major_locator()
    panels[2].xaxis.set_major_formatter(ConciseDateFormatter(locator))
    panels[2].set_xlabel("time, UTC")
    figure.suptitle(f"{trial.job_id}: what ran, and what would have run", fontsize=11)
    return figure


def _line(
    panel: Any, points: Sequence[Point], value: Value, label: str, color: str, *, stepped: bool, width: float
) -> None:
    known = [(_when(p.at), found) for p in points if (found := value(p)) is not None]
    at, values = [when for when, _ in known], [found for _, found in known]
    style = {"where": "post"} if stepped else {}
    (panel.step if stepped else panel.plot)(at, values, color=color, linewidth=width, label=label, **style)


def _band(panel: Any, runs: Sequence[Sequence[Point]], value: Value, *, stepped: bool) -> None:
    if len(runs) < 2:
        return
    at, least, most = [], [], []
    for column in zip(*runs, strict=True):
        known = [found for point in column if (found := value(point)) is not None]
        if known:
            at.append(_when(column[0].at))
            least.append(min(known))
            most.append(max(known))
    style: dict[str, Any] = {"step": "post"} if stepped else {}
    label = f"its {len(runs)} runs"
    panel.fill_between(at, least, most, color=TRIED, alpha=0.25, linewidth=0, label=label, **style)


def _when(sequence: int) -> datetime:
    return datetime.fromtimestamp(sequence, UTC)
