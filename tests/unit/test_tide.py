"""tide: capacity per size, the forecast of arrivals, and the price of a restart."""

from __future__ import annotations

import itertools
import json
import math
import random
from dataclasses import fields, replace
from datetime import timedelta
from typing import Any

import pytest

from bench import month
from tests.support.engine import step
from tests.support.events import START, batch, job, observed, result, snapshot
from tidegate.engine.batch_sums import one_batch
from tidegate.engine.costs import COSTS_KEPT, MeasuredCost
from tidegate.engine.options import BadOption, parse
from tidegate.engine.state import JobState, Slice, to_wire
from tidegate.engine.tide.batch_limits import NO_LIMITS, BatchLimits
from tidegate.engine.tide.capacity import (
    NO_PLACE,
    Shape,
    SizeFit,
    fit_model,
    learn,
    learn_stages,
    shape_of,
    useful_sizes,
    work_of,
)
from tidegate.engine.tide.forecast import ArrivalForecast
from tidegate.engine.tide.memory import TideMemory
from tidegate.engine.tide.options import TideOptions
from tidegate.engine.tide.rollout import Rollout, SlotPrices
from tidegate.engine.ways import PlannedChange
from tidegate.events.decision import Decision, Emission, EmissionStep, Evidence, Neighbour
from tidegate.events.result import ActionResult, Phase
from tidegate.events.snapshot import StageTasks
from tidegate.events.way import Way
from tidegate.lab.jobs import SOURCE, lab_job
from tidegate.lab.score import score
from tidegate.lab.simulate import simulate
from tidegate.twin.load import Load

MEMORY = 800.0
"""Memory of the level, seconds."""


def even(tasks: int) -> Shape:
    """Return the shape of one stage of equal tasks."""
    return ((tasks, 1.0, 1.0, NO_PLACE),)


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
    known = fit_model([found], 4, even(8), 10.0)
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


def test_one_size_means_linear_scaling() -> None:
    """Until a second size was seen, scaling is linear, so the first step cannot overshoot a sub-linear job."""
    known = fit_model(batches(2, [100, 200, 300] * 5, 0.0, 0.01, 64), 2, even(64), 20.0)
    assert known is not None
    assert known.beta == 1.0
    assert known.capacity(8) == pytest.approx(4 * known.rate)


def test_two_sizes_show_sub_linear_scaling() -> None:
    """A second size that processed less than its share makes the model sub-linear."""
    sizes = batches(2, [100, 200, 300] * 20, 0.2, 0.010, 64) + batches(16, [900, 1500, 2500] * 20, 0.2, 0.018, 64)
    known = fit_model(sizes, 16, even(64), 20.0)
    assert known is not None
    # 8 times the slots at 1.8 times the cost: beta = 1 - log(1.8)/log(8) = 0.717, pulled a little to 1
    assert 0.68 < known.beta < 0.80


def test_a_size_has_at_least_the_capacity_it_kept_up_with() -> None:
    """A rate that the size kept up with is a lower bound of its capacity."""
    known = fit_model(batches(2, [10] * 10, 1.0, 0.01), 2, even(8), 20.0, 500.0)
    assert known is not None
    assert known.rate == 500.0


def fed(forecast: ArrivalForecast, rates: list[float], start: float = 0.0) -> ArrivalForecast:
    """Return the forecast after a rate every ten seconds."""
    for number, rate in enumerate(rates):
        forecast = forecast.update(start + 10.0 * number, rate, MEMORY)
    return forecast


def ahead(forecast: ArrivalForecast, middle: float, seconds: float = 10.0) -> tuple[float, float]:
    """Return (rate, deviation) of the mean over `seconds` around `middle` ahead."""
    span = [(middle - 0.5 * seconds, seconds)]
    ((_, rate),) = forecast.ahead(span, MEMORY, 0.0)
    ((_, upper),) = forecast.ahead(span, MEMORY, 1.0)
    return rate, upper - rate


def fluctuating(seed: int = 2) -> ArrivalForecast:
    """Return the forecast after 300 rates around 500 with residuals of deviation 60 and autocorrelation 0.9."""
    noise, rates, residual = random.Random(seed), [], 0.0
    for _ in range(300):
        residual = 0.9 * residual + noise.gauss(0.0, 26.0)
        rates.append(500.0 + residual)
    return fed(ArrivalForecast(), rates)


