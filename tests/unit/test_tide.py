"""tide: capacity per size, arrivals ahead, and the weighing of a restart."""

from __future__ import annotations

import itertools
import json
import math
import random
from datetime import timedelta
from typing import Any

import pytest

from tests.support.engine import step
from tests.support.events import START, batch, job, observed, result, snapshot
from tidegate.engine.batch_sums import BatchSums
from tidegate.engine.state import JobState, Slice, to_wire
from tidegate.engine.tide.capacity import Row, Shape, effective, learn, model, useful_sizes
from tidegate.engine.tide.forecast import DAY_SECONDS, Forecast, Smoothing
from tidegate.engine.tide.play import Play, Prices
from tidegate.events.decision import Decision
from tidegate.events.result import ActionResult, Phase

SMOOTHING = Smoothing()


def even(tasks: int) -> Shape:
    """Return the shape of one stage of equal tasks."""
    return ((tasks, 1.0),)


def batches(
    size: int, records: list[int], overhead: float, cost: float, partitions: int = 8, *, told: float = 0.0
) -> tuple[Row, ...]:
    """Return the row after batches of a size that follow d = a + c·n / e(p), and of which `told` was told of a."""
    rows: tuple[Row, ...] = ()
    for count in records:
        seconds = overhead + cost * count / effective(size, even(partitions))
        piece = Slice(0.0, None, None, sums=BatchSums(1, count, seconds, count * count, count * seconds))
        rows = learn(rows, size, piece, told)
    return rows


@pytest.mark.parametrize(("size", "does"), [(1, 1.0), (3, 8 / 3), (4, 4.0), (5, 4.0), (7, 4.0), (8, 8.0), (12, 8.0)])
def test_slots_that_shorten_no_wave_do_nothing(size: int, does: float) -> None:
    """Eight equal tasks take ceil(8/p) waves, so 5 to 7 slots do what 4 do."""
    assert effective(size, even(8)) == pytest.approx(does)


def test_only_useful_sizes_are_considered() -> None:
    """Of the sizes for eight partitions only those that end in fewer waves are worth a restart."""
    assert useful_sizes(1, 16, even(8)) == (1, 2, 3, 4, 8)
    assert useful_sizes(2, 16, even(8), step=2) == (2, 4, 8)
    assert useful_sizes(1, 5, ()) == (1, 2, 3, 4, 5)


def test_overhead_is_told_apart_from_cost() -> None:
    """Batches of different sizes show overhead and cost; capacity is reckoned at the batch length asked for."""
    (row,) = batches(4, [100, 300, 200, 400, 500, 150, 350, 250], overhead=1.0, cost=0.01)
    assert row.told_apart
    assert row.overhead == pytest.approx(1.0, rel=1e-3)
    known = model([row], 4, even(8), 10.0)
    assert known is not None
    # 4 slots at 10 ms a record do 400/s; of a 10-second batch 1 s is overhead
    assert known.rate == pytest.approx(360.0, rel=1e-3)


def test_batches_of_one_size_show_only_a_rate() -> None:
    """Alike batches cannot tell overhead from cost, and the fit says so."""
    (row,) = batches(4, [200] * 10, overhead=1.0, cost=0.01)
    assert not row.told_apart
    assert row.cost == pytest.approx(1.5 / 200)
    # ... unless the job's events tell the overhead
    (row,) = batches(4, [200] * 10, overhead=1.0, cost=0.01, told=1.0)
    assert row.cost == pytest.approx(0.5 / 200)


def test_one_size_means_linear_scaling() -> None:
    """Until a second size was seen, capacity is proportional: the first step cannot overshoot a sub-linear job."""
    known = model(batches(2, [100, 200, 300] * 5, 0.0, 0.01, 64), 2, even(64), 20.0)
    assert known is not None
    assert known.beta == 1.0
    assert known.capacity(8) == pytest.approx(4 * known.rate)


