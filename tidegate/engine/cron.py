"""Cron expressions with seconds, in UTC: does one match an instant, and when does it match next?

    seconds  minutes  hours  day-of-month  month  day-of-week  [year]

Two dialects. `quartz` (Flink's excluded periods): day of week 1 to 7 from Sunday, `?`, `L`, `W`, `#`, an optional
year; both day fields must match, and one of them is `?` (or `*`). `standard` (Numaflow's windows, as robfig/cron
reads them): day of week 0 to 6 from Sunday; when both day fields are restricted either of them may match.

Source: Quartz `CronExpression`; robfig/cron v3, `spec.go`.
"""

from __future__ import annotations

import calendar
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache

MONTHS = {name.upper(): number for number, name in enumerate(calendar.month_abbr) if name}
DAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
FIELDS = (("second", 0, 59), ("minute", 0, 59), ("hour", 0, 23), ("day of month", 1, 31), ("month", 1, 12))
FIRST_YEAR, LAST_YEAR = 1970, 2199
HORIZON_DAYS = 366 * 28
"""How far ahead a match is looked for: a 29 February on a given weekday comes within 28 years."""

DayTest = Callable[[datetime], bool]


class BadCron(ValueError):
    """An expression that cannot be read; the text names the field and the value."""


@dataclass(frozen=True, slots=True)
class Cron:
    """A parsed expression."""

    text: str
    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    months: tuple[int, ...]
    years: tuple[int, ...] | None
    day: DayTest

    def matches(self, instant: datetime) -> bool:
        """Whether the expression holds in the second of `instant`."""
        at = instant.astimezone(UTC)
        return at.second in self.seconds and at.minute in self.minutes and at.hour in self.hours and self.is_on(at)

    def following(self, instant: datetime) -> datetime | None:
        """Return the first match after `instant`, or None when there is none within `HORIZON_DAYS`."""
        start = instant.astimezone(UTC).replace(microsecond=0) + timedelta(seconds=1)
        midnight = start.replace(hour=0, minute=0, second=0)
        for ahead in range(HORIZON_DAYS):
            date = midnight + timedelta(days=ahead)
            if not self.is_on(date):
                continue
            earliest = (start.hour, start.minute, start.second) if ahead == 0 else (0, 0, 0)
            if (found := self._in_day(earliest)) is not None:
                return date.replace(hour=found[0], minute=found[1], second=found[2])
        return None

    def is_on(self, date: datetime) -> bool:
        """Whether the expression holds at some time of the day of `date`, which is in UTC."""
        return date.month in self.months and (self.years is None or date.year in self.years) and self.day(date)

    def _in_day(self, earliest: tuple[int, int, int]) -> tuple[int, int, int] | None:
        """Return the first (hour, minute, second) of a matching day that is not before `earliest`."""
        hour, minute, second = earliest
        for h in self.hours:
            if h < hour:
                continue
            for m in self.minutes:
                if h == hour and m < minute:
                    continue
                for s in self.seconds:
                    if (h, m) != (hour, minute) or s >= second:
                        return h, m, s
        return None


@lru_cache(maxsize=1024)
def parse(text: str, dialect: str = "quartz") -> Cron:
    """Return the expression, or raise `BadCron`."""
    parts = text.upper().split()
    most = 7 if dialect == "quartz" else 6
    if not 6 <= len(parts) <= most:
        raise BadCron(f"cron {text!r}: must have {'6 or 7' if most == 7 else '6'} fields, found {len(parts)}")
    sets = {}
    for (name, low, high), part in zip(FIELDS, parts, strict=False):
        if name == "day of month":
            continue
        sets[name] = _values(text, name, part, low, high, MONTHS if name == "month" else {})
    years = None
    if len(parts) == 7 and parts[6] != "*":
        years = _values(text, "year", parts[6], FIRST_YEAR, LAST_YEAR, {})
    return Cron(
        text=text,
        seconds=sets["second"],
        minutes=sets["minute"],
        hours=sets["hour"],
        months=sets["month"],
        years=years,
        day=_day(text, parts[3], parts[5], dialect),
    )


