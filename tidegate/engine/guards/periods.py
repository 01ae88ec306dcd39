"""Times of the day or week in which a job keeps more slots ready, or in which nothing changes.

Times are those of the spec's `time_zone`. Flink takes the server's, which two servers may not share.

Source: `flink-autoscaler`, `excluded.periods`; Quartz `CronExpression`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import ClassVar, NamedTuple

from tidegate.engine.case import Case
from tidegate.engine.cron import Cron
from tidegate.engine.cron import parse as parse_cron
from tidegate.engine.guard import STARTS_AND_RESCALES, ForcingGuard, Guard, Verdict
from tidegate.engine.options import option
from tidegate.engine.reasons import Reason
from tidegate.events.decision import Figure


@dataclass(frozen=True, slots=True)
class Period:
    """One item: a daily range in seconds of the day, a cron expression, or both."""

    text: str
    daily: tuple[int, int] | None
    cron: Cron | None

    def holds(self, at: datetime) -> bool:
        """Whether the instant is inside."""
        second = at.hour * 3600 + at.minute * 60 + at.second
        in_range = self.daily is None or self.daily[0] <= second <= self.daily[1]
        return in_range and (self.cron is None or self.cron.matches(at))

    def may_hold(self, hour: datetime) -> bool:
        """Whether an instant of this hour may be inside."""
        first = hour.hour * 3600
        in_range = self.daily is None or (self.daily[0] < first + 3600 and first <= self.daily[1])
        return in_range and (self.cron is None or self.cron.is_on(hour))


@lru_cache(maxsize=1024)
def parse_periods(text: str) -> tuple[Period, ...]:
    """Return the items of a list, or raise `ValueError`."""
    return tuple(_period(item.strip()) for item in text.split(";") if item.strip())


@lru_cache(maxsize=1024)
def periods_in(text: str, hour: datetime) -> tuple[Period, ...]:
    """Return the items of a list for an hour: of those for a year, a decision looks at few."""
    return tuple(period for period in parse_periods(text) if period.may_hold(hour))


def _hour(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def _period(item: str) -> Period:
    parts = [part.strip() for part in item.split("&&")]
    ranges = [part for part in parts if ":" in part]
    crons = [part for part in parts if ":" not in part]
    if len(ranges) > 1 or len(crons) > 1:
        raise ValueError(f"at most one daily range and one cron are joined by '&&', found {item!r}")
    return Period(item, _range(ranges[0]) if ranges else None, parse_cron(crons[0]) if crons else None)


def _range(text: str) -> tuple[int, int]:
    first, dash, last = text.partition("-")
    start, end = _second(first, text), _second(last, text)
    if not dash or start >= end:
        raise ValueError(f"a daily range must start before it ends, found {text!r}")
    return start, end


def _second(text: str, whole: str) -> int:
    """Return the second of the day of `H:MM:SS`."""
    fields = text.strip().split(":")
    if len(fields) != 3 or not all(field.isascii() and field.isdigit() for field in fields):
        raise ValueError(f"a daily range must be H:MM:SS-H:MM:SS, found {whole!r}")
    hour, minute, second = map(int, fields)
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError(f"a time of day must be 0:00:00 to 23:59:59, found {text.strip()!r} in {whole!r}")
    return hour * 3600 + minute * 60 + second


class Planned(NamedTuple):
    """One item of a schedule: a period, and the slots that the job has at least in it."""

    period: Period
    slots: int


@lru_cache(maxsize=1024)
def parse_schedule(text: str) -> tuple[Planned, ...]:
    """Return the items of a schedule, or raise `ValueError`."""
    return tuple(_planned(item.strip()) for item in text.split(";") if item.strip())


@lru_cache(maxsize=1024)
def planned_in(text: str, hour: datetime) -> tuple[Planned, ...]:
    """Return the items of a schedule for an hour, those with the most slots first."""
    return tuple(
        sorted((each for each in parse_schedule(text) if each.period.may_hold(hour)), key=lambda each: -each.slots)
    )


def _planned(item: str) -> Planned:
    period, _, slots = (part.strip() for part in item.rpartition("|"))
    if not period or not (slots.isascii() and slots.isdigit() and 0 < len(slots) < 8 and int(slots)):
        raise ValueError(f"an item must be a period, '|' and a number of slots from 1 on, found {item!r}")
    return Planned(_period(period), int(slots))


@dataclass(frozen=True, slots=True)
class Schedule(ForcingGuard):
    """Gives a job at least so many slots at set times, such as before a daily peak, and keeps them until it is over.

    A list separated by `;`. Each item is a period as in `excluded_periods`, then `|` and the slots. Of several periods
    that hold, the one with the most slots counts. Times are of the spec's `time_zone`, by default UTC.

        7:50:00-10:00:00 && * * * ? * MON-FRI | 12      at least 12 slots on weekdays from 7:50 to 10:00
        6:00:00-20:00:00 && * * * 27 11 ? 2026 | 16     at least 16 on one day, the 27th of November

    Let a period begin as long before the load as a change takes; decisions call that the delay.

    The job may still get more slots than that. Outside the periods nothing is changed: the policy decides when the job
    shrinks again. A job with `min_parallelism: 0` is started when a period begins, and not stopped in it. The other
    guards apply, but none of them asks whether the growth is worth its cost.
    """

    name: ClassVar = "schedule"
    covers: ClassVar = STARTS_AND_RESCALES
    reasons: ClassVar[Mapping[str, Reason]] = {
        "SCHEDULED": Reason("the schedule asks for at least {least} slots in the period {period} ({zone})"),
    }

    at_least: str = option("", "the periods with their slots; none when empty")

    def __post_init__(self) -> None:
        """Refuse a schedule that cannot be read."""
        try:
            parse_schedule(self.at_least)
        except ValueError as error:
            raise ValueError(f"at_least: {error}") from None

    def force(self, size: int, case: Case) -> Verdict | None:
        """Ask for the slots of the present period."""
        return self.dispose(size, case)

    def dispose(self, size: int, case: Case) -> Verdict | None:
        """Raise the size to the slots of the present period."""
        if not self.at_least:
            return None
        now = case.local(case.observed.at)
        for period, slots in planned_in(self.at_least, _hour(now)):
            if slots <= size:
                return None
            if period.holds(now):
                values: dict[str, Figure] = {"least": slots, "period": period.text, "zone": case.time_zone}
                return Verdict(slots, "SCHEDULED", values)
        return None


@dataclass(frozen=True, slots=True)
class ExcludedPeriods(Guard):
    """Stops every change of size within an excluded period.

    A list separated by `;`. Each item is a daily range `H:MM:SS-H:MM:SS`, not across midnight, or a Quartz cron
    expression (from seconds to day of week), or both joined by `&&`. Times are of the spec's `time_zone`, by default
    UTC. Monday to Friday from 8 to 18: `8:00:00-18:00:00 && * * * ? * MON-FRI`.
    """

    name: ClassVar = "excluded_periods"
    waits: ClassVar = True
    reasons: ClassVar[Mapping[str, Reason]] = {
        "EXCLUDED_PERIOD": Reason("nothing changes in the excluded period {period} ({zone})"),
    }

    periods: str = option("", "the periods; none when empty")

    def __post_init__(self) -> None:
        """Refuse periods that cannot be read."""
        try:
            parse_periods(self.periods)
        except ValueError as error:
            raise ValueError(f"periods: {error}") from None

    def dispose(self, size: int, case: Case) -> Verdict | None:
        """Compare the decider's clock with the periods."""
        if not self.periods:
            return None
        now = case.local(case.observed.at)
        for period in periods_in(self.periods, _hour(now)):
            if period.holds(now):
                values = {"period": period.text, "zone": case.time_zone}
                return Verdict(case.current, "EXCLUDED_PERIOD", values)
        return None
