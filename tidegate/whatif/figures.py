"""What a course comes to: time above the lag objective, slots, changes, and what that costs. Pure.

Everything is measured in the same way for what ran and for what would have run: from snapshots. Between two snapshots a
job holds the slots of the earlier one, and is late if its delay is above the objective at the later one. The objective
and the prices are the recorded spec's, so that a trial with another objective is judged by the same measure.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from tidegate.events.job import JobSpec, Tariff
from tidegate.events.way import Way
from tidegate.lab.bill import MONTH_SECONDS, bill
from tidegate.lab.score import Prices
from tidegate.whatif.course import Course
from tidegate.whatif.trial import Trial
from tidegate.words import figure


@dataclass(frozen=True, slots=True)
class Figures:
    """A course in figures."""

    seconds: float
    late_seconds: float
    worst_seconds: float
    """Largest delay known."""
    unknown_seconds: float
    """Time in which the delay is not known."""
    slot_seconds: float
    ways: Counter[Way]
    """Changes of size ordered, by their way."""
    cost: float
    """In slot-seconds, by the lab's prices."""

    @property
    def changes(self) -> int:
        """Changes of size ordered."""
        return self.ways.total()


class Row(NamedTuple):
    """One figure of what ran, what would have run, and of the recorded decisions on the twin, in words."""

    name: str
    recorded: str
    tried: str
    """The middle one of the twin's runs, with the least and the most of them where they differ."""
    control: str
    """"" where no twin was needed."""


def figures_of(course: Course, spec: JobSpec) -> Figures:
    """Return a course in figures, by the objective and the largest size of a spec."""
    objective = spec.scaling.lag_objective_seconds
    late = unknown = held = 0.0
    for before, after in pairwise(course):
        seconds = float(after.at - before.at)
        held += before.slots * seconds
        late += seconds if after.delay_seconds is not None and after.delay_seconds > objective else 0.0
        unknown += seconds if after.delay_seconds is None else 0.0
    ways = Counter(point.way for point in course if point.way is not None)
    return Figures(
        seconds=float(course[-1].at - course[0].at),
        late_seconds=late,
        worst_seconds=max((p.delay_seconds for p in course if p.delay_seconds is not None), default=0.0),
        unknown_seconds=unknown,
        slot_seconds=held,
        ways=ways,
        cost=Prices().parts(held, late, ways, spec.scaling.max_parallelism).total,
    )


def rows_of(trial: Trial) -> list[Row]:
    """Return what ran and what would have run, figure by figure; none if the trial ends before the recording."""
    if trial.unknown_because:
        return []
    spec, other = trial.specs[-1]
    prices = spec.scaling.prices or other.scaling.prices
    was = figures_of(trial.recorded, spec)
    tried = [figures_of(course, spec) for course in trial.courses]
    control = figures_of(trial.sureness.control, spec) if trial.sureness is not None else None

    def row(name: str, value: Callable[[Figures], float], unit: str = "", digits: int = 0) -> Row:
        return Row(
            name,
            figure(value(was), unit, digits),
            spread([value(each) for each in tried], unit, digits),
            "" if control is None else figure(value(control), unit, digits),
        )

    rows = [
        row(f"above {spec.scaling.lag_objective_seconds:g} s", lambda f: f.late_seconds, "s"),
        row("largest delay", lambda f: f.worst_seconds, "s"),
        row("slot-hours", lambda f: f.slot_seconds / 3600, digits=2),
        row("changes of size", lambda f: f.changes),
        row("cost", lambda f: f.cost, "slot-seconds"),
    ]
    if prices is not None:
        rows.append(row("cost", lambda f: total(prices, f), prices.currency, 2))
        rows.append(row("cost of a month like this", lambda f: monthly(prices, f), prices.currency, 2))
    return rows


def total(prices: Tariff, found: Figures) -> float:
    """Return what a course costs."""
    return bill(prices, found.slot_seconds, found.late_seconds, found.changes).total


def monthly(prices: Tariff, found: Figures) -> float:
    """Return what a month would cost in which everything goes on like this."""
    return total(prices, found) * MONTH_SECONDS / max(1.0, found.seconds)


def spread(values: Sequence[float], unit: str = "", digits: int = 0) -> str:
    """Return the middle of some values, and their least and most where these differ."""
    middle, least, most = (f"{v:,.{digits}f}" for v in (statistics.median(values), min(values), max(values)))
    between = f" ({least} to {most})" if least != most else ""
    return f"{middle} {unit}".rstrip() + between


def length(seconds: float) -> str:
    """Return a length of time in words, such as `2 h 5 min`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    hours, rest = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24} days {hours % 24} h"
    return f"{hours} h {rest} min" if hours else f"{minutes} min"
