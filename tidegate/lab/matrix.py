"""The suite's pictures: scores as a coloured table, and the curves of the oracle, `tide` and its best rival."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator

from tidegate.lab.picture import CHANGE, DEMAND, HELD, LATE, save, slots
from tidegate.lab.score import changes_in_words
from tidegate.lab.suite import ORACLE, CellResult
from tidegate.lab.table import against_oracle, means, ordered

HOME = "tide"
"""The policy, with default options, whose curves are drawn next to the oracle's."""

CELL = (0.9, 0.38)
"""Width and height of a cell in inches; all positions in the scores' picture are in cells."""
LEFT, HEAD, FOOT, NARROWEST = 1.9, 4.35, 0.3, 8.6
GAP = 0.2
"""The gap between the oracle's row and the policies, and between the workloads and the mean."""

NAME_LENGTH = 13
"""Letters per line of a workload's name, which has two lines."""

DEAREST = 6.0
"""The cost over the oracle's at which a cell has the darkest colour."""
_SHADES = LinearSegmentedColormap.from_list("cost", ["#f8fafc", "#cfe1f0", "#7fb1dc"])
_INK, _FAINT, _LINE = "#1b1f24", "#6b7280", "#4b5563"
_LATE_WORDS = "#8f2d00"

CURVES_WIDTH, CURVES_HEIGHT = 12.0, 1.35


def draw_scores(rows: Sequence[CellResult], path: Path, *, objective_seconds: float) -> None:
    """Write policies x workloads as PNG: each cell shows the cost over the oracle's and the seconds over the objective.

    The oracle comes first, then the policies, cheapest on average first. Each column starts with its load's shape.
    """
    groups, ratios, average = ordered(rows), against_oracle(rows), means(rows)
    labels = [ORACLE, *sorted(average, key=lambda label: (average[label], label))]
    late = {(row.cell.workload, row.cell.label): row.score.violated_seconds for row in rows}
    panel = _canvas(len(groups) + (1 if len(groups) > 1 else 0), len(labels))
    for column, (workload, group) in enumerate(groups.items()):
        _head(panel, column, workload, group[0])
    if len(groups) > 1:
        _words(panel, len(groups) + GAP + 0.5, -0.45, "mean", weight="bold", size=8, va="center_baseline")
    for place, label in enumerate(labels):
        top = place + (GAP if place else 0.0)
        weight, color = "bold" if label == HOME else "normal", _FAINT if label.endswith(")") else _INK
        _words(panel, -0.15, top + 0.5, label, ha="right", weight=weight, color=color)
        for column, workload in enumerate(groups):
            best = place and ratios[workload, label] == min(ratios[workload, other] for other in labels[1:])
            _cell(panel, column, top, ratios[workload, label], late[workload, label], best=bool(best))
        if len(groups) > 1:
            mean_late = sum(late[workload, label] for workload in groups) / len(groups)
            _cell(panel, len(groups) + GAP, top, average.get(label, 1.0), mean_late)
    edge, hours = 0.15 - LEFT, sorted({round(row.score.seconds / 3600, 2) for row in rows})
    _words(panel, edge, -HEAD + 0.55, "What each policy costs and how late it is", ha="left", size=13, weight="bold")
    spoken = " to ".join(f"{length:g}" for length in sorted({hours[0], hours[-1]}))
    large = (
        "large: cost over that of an oracle that knows the load; slots, lateness and each way to change size are priced"
    )
    small = f"small: seconds with a record older than {objective_seconds:g} s · framed: the cheapest policy"
    for line, told in enumerate((large, f"{small} · grey: tuned, on other loads · {spoken} h each")):
        _words(panel, edge, -HEAD + 1.2 + 0.45 * line, told, ha="left", size=8, color=_FAINT)
    save(panel.figure, path)


