"""Noise, loads and workloads: functions of their arguments."""

from __future__ import annotations

import pytest

from tidegate.twin.load import BadLoad, Load, from_points
from tidegate.twin.noise import Noise
from tidegate.twin.workloads import SHAPES


def test_noise_is_a_function_of_seed_name_and_keys() -> None:
    """The same seed, name and keys give the same number; another of any of them gives another."""
    assert Noise(1, "a").uniform(5, 7) == Noise(1, "a").uniform(5, 7)
    numbers = {Noise(seed, name).uniform(key) for seed in (1, 2) for name in ("a", "b") for key in range(50)}
    assert len(numbers) == 200


def test_noise_has_the_moments_it_promises() -> None:
    """Uniform numbers have mean 1/2 in [0, 1), normal ones mean 0 and deviation 1."""
    noise = Noise(3)
    uniforms = [noise.uniform(k) for k in range(4000)]
    normals = [noise.normal(k) for k in range(4000)]
    assert min(uniforms) >= 0
    assert max(uniforms) < 1
    assert sum(uniforms) / 4000 == pytest.approx(0.5, abs=0.02)
    assert sum(normals) / 4000 == pytest.approx(0.0, abs=0.05)
    assert sum(n * n for n in normals) / 4000 == pytest.approx(1.0, abs=0.08)


def test_arrivals_are_the_integral_of_the_rate() -> None:
    """Arrivals are the rate summed over time, inside steps, at their edges and past the end."""
    load = Load([10.0, 20.0], step_seconds=5.0)
    assert load.arrived(-1) == 0
    assert load.arrived(2.5) == pytest.approx(25.0)
    assert load.arrived(5.0) == pytest.approx(50.0)
    assert load.arrived(10.0) == pytest.approx(150.0)
    assert load.arrived(12.0) == pytest.approx(190.0)  # the last rate goes on


def test_pulses_hold_all_arrivals_of_their_time() -> None:
    """Whatever arrives in 30 s arrives in the first 6 s of them; also in the last, shorter cycle."""
    load = Load([100.0, 200.0, 0.0, 50.0, 50.0, 50.0, 80.0], 10.0)
    pulsed = load.pulsed(30.0)
    assert [pulsed.arrived(second) for second in (6.0, 29.0, 30.0, 36.0, 60.0)] == [3000, 3000, 3000, 4500, 4500]
    assert {pulsed.rate(second) for second in (6.0, 29.0, 36.0)} == {0.0}
    assert pulsed.seconds == load.seconds


def test_a_trace_is_its_points_joined_by_lines() -> None:
    """The rate is linear between points, each step has the mean of its span, and the last rate continues."""
    load = from_points([(100, 1.0), (110, 3.0), (120, 2.0)], step_seconds=5.0)
    assert load.rates == pytest.approx([1.5, 2.5, 2.75, 2.25, 2.0, 2.0])


def test_a_jump_of_a_trace_stays_where_it_is() -> None:
    """Two points a second apart are a jump: before and after it the rates are exactly those of the points."""
    load = from_points([(0, 1.0), (9, 1.0), (10, 5.0), (20, 5.0)], step_seconds=5.0)
    assert load.rates[:4] == pytest.approx([1.0, 1.0 + 2.0 / 5, 5.0, 5.0])


@pytest.mark.parametrize("step_seconds", [0.5, 3.0, 5.0, 40.0])
def test_points_that_fall_between_steps_lose_no_arrival(step_seconds: float) -> None:
    """Wherever the steps fall, the arrivals equal the area under the lines through the points."""
    load = from_points([(0, 0.0), (1, 8.0), (7, 2.0), (60, 2.0), (120, 0.0)], step_seconds)
    assert load.arrived(120.0) == pytest.approx(4.0 + 30.0 + 106.0 + 60.0)


def test_a_part_of_a_trace_is_that_part() -> None:
    """A part of a trace has the whole trace's rates at that time; at the trace's end it is shorter."""
    points = [(50, 0.0), (150, 10.0), (250, 0.0), (350, 7.0)]
    whole = from_points(points)
    assert from_points(points, start=100.0, seconds=50.0).rates == pytest.approx(whole.rates[20:30])
    assert from_points(points, start=100.0, seconds=1e6).rates == pytest.approx(whole.rates[20:])


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Load([]), "at least one rate"),
        (lambda: Load([1.0, -2.0]), r"rate 1 \(second 5\) must be at least 0, found -2"),
        (lambda: Load([float("nan")]), "found nan"),
        (lambda: Load([1.0], 0.0), "step_seconds must be above 0, found 0"),
        (lambda: from_points([(0, 1.0)]), "at least 2 points, found 1"),
        (lambda: from_points([(0, 1.0), (0, 2.0)]), "point 2: seconds must rise, found 0 after 0"),
        (lambda: from_points([(0, 1.0), (5, 2.0)], start=10.0), "a trace of 10 s has no second 10"),
        (lambda: Load([0.0]).scaled(5.0), "cannot be scaled"),
    ],
)
def test_a_load_that_cannot_be_says_why(make: object, told: str) -> None:
    """A bad load is refused with field, value and place."""
    with pytest.raises(BadLoad, match=told):
        make()  # type: ignore[operator]


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_reaches_its_peak_and_no_more(name: str) -> None:
    """A shape stays at or below the requested peak (except for noise), lasts as requested, and is deterministic."""
    load = SHAPES[name](1000.0, 7200.0)
    assert load.seconds == 7200.0
    assert load.rates == SHAPES[name](1000.0, 7200.0).rates
    if name == "noise":
        assert 600 * 0.8 < sum(load.rates) / len(load.rates) < 600 * 1.2
    else:
        assert 0.85 * 1000 <= load.peak <= 1000.0


def test_the_outage_delivers_what_it_kept_back() -> None:
    """Over the whole run as many records arrive as without the outage."""
    load = SHAPES["outage"](1000.0, 7200.0)
    assert min(load.rates) == 0
    assert load.arrived(7200.0) == pytest.approx(500.0 * 7200.0)
