"""The lab's pictures: policy x workload, one run, and a recorded run beside the twin's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from schemas.command import ScalingCommand
from schemas.snapshot import MetricSnapshot
from tidegate.lab.score import Curve
from tidegate.lab.suite import Row
from tidegate.lab.table import ordered
from twin.recorded import lag_of

_DEMAND, _HELD, _LATE, _LAG = "#c9ccd1", "#1f5fa8", "#d64545", "#b8860b"
_REAL, _TWIN = "#333333", "#e07b00"


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


def draw_beside(
    recorded: Sequence[MetricSnapshot],
    twin: Sequence[MetricSnapshot],
    commands: Sequence[ScalingCommand],
    path: Path,
    *,
    title: str,
) -> None:
    """Write the picture of a recorded run and the twin's as PNG: lag, batch durations and slots, commands marked."""
    figure = Figure(figsize=(10, 8), layout="constrained")
    lag, duration, slots = figure.subplots(3, 1, sharex=True, height_ratios=(3, 3, 2))
    zero = recorded[0].sequence
    looks = ((recorded, "recorded", _REAL, 3.5, 0.45), (twin, "twin", _TWIN, 1.4, 1.0))
    for snapshots, label, color, width, alpha in looks:
        style = {"color": color, "linewidth": width, "alpha": alpha, "label": label}
        known = [(s.sequence - zero, found) for s in snapshots if (found := lag_of(s)) is not None]
        lag.plot([at for at, _ in known], [found for _, found in known], **style)
        batches = [(b.started_at.timestamp() - zero, b.duration_seconds) for s in snapshots for b in s.batches]
        starts, seconds = [at for at, _ in batches], [took for _, took in batches]
        duration.hlines(seconds, starts, [at + took for at, took in batches], **style)
        duration.plot(starts, seconds, "o", color=color, markersize=2.5 + width / 2, alpha=alpha)
        held = [(s.sequence - zero, s.slots_granted) for s in snapshots if s.slots_granted is not None]
        slots.step([at for at, _ in held], [size for _, size in held], where="post", **style)
    for command in commands:
        at = command.issued_at.timestamp() - zero
        for panel in (lag, duration, slots):
            panel.axvline(at, color="#777777", linewidth=0.7, linestyle=":")
        order = f" {command.kind.value}\n {command.from_parallelism} → {command.to_parallelism}"
        slots.annotate(order, (at, 1), xycoords=("data", "axes fraction"), va="top", fontsize=7)
    lag.set_ylabel("lag, records")
    duration.set_ylabel("batch duration, s\n(each from its start to its end)")
    slots.set_ylabel("slots")
    slots.set_xlabel("seconds")
    slots.margins(y=0.45)  # room for the commands
    for panel in (lag, duration, slots):
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.25)
    lag.legend(loc="upper left", fontsize=8)
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
