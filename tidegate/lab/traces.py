"""Reading load traces: CSV with the header `seconds,records_per_second`, one point a line."""

from __future__ import annotations

import csv
import math
from pathlib import Path

from twin.load import BadLoad, Load, from_points

HEADER = ["seconds", "records_per_second"]


def read_trace(path: Path) -> Load:
    """Return the load of a trace; raises `BadLoad` naming file, line, field and value of what is wrong."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadLoad(f"{path}: cannot be read: {error}") from None
    lines = csv.reader(text.splitlines())
    header = [name.strip() for name in next(lines, [])]
    if header != HEADER:
        raise BadLoad(f"{path}:1: the header must be {','.join(HEADER)}, found {','.join(header)!r:.80}")
    points = []
    for number, row in enumerate(lines, start=2):
        if not row:
            continue
        if len(row) != len(HEADER):
            raise BadLoad(f"{path}:{number}: {len(HEADER)} fields are needed, found {len(row)}")
        points.append((_number(row[0], path, number, HEADER[0]), _number(row[1], path, number, HEADER[1])))
    try:
        return from_points(points)
    except BadLoad as error:
        raise BadLoad(f"{path}: {error}") from None


def _number(text: str, path: Path, line: int, field: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise BadLoad(f"{path}:{line}: {field}: must be a number of at least 0, found {text!r:.80}")
    return value
