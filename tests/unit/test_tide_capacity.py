"""tide: the useful sizes, the capacity of each, and the limits of the batches."""

from __future__ import annotations

import random

import pytest

from tests.support.events import START, batch
from tests.support.plant import even
from tidegate.engine.batch_sums import one_batch
from tidegate.engine.state import Slice
from tidegate.engine.tide.batch_limits import NO_LIMITS, BatchLimits
from tidegate.engine.tide.capacity import (
    NO_PLACE,
    SizeFit,
    fit_model,
    learn,
    learn_stages,
    shape_of,
    useful_sizes,
    work_of,
)
from tidegate.events.snapshot import StageTasks


def batches(
    size: int, records: list[int], overhead: float, cost: float, partitions: int = 8, *, measured: float = 0.0
) -> tuple[SizeFit, ...]:
    """Return the fit after batches of a size that follow d = a + c·n / e(p); events told `measured` seconds of a."""
    sizes: tuple[SizeFit, ...] = ()
    for count in records:
        seconds = overhead + cost * count / work_of(even(partitions)).slots(size)
        sizes = learn(sizes, size, one_batch(count, seconds), measured)
    return sizes


@pytest.mark.parametrize(("size", "does"), [(1, 1.0), (3, 8 / 3), (4, 4.0), (5, 4.0), (7, 4.0), (8, 8.0), (12, 8.0)])
def test_slots_that_shorten_no_wave_are_useless(size: int, does: float) -> None:
    """Eight equal tasks take ceil(8/p) waves, so 5 to 7 slots do what 4 do."""
    assert work_of(even(8)).slots(size) == pytest.approx(does)


def test_only_useful_sizes_are_considered() -> None:
    """Of the sizes for eight partitions, only those that need fewer waves are worth a restart."""
    assert useful_sizes(1, 16, even(8)) == (1, 2, 3, 4, 8)
    assert useful_sizes(2, 16, even(8), step=2) == (2, 4, 8)
    assert useful_sizes(1, 5, ()) == (1, 2, 3, 4, 5)


def test_a_spec_that_allows_very_many_slots_costs_no_more() -> None:
    """No size above the widest stage is tried, and none that was only tried is remembered: each shape is kept long."""
    shape = ((200, 0.7, 5.0, 17), (64, 0.3, 1.0, -1))
    assert useful_sizes(1, 1_000_000, shape) == useful_sizes(1, 200, shape)
    assert useful_sizes(3, 999_999, even(200), step=3)[-1] == 201
    assert useful_sizes(300, 1_000_000, shape) == (300,)
    assert len(work_of(shape).found) == 0


@pytest.mark.parametrize(("place", "sizes"), [(0, (1, 2)), (3, (1, 2, 4)), (5, (1, 2, 3, 6))])
def test_more_slots_help_until_the_slowest_task_begins_at_once(place: int, sizes: tuple[int, ...]) -> None:
    """Of six tasks, one takes as long as the others together, so its stage ends with it."""
    assert useful_sizes(1, 8, ((6, 1.0, 3.0, place),)) == sizes


def test_the_slowest_task_counts_if_it_is_much_slower_and_its_place_is_known() -> None:
    """Stages of as many tasks count as one if their tasks are alike; otherwise only if the place is the same."""
    told = StageTasks(
        name="read", tasks=8, runs=2, busy_seconds=20.0, median_task_seconds=1.0, slowest_task_seconds=3.0
    )
    slow, elsewhere, alike = (
        told.model_copy(update=change)
        for change in ({"slowest_task_place": 5}, {"slowest_task_place": 2}, {"slowest_task_seconds": 1.5})
    )
    assert shape_of(learn_stages((), (told, alike)), None) == ((8, 1.0, 1.0, NO_PLACE),)
    kept = learn_stages((), (slow, elsewhere, alike))
    assert [(each.place, each.busy, each.slowest) for each in kept] == [
        (NO_PLACE, 20.0, 3.0),
        (2, 20.0, 6.0),
        (5, 20.0, 6.0),
    ]
    assert shape_of(kept, None) == tuple((8, 1 / 3, *rest) for rest in ((1.0, NO_PLACE), (2.375, 2), (2.375, 5)))
    (again,) = learn_stages(learn_stages((), (slow,)), (slow,))
    assert (again.busy, again.slowest) == pytest.approx((36.0, 10.8))


def test_overhead_is_separated_from_cost() -> None:
    """Batches of different sizes show overhead and cost; capacity is that of the longest batch allowed."""
    (found,) = batches(4, [100, 300, 200, 400, 500, 150, 350, 250], overhead=1.0, cost=0.01)
    assert found.overhead == pytest.approx(1.0, rel=1e-3)
    known = fit_model([found], 4, even(8), 20.0)
    assert known is not None
    # 4 slots at 10 ms a record do 400/s; of a 10-second batch 1 s is overhead
    assert known.rate == pytest.approx(360.0, rel=1e-3)


