"""When snapshots are due: on the wall clock's grid, never several at once, never going back."""

from __future__ import annotations

import logging
import math
from datetime import UTC, datetime, timedelta

import pytest

from services.collector.schedule import Schedule
from tests.support.events import job
from tidegate.events.job import JobSpec
from tidegate.sparklog.application_run import Interval

T = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
EPOCH = int(T.timestamp())


def every(seconds: int, job_id: str = "rates") -> JobSpec:
    """Return a job with an interval."""
    return job(job_id).model_copy(update={"interval_seconds": seconds})


def at(seconds: float) -> datetime:
    """Return the instant `seconds` after T."""
    return T + timedelta(seconds=seconds)


def started(*specs: JobSpec, seconds: float = -4.0) -> Schedule:
    """Return a schedule that first saw the jobs at an instant."""
    schedule = Schedule()
    assert schedule.due(specs, at(seconds)) == {}
    return schedule


def test_two_collectors_agree_on_the_grid() -> None:
    """Two collectors that start at different times agree on the bounds of an interval."""
    spec = every(10)
    first, second = started(spec, seconds=-9.0), started(spec, seconds=-0.1)
    assert first.due([spec], at(0.0)) == second.due([spec], at(0.8))
    interval = started(spec).due([spec], at(0.3))["rates"]
    assert (interval.start, interval.end) == (at(-10), at(0))


def test_each_interval_is_due_once() -> None:
    """However often the schedule is asked, an interval is due once; each job keeps its own grid."""
    specs = [every(10, "ten"), every(4, "four")]
    schedule = started(*specs, seconds=-1)
    given: dict[str, list[int]] = {"ten": [], "four": []}
    for tenth in range(245):
        for job_id, interval in schedule.due(specs, at(tenth / 10)).items():
            given[job_id].append(int(interval.end.timestamp()) - EPOCH)
    assert given == {"ten": [0, 10, 20], "four": [0, 4, 8, 12, 16, 20, 24]}


def test_a_pause_leaves_a_gap(caplog: pytest.LogCaptureFixture) -> None:
    """After a pause the missed intervals are skipped and counted, and the next one is marked as first."""
    spec = every(10)
    schedule = started(spec)
    schedule.due([spec], at(0.1))
    with caplog.at_level(logging.WARNING):
        assert schedule.due([spec], at(47.0)) == {}  # 10 20 30 are missed, 40 is 7 s late
    assert schedule.take_skipped() == 4
    assert "job rates: skipped 4 overdue snapshots" in caplog.text
    interval = schedule.due([spec], at(50.1))["rates"]
    assert interval.end == at(50)
    assert not interval.first  # 40 was counted, although late
    assert schedule.due([spec], at(50.2)) == {}


def test_an_interval_after_a_gap_excludes_the_gap() -> None:
    """If the process wakes up just in time for an interval, the gap before it is left out."""
    spec = every(10)
    schedule = started(spec)
    schedule.due([spec], at(0.1))
    interval = schedule.due([spec], at(40.1))["rates"]
    assert (interval.end, interval.first) == (at(40), True)


def test_the_first_interval_has_no_late_events() -> None:
    """After a start there is no previous snapshot, so nothing can be late; later there is."""
    spec = every(10)
    schedule = started(spec)
    assert schedule.due([spec], at(0.1))["rates"].first
    assert not schedule.due([spec], at(10.1))["rates"].first


def test_a_clock_that_steps_back_a_little_repeats_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Sequences only rise: nothing is due until the clock has caught up, and the log says so once."""
    spec = every(10)
    schedule = started(spec)
    schedule.due([spec], at(0.1))
    with caplog.at_level(logging.WARNING):
        for seconds in range(-300, 0, 5):
            assert schedule.due([spec], at(seconds)) == {}
    (told,) = (record.getMessage() for record in caplog.records)
    assert told.startswith("job rates: the clock stepped back to 2026-03-01 11:55:00")
    assert told.endswith("nothing is measured until 2026-03-01 12:00:00+00:00")
    assert set(schedule.due([spec], at(10.1))) == {"rates"}


@pytest.mark.parametrize("back", [-3601.0, -86400.5])
def test_a_clock_that_was_far_ahead_is_forgotten(caplog: pytest.LogCaptureFixture, back: float) -> None:
    """The decider has refused those snapshots, so the job is measured again as if it was new, without a restart."""
    spec = every(10)
    schedule = started(spec)
    schedule.due([spec], at(0.1))
    begin, due = math.floor(back / 10) * 10, list[Interval]()
    with caplog.at_level(logging.WARNING):
        for half in range(100):
            due += schedule.due([spec], at(back + half / 2)).values()
    assert [interval.end for interval in due] == [at(begin + 10 * number) for number in range(1, 6)]
    assert [interval.first for interval in due] == [True, False, False, False, False]
    (told,) = (record.getMessage() for record in caplog.records)
    assert told.startswith("job rates: the clock stepped back to 2026-02-28" if back < -4e4 else "job rates: the clock")
    assert told.endswith("it is measured again")
    assert schedule.take_skipped() == 0


def test_a_step_forward_is_a_gap() -> None:
    """A step of an hour forward skips 360 snapshots instead of making them."""
    spec = every(10)
    schedule = started(spec)
    schedule.due([spec], at(0.1))
    assert len(schedule.due([spec], at(3600.1))) == 1
    assert schedule.take_skipped() == 359


def test_the_wait_is_to_the_nearest_interval() -> None:
    """The loop sleeps until the next job is due; without jobs the wait is infinite."""
    schedule = Schedule()
    assert schedule.seconds_to_next([every(10), every(4, "four")], at(3.0)) == pytest.approx(1.0)
    assert schedule.seconds_to_next([every(10)], at(0.0)) == pytest.approx(10.0)
    assert schedule.seconds_to_next([], at(0.0)) == float("inf")


def test_a_job_removed_and_added_starts_from_scratch() -> None:
    """A removed job is forgotten."""
    spec = every(10)
    schedule = started(spec)
    schedule.due([spec], at(0.1))
    schedule.forget({})
    assert schedule.due([spec], at(10.1)) == {}
    assert schedule.due([spec], at(20.1))["rates"].first
