"""Schedules: whoever looks only at the items of the hour finds the same as whoever looks at all."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import example, given
from hypothesis import strategies as st

from tidegate.engine.guards.periods import parse_periods, parse_schedule, periods_in, planned_in

MIDNIGHT = datetime(2026, 3, 1, tzinfo=UTC)
ranges = st.tuples(st.integers(0, 20), st.integers(1, 3)).map(lambda hours: f"{hours[0]}:00:00-{sum(hours)}:00:00")
crons = st.sampled_from(
    ["* * * ? * MON-FRI", "* * 8-12 ? * *", "* * * 1 3 ? 2026", "* * * L * ?", "* * * 15W * ?", "* * * ? * 6#3"]
)
periods = ranges | crons | st.tuples(ranges, crons).map(" && ".join)
instants = st.integers(0, 60 * 86_400).map(lambda seconds: MIDNIGHT + timedelta(seconds=seconds))


MORNING = [("8:00:00-10:00:00", 3)]


@given(st.lists(st.tuples(periods, st.integers(1, 5)), max_size=8), instants)
@example(MORNING, MIDNIGHT + timedelta(hours=8))
@example(MORNING, MIDNIGHT + timedelta(hours=10))
def test_the_items_of_an_hour_are_all_that_can_hold(items: list[tuple[str, int]], now: datetime) -> None:
    """The first that holds is the first of those with the most slots; of a list without slots, the first."""
    hour = now.replace(minute=0, second=0)
    schedule = ";".join(f"{period}|{slots}" for period, slots in items)
    holding = [each for each in parse_schedule(schedule) if each.period.holds(now)]
    most = max(holding, key=lambda each: each.slots, default=None)
    assert next((each for each in planned_in(schedule, hour) if each.period.holds(now)), None) == most
    text = ";".join(period for period, _ in items)
    holds = [each for each in parse_periods(text) if each.holds(now)]
    assert [each for each in periods_in(text, hour) if each.holds(now)] == holds


def test_of_a_schedule_for_years_a_decision_looks_at_one_hour() -> None:
    """It may have 20,000 items; to ask each of them takes 15 ms, several times in a decision."""
    dates = [(day, month, year) for year in range(2026, 2036) for month in range(1, 13) for day in range(1, 29)]
    text = ";".join(f"8:00:00-18:00:00 && * * * {day} {month} ? {year} | 12" for day, month, year in dates)
    assert len(parse_schedule(text)) == len(dates)
    for hour, items in ((7, 0), (8, 1), (18, 1), (19, 0)):
        assert len(planned_in(text, MIDNIGHT.replace(hour=hour))) == items
        assert len(periods_in(text.replace(" | 12", ""), MIDNIGHT.replace(hour=hour))) == items


def test_of_a_schedule_for_each_minute_of_the_day_a_decision_looks_at_one_hour() -> None:
    """To ask each of them takes as long as the rest of the decision."""
    times = [f"{minute // 60}:{minute % 60:02}" for minute in range(1440)]
    text = ";".join(f"{time}:00-{time}:59 | {1 + number % 12}" for number, time in enumerate(times))
    assert len(planned_in(text, MIDNIGHT.replace(hour=12))) == 60