def _day(text: str, month_day: str, week_day: str, dialect: str) -> DayTest:
    """Return the test of both day fields."""
    free_month, free_week = month_day in ("*", "?"), week_day in ("*", "?")
    if dialect == "quartz" and not free_month and not free_week:
        raise BadCron(
            f"cron {text!r}: day of month {month_day!r} and day of week {week_day!r}, one of them must be '?'"
        )
    in_month = _always if free_month else _month_day(text, month_day, dialect)
    in_week = _always if free_week else _week_day(text, week_day, dialect)
    if free_month or free_week:
        return lambda date: in_month(date) and in_week(date)
    return lambda date: in_month(date) or in_week(date)


def _always(_: datetime) -> bool:
    return True


def _month_day(text: str, part: str, dialect: str) -> DayTest:
    if dialect == "quartz" and part.startswith("L"):
        nearest = part.endswith("W")
        back = part.removesuffix("W")[1:]
        if back and not (back[0] == "-" and back[1:].isdigit()):
            raise BadCron(f"cron {text!r}: day of month {part!r} cannot be read")
        offset = int(back[1:]) if back else 0
        return lambda date: date.day == _placed(date, _length(date) - offset, nearest=nearest)
    if dialect == "quartz" and part.endswith("W"):
        wanted = _number(text, "day of month", part[:-1], 1, 31, {})
        return lambda date: wanted <= _length(date) and date.day == _placed(date, wanted, nearest=True)
    days = _values(text, "day of month", part, 1, 31, {})
    return lambda date: date.day in days


def _week_day(text: str, part: str, dialect: str) -> DayTest:
    """Return the test of a day-of-week field; inside, Sunday is 0."""
    first = 1 if dialect == "quartz" else 0
    names = {name: number + first for number, name in enumerate(DAYS)}
    if dialect == "quartz" and "#" in part:
        day_text, _, nth_text = part.partition("#")
        day = _number(text, "day of week", day_text, 1, 7, names) - 1
        nth = _number(text, "day of week", nth_text, 1, 5, {})
        return lambda date: _sunday(date) == day and (date.day - 1) // 7 + 1 == nth
    if dialect == "quartz" and part == "L":
        part = "7"
    elif dialect == "quartz" and part.endswith("L"):
        day = _number(text, "day of week", part[:-1], 1, 7, names) - 1
        return lambda date: _sunday(date) == day and date.day > _length(date) - 7
    days = tuple(value - first for value in _values(text, "day of week", part, first, first + 6, names))
    return lambda date: _sunday(date) in days


def _sunday(date: datetime) -> int:
    return (date.weekday() + 1) % 7


def _length(date: datetime) -> int:
    return calendar.monthrange(date.year, date.month)[1]


def _placed(date: datetime, day: int, *, nearest: bool) -> int:
    """Return `day` of the month of `date`, moved to the nearest weekday of the same month when asked."""
    if not nearest or day < 1:
        return day
    weekday = date.replace(day=day).weekday()
    if weekday == 5:
        return day - 1 if day > 1 else day + 2
    if weekday == 6:
        return day + 1 if day < _length(date) else day - 2
    return day


def _values(text: str, name: str, part: str, low: int, high: int, names: dict[str, int]) -> tuple[int, ...]:
    """Return the numbers a field allows, in order."""
    allowed: set[int] = set()
    for item in part.split(","):
        span, slash, step_text = item.partition("/")
        step = _number(text, name, step_text, 1, high - low + 1, {}) if slash else 1
        first_text, dash, last_text = span.partition("-")
        if span in ("*", "?"):
            first, last = low, high
        else:
            first = _number(text, name, first_text, low, high, names)
            last = _number(text, name, last_text, low, high, names) if dash else high if slash else first
        if last >= first:
            allowed.update(range(first, last + 1, step))
        else:  # Quartz lets a range run over the end: FRI-MON, 22-2.
            width = high - low + 1
            allowed.update(low + (value - low) % width for value in range(first, last + width + 1, step))
    return tuple(sorted(allowed))


def _number(text: str, name: str, value: str, low: int, high: int, names: dict[str, int]) -> int:
    number = names.get(value, int(value) if value.isascii() and value.isdigit() else None)
    if number is None or not low <= number <= high:
        raise BadCron(f"cron {text!r}: {name} must be {low} to {high}, found {value!r}")
    return number
