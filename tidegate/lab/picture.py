"""Pictures of one run, and of a recorded run next to the twin's; what all pictures of the lab share."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tidegate.events.command import ScalingCommand
from tidegate.events.snapshot import MetricSnapshot
from tidegate.lab.score import Curve
from tidegate.twin.recorded import lag_of

# Distinguishable with colour blindness: greys, blue, vermilion (Okabe and Ito).
DEMAND, HELD, LATE, CHANGE = "#d3d7dd", "#1f5fa8", "#e8702a", "#6b7280"
_LAG, _REAL, _TWIN = "#8a6508", "#333333", "#e07b00"

DPI = 200


def draw_run(line: Curve, path: Path, *, changes_at: Sequence[float], objective_seconds: float, title: str) -> None:
    """Write one run as PNG: rate, slots and age over time, with changes of size marked."""
    figure = Figure(figsize=(10, 7), layout="constrained")
    panels: Any = figure.subplots(3, 1, sharex=True)
    minutes = [at / 60 for at in line.at]
    panels[0].plot(minutes, line.rate, color="#333333", linewidth=1.2)
    panels[0].set_ylabel("arrivals, records/s")
    panels[0].set_ylim(bottom=0)
    slots(panels[1], line, changes_at, objective_seconds)
    panels[1].set_ylabel("slots (grey: demand)")
    panels[2].plot(minutes, line.age_seconds, color=_LAG, linewidth=1.2)
    panels[2].axhline(objective_seconds, color=LATE, linewidth=0.8, linestyle="--")
    panels[2].set_ylabel("age of the oldest record, s")
    panels[2].set_ylim(bottom=0)
    panels[2].set_xlabel("minutes")
    for at in changes_at:
        for panel in (panels[0], panels[2]):
            panel.axvline(at / 60, color=CHANGE, linewidth=0.7, linestyle=":")
    figure.suptitle(title, fontsize=10)
    save(figure, path)


def draw_beside(
    recorded: Sequence[MetricSnapshot],
    twin: Sequence[MetricSnapshot],
    commands: Sequence[ScalingCommand],
    path: Path,
    *,
    title: str,
) -> None:
    """Write a recorded run and the twin's as PNG: lag, batch durations and slots, with commands marked."""
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
            panel.axvline(at, color=CHANGE, linewidth=0.7, linestyle=":")
        order = f" {command.kind.value}\n {command.from_parallelism} → {command.to_parallelism}"
        slots.annotate(order, (at, 1), xycoords=("data", "axes fraction"), va="top", fontsize=7)
    lag.set_ylabel("lag, records")
    duration.set_ylabel("batch duration, s\n(each from its start to its end)")
    slots.set_ylabel("slots")
    slots.set_xlabel("seconds")
    slots.margins(y=0.45)  # space for the commands
    for panel in (lag, duration, slots):
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.25)
    lag.legend(loc="upper left", fontsize=8)
    figure.suptitle(title, fontsize=10)
    save(figure, path)


def slots(panel: Any, line: Curve, changes_at: Sequence[float], objective_seconds: float) -> None:
    """Draw demand, size and its changes, with a red background where the oldest record is over the objective."""
    minutes = [at / 60 for at in line.at]
    panel.fill_between(minutes, line.demand, step="post", color=DEMAND, linewidth=0)
    panel.step(minutes, line.held, where="post", color=HELD, linewidth=1.1)
    late = [age > objective_seconds for age in line.age_seconds]
    top = max(*line.demand, *line.held) + 1
    ground = {"transform": panel.get_xaxis_transform(), "color": LATE, "alpha": 0.4, "linewidth": 0}
    panel.fill_between(minutes, 0, 1, where=late, step="mid", **ground)
    for at in changes_at:
        panel.axvline(at / 60, color=CHANGE, linewidth=0.7, linestyle=":")
    panel.set_ylim(0, top)


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, creating missing directories."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(png(figure))


def png(figure: Figure, dpi: int = DPI) -> bytes:
    """Return a figure as PNG."""
    out = BytesIO()
    figure.set_dpi(dpi)
    FigureCanvasAgg(figure).print_png(out)
    return out.getvalue()