def test_a_steady_load_is_forecast_as_it_is() -> None:
    """A steady load gets no trend, and its interval shrinks to nothing."""
    forecast = fed(ArrivalForecast(), [500.0] * 60)
    rate, deviation = ahead(forecast, 60.0)
    assert rate == pytest.approx(500.0)
    assert deviation == pytest.approx(0.0, abs=1e-6)


def test_a_ramp_is_forecast_to_go_on() -> None:
    """A rising load is forecast above its last value, but not to rise for ever."""
    forecast = fed(ArrivalForecast(), [100.0 + 10.0 * n for n in range(60)])
    assert 690 + 30 < ahead(forecast, 60.0)[0] < 690 + 70
    assert ahead(forecast, 10_000.0)[0] < 690 + 300


def test_a_step_down_within_an_interval_is_no_ramp() -> None:
    """The interval with the step has a rate between the two loads, and the load goes no further down."""
    forecast = fed(ArrivalForecast(), [1080.0] * 20 + [700.0, 360.0])
    for _ in range(5):
        assert ahead(forecast, 60.0)[0] == pytest.approx(360.0)
        forecast = fed(forecast, [360.0])


@pytest.mark.parametrize(("slope", "most"), [(10.0, 2.0), (-10.0, 0.5)])
def test_a_trend_at_most_doubles_or_halves_the_load(slope: float, most: float) -> None:
    """However steep the trend, it changes the load by at most these factors."""
    forecast = fed(ArrivalForecast(), [1000.0] * 60)._replace(trend=slope)
    assert ahead(forecast, 600.0)[0] == pytest.approx(most * 1000.0)


def test_noise_widens_the_interval() -> None:
    """Past errors set the width of the interval."""
    noise = random.Random(1)
    noisy = fed(ArrivalForecast(), [500.0 + noise.gauss(0.0, 60.0) for _ in range(300)])
    assert 40 < ahead(noisy, 30.0, 10.0)[1] < 80


def test_independent_noise_averages_out_and_autocorrelated_noise_does_not() -> None:
    """The interval is that of a mean: over a longer segment it shrinks for independent noise, hardly for the other."""
    noise = random.Random(2)
    independent = fed(ArrivalForecast(), [500.0 + noise.gauss(0.0, 60.0) for _ in range(300)])
    autocorrelated = fluctuating()
    assert ahead(independent, 120.0, 120.0)[1] < 0.6 * ahead(independent, 120.0, 10.0)[1]
    assert ahead(autocorrelated, 120.0, 120.0)[1] > 0.7 * ahead(autocorrelated, 120.0, 10.0)[1]


@pytest.mark.parametrize("side", [1.0, -1.0])
@pytest.mark.parametrize("seed", range(5))
def test_a_large_residual_is_no_step_change_where_residuals_last(seed: int, side: float) -> None:
    """Still there an interval later, it confirms nothing; what no residual has ever reached is a step change."""
    forecast = fluctuating(seed)
    fluctuated = fed(forecast, [forecast.level + side * 120.0] * 2, start=3000.0)
    stepped = fed(forecast, [forecast.level + side * 400.0] * 2, start=3000.0)
    assert fluctuated.outlier is None
    assert ahead(fluctuated, 600.0)[0] == pytest.approx(forecast.level, abs=60.0)
    assert ahead(stepped, 600.0)[0] == pytest.approx(forecast.level + side * 400.0, abs=60.0)


def test_a_young_level_is_trusted_less_than_an_old_one() -> None:
    """After a step change in a noisy load, the interval is wide until enough rates have shown the new level."""
    forecast = fluctuating()
    stepped = fed(forecast, [1000.0] * 2, start=3000.0)
    settled = fed(stepped, [1000.0] * 200, start=3020.0)
    assert ahead(stepped, 600.0, 300.0)[1] > 1.2 * ahead(forecast, 600.0, 300.0)[1]
    assert ahead(settled, 600.0, 300.0)[1] < 0.5 * ahead(stepped, 600.0, 300.0)[1]


def test_a_day_lower_than_the_one_before_is_not_expected_to_rise() -> None:
    """The same time of another day says nothing about today."""
    forecast = fed(ArrivalForecast(), [1000.0] * 8640)
    today = fed(forecast, [700.0] * 1420, start=86_400.0)
    assert ahead(today, 600.0)[0] == pytest.approx(700.0, rel=0.01)


