"""Traces: loads from CSV files of `seconds,records_per_second`, one point per line; # starts a comment line."""

from __future__ import annotations

import csv
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tidegate.twin.load import BadLoad, Load, from_points, seconds_of

HEADER = ["seconds", "records_per_second"]

MOST_HOURS = 366 * 24.0
"""The longest load that is played; a longer one takes memory and time without end."""


@dataclass(frozen=True, slots=True)
class Playback:
    """How to play a trace: which part, how fast, how high."""

    speed: float = 1.0
    """How many times faster than recorded, at the same rates."""
    since_hours: float = 0.0
    """Where the part starts, in hours of the trace."""
    hours: float | None = None
    """Length in simulated hours; None: to the trace's end."""
    most_hours: float = math.inf
    """The longest length if `hours` is None."""
    peak: float | None = None
    """Scale to this peak, records/s; None: keep the trace's own."""


AS_IT_IS = Playback()


def read_trace(path: Path, play: Playback = AS_IT_IS) -> Load:
    """Return the load of a trace, as `playback` says.

    Raises `BadLoad` with file, line, field and value of the fault, or with the part that the trace does not have.
    """
    points = read_points(path)
    try:
        load = played(points, play)
        return load if play.peak is None else load.scaled(play.peak)
    except BadLoad as error:
        raise BadLoad(f"{path}: {error}") from None


def played(points: Sequence[tuple[float, float]], play: Playback) -> Load:
    """Return the load of a trace's points; only the part that is played is read. Raises `BadLoad`."""
    whole = seconds_of(points) / 3600
    left = (whole - play.since_hours) / play.speed
    asked = min(left, play.most_hours) if play.hours is None else play.hours
    if not 0 < asked <= left * (1 + 1e-9):
        raise BadLoad(
            f"it lasts {whole:.6g} h: from hour {play.since_hours:g} on, at speed {play.speed:g}, "
            f"{max(0.0, left):.6g} h are left" + ("" if play.hours is None else f", not {play.hours:g}")
        )
    if asked > MOST_HOURS:
        raise BadLoad(
            f"it lasts {whole:.6g} h, and a load of more than {MOST_HOURS:,.0f} h, a year, is not played: are its"
            " seconds milliseconds? To play a part, use --hours"
        )
    first = max(0, bisect_right(points, (points[0][0] + play.since_hours * 3600, math.inf)) - 1)
    last = bisect_right(points, (points[0][0] + (play.since_hours + asked * play.speed) * 3600, math.inf)) + 1
    part = points[min(first, len(points) - 2) : last]
    skipped = play.since_hours * 3600 - (part[0][0] - points[0][0])
    faster = [(at / play.speed, rate) for at, rate in part]
    return from_points(faster, start=skipped / play.speed, seconds=asked * 3600)


def read_points(path: Path) -> list[tuple[float, float]]:
    """Return the points of a trace. Raises `BadLoad` with file, line, field and value of the fault."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadLoad(f"{path}: byte {error.start} is not UTF-8; the file must be plain text, not compressed") from None
    except OSError as error:
        raise BadLoad(f"{path}: cannot be read: {error.strerror}") from None
    rows = [
        (number, _cells(line, path, number))
        for number, line in enumerate(text.splitlines(), start=1)
        if line.strip() and not line.startswith("#")
    ]
    number, header = rows[0] if rows else (1, [])
    if header != HEADER:
        raise BadLoad(f"{path}:{number}: the header must be {','.join(HEADER)}, found {','.join(header)!r:.80}")
    points: list[tuple[float, float]] = []
    for number, row in rows[1:]:
        if len(row) != len(HEADER):
            raise BadLoad(f"{path}:{number}: {len(HEADER)} fields are needed, found {len(row)}")
        second, rate = (_number(text, path, number, field) for text, field in zip(row, HEADER, strict=True))
        if points and second <= points[-1][0]:
            raise BadLoad(f"{path}:{number}: seconds: must rise, found {second:g} after {points[-1][0]:g}")
        points.append((second, rate))
    return points


def _cells(line: str, path: Path, number: int) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line]))]
    except csv.Error as error:
        raise BadLoad(f"{path}:{number}: {error}") from None


def _number(text: str, path: Path, line: int, field: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise BadLoad(f"{path}:{line}: {field}: must be a number of at least 0, found {text!r:.80}")
    return value