def test_two_sizes_show_sub_linear_scaling() -> None:
    """A second size that did less than its share bends the model."""
    rows = batches(2, [100, 200, 300] * 20, 0.2, 0.010, 64) + batches(16, [900, 1500, 2500] * 20, 0.2, 0.018, 64)
    known = model(rows, 16, even(64), 20.0)
    assert known is not None
    # 8 times the slots at 1.8 times the cost: beta = 1 - log(1.8)/log(8) = 0.717, pulled a little to 1
    assert 0.68 < known.beta < 0.80


def test_a_size_that_keeps_up_can_do_at_least_that() -> None:
    """An arrival rate that was kept up with is a lower bound of the capacity."""
    known = model(batches(2, [10] * 10, 1.0, 0.01), 2, even(8), 20.0, 500.0)
    assert known is not None
    assert known.rate == 500.0


def ramp(forecast: Forecast, rates: list[float], start: float = 0.0) -> Forecast:
    """Return the forecast after a rate every ten seconds."""
    for number, rate in enumerate(rates):
        forecast = forecast.update(start + 10.0 * number, rate, SMOOTHING)
    return forecast


def ahead(forecast: Forecast, middle: float, seconds: float = 10.0) -> tuple[float, float]:
    """Return (rate, deviation) of the mean over `seconds` around `middle` ahead."""
    stretch = [(middle - 0.5 * seconds, seconds)]
    ((_, rate),) = forecast.ahead(stretch, SMOOTHING, 0.0)
    ((_, upper),) = forecast.ahead(stretch, SMOOTHING, 1.0)
    return rate, upper - rate


def swinging(seed: int = 2) -> Forecast:
    """Return the forecast after 300 rates around 500, off by noise of deviation 60, 90 % of it left each time."""
    noise, rates, swing = random.Random(seed), [], 0.0
    for _ in range(300):
        swing = 0.9 * swing + noise.gauss(0.0, 26.0)
        rates.append(500.0 + swing)
    return ramp(Forecast(), rates)


def test_a_steady_load_is_forecast_as_it_is() -> None:
    """No trend is read into a steady load, and its interval closes."""
    forecast = ramp(Forecast(), [500.0] * 60)
    rate, deviation = ahead(forecast, 60.0)
    assert rate == pytest.approx(500.0)
    assert deviation == pytest.approx(0.0, abs=1e-6)


def test_a_ramp_is_seen_coming() -> None:
    """A rising load is forecast above its last value, and not for ever."""
    forecast = ramp(Forecast(), [100.0 + 10.0 * n for n in range(60)])
    assert 690 + 30 < ahead(forecast, 60.0)[0] < 690 + 70
    assert ahead(forecast, 10_000.0)[0] < 690 + 300


@pytest.mark.parametrize(("slope", "most"), [(10.0, 2.0), (-10.0, 0.5)])
def test_a_trend_at_most_doubles_or_halves_the_load(slope: float, most: float) -> None:
    """However steep the line is, what it has not shown yet is believed only so far."""
    forecast = ramp(Forecast(), [1000.0] * 60)._replace(trend=slope)
    assert ahead(forecast, 600.0)[0] == pytest.approx(most * 1000.0)


def test_noise_widens_the_interval() -> None:
    """The interval is earned by past errors."""
    noise = random.Random(1)
    noisy = ramp(Forecast(), [500.0 + noise.gauss(0.0, 60.0) for _ in range(300)])
    assert 40 < ahead(noisy, 30.0, 10.0)[1] < 80


def test_noise_that_comes_and_goes_averages_out_and_noise_that_stays_does_not() -> None:
    """The interval is that of the mean over a stretch: it closes for independent errors, hardly for lasting ones."""
    noise = random.Random(2)
    loose = ramp(Forecast(), [500.0 + noise.gauss(0.0, 60.0) for _ in range(300)])
    bound = swinging()
    assert ahead(loose, 120.0, 120.0)[1] < 0.6 * ahead(loose, 120.0, 10.0)[1]
    assert ahead(bound, 120.0, 120.0)[1] > 0.7 * ahead(bound, 120.0, 10.0)[1]