class Plant:
    """A job that processes 100 records/s per useful slot of eight partitions; a restart takes 20 s, else nothing."""

    def __init__(self, slots: int = 2, way: Way = Way.RESTART, **options: Any) -> None:
        self.spec = job(
            policy="tide",
            policy_options=options,
            rescale=(way,),
            guards={"cooldown": {"up_seconds": 0, "down_seconds": 0}, "stabilization": {"seconds": 0}},
        )
        self.slots, self.state, self.number = slots, JobState.new(), 0
        self.arrived = self.committed = 1_000_000.0
        self.incarnation = 1
        self.decisions: list[Decision] = []
        self.results: tuple[ActionResult, ...] = ()
        self.neighbours: tuple[Neighbour, ...] = ()

    def run(self, rates: list[float], capacity: float = 100.0) -> list[int]:
        """Return the sizes ordered while `rates` arrive, one per ten seconds."""
        ordered = []
        for rate in rates:
            self.number += 1
            self.arrived += 10 * rate
            rate_limit = capacity * work_of(even(8)).slots(self.slots)
            done = min(self.arrived - self.committed, 10 * rate_limit)
            self.committed += done
            took = (batch(self.number, self.number, int(done), 0.1 + 0.98 * done / rate_limit),) if done else ()
            shot = snapshot(
                self.number,
                arrived=int(self.arrived),
                committed=int(self.committed),
                slots=self.slots,
                batches=took,
                incarnation=f"app-{self.incarnation}",
            )
            seen = observed(shot, results=self.results, neighbours=self.neighbours)
            self.state, decision = step(self.state, shot, self.spec, seen)
            self.decisions.append(decision)
            self.results = ()
            if decision.command is not None:
                self.slots = decision.final_parallelism
                ordered.append(self.slots)
                self.results = (self.changed(decision, rate),)
        return ordered

    def changed(self, decision: Decision, rate: float) -> ActionResult:
        """Carry out a command; return its result."""
        assert decision.command is not None
        way = decision.command.way
        outage = 20.0 if way is Way.RESTART else 0.0
        if outage:
            self.incarnation, self.number, self.arrived = (
                self.incarnation + 1,
                self.number + 2,
                self.arrived + 20 * rate,
            )
        return result(
            decision.decision_id,
            Phase.VERIFIED,
            self.number,
            parallelism=self.slots,
            incarnation=f"app-{self.incarnation}",
            way=way,
            outage_seconds=outage,
            delay_seconds=outage or 5.0,
        )


def rollout(lag: float, *, outage: float, delay: float, demand: float = 500.0, running: float = 0.0) -> Rollout:
    """Return the rollout of a job of 4 slots that does 400 records/s, and may have 2 to 8."""
    known = fit_model(batches(4, [1000, 2000, 4000], 0.0, 0.01), 4, even(8), 30.0)
    assert known is not None
    segments = [(delay, demand), (60.0, demand), (540.0 - delay, demand)]
    prices = SlotPrices(16.0, 16.0)
    return Rollout(
        known,
        (2, 4, 8),
        prices,
        segments,
        lag,
        lag / demand,
        objective_seconds=60.0,
        headroom=0.02,
        variation=0.0,
        change=PlannedChange(Way.IN_PLACE, outage, delay),
        changes=True,
        reaction_seconds=delay + 20.0,
        horizon_seconds=600.0,
        running_seconds=running,
    )


def late_after_change(found: Rollout, size: int) -> float:
    """Return for how long a size would be late if it were ordered now."""
    return found.late(size, found.lag_at_stop, found.age_at_stop)


def test_until_a_change_works_the_present_size_goes_on() -> None:
    """The lag grows by demand minus capacity during the delay, and by all of the demand during the outage."""
    assert rollout(1000.0, outage=30.0, delay=30.0).lag_after_change(1000.0) == pytest.approx(1000 + 30 * 500)
    assert rollout(1000.0, outage=0.0, delay=30.0).lag_after_change(1000.0) == pytest.approx(1000 + 30 * 100)
    assert rollout(1000.0, outage=3.0, delay=30.0).lag_after_change(1000.0) == pytest.approx(1000 + 27 * 100 + 3 * 500)
    assert rollout(0.0, outage=0.0, delay=30.0, demand=100.0).lag_after_change(0.0) == 0.0


