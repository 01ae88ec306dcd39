"""A job's timeline as data for the charts, and as the table that says the same. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from tidegate.events.result import Phase
from tidegate.fleet.fleet import EntryKind, FleetJob, point_of
from tidegate.fleet.timeline import TimelinePoint
from tidegate.words import clock, figure, size

ENDS = {phase.value for phase in Phase if phase.terminal}
TABLE_ROWS = 40
"""Most rows of a chart's table."""


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a chart. Each has a dash pattern of its own, so that nobody needs its colour."""

    label: str
    values: tuple[float | None, ...]
    dash: tuple[int, ...] = ()
    stepped: bool = False


@dataclass(frozen=True, slots=True)
class ChartMark:
    """A moment that a chart marks: a change of size, or what an operator did."""

    at: float
    label: str
    operator: bool


@dataclass(frozen=True, slots=True)
class Chart:
    """What the browser draws: times in epoch seconds, lines over them, marks, and a summary in words."""

    name: str
    title: str
    unit: str
    at: tuple[float, ...]
    series: tuple[Series, ...]
    marks: tuple[ChartMark, ...]
    summary: str


def charts_of(job: FleetJob) -> list[Chart]:
    """Return the charts of a job, all over the same times."""
    points = list(job.timeline)
    at = tuple(point.at for point in points)
    marks = tuple(
        ChartMark(entry.at.timestamp(), f"{entry.word}: {entry.text}", entry.kind is EntryKind.OPERATOR)
        for entry in job.changes
        if at and entry.at.timestamp() >= at[0] and (entry.kind is EntryKind.OPERATOR or entry.word in ENDS)
    )
    objective = job.spec.scaling.lag_objective_seconds
    arrival, capacity = column(points, "arrival_rate"), column(points, "capacity")
    delay, lag, slots = column(points, "delay_seconds"), column(points, "lag_records"), column(points, "slots")
    # The newest point may stand for minutes, with their largest delay.
    newest = [] if job.decision is None else [point_of(job.decision)]
    arrives, can, waits, behind, runs = (last(column(newest, name)) for name in TimelinePoint._fields[1:])
    return [
        Chart(
            "rate",
            "Rate",
            "records/s",
            at,
            (Series("arrival", arrival), Series("capacity", capacity, (8, 4))),
            marks,
            f"Arrival rate now {figure(arrives, 'records/s')}, capacity {figure(can, 'records/s')}.",
        ),
        Chart(
            "delay",
            "Delay",
            "s",
            at,
            (Series("delay", delay), Series("objective", (objective,) * len(at), (2, 4))),
            marks,
            f"Delay now {figure(waits, 's')}, at most {figure(most(delay), 's')}; objective {objective:g} s.",
        ),
        Chart(
            "lag",
            "Lag",
            "records",
            at,
            (Series("lag", lag),),
            marks,
            f"Lag now {figure(behind, 'records')}, at most {figure(most(lag), 'records')}.",
        ),
        Chart(
            "slots",
            "Size",
            "slots",
            at,
            (Series("slots", slots, stepped=True),),
            marks,
            f"Size now {size(runs)}, at most {size(most(slots))}.",
        ),
    ]


def table_of(job: FleetJob, now: datetime) -> list[tuple[str, ...]]:
    """Return the timeline as rows, the newest first: time, arrival rate, capacity, delay, lag, size."""
    points = list(job.timeline)
    step = max(1, math.ceil(len(points) / TABLE_ROWS))
    rows = []
    for point in points[::-step]:
        when = clock(datetime.fromtimestamp(point.at, UTC), now)
        figures = (point.arrival_rate, point.capacity, point.delay_seconds, point.lag_records, point.slots)
        rows.append((when, *(figure(known(value)) for value in figures)))
    return rows


def column(points: Sequence[TimelinePoint], name: str) -> tuple[float | None, ...]:
    """Return one figure of all points; None where it is not known."""
    return tuple(known(getattr(point, name)) for point in points)


def known(value: float) -> float | None:
    """Return a figure rounded for drawing; None for NaN."""
    return None if math.isnan(value) else round(value, 3)


def last(values: Sequence[float | None]) -> float | None:
    """Return the newest figure."""
    return values[-1] if values else None


def most(values: Sequence[float | None]) -> float | None:
    """Return the largest known figure."""
    return max((value for value in values if value is not None), default=None)
