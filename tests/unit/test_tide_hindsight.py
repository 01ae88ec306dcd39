"""tide's hindsight: a growth that was in vain, one that was needed, and what is made of either."""

from __future__ import annotations

import pytest

from tidegate.engine.tide.capacity import CapacityModel
from tidegate.engine.tide.hindsight import FORGOTTEN_SECONDS, NO_HINDSIGHT, SLACK, Hindsight
from tidegate.engine.tide.pace import UNBOUND
from tidegate.lab.jobs import lab_job, lab_model, lab_peak, spec_for
from tidegate.lab.simulate import simulate
from tidegate.twin.workloads import SHAPES

RATE = 100.0
"""Capacity of a slot, records/s."""


WAVE = [550.0] * 6 + [100.0] * 12
"""A minute of more than 4 slots can do, and two minutes of less."""


def known(size: int) -> CapacityModel:
    """Return the model of a job of `size` slots that scales linearly."""
    return CapacityModel(size, 0.0, 1.0 / (RATE * size), 1.0, True, (), 30.0, UNBOUND)


def turn(hindsight: Hindsight, rates: list[float], start: float = 0.0, size: int = 4) -> Hindsight:
    """Return the hindsight after a growth from 4 slots, a rate every ten seconds, and the way back to `size`."""
    arrived = 1_000_000
    hindsight = hindsight.grown(4, start, arrived, 0.0)
    for number, rate in enumerate(rates, 1):
        arrived += round(10 * rate)
        now = known(size if number == len(rates) else 8)
        hindsight = hindsight.watched(start + 10.0 * number, arrived, now, late_seconds=54.0, done_seconds=10.0)
    return hindsight


def test_twice_in_vain_makes_calm() -> None:
    """After two loads that 4 slots would have come through, such a load is none to grow for; a larger one is."""
    once = turn(NO_HINDSIGHT, WAVE)
    assert [(found.size, found.times) for found in once.vain] == [(4, 1)]
    assert once.shadows == ()
    assert once.calm(range(4, 9), 200.0, 1000.0, 500.0, 45.0) is None
    twice = turn(once, WAVE, 1000.0)
    found = twice.calm(range(4, 9), 1200.0, 1000.0, 500.0, 45.0)
    assert found is not None
    # six intervals of 150 records/s too many wait, and as many are in the batch under way
    assert (found.lag, found.rate) == (18_000.0, 550.0)
    assert twice.calm(range(4, 9), 1200.0, SLACK * 18_000.0, SLACK * 550.0, 45.0) is not None
    assert twice.calm(range(4, 9), 1200.0, SLACK * 18_000.0 + 1, 500.0, 45.0) is None
    assert twice.calm(range(4, 9), 1200.0, 1000.0, SLACK * 550.0 + 1, 45.0) is None
    assert twice.calm(range(5, 9), 1200.0, 1000.0, 500.0, 45.0) is None


def test_a_growth_that_was_needed_ends_the_calm() -> None:
    """A load that would have been late forgets the size at once."""
    calm = turn(turn(NO_HINDSIGHT, WAVE), WAVE, 1000.0)
    needed = turn(calm, [700.0] * 6 + [100.0] * 12, 2000.0)
    assert needed == NO_HINDSIGHT


def test_a_shadow_lasts_until_the_job_is_back() -> None:
    """While the job is still larger, nothing is said of the size before, though its lag be gone."""
    assert turn(NO_HINDSIGHT, WAVE, size=8).vain == ()
    assert [shadow.size for shadow in turn(NO_HINDSIGHT, WAVE, size=8).shadows] == [4]


def test_a_shadow_with_lag_left_goes_on() -> None:
    """Nor is it while the size before would not have worked off its lag."""
    assert turn(NO_HINDSIGHT, [550.0] * 6 + [390.0] * 2).vain == ()


def test_what_is_long_ago_is_learned_anew() -> None:
    """The calm ends when no such load was seen for long, and lasts when one was."""
    calm = turn(turn(NO_HINDSIGHT, WAVE), WAVE, 1000.0)
    found = calm.calm(range(4, 9), 1200.0, 0.0, 0.0, 45.0)
    assert found is not None
    assert calm.calm(range(4, 9), found.at + FORGOTTEN_SECONDS + 1, 0.0, 0.0, 45.0) is None
    again = calm.seen(found, found.at + 5000.0)
    assert again.calm(range(4, 9), found.at + FORGOTTEN_SECONDS + 1, 0.0, 0.0, 45.0) is not None


def test_offsets_that_fall_end_the_shadow() -> None:
    """A topic made anew says nothing of the load before it."""
    grown = NO_HINDSIGHT.grown(4, 0.0, 1_000_000, 0.0)
    assert grown.watched(10.0, 5, known(8), late_seconds=54.0, done_seconds=10.0) == NO_HINDSIGHT
    assert NO_HINDSIGHT.grown(4, 0.0, None, 0.0) == NO_HINDSIGHT


@pytest.mark.parametrize("calm", [True, False])
def test_a_load_that_comes_and_goes_is_not_followed_for_ever(monkeypatch: pytest.MonkeyPatch, *, calm: bool) -> None:
    """Waves that one size would come through are followed at first, and then no more; without hindsight, for ever."""
    if not calm:
        monkeypatch.setattr("tidegate.engine.tide.hindsight.TIMES", 10**9)
    load = SHAPES["sawtooth"](lab_peak(lab_model(), spec_for(lab_model())), 10_800.0)
    (recording,) = simulate(lab_job(load).with_policy("tide", {}, {})).values()
    began = recording.commands[0].issued_at
    larger = [command.issued_at for command in recording.commands if command.to_parallelism > 8]
    early, late = (sum(first <= (at - began).total_seconds() < first + 3600 for at in larger) for first in (0, 7200))
    assert early >= 3
    assert late < early if calm else late >= early