def test_a_change_in_place_is_late_for_a_shorter_time_than_a_restart() -> None:
    """The same growth is later to catch up by restart; slots removed in place are gone at once."""
    in_place, restart = rollout(30_000.0, outage=0.0, delay=15.0), rollout(30_000.0, outage=45.0, delay=45.0)
    assert late_after_change(in_place, 8) < late_after_change(restart, 8)
    shrinking = rollout(0.0, outage=0.0, delay=15.0, demand=300.0)
    limit = 200.0 * 60.0
    # 100 records/s too many from the first second on: late from 120 s on, and after the horizon until it is worked off
    assert late_after_change(shrinking, 2) > 600.0 - limit / 100.0


def test_a_long_batch_that_is_nearly_done_is_no_reason_to_grow() -> None:
    """It takes what waited when it began, and not what has arrived since: that waits for a short batch afterwards."""
    fresh, done = (rollout(12_000.0, outage=30.0, delay=30.0, demand=300.0, running=s) for s in (0.0, 28.0))
    assert fresh.stay().late > done.stay().late == 0.0
    assert done.cheapest_growth(done.stay()).size == 4


def test_lateness_until_the_batch_ends_counts_for_growth_too() -> None:
    """A job that is late now is so at any size until then."""
    late = rollout(40_000.0, outage=30.0, delay=30.0)
    assert late.late_to_stop > 0.0
    best = late.cheapest_growth(late.stay())
    assert best.late == pytest.approx(late.late_to_stop + late_after_change(late, best.size))


def test_at_low_load_a_restart_is_late_although_it_leaves_little_work() -> None:
    """After 90 s without a driver the oldest record is 90 s old, even if all that waits is done in a few seconds."""
    found = rollout(100.0, outage=90.0, delay=90.0, demand=10.0)
    assert found.lag_after_change(100.0) / 200.0 < 6.0
    assert late_after_change(found, 2) > 30.0


@pytest.mark.parametrize(("soon", "on_time"), [(1.1, True), (1.9, False)])
def test_an_excess_of_a_minute_is_lag_and_not_demand(soon: float, *, on_time: bool) -> None:
    """A size that works it off within the objective is sufficient; one that would be late is not."""
    known = fit_model(batches(8, [1000, 2000, 4000], 0.5, 0.01, 56), 8, even(56), 30.0)
    assert known is not None
    smaller = known.capacity(7)
    segments = [(20.0, 0.8 * smaller), (60.0, soon * smaller), (120.0, 0.9 * smaller), (400.0, 0.8 * smaller)]
    found = Rollout(
        known,
        (6, 7, 8),
        SlotPrices(16.0, 240.0),
        segments,
        lag=1000.0,
        age=1000.0 / segments[0][1],
        objective_seconds=60.0,
        headroom=0.02,
        variation=0.0,
        change=PlannedChange(Way.RESTART, 20.0, 20.0),
        changes=True,
        reaction_seconds=40.0,
        horizon_seconds=600.0,
        running_seconds=0.0,
    )
    assert (late_after_change(found, 7) == 0.0) is on_time


def test_a_step_takes_one_change_to_the_right_size() -> None:
    """When the load more than doubles, one decision reaches a size that holds it, and none follows."""
    plant = Plant(slots=2)
    assert plant.run([150.0] * 20) == []
    assert plant.run([350.0] * 40) == [4]
    assert plant.decisions[-1].evidence.lag_seconds is not None
    assert plant.decisions[-1].evidence.lag_seconds < 15


@pytest.mark.parametrize(("cold", "ordered"), [(5, []), (20, [8])])
def test_a_young_run_counts_as_at_least_as_fast_as_other_sizes_promise(cold: int, ordered: list[int]) -> None:
    """In its first minute a run of 4 slots does what 2 slots do: no reason for a third restart, unless it stays so."""
    plant = Plant(slots=2)
    plant.run([150.0 + 30 * (n % 3) for n in range(20)])
    assert any(plant.run([350.0]) for _ in range(6))
    assert plant.slots == 4
    assert plant.run([350.0] * cold, capacity=60.0)[:1] == ordered
    if not ordered:
        assert plant.run([350.0] * 30) == []


