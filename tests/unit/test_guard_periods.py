"""Excluded periods and the cron expressions in them, in the syntax of Flink and of Numaflow."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from tests.support.engine import check_spec
from tests.support.events import job
from tidegate.engine.cron import BadCron, parse
from tidegate.engine.guards.periods import parse_periods


def at(text: str) -> datetime:
    """Return an instant in UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "instant", "holds"),
    [
        ("* * * * * ?", "2026-03-01T12:00:00", True),
        ("0 0 12 * * ?", "2026-03-01T12:00:00", True),
        ("0 0 12 * * ?", "2026-03-01T12:00:01", False),
        ("* 0-30/10 12 * * ?", "2026-03-01T12:20:59", True),
        ("* 0-30/10 12 * * ?", "2026-03-01T12:25:00", False),
        ("* * 22-2 * * ?", "2026-03-01T01:00:00", True),  # a range over midnight
        ("* * * ? * 1", "2026-03-01T12:00:00", True),  # 1 March 2026 is a Sunday, Quartz's day 1
        ("* * * ? * SUN", "2026-03-01T12:00:00", True),
        ("* * * ? * 2-6", "2026-03-01T12:00:00", False),
        ("* * * ? * FRI-MON", "2026-03-01T12:00:00", True),
        ("* * * ? * 1L", "2026-03-29T12:00:00", True),  # the last Sunday
        ("* * * ? * 1L", "2026-03-22T12:00:00", False),
        ("* * * ? * L", "2026-03-07T12:00:00", True),  # Saturday
        ("* * * ? * 3#2", "2026-03-10T12:00:00", True),  # the second Tuesday
        ("* * * ? * 3#2", "2026-03-03T12:00:00", False),
        ("* * * L * ?", "2026-02-28T12:00:00", True),
        ("* * * L-3 * ?", "2026-03-28T12:00:00", True),
        ("* * * LW * ?", "2026-05-29T12:00:00", True),  # the 31st is a Sunday, the Friday before it is meant
        ("* * * 1W * ?", "2026-03-02T12:00:00", True),  # the 1st is a Sunday
        ("* * * 1W * ?", "2026-08-03T12:00:00", True),  # the 1st is a Saturday, and the month is not left
        ("* * * 15W * ?", "2026-03-16T12:00:00", True),
        ("* * * 1 JAN-MAR ?", "2026-03-01T12:00:00", True),
        ("* * * 1 4-12 ?", "2026-03-01T12:00:00", False),
        ("* * * * * ? 2025", "2026-03-01T12:00:00", False),
        ("* * * * * ? 2025-2027", "2026-03-01T12:00:00", True),
    ],
)
def test_quartz_expressions(text: str, instant: str, holds: bool) -> None:
    """Six or seven fields, seconds first, Sunday is 1, with Quartz's own signs."""
    assert parse(text).matches(at(instant)) is holds


def test_other_time_zones_are_brought_to_utc() -> None:
    """12:00 at +02:00 is 10:00 UTC."""
    instant = datetime(2026, 3, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    assert parse("0 0 10 * * ?").matches(instant)


@pytest.mark.parametrize(
    ("text", "dialect", "after", "want"),
    [
        ("0 0 9 * * *", "standard", "2026-01-05T10:00:00", "2026-01-06T09:00:00"),
        ("0 0 9 * * *", "standard", "2026-01-05T08:59:59", "2026-01-05T09:00:00"),
        ("0 0 9 * * *", "standard", "2026-01-05T09:00:00", "2026-01-06T09:00:00"),
        ("30 15 * * * *", "standard", "2026-01-05T10:15:30", "2026-01-05T11:15:30"),
        ("0 0 0 29 2 ?", "quartz", "2026-03-01T00:00:00", "2028-02-29T00:00:00"),
        ("0 0 0 13 * 5", "standard", "2026-03-01T00:00:00", "2026-03-06T00:00:00"),  # the 13th, or a Friday
        ("0 0 0 ? * 6#5", "quartz", "2026-02-01T00:00:00", "2026-05-29T00:00:00"),  # the next fifth Friday
    ],
)
def test_the_next_match(text: str, dialect: str, after: str, want: str) -> None:
    """Strictly after the instant, over days, months and leap years."""
    assert parse(text, dialect).following(at(after)) == at(want)


def test_an_expression_that_never_matches_has_no_next() -> None:
    """30 February does not come, and the search ends."""
    assert parse("0 0 0 30 2 ?").following(at("2026-01-01T00:00:00")) is None


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("* * * * ?", "fields"),
        ("60 * * * * ?", "second"),
        ("* * 24 * * ?", "hour"),
        ("* * * 32 * ?", "day of month"),
        ("* * * ? 13 *", "month"),
        ("* * * ? * 0", "day of week"),
        ("* * * 1 * 2", "one of them must be"),
        ("* * * L-x * ?", "L-X"),
        ("x * * * * ?", "'X'"),
        ("*/0 * * * * ?", "second"),
    ],
)
def test_bad_expressions_are_refused(text: str, part: str) -> None:
    """The text names the expression, the field and the value."""
    with pytest.raises(BadCron, match=part) as refused:
        parse(text)
    assert repr(text) in str(refused.value)


@pytest.mark.parametrize(
    ("periods", "instant", "holds"),
    [
        ("9:00:00-17:00:00", "2026-03-01T12:00:00", True),
        ("9:00:00-17:00:00", "2026-03-01T17:00:01", False),
        ("9:30:30-10:30:30 && * * * ? * 2-6", "2026-03-02T10:00:00", True),
        ("9:30:30-10:30:30 && * * * ? * 2-6", "2026-03-01T10:00:00", False),  # a Sunday
        ("* * * ? * 1 && 9:00:00-17:00:00", "2026-03-01T12:00:00", True),
        ("1:00:00-2:00:00; * * * ? * 1 ;", "2026-03-01T12:00:00", True),
        ("", "2026-03-01T12:00:00", False),
    ],
)
def test_periods(periods: str, instant: str, holds: bool) -> None:
    """Daily ranges, expressions, both joined, and lists of them: any item that holds excludes."""
    assert any(period.holds(at(instant)) for period in parse_periods(periods)) is holds


@pytest.mark.parametrize(
    "periods",
    [
        "9:00:00",
        "17:00:00-9:00:00",
        "9-17",
        "9:00-17:00",
        "24:00:00-25:00:00",
        "1:0:0-2:0:0 && 3:0:0-4:0:0",
        "a && b && c",
    ],
)
def test_bad_periods_are_refused_with_the_spec(periods: str) -> None:
    """A range across midnight, or one that cannot be read, is refused when the spec is checked, named and quoted."""
    with pytest.raises(ValueError, match="found"):
        parse_periods(periods)
    problems = check_spec(job(guards={"excluded_periods": {"periods": periods}}))
    assert len(problems) == 1
    assert "scaling.guards.excluded_periods.periods" in problems[0]