def test_batches_of_one_size_show_only_a_rate() -> None:
    """Equal batches cannot separate overhead from cost, so all of it counts as cost."""
    (found,) = batches(4, [200] * 10, overhead=1.0, cost=0.01)
    assert found.overhead == 0.0
    assert found.cost == pytest.approx(1.5 / 200)
    # ... unless the job's events tell the overhead
    (found,) = batches(4, [200] * 10, overhead=1.0, cost=0.01, measured=1.0)
    assert found.cost == pytest.approx(0.5 / 200)


def test_an_overhead_that_events_tell_steadies_the_line_through_noisy_batches() -> None:
    """The line through a few noisy batches points anywhere; with the told overhead it stays near the truth."""
    noise, off = random.Random(3), {0.0: 0.0, 1.0: 0.0}
    for _ in range(50):
        seen = [(count, (1.0 + 0.005 * count) * noise.uniform(0.7, 1.3)) for count in (800, 900, 1000) * 3]
        for told in off:
            sizes: tuple[SizeFit, ...] = ()
            for count, seconds in seen:
                sizes = learn(sizes, 4, one_batch(count, seconds), told)
            off[told] += abs(sizes[0].overhead + sizes[0].cost * 3000 - 16.0)
    assert off[1.0] < 0.5 * off[0.0]


def lags(*known: tuple[int, int]) -> list[Slice]:
    """Return a window of (number of the snapshot, lag)."""
    return [Slice(START.timestamp() + 10 * number, lag, 0) for number, lag in known]


def test_a_limit_holds_for_all_batches() -> None:
    """After a burst, the last two of many short batches are equal while records wait; the first one was larger."""
    seen = NO_LIMITS._replace(last_lag=3000)
    burst, even_ones = (
        [batch(0, n, records, 0.5) for n, records in enumerate(found)] for found in ((2192, 216, 216), (216,) * 3)
    )
    assert seen.learned(burst, lags((1, 3000))).max_records is None
    assert seen.learned(even_ones, lags((1, 3000))).max_records == 216
    assert seen._replace(max_records=216).learned(burst, lags((1, 0))).max_records is None


def test_batches_without_records_show_no_limit() -> None:
    """Stateful queries have such batches while records wait, for example after the source's own limit was reached."""
    empty, waiting = [batch(number, number, 0, 1.0) for number in range(2)], lags((2, 5000))
    assert NO_LIMITS.learned(empty, waiting).learned(empty, waiting).max_records is None


def after_batches(every: int, together: int, waiting: int, seconds: float) -> BatchLimits:
    """Return the limits after batches of 500 records that start every so many seconds, so many of them in a snapshot.

    Each snapshot between two of them finds so many records waiting.
    """
    steps = every // 10
    started = [batch(n * steps + seconds / 10, n, 500, seconds) for n in range(12)]
    seen = NO_LIMITS
    for last in range(together - 1, 12, together):
        now = last * steps + steps - 1
        window = lags(*[(number, waiting if number % steps else 0) for number in range(now - 2 * steps, now + 1)])
        seen = seen.learned(started[last - together + 1 : last + 1], window)
    return seen


@pytest.mark.parametrize("together", [1, 2, 4])
@pytest.mark.parametrize("trigger", [60, 300])
def test_a_trigger_is_found_however_many_batches_a_snapshot_has(trigger: int, together: int) -> None:
    """A trigger interval longer than that of the snapshots leaves one batch for each of them, or none."""
    assert after_batches(trigger, together, 400, trigger / 4).trigger_seconds == trigger


@pytest.mark.parametrize("waiting", [0, 20])
def test_batches_that_wait_for_records_have_no_trigger(waiting: int) -> None:
    """Records come every minute, all at once, and between them next to none."""
    assert after_batches(60, 1, waiting, 15.0).trigger_seconds is None


def test_a_trigger_is_found_although_its_batches_outlast_the_window() -> None:
    """A batch an hour that lasts 10 minutes: when it ends, no snapshot of before its start is left in the window."""
    seen = NO_LIMITS
    for n in range(4):
        first = 360 * n
        started = batch(first + 60, n, 360_000, 600.0)
        before = [(number, 1000 * (number - first + 360)) for number in range(first - 12, first)]
        seen = seen.at_start(started.started_at, lags(*before, (first + 1, 361_000)))
        after = [(number, 1000 * (number - first + 360)) for number in range(first + 48, first + 60)]
        seen = seen.learned([started], lags(*after, (first + 60, 60_000)))
    assert seen.trigger_seconds == 3600.0


@pytest.mark.parametrize(("lost", "trigger"), [(False, 60.0), (True, None)])
def test_a_batch_between_two_that_nobody_saw_is_no_wait_for_a_trigger(*, lost: bool, trigger: float | None) -> None:
    """One that follows the other without a pause looks like one that starts a minute later, if every other is lost."""
    seen = NO_LIMITS
    for n in range(4):
        window = lags(*[(6 * n + place, 500) for place in range(-3, 4)])
        seen = seen.learned([batch(6 * n + 3, 2 * n if lost else n, 500, 30.0)], window)
    assert seen.trigger_seconds == trigger