def test_the_first_batch_is_no_part_of_the_outage() -> None:
    """Of a downtime of 20 s, the first batch works for 10 s: the next restart is planned with the rest."""
    plant = Plant(slots=2)
    plant.run([150.0 + 30 * (n % 3) for n in range(20)])
    assert plant.run([350.0 + 30 * (n % 3) for n in range(10)])
    assert isinstance(plant.state.memory, TideMemory)
    ((_, outage),) = plant.state.memory.outages
    assert outage == pytest.approx(10.0, abs=1.0)
    plant.run([100.0] * 60)
    shrunk = next(each for each in plant.decisions[::-1] if each.command is not None)
    assert shrunk.expectation is not None
    assert shrunk.expectation.outage_seconds == pytest.approx(outage)


def test_a_scale_down_that_does_not_pay_makes_the_next_one_wait_longer() -> None:
    """It must have saved its price twice, for itself and for the way back, before the job grows again."""
    memory = TideMemory()
    soon = memory.with_change(0.0, -2, 480.0).with_change(300.0, 2, 0.0)
    assert soon.caution == 2.0
    again = soon.with_change(1000.0, -2, 480.0).with_change(1400.0, 1, 0.0)
    assert again.caution == 4.0
    late = again.with_change(2000.0, -2, 480.0).with_change(2500.0, 2, 0.0)
    assert late.caution == 2.0
    assert late.with_change(3000.0, 1, 0.0).caution == 2.0, "no scale-down came before"


def test_a_job_grows_in_place_while_it_learns_its_new_size() -> None:
    """After a silence it has one slot, and no batch has shown what that does; what other sizes can do is known."""
    plant = Plant(slots=2, way=Way.IN_PLACE)
    plant.run([150.0 + 30 * (n % 3) for n in range(20)])
    plant.run([0.0] * 150)
    assert plant.slots == 1
    before = len(plant.decisions)
    assert plant.run([700.0] * 6)[-1] == 8
    grown = next(each for each in plant.decisions[before:] if each.command is not None)
    assert grown.trail[0].code == "TIDE_GROW"
    assert plant.decisions.index(grown) - before <= 2, "not only after the third batch, and another interval"


def test_a_short_burst_is_answered_with_what_it_needs_and_soon_over() -> None:
    """A minute of 350 records/s needs four of eight slots; two minutes later the job has two or fewer again."""
    plant = Plant(slots=2, way=Way.IN_PLACE)
    plant.run([170.0 + 10 * (n % 3) for n in range(30)])
    ordered = plant.run([350.0] * 6)
    assert max(ordered, default=2) <= 4
    plant.run([170.0 + 10 * (n % 3) for n in range(12)])
    assert plant.slots <= 2
    assert max(decision.evidence.delay_seconds or 0.0 for decision in plant.decisions) < 60


@pytest.mark.parametrize("between", [[5000.0] * 6, [6000.0, 12000.0], [0.0] * 30], ids=["burst", "peak", "gap"])
def test_the_line_is_right_again_two_minutes_after_a_burst_or_a_gap(between: list[float]) -> None:
    """No trend of it is carried on, no level is negative, and its deviation is not kept."""
    noise = random.Random(4)
    usual = [1000.0 + noise.gauss(0.0, 30.0) for _ in range(200)]
    forecast = fed(fed(ArrivalForecast(), usual), between, start=2000.0)
    for number in range(12):
        forecast = fed(forecast, [usual[number]], start=2000.0 + 10.0 * (len(between) + number))
        assert ahead(forecast, 300.0)[0] >= 0.0
    assert ahead(forecast, 300.0)[0] == pytest.approx(1000.0, rel=0.15)
    assert ahead(forecast, 300.0, 300.0)[1] < 0.25 * 1000.0


def test_a_ramp_is_followed_before_the_job_is_late() -> None:
    """On a ramp each change comes as late as it may, and the lag objective of 60 s is never violated."""
    plant = Plant(slots=2)
    plant.run([100.0] * 10)
    ordered = plant.run([float(rate) for rate in range(100, 400, 4)])
    assert ordered
    assert all(before < after for before, after in itertools.pairwise((2, *ordered)))
    assert max(decision.evidence.lag_seconds or 0.0 for decision in plant.decisions) < 60


def test_a_size_too_large_is_reduced_at_the_switching_threshold() -> None:
    """A size too large for the load is reduced, but only after it was too large for a while."""
    plant = Plant(slots=8)
    ordered = plant.run([120.0] * 60)
    assert ordered
    assert plant.slots == 2
    first = next(index for index, decision in enumerate(plant.decisions) if decision.command)
    assert first * 10 >= 60
    in_place = Plant(slots=8, way=Way.IN_PLACE)
    assert in_place.run([120.0] * 10)
    assert in_place.slots == 2
    sooner = next(index for index, decision in enumerate(in_place.decisions) if decision.command)
    assert sooner < first, "a change in place costs less, so it comes sooner"


