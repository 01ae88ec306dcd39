"""The first difference between two decisions, field by field."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any


@dataclass(frozen=True, slots=True)
class Difference:
    """The first field in which a decision differs from its recomputation."""

    job_id: str
    sequence: int | None
    decision_id: str
    place: str
    """Partition and offset of the record, as `partition 3, offset 17`."""
    path: str
    """The field, as `trail.0.numbers.rate`."""
    recorded: str
    recomputed: str
    note: str = ""


def first_difference(recorded: bytes, recomputed: bytes) -> tuple[str, str, str]:
    """Return (path, recorded, recomputed) of the first field that differs."""
    was, made = json.loads(recorded), json.loads(recomputed)
    found = _walk(was, made, "")
    if found is None:  # equal values in different bytes: spacing, order of fields, format of a number
        place = next(n for n, (a, b) in enumerate(zip_longest(recorded, recomputed)) if a != b)
        around = slice(max(0, place - 20), place + 20)
        was_there, made_there = (raw[around].decode("utf-8", "replace") for raw in (recorded, recomputed))
        return f"(byte {place})", was_there, made_there
    return found


def _walk(was: Any, made: Any, at: str) -> tuple[str, str, str] | None:
    if isinstance(was, dict) and isinstance(made, dict):
        pairs = [(name, was.get(name, _ABSENT), made.get(name, _ABSENT)) for name in {**made, **was}]
    elif isinstance(was, list) and isinstance(made, list):
        pairs = [(str(n), a, b) for n, (a, b) in enumerate(zip_longest(was, made, fillvalue=_ABSENT))]
    else:
        return None if type(was) is type(made) and was == made else (at.removeprefix("."), shown(was), shown(made))
    return next((found for name, a, b in pairs if (found := _walk(a, b, f"{at}.{name}"))), None)


class _Absent:
    def __repr__(self) -> str:
        return "(absent)"


_ABSENT = _Absent()


def shown(value: object) -> str:
    """Return a value as JSON, shortened to fit a line of a report."""
    text = repr(value) if isinstance(value, _Absent) else json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 200 else f"{text[:197]}..."