def draw_curves(rows: Sequence[CellResult], path: Path, *, objective_seconds: float) -> None:
    """Write demand and slots over time as PNG, one line per workload: oracle, `tide` and the cheapest other policy."""
    groups, ratios = ordered(rows), against_oracle(rows)
    height = CURVES_HEIGHT * len(groups) + 0.75
    figure = Figure(figsize=(CURVES_WIDTH, height), layout="constrained")
    axes: Any = figure.subplots(len(groups), 3, squeeze=False, sharex="row", sharey="row")
    for line, (workload, group) in enumerate(groups.items()):
        for panel, row in zip(axes[line], chosen(group), strict=False):
            slots(panel, row.curve, row.changes_at, objective_seconds)
            cost = f"{ratios[workload, row.cell.label]:.2f} × oracle"
            figures = f"{row.score.violated_seconds:.0f} s late, {changes_in_words(row.score)}"
            told = figures if row.cell.policy == ORACLE else f"{cost}, {figures}"
            panel.set_title(row.cell.label, fontsize=9, weight="bold", loc="left", pad=3, color=_INK)
            panel.set_title(told, fontsize=8, loc="right", pad=3, color=_INK)
            panel.tick_params(labelsize=7.5, color=_LINE, labelcolor=_LINE)
            panel.spines[["top", "right"]].set_visible(False)
        for panel in axes[line][len(chosen(group)) :]:
            panel.set_axis_off()
        axes[line][0].set_xlim(0, max(row.curve.at[-1] for row in group) / 60)
        axes[line][0].set_ylim(0, 1 + max(max(*row.curve.demand, *row.curve.held) for row in chosen(group)))
        axes[line][0].yaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes[line][0].set_ylabel(
            "\n".join(textwrap.wrap(workload.replace("_", " "), NAME_LENGTH)), fontsize=9, weight="bold", color=_INK
        )
    for panel in axes[-1]:
        panel.set_xlabel("minutes", fontsize=8, color=_LINE)
    keys = [
        Patch(color=DEMAND, label="slots needed"),
        Line2D([], [], color=HELD, linewidth=1.6, label="slots held"),
        Line2D([], [], color=CHANGE, linewidth=1.0, linestyle=":", label="change of size"),
        Patch(color=LATE, alpha=0.4, linewidth=0, label=f"lag over {objective_seconds:g} s"),
    ]
    figure.legend(handles=keys, loc="outside upper center", ncols=4, fontsize=9, frameon=False)
    save(figure, path)


def chosen(group: Sequence[CellResult]) -> list[CellResult]:
    """Return the rows to draw: the oracle, `tide` with its defaults, and the cheapest others."""
    ranked = sorted(group, key=lambda row: (row.cell.policy != ORACLE, row.score.cost, row.cell.label))
    home = [row for row in ranked if row.cell.label == HOME]
    others = [row for row in ranked if row.cell.policy not in {ORACLE, HOME}]
    rest = [row for row in ranked if row.cell.policy == HOME and row.cell.label != HOME]
    return [*[row for row in ranked if row.cell.policy == ORACLE], *home, *others, *rest][:3]


def _canvas(columns: int, lines: int) -> Any:
    """Return axes over the whole figure in units of cells, downwards from the first cell's upper left corner."""
    width, height = max(NARROWEST, LEFT + columns + GAP + 0.15), HEAD + lines + GAP + FOOT
    figure = Figure(figsize=(width * CELL[0], height * CELL[1]))
    panel: Any = figure.add_axes((0, 0, 1, 1))
    panel.set_xlim(-LEFT, width - LEFT)
    panel.set_ylim(height - HEAD, -HEAD)
    panel.set_axis_off()
    return panel


def _head(panel: Any, column: int, workload: str, row: CellResult) -> None:
    """Draw a workload's name below the shape of its load."""
    line, top = row.curve, max(row.curve.rate) or 1.0
    across = [column + 0.08 + 0.84 * at / line.at[-1] for at in line.at]
    base, high = -1.0, 1.1
    panel.fill_between(across, base, [base - high * rate / top for rate in line.rate], color=DEMAND, linewidth=0)
    panel.plot(across, [base - high * rate / top for rate in line.rate], color=_FAINT, linewidth=0.7)
    lines = textwrap.wrap(workload.replace("_", " "), NAME_LENGTH, max_lines=2, placeholder="…")
    _words(panel, column + 0.5, -0.45, "\n".join(lines), weight="bold", size=8, va="center_baseline", linespacing=1.1)


def _cell(panel: Any, column: float, top: float, ratio: float, late: float, *, best: bool = False) -> None:
    """Draw one cell; darker is more expensive."""
    depth = min(1.0, max(0.0, math.log(max(ratio, 1e-9)) / math.log(DEAREST)))
    panel.add_patch(Rectangle((column + 0.02, top + 0.04), 0.96, 0.92, color=_SHADES(depth), linewidth=0))
    if best:
        panel.add_patch(Rectangle((column + 0.03, top + 0.06), 0.94, 0.88, fill=False, edgecolor=_INK, linewidth=1.5))
    _words(panel, column + 0.08, top + 0.5, _short(ratio), ha="left", size=9.5)
    color, weight = (_LATE_WORDS, "bold") if late >= 1 else (_FAINT, "normal")
    told = f"{late:.0f}\N{THIN SPACE}s"
    _words(panel, column + 0.93, top + 0.52, told, ha="right", size=7, color=color, weight=weight)


def _words(panel: Any, x: float, y: float, text: str, **style: Any) -> None:
    style = {"ha": "center", "va": "center", "color": _INK, "fontsize": style.pop("size", 9), **style}
    panel.text(x, y, text, **style)


def _short(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 9.995 else f"{ratio:.1f}"