def test_in_place_a_size_that_is_too_small_is_used_for_a_while() -> None:
    """For 110 records/s one slot is too small and two are too many: the job alternates, and is never late."""
    by_restart, in_place = Plant(slots=2), Plant(slots=2, way=Way.IN_PLACE)
    assert by_restart.run([110.0] * 360) == [], "two restarts would cost more than the slot"
    ordered = in_place.run([110.0] * 360)
    assert set(ordered) == {1, 2}
    slots = sum(decision.current_parallelism for decision in in_place.decisions) / 360
    assert 1.1 < slots < 1.4, "in the long run, 110/100 slots are needed"
    assert max(decision.evidence.delay_seconds or 0.0 for decision in in_place.decisions) < 60
    codes = [decision.trail[0].code for decision in in_place.decisions if decision.command is not None]
    assert set(codes) == {"TIDE_SHRINK_BRIEFLY", "TIDE_GROW"}


def test_by_handover_no_size_that_is_too_small_is_used_for_a_while() -> None:
    """A handover whose outage was measured as none is still no change in place: the job does not alternate."""
    plant = Plant(slots=4, way=Way.HANDOVER)
    assert plant.run([110.0] * 360) == [2]
    assert [cost.outage for cost in plant.state.changes.costs] == [0.0]


def test_a_size_that_is_too_small_lasts_until_half_of_the_objective_is_used() -> None:
    """Of 60 s, 30 s are kept free, and what arrives too much until the job has grown again.

    What has built up by then must fit into a batch of 30 s at that size.
    """
    found = rollout(0.0, outage=0.0, delay=10.0, demand=430.0)
    for size, capacity in ((4, 0.98 * 400.0), (2, 0.98 * 200.0)):
        growth = 430.0 - capacity
        assert found.lasts(size) == pytest.approx(max(0.0, (30.0 * capacity - 30.0 * growth) / growth))
    assert found.lasts(8) == pytest.approx(600.0), "the whole horizon"
    falling = rollout(0.0, outage=0.0, delay=10.0, demand=430.0)
    falling.density = 100.0
    assert falling.lasts(4) == pytest.approx((30.0 * 100.0 - 30.0 * 38.0) / 38.0), "the age when fewer arrive"
    assert rollout(20_000.0, outage=0.0, delay=10.0, demand=430.0).lasts(4) == 0.0


def test_the_oldest_record_waits_for_all_batches_before_its_own() -> None:
    """Two batches of 20 s for what waits: a record 30 s old may be 70 s old when the second one ends."""
    known = fit_model(batches(4, [1000, 2000, 4000], 0.0, 0.01), 4, even(8), 30.0)
    assert known is not None
    found = rollout(16_000.0, outage=0.0, delay=10.0, demand=1.0)
    found.model.limits = NO_LIMITS._replace(max_records=8_000)
    assert found.late(4, 16_000.0, 30.0) == pytest.approx(30.0 + 2 * 20.0 / 0.98 - 60.0 * 0.9, abs=0.5)


def test_a_load_that_comes_and_goes_is_followed_in_place() -> None:
    """Two minutes more, two minutes less: in place the slots follow, and the job is not late."""
    wave = ([350.0] * 12 + [100.0] * 12) * 10
    by_restart, in_place = Plant(slots=2), Plant(slots=2, way=Way.IN_PLACE)
    by_restart.run(wave)
    in_place.run(wave)

    def slots(plant: Plant) -> float:
        return sum(decision.current_parallelism for decision in plant.decisions) / len(plant.decisions)

    assert slots(in_place) < 0.9 * slots(by_restart)
    assert max(decision.evidence.delay_seconds or 0.0 for decision in in_place.decisions) < 60


