"""tide: the forecast of arrivals."""

from __future__ import annotations

import random

import pytest

from tidegate.engine.tide.forecast import ArrivalForecast

MEMORY = 800.0
"""Memory of the level, seconds."""


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
