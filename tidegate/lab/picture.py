"""The lab's picture: one panel per workload and policy, demand, slots held and the time over the objective."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tidegate.lab.score import Curve
from tidegate.lab.suite import Row
from tidegate.lab.table import ordered

_DEMAND, _HELD, _LATE, _LAG = "#c9ccd1", "#1f5fa8", "#d64545", "#b8860b"


def draw_matrix(rows: Sequence[Row], path: Path, *, objective_seconds: float) -> None:
    """Write the picture of policy x workload as PNG: workloads downwards, policies across."""
    groups = ordered(rows)
    labels = list(dict.fromkeys(row.cell.label for group in groups.values() for row in sorted(group, key=_place)))
    figure = Figure(figsize=(2.9 * len(labels), 1.75 * len(groups) + 0.6), layout="constrained")
    axes: Any = figure.subplots(len(groups), len(labels), squeeze=False, sharey="row")
    for line, (workload, group) in enumerate(groups.items()):
        found = {row.cell.label: row for row in group}
        for column, label in enumerate(labels):
            panel = axes[line][column]
            if label not in found:
                panel.set_axis_off()
                continue
            row = found[label]
            _slots(panel, row.curve, row.restarts_at, objective_seconds)
            late = f"{row.score.violated_seconds:.0f} s late, {row.score.restarts} restarts"
            panel.set_title(f"{label}\n{late}" if line == 0 else late, fontsize=7)
            panel.tick_params(labelsize=6)
            if column == 0:
                panel.set_ylabel(f"{workload}\nslots", fontsize=8)
            if line == len(groups) - 1:
                panel.set_xlabel("minutes", fontsize=7)
    figure.suptitle("grey: demand · blue: slots held · dotted: restarts · red: over the lag objective", fontsize=8)
    _save(figure, path)


def draw_run(line: Curve, path: Path, *, restarts_at: Sequence[float], objective_seconds: float, title: str) -> None:
    """Write the picture of one run as PNG: rate, slots and lag over time, restarts marked."""
    figure = Figure(figsize=(10, 7), layout="constrained")
    panels: Any = figure.subplots(3, 1, sharex=True)
    minutes = [at / 60 for at in line.at]
    panels[0].plot(minutes, line.rate, color="#333333", linewidth=1.2)
    panels[0].set_ylabel("arrivals, records/s")
    panels[0].set_ylim(bottom=0)
    _slots(panels[1], line, restarts_at, objective_seconds)
    panels[1].set_ylabel("slots (grey: demand)")
    panels[2].plot(minutes, line.lag_seconds, color=_LAG, linewidth=1.2)
    panels[2].axhline(objective_seconds, color=_LATE, linewidth=0.8, linestyle="--")
    panels[2].set_ylabel("lag, s of work")
    panels[2].set_ylim(bottom=0)
    panels[2].set_xlabel("minutes")
    for at in restarts_at:
        for panel in (panels[0], panels[2]):
            panel.axvline(at / 60, color="#777777", linewidth=0.7, linestyle=":")
    figure.suptitle(title, fontsize=10)
    _save(figure, path)


def _slots(panel: Any, line: Curve, restarts_at: Sequence[float], objective_seconds: float) -> None:
    """Draw demand, slots held, restarts, and a red ground where the lag is over the objective."""
    minutes = [at / 60 for at in line.at]
    panel.fill_between(minutes, line.demand, step="post", color=_DEMAND, linewidth=0)
    panel.step(minutes, line.held, where="post", color=_HELD, linewidth=1.1)
    late = [lag > objective_seconds for lag in line.lag_seconds]
    top = max(*line.demand, *line.held) + 1
    ground = {"transform": panel.get_xaxis_transform(), "color": _LATE, "alpha": 0.25, "linewidth": 0}
    panel.fill_between(minutes, 0, 1, where=late, step="mid", **ground)
    for at in restarts_at:
        panel.axvline(at / 60, color="#777777", linewidth=0.7, linestyle=":")
    panel.set_ylim(0, top)


def _place(row: Row) -> tuple[bool, str]:
    return row.cell.policy != "oracle", row.cell.label


def _save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure).print_png(str(path))