def test_after_a_change_in_place_the_new_size_is_learned_from_its_own_batches() -> None:
    """The run goes on, but batches of the old size, or of both, teach nothing about the new one."""
    plant = Plant(slots=2, way=Way.IN_PLACE)
    plant.run([150.0 + 30 * (n % 3) for n in range(20)])
    plant.run([350.0 + 30 * (n % 3) for n in range(30)])
    assert plant.slots == 4
    assert plant.incarnation == 1
    assert isinstance(plant.state.memory, TideMemory)
    rates = {each.size: 1.0 / each.cost for each in plant.state.memory.sizes}
    assert rates[2] == pytest.approx(200.0, rel=0.1)
    assert rates[4] == pytest.approx(400.0, rel=0.1)
    first = next(index for index, decision in enumerate(plant.decisions) if decision.command)
    after = plant.decisions[first + 1]
    assert after.current_parallelism == 4
    assert after.evidence.true_processing_rate == pytest.approx(400.0, rel=0.1), "only of batches at the new size"
    assert after.evidence.window_seconds > 60.0, "the counters go on"


def test_a_load_that_changes_too_fast_is_not_followed() -> None:
    """A square wave at the worst period raises the switching threshold, so changes become rare."""
    plant = Plant(slots=2)
    wave = ([350.0] * 12 + [100.0] * 12) * 20
    half = len(wave) // 2
    early = len(plant.run(wave[:half]))
    late = len(plant.run(wave[half:]))
    assert late <= 2
    assert early <= 8


def test_after_two_ineffective_scale_ups_no_more_is_added() -> None:
    """A job limited elsewhere is no faster with more slots: it grows twice, and then a guard says so."""
    plant = Plant(slots=1)
    plant.run([60.0 + 15 * (n % 3) for n in range(20)])
    sizes = []
    for _ in range(60):
        # whatever the size, it processes 100 records/s
        sizes += plant.run([96.0 + 10 * (plant.number % 3)], capacity=100.0 / work_of(even(8)).slots(plant.slots))
    assert sizes == [2, 4]
    assert plant.decisions[-1].trail[-1].code == "SCALE_UP_INEFFECTIVE"