@pytest.mark.parametrize("side", [1.0, -1.0])
@pytest.mark.parametrize("seed", range(5))
def test_a_swing_that_comes_at_once_is_no_jump_where_swings_last(seed: int, side: float) -> None:
    """An interval later it is still there, which confirms nothing; what no swing has reached is a jump at once."""
    forecast = swinging(seed)
    swung = ramp(forecast, [forecast.level + side * 120.0] * 2, start=3000.0)
    jumped = ramp(forecast, [forecast.level + side * 400.0] * 2, start=3000.0)
    assert swung.surprise is None
    assert ahead(swung, 600.0)[0] == pytest.approx(forecast.level, abs=60.0)
    assert ahead(jumped, 600.0)[0] == pytest.approx(forecast.level + side * 400.0, abs=60.0)


def test_a_young_line_is_trusted_less_than_an_old_one() -> None:
    """After a jump in a noisy load the interval is wide until rates have shown where the new line is."""
    forecast = swinging()
    jumped = ramp(forecast, [1000.0] * 2, start=3000.0)
    settled = ramp(jumped, [1000.0] * 200, start=3020.0)
    assert ahead(jumped, 600.0, 300.0)[1] > 1.2 * ahead(forecast, 600.0, 300.0)[1]
    assert ahead(settled, 600.0, 300.0)[1] < 0.5 * ahead(jumped, 600.0, 300.0)[1]


def test_the_season_counts_once_a_day_was_seen() -> None:
    """A load that doubles every day at noon is expected to, from the second day on."""
    forecast = Forecast()
    for number in range(2 * 288 + 140):  # every five minutes; now it is 11:40 of the third day
        at = 300.0 * number
        rate = 1000.0 if 43_200 <= at % DAY_SECONDS < 64_800 else 500.0
        forecast = forecast.update(at, rate, SMOOTHING)
    assert ahead(forecast, 1800.0)[0] > 900


class Plant:
    """A job that does 100 records/s per useful slot of eight partitions; commands take effect after 20 s."""

    def __init__(self, slots: int = 2, **options: Any) -> None:
        self.spec = job(
            policy="tide",
            policy_options=options,
            guards={"cooldown": {"up_seconds": 0, "down_seconds": 0}, "stabilization": {"seconds": 0}},
        )
        self.slots, self.state, self.number = slots, JobState.new(), 0
        self.arrived = self.committed = 1_000_000.0
        self.incarnation = 1
        self.decisions: list[Decision] = []
        self.results: tuple[ActionResult, ...] = ()

    def run(self, rates: list[float], capacity: float = 100.0) -> list[int]:
        """Return the sizes ordered while `rates` arrive, one per ten seconds."""
        ordered = []
        for rate in rates:
            self.number += 1
            self.arrived += 10 * rate
            does = capacity * effective(self.slots, even(8))
            done = min(self.arrived - self.committed, 10 * does)
            self.committed += done
            took = (batch(self.number, self.number, int(done), 0.1 + 0.98 * done / does),) if done else ()
            shot = snapshot(
                self.number,
                arrived=int(self.arrived),
                committed=int(self.committed),
                slots=self.slots,
                batches=took,
                incarnation=f"app-{self.incarnation}",
            )
            self.state, decision = step(self.state, shot, self.spec, observed(shot, results=self.results))
            self.decisions.append(decision)
            self.results = ()
            if decision.command is not None:
                self.slots, self.incarnation = decision.final_parallelism, self.incarnation + 1
                self.number, self.arrived = self.number + 2, self.arrived + 20 * rate
                ordered.append(self.slots)
                self.results = (
                    result(
                        decision.decision_id,
                        Phase.VERIFIED,
                        self.number,
                        parallelism=self.slots,
                        incarnation=f"app-{self.incarnation}",
                        downtime_seconds=20.0,
                    ),
                )
        return ordered


@pytest.mark.parametrize(("soon", "size"), [(1.1, 7), (1.9, 8)])
def test_an_excess_of_a_minute_is_lag_and_no_demand(soon: float, size: int) -> None:
    """A size that works it off within the objective is enough; one that would be late is not."""
    known = model(batches(8, [1000, 2000, 4000], 0.5, 0.01, 56), 8, even(56), 30.0)
    assert known is not None
    smaller = known.capacity(7)
    stretches = [(40.0, 0.8 * smaller), (60.0, soon * smaller), (120.0, 0.9 * smaller), (380.0, 0.8 * smaller)]
    play = Play(
        known,
        (6, 7, 8),
        Prices(1.0, 16.0, 240.0),
        stretches,
        lag=1000.0,
        objective_seconds=60.0,
        reserve=0.1,
        headroom=0.02,
        restarts=True,
        horizon_seconds=600.0,
    )
    assert play.cheapest(play.stay(), (7,), math.inf, doubt=0.1).size == size


