"""Figures, sizes, names and instants in words, the same wherever they are shown."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime


def figure(value: float | None, unit: str = "", digits: int = 0) -> str:
    """Return a number with thousands separators, or `unknown`."""
    if value is None:
        return "unknown"
    text = f"{value:,.{digits}f}"
    return f"{text} {unit}".rstrip()


NAMED = 20
"""Most names in a line: of 1,000 jobs, the others are counted."""


def some(names: Iterable[str], most: int = NAMED) -> str:
    """Return names in their order, at most so many of them."""
    ordered = sorted(names)
    more = f" and {figure(len(ordered) - most)} more" if len(ordered) > most else ""
    return ", ".join(ordered[:most]) + more


def size(parallelism: float | None) -> str:
    """Return a size such as `4 slots`."""
    if parallelism is None:
        return "unknown"
    return f"{parallelism:.0f} slot" + ("" if parallelism == 1 else "s")


def clock(instant: datetime, now: datetime | None = None) -> str:
    """Return the time of day in UTC, with the date if it is not today: yesterday's must not look like a new one."""
    instant = instant.astimezone(UTC)
    today = (now or datetime.now(UTC)).date() == instant.date()
    return instant.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M:%S")


def age(instant: datetime | None) -> str:
    """Return how long ago an instant was, such as `5 min ago`."""
    if instant is None:
        return "never"
    seconds = max(0.0, (datetime.now(UTC) - instant).total_seconds())
    if seconds < 120:
        return f"{seconds:.0f} s ago"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min ago"
    return f"{seconds / 3600:.0f} h ago" if seconds < 172_800 else f"{seconds / 86_400:.0f} days ago"