def test_two_pulses_just_before_a_snapshot_are_no_trigger() -> None:
    """Of pulses a minute apart, now and then one comes between a snapshot and its batch; two in a row do not."""
    seen = NO_LIMITS
    for n in range(12):
        window = lags((6 * n - 2, 0), (6 * n - 1, 0 if n % 3 else 500))
        seen = seen.learned([batch(6 * n + 1.5, n, 500, 15.0)], window)
    assert seen.trigger_seconds is None


def test_batches_that_follow_each_other_at_once_have_no_trigger() -> None:
    """One batch per snapshot, each of which starts when the one before has ended."""
    seen = NO_LIMITS._replace(trigger_seconds=60.0)
    for n in range(6):
        seen = seen.learned([batch(n, n, 500, 10.0)], lags((n - 1, 500), (n, 500)))
    assert seen.trigger_seconds is None


def test_batches_that_start_far_sooner_have_not_waited_for_that_trigger() -> None:
    """One that ends too late for its trigger is followed at once, which alone says nothing about the interval."""
    seen = NO_LIMITS.learned([batch(n, n, 500, 3.0) for n in range(2)], lags((1, 0)))
    seen = seen.learned([batch(n, n, 500, 3.0) for n in (2, 3)], lags((3, 0)))
    assert seen.trigger_seconds == 10.0
    assert seen.learned([batch(4.0, 4, 500, 9.0), batch(4.9, 5, 500, 9.0)], lags((5, 0))).trigger_seconds == 10.0
    assert seen.learned([batch(4.0, 4, 500, 4.0), batch(4.4, 5, 500, 4.0)], lags((5, 0))).trigger_seconds is None


@pytest.mark.parametrize(
    ("trigger", "objective", "longest"),
    [
        (None, 60.0, 30.0),
        (20.0, 60.0, 30.0),
        (45.0, 60.0, 15.0),
        (60.0, 60.0, 60.0),
        (60.0, 180.0, 90.0),
        (None, 1.0, 1.0),
    ],
)
def test_a_record_waits_for_its_trigger_and_for_its_batch(trigger: float, objective: float, longest: float) -> None:
    """Both together last no longer than the lag objective, where a size can do that."""
    assert NO_LIMITS._replace(trigger_seconds=trigger).longest_batch(objective) == longest


@pytest.mark.parametrize(
    ("overhead", "trigger", "objective", "reachable", "longest"),
    [
        (26.0, None, 60.0, 60.0, 30.0),
        (28.0, None, 60.0, 112.0, 56.0),
        (900.0, None, 60.0, 3600.0, 1800.0),
        (5.0, 50.0, 60.0, 60.0, 10.0),
        (12.0, 50.0, 60.0, 74.0, 24.0),
        (40.0, 60.0, 60.0, 120.0, 60.0),
        (400.0, 60.0, 60.0, 1600.0, 800.0),
    ],
)
def test_a_batch_that_takes_too_long_without_its_records_makes_the_objective_longer(
    overhead: float, trigger: float | None, objective: float, reachable: float, longest: float
) -> None:
    """If no size can meet the objective, batches are planned for that last twice their overhead."""
    limits = NO_LIMITS._replace(trigger_seconds=trigger)
    assert limits.reachable(objective, overhead) == reachable
    assert limits.longest_batch(objective, overhead) == longest


def test_one_size_means_linear_scaling() -> None:
    """Until a second size was seen, scaling is linear, so the first step cannot overshoot a sub-linear job."""
    known = fit_model(batches(2, [100, 200, 300] * 5, 0.0, 0.01, 64), 2, even(64), 40.0)
    assert known is not None
    assert known.scaling.beta == 1.0
    assert known.capacity(8) == pytest.approx(4 * known.rate)


def test_two_sizes_show_sub_linear_scaling() -> None:
    """A second size that processed less than its share makes the model sub-linear."""
    sizes = batches(2, [100, 200, 300] * 20, 0.2, 0.010, 64) + batches(16, [900, 1500, 2500] * 20, 0.2, 0.018, 64)
    known = fit_model(sizes, 16, even(64), 40.0)
    assert known is not None
    # 8 times the slots at 1.8 times the cost: beta = 1 - log(1.8)/log(8) = 0.717, pulled a little to 1
    assert 0.68 < known.scaling.beta < 0.80


def test_a_size_has_at_least_the_capacity_it_kept_up_with() -> None:
    """A rate that the size kept up with is a lower bound of its capacity."""
    known = fit_model(batches(2, [10] * 10, 1.0, 0.01), 2, even(8), 40.0, 500.0)
    assert known is not None
    assert known.rate == 500.0
