"""Pictures of a backtest: what was next to what would have been, and the twin next to the past."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator, StrMethodFormatter

from tidegate.backtest.backtest import JobReport, Side
from tidegate.backtest.delays import mean_delays
from tidegate.backtest.fitting import Stretch
from tidegate.lab.picture import png

# Distinguishable with colour blindness (Okabe and Ito).
COLORS = ("#555555", "#1f5fa8", "#e07b00")
KEPT, OBJECTIVE = "#f1f3f6", "#c2402a"
DPI = 110
MOST_POINTS = 1500


def compared(report: JobReport) -> str:
    """Return arrivals, slots and delay of what was and what would have been as a PNG in base64."""
    load, figure = report.replica.load, Figure(figsize=(11, 7.5), layout="constrained")
    panels: Any = figure.subplots(3, 1, sharex=True, height_ratios=(2, 3, 3))
    unit, name = _unit(load.seconds)
    step = max(load.step_seconds, load.seconds / MOST_POINTS)
    moments = [place * step for place in range(int(load.seconds / step))]
    rates = [(load.arrived(at + step) - load.arrived(at)) / step for at in moments]
    panels[0].plot([at / unit for at in moments], rates, color="#333333", linewidth=1.0)
    panels[0].set_ylabel("arrivals,\nrecords/s")
    window = max(30.0, load.seconds / MOST_POINTS)
    for side, color in zip(report.sides, COLORS, strict=False):
        panels[1].step(*_slots(side, unit), where="post", color=color, linewidth=1.4, label=side.label)
        delays = mean_delays(side.recording.commits, load.seconds, window)
        ends = [(place + 0.5) * window / unit for place in range(len(delays))]
        panels[2].plot(ends, delays, color=color, linewidth=1.2, label=side.label)
    panels[1].set_ylabel("slots")
    panels[1].yaxis.set_major_locator(MaxNLocator(integer=True))
    objective = report.spec.scaling.lag_objective_seconds
    panels[2].axhline(objective, color=OBJECTIVE, linewidth=0.9, linestyle="--", label="lag objective")
    panels[2].set_ylabel(f"delay, s (mean of {window:.0f} s)")
    scale_delays(panels[2], objective)
    panels[2].set_xlabel(name)
    handles, labels = panels[2].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4, frameon=False, fontsize=9)
    for panel in panels:
        panel.axvspan(report.split / unit, load.seconds / unit, color=KEPT, zorder=0)
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.25)
    where = (report.split / unit, 0.03)
    panels[1].annotate(" kept back from the search", where, xycoords=("data", "axes fraction"), fontsize=8)
    return b64encode(png(figure, DPI)).decode()


def scale_delays(panel: Axes, objective: float) -> None:
    """Make the axis of delays even up to twice the objective and logarithmic above, with plain numbers of seconds."""
    threshold = max(10.0, 2 * objective)
    above = [digit * 10**zeros for zeros in range(1, 10) for digit in (1, 2, 5)]
    panel.set_yscale("symlog", linthresh=threshold)
    below = [part * threshold / 4 for part in range(4)]
    panel.yaxis.set_major_locator(FixedLocator([*below, *(each for each in above if each >= threshold)]))
    panel.yaxis.set_major_formatter(StrMethodFormatter("{x:,.12g}"))


def checked(stretches: Sequence[Stretch]) -> str:
    """Return delay and batch durations of the past and of the twin at the same sizes as a PNG in base64."""
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    delay, batches = figure.subplots(2, 1, sharex=True)
    zero = stretches[0].begin
    unit, name = _unit(stretches[-1].begin + stretches[-1].seconds - zero)
    for stretch in stretches:
        begin = (stretch.begin - zero) / unit
        at = [begin + (place + 0.5) * stretch.window / unit for place in range(len(stretch.real))]
        first = stretch is stretches[0]
        looks = (
            (stretch.real, stretch.real_batches, COLORS[0], "recorded"),
            (stretch.twin, stretch.twin_batches, COLORS[2], "twin"),
        )
        for delays, made, color, label in looks:
            shown: dict[str, Any] = {"color": color, "label": label if first else None}
            delay.plot(at, delays, linewidth=1.3, **shown)
            starts = [begin + start / unit for start, _ in made]
            batches.plot(starts, [seconds for _, seconds in made], ".", markersize=3, **shown)
    delay.set_ylabel("delay, s")
    batches.set_ylabel("duration of\na batch, s")
    batches.set_xlabel(f"{name} of the part kept back")
    for panel in (delay, batches):
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.25)
    delay.legend(loc="upper left", fontsize=8)
    return b64encode(png(figure, DPI)).decode()


def _slots(side: Side, unit: float) -> tuple[list[float], list[int]]:
    ticks = side.recording.ticks
    return [tick.at / unit for tick in ticks], [tick.slots for tick in ticks]


def _unit(seconds: float) -> tuple[float, str]:
    return (
        (60.0, "minutes") if seconds < 3 * 3600 else (3600.0, "hours") if seconds < 4 * 86_400 else (86_400.0, "days")
    )