def test_the_commit_of_a_long_batch_is_no_rate_that_was_kept_up_with() -> None:
    """Batches of 200 s at 100 records/s: the window of 120 s in which one commits shows 167/s, and it can do 100/s."""
    spec, state, said = job(policy="tide", policy_options={}, lag_objective_seconds=600.0), JobState.new(), []
    arrived = committed = 1_000_000
    for n in range(1, 161):
        arrived += 1000
        ended = () if n % 20 else (batch(n, n // 20, 20_000, 200.0),)
        committed += 20_000 * len(ended)
        shot = snapshot(n, arrived=arrived, committed=committed, batches=ended)
        state, decision = step(state, shot, spec, observed(shot))
        if n > 80 and "capacity" in decision.trail[0].numbers:
            said.append(float(decision.trail[0].numbers["capacity"] or 0.0))
    assert said
    assert max(said) < 110.0


def test_less_than_nothing_does_not_wait() -> None:
    """A topic was made again, so its end offset is below what was committed: that is no lag, and none below zero."""
    plant = Plant(slots=2)
    plant.run([150.0 + n % 3 for n in range(20)])
    state = plant.state
    for n in range(plant.number + 1, plant.number + 7):
        shot = snapshot(n, arrived=30 * (n - plant.number), committed=int(plant.committed), slots=2)
        state, decision = step(state, shot, plant.spec, observed(shot))
        assert decision.evidence.lag_records == 0
        assert decision.trail[0].numbers.get("lag", 0) == 0
        if decision.expectation is not None:
            assert (decision.expectation.lag_seconds or 0.0) >= 0.0 <= (decision.expectation.catch_up_seconds or 0.0)


def test_its_state_is_small() -> None:
    """The memory of a job with every size seen, and as many costs as are kept, stays within the 4 kB of a state."""
    plant = Plant(slots=2)
    for rate in itertools.chain.from_iterable([[120.0] * 20, [700.0] * 20] * 4):
        plant.run([rate * 1.2345678])
    costs = [MeasuredCost(way, 1_772_366_461 + n, 12.34, 45.67) for way in Way for n in range(COSTS_KEPT)]
    plant.state = plant.state._replace(changes=plant.state.changes._replace(costs=tuple(costs)))
    assert len(json.dumps(to_wire(plant.state), separators=(",", ":"))) <= 4096


def test_an_idle_job_shrinks_to_its_minimum() -> None:
    """Nothing arriving for a whole window is enough to release slots; no batch is needed."""
    plant = Plant(slots=8)
    assert plant.run([0.0] * 40) == [1]


@pytest.mark.parametrize(
    ("lag", "rate", "is_awaited"), [(5000, 300.0, True), (None, 300.0, True), (0, 300.0, False), (5000, 0.0, False)]
)
def test_silence_while_the_job_upstream_restarts_is_not_idleness(
    lag: int | None, rate: float, is_awaited: bool
) -> None:
    """It has announced its output, and records wait for it, or nobody knows: the job keeps its slots for them."""
    feeder = Neighbour(
        "feeder", True, ("in",), 4, Evidence(lag_records=lag), emits=Emission((EmissionStep(START, rate),), "in")
    )
    plant = Plant(slots=8)
    plant.neighbours = (feeder,)
    assert plant.run([0.0] * 40) == ([] if is_awaited else [1])


def test_the_explanation_says_why() -> None:
    """The decision says what is expected, what the sizes can process, and how late they would be."""
    plant = Plant(slots=2)
    plant.run([150.0] * 20)
    plant.run([400.0] * 20)
    grown = next(d for d in plant.decisions if d.command)
    assert "records/s are expected" in grown.sentence
    assert "they would be late for" in grown.sentence
    assert grown.sentence.startswith("Scale up from 2 to 8 slots by restart: ")
    assert "a restart included" in grown.sentence
    assert grown.expectation is not None
    assert (grown.expectation.way, grown.expectation.restart_seconds) == (Way.RESTART, 45.0)
    assert grown.command is not None
    assert grown.command.first_batch_seconds == grown.expectation.lag_seconds
    assert grown.decided_at - START > timedelta(seconds=100)


def with_trigger(seconds: float, way: Way) -> tuple[float, list[Decision]]:
    """Return for how many of 7,200 seconds a job with such a trigger interval is late, and the decisions."""
    hill = [900.0 + 600.0 * math.sin(math.pi * place / 240.0) for place in range(720)]
    day = lab_job(Load(hill, 10.0), ways=(way,))
    model = replace(day.models[0], trigger_interval_seconds=seconds, max_records_per_trigger=None)
    (recording,) = simulate(replace(day, models=(model,))).values()
    found = score(model, day.specs[0], day.topics[SOURCE].shares, recording)
    return found.violated_seconds, [decision for decision in recording.decisions if decision is not None]


@pytest.mark.parametrize("way", [Way.RESTART, Way.IN_PLACE])
def test_a_record_that_waits_for_its_trigger_leaves_its_batch_less_time(way: Way) -> None:
    """With 50 s from trigger to trigger, and a lag objective of 60 s, a batch may last 10 s."""
    late, _ = with_trigger(50.0, way)
    assert late < 600.0


def test_a_trigger_interval_as_long_as_the_lag_objective_is_told() -> None:
    """No size can meet the objective, so the job gets one that keeps up, and not the largest one."""
    _, decisions = with_trigger(60.0, Way.IN_PLACE)
    told = [decision.trail[0] for decision in decisions if decision.trail[0].code == "TIDE_HOLD_TRIGGER"]
    assert "the trigger interval is 60 s, so no size can meet the lag objective of 60 s" in told[-1].sentence
    assert sum(decision.current_parallelism for decision in decisions) / len(decisions) < 4.0


@pytest.mark.parametrize("name", sorted(TideOptions.removed))
def test_a_job_file_with_an_option_of_an_earlier_engine_is_told_to_remove_it(name: str) -> None:
    """The error names the option, and those that there are."""
    with pytest.raises(BadOption, match=f"here.{name}: is no option any more, so remove it; known are catch_up, "):
        parse(TideOptions, {name: 1.0}, "here")


def test_options_are_few() -> None:
    """Eight options at most, three of them prices."""
    assert len(fields(TideOptions)) == 8
    assert sum(bool(each.metadata["price"]) for each in fields(TideOptions)) == 3


@pytest.mark.parametrize("interval", [30, 300, 900])
def test_a_job_is_scaled_however_seldom_it_is_measured(interval: int) -> None:
    """With a snapshot every quarter of an hour too, the size follows a day's load up and down."""
    day = month.scenario(0, month.Size(jobs=1, days=1, interval_seconds=interval, trigger_seconds=60.0))
    (recording,) = simulate(day).values()
    ways = [command.to_parallelism > command.from_parallelism for command in recording.commands]
    assert True in ways
    assert False in ways
