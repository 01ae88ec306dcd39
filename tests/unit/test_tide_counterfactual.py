"""tide's review of scale-ups: which were unnecessary, which necessary, and what follows from it."""

from __future__ import annotations

import pytest

from tidegate.engine.tide.batch_limits import NO_LIMITS
from tidegate.engine.tide.capacity import CapacityModel
from tidegate.engine.tide.counterfactual import FORGET_SECONDS, NO_REVIEW, TOLERANCE, GrowthReview
from tidegate.lab.jobs import lab_job, lab_model, lab_peak, spec_for
from tidegate.lab.simulate import simulate
from tidegate.twin.workloads import SHAPES

RATE = 100.0
"""Capacity of a slot, records/s."""


WAVE = [550.0] * 6 + [100.0] * 12
"""A minute of more than 4 slots can process, and two minutes of less."""


def model_of(size: int) -> CapacityModel:
    """Return the model of a job of `size` slots that scales linearly."""
    return CapacityModel(size, 0.0, 1.0 / (RATE * size), 1.0, True, (), 30.0, NO_LIMITS)


def after(review: GrowthReview, rates: list[float], start: float = 0.0, size: int = 4) -> GrowthReview:
    """Return the review after a scale-up from 4 slots, a rate every ten seconds, and the way back to `size`."""
    arrived = 1_000_000
    review = review.after_growth(4, start, arrived, 0.0)
    for number, rate in enumerate(rates, 1):
        arrived += round(10 * rate)
        model = model_of(size if number == len(rates) else 8)
        review = review.advanced(start + 10.0 * number, arrived, model, late_seconds=54.0, done_seconds=10.0)
    return review


def test_two_unnecessary_scale_ups_stop_the_next_one() -> None:
    """After two loads that 4 slots would have handled, 4 slots are sufficient for such a load, not for a larger one."""
    once = after(NO_REVIEW, WAVE)
    assert [(found.size, found.times) for found in once.unnecessary] == [(4, 1)]
    assert once.running == ()
    assert once.sufficient(range(4, 9), 200.0, 1000.0, 500.0, 45.0) is None
    twice = after(once, WAVE, 1000.0)
    found = twice.sufficient(range(4, 9), 1200.0, 1000.0, 500.0, 45.0)
    assert found is not None
    # six intervals with 150 records/s too many wait, and as many are in the running batch
    assert (found.lag, found.rate) == (18_000.0, 550.0)
    assert twice.sufficient(range(4, 9), 1200.0, TOLERANCE * 18_000.0, TOLERANCE * 550.0, 45.0) is not None
    assert twice.sufficient(range(4, 9), 1200.0, TOLERANCE * 18_000.0 + 1, 500.0, 45.0) is None
    assert twice.sufficient(range(4, 9), 1200.0, 1000.0, TOLERANCE * 550.0 + 1, 45.0) is None
    assert twice.sufficient(range(5, 9), 1200.0, 1000.0, 500.0, 45.0) is None


def test_a_necessary_scale_up_resets_the_count() -> None:
    """As soon as the smaller size would have been late, it no longer counts as sufficient."""
    twice = after(after(NO_REVIEW, WAVE), WAVE, 1000.0)
    assert after(twice, [700.0] * 6 + [100.0] * 12, 2000.0) == NO_REVIEW


def test_a_counterfactual_runs_until_the_job_is_back() -> None:
    """While the job is still larger, the smaller size is not judged, even if its lag is gone."""
    assert after(NO_REVIEW, WAVE, size=8).unnecessary == ()
    assert [each.size for each in after(NO_REVIEW, WAVE, size=8).running] == [4]


def test_a_counterfactual_runs_while_it_has_lag() -> None:
    """The smaller size is not judged before it would have worked off its lag."""
    assert after(NO_REVIEW, [550.0] * 6 + [390.0] * 2).unnecessary == ()


def test_what_was_learned_long_ago_is_forgotten() -> None:
    """An unnecessary scale-up counts for two hours after such a load was last seen."""
    twice = after(after(NO_REVIEW, WAVE), WAVE, 1000.0)
    found = twice.sufficient(range(4, 9), 1200.0, 0.0, 0.0, 45.0)
    assert found is not None
    assert twice.sufficient(range(4, 9), found.at + FORGET_SECONDS + 1, 0.0, 0.0, 45.0) is None
    again = twice.seen_again(found, found.at + 5000.0)
    assert again.sufficient(range(4, 9), found.at + FORGET_SECONDS + 1, 0.0, 0.0, 45.0) is not None


def test_falling_offsets_end_a_counterfactual() -> None:
    """A topic that was created again says nothing of the load before it."""
    grown = NO_REVIEW.after_growth(4, 0.0, 1_000_000, 0.0)
    assert grown.advanced(10.0, 5, model_of(8), late_seconds=54.0, done_seconds=10.0) == NO_REVIEW
    assert NO_REVIEW.after_growth(4, 0.0, None, 0.0) == NO_REVIEW


@pytest.mark.parametrize("reviewed", [True, False])
def test_a_load_that_comes_and_goes_is_not_followed_for_ever(
    monkeypatch: pytest.MonkeyPatch, *, reviewed: bool
) -> None:
    """Waves that one size can handle are followed at first and then no more; without the review, for ever."""
    if not reviewed:
        monkeypatch.setattr("tidegate.engine.tide.counterfactual.MIN_UNNECESSARY", 10**9)
    load = SHAPES["sawtooth"](lab_peak(lab_model(), spec_for(lab_model())), 10_800.0)
    (recording,) = simulate(lab_job(load).with_policy("tide", {}, {})).values()
    start = recording.commands[0].issued_at
    larger = [command.issued_at for command in recording.commands if command.to_parallelism > 8]
    early, late = (sum(first <= (at - start).total_seconds() < first + 3600 for at in larger) for first in (0, 7200))
    assert early >= 3
    assert late < early if reviewed else late >= early