def test_a_step_is_answered_once_and_right() -> None:
    """Twice and a half the load: one decision to a size that holds it, and none after."""
    plant = Plant(slots=2)
    assert plant.run([150.0] * 20) == []
    assert plant.run([350.0] * 40) == [4]
    assert plant.decisions[-1].evidence.lag_seconds is not None
    assert plant.decisions[-1].evidence.lag_seconds < 15


def test_a_ramp_is_answered_before_the_job_is_late() -> None:
    """On a ramp the change comes as late as it may, and the lag objective of 60 s is never violated."""
    plant = Plant(slots=2)
    plant.run([100.0] * 10)
    ordered = plant.run([float(rate) for rate in range(100, 400, 4)])
    assert ordered
    assert all(before < after for before, after in itertools.pairwise((2, *ordered)))
    assert max(decision.evidence.lag_seconds or 0.0 for decision in plant.decisions) < 60


def test_what_is_too_large_is_given_back_after_patience() -> None:
    """A size too large for the load is reduced, but only after it was too large for a while."""
    plant = Plant(slots=8)
    ordered = plant.run([120.0] * 40)
    assert ordered
    assert plant.slots == 2
    first = next(index for index, decision in enumerate(plant.decisions) if decision.command)
    assert first * 10 >= 60


def test_a_load_that_swings_too_fast_is_not_followed() -> None:
    """A square wave at the worst period teaches patience: changes become rare."""
    plant = Plant(slots=2)
    wave = ([350.0] * 12 + [100.0] * 12) * 20
    half = len(wave) // 2
    early = len(plant.run(wave[:half]))
    late = len(plant.run(wave[half:]))
    assert late <= 2
    assert early <= 8


def test_growth_that_brings_nothing_is_undone_and_remembered() -> None:
    """A job bound elsewhere does not grow by slots: the growth is taken back and not tried again."""
    plant = Plant(slots=2)
    plant.run([120.0 + 30 * (n % 3) for n in range(20)])
    sizes = []
    for _ in range(60):
        # whatever the size, 200 records/s is all it does
        sizes += plant.run([190.0 + 40 * (plant.number % 3)], capacity=200.0 / effective(plant.slots, even(8)))
    undone = [d for d in plant.decisions if d.trail[0].code == "TIDE_UNDO"]
    assert undone
    assert undone[0].final_parallelism < undone[0].current_parallelism == sizes[0]
    after = plant.decisions.index(undone[0])
    assert all(d.final_parallelism < sizes[0] for d in plant.decisions[after:])


def test_its_state_is_small() -> None:
    """The memory of a job with every size seen stays within the 4 kB of a job's state."""
    plant = Plant(slots=2)
    for rate in itertools.chain.from_iterable([[120.0] * 20, [700.0] * 20] * 4):
        plant.run([rate * 1.2345678])
    assert len(json.dumps(to_wire(plant.state), separators=(",", ":"))) <= 4096


def test_an_idle_job_shrinks_to_its_minimum() -> None:
    """Measured silence is enough: no batch need be seen to give slots back."""
    plant = Plant(slots=8)
    assert plant.run([0.0] * 40) == [1]


def test_the_sentence_tells_the_reckoning() -> None:
    """The decision says what is expected, what the sizes can do, and how late they would be."""
    plant = Plant(slots=2)
    plant.run([150.0] * 20)
    plant.run([400.0] * 20)
    grown = next(d for d in plant.decisions if d.command)
    assert "records/s are expected" in grown.sentence
    assert "they would be late for" in grown.sentence
    assert grown.expectation is not None
    assert grown.expectation.restart_seconds == 45.0
    assert grown.decided_at - START > timedelta(seconds=100)
