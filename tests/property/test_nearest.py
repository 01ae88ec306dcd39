"""What would change a decision: at the stated value the engine decides otherwise, and just before it does not."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.events import job, observed, steady
from tests.support.tried import recorded
from tidegate.engine.state import JobState
from tidegate.events.decision import Decision
from tidegate.installed import engine
from tidegate.whatif.altered import DecisionInputs
from tidegate.whatif.inputs import inputs_of
from tidegate.whatif.nearest import PRECISION, NearestChange, decide, in_words, nearest_changes
from tidegate.whatif.recorded import moments_of


@cache
def made(policy: str) -> list[DecisionInputs]:
    """Return what each decision of a recorded hour was made from."""
    state, found = JobState.new(), []
    for moment in moments_of(recorded(policy)).each:
        found.append(DecisionInputs(state, moment.snapshot, moment.spec, moment.decision.observed))
        state, _ = engine().step(state, moment.snapshot, moment.spec, moment.decision.observed)
    return found


def outcome(decision: Decision) -> tuple[int, bool]:
    """Return what counts as the same decision."""
    return decision.final_parallelism, decision.command is not None


def check(at: DecisionInputs, found: list[NearestChange]) -> None:
    """Ask the engine at each stated value, and just before."""
    was = decide(at)
    inputs = {one.name: one for one in inputs_of(at, was)}
    for change in found:
        one = inputs[change.name]
        assert outcome(decide(one.change(change.value))) == outcome(change.decision) != outcome(was)
        assert outcome(decide(one.change(change.before))) == outcome(was)
        apart = max(one.step, PRECISION * max(abs(one.value), abs(change.value)))
        assert abs(change.value - change.before) <= apart * 1.001
        assert one.low <= change.value <= one.high
        assert in_words(change).startswith("It would have ")
    distances = [change.distance for change in found]
    assert distances == sorted(distances)


@settings(max_examples=8)
@given(policy=st.sampled_from(["tide", "hpa", "threshold"]), place=st.integers(0, 359))
def test_the_decision_changes_at_the_stated_value_and_not_just_before(policy: str, place: int) -> None:
    """For any decision of a recorded hour, by any of three policies."""
    at = made(policy)[place]
    check(at, nearest_changes(at))


@settings(max_examples=10)
@given(rate=st.integers(200, 6000), capacity=st.integers(200, 6000), free=st.integers(0, 30), slots=st.integers(1, 16))
def test_it_holds_for_any_load_and_pool(rate: int, capacity: int, free: int, slots: int) -> None:
    """Also where the pool is small, the job at its largest size, or without lag."""
    state, spec = JobState.new(), job()
    *before, last = steady(8, rate=rate, capacity=capacity, slots=slots, free=free)
    for one in before:
        state, _ = engine().step(state, one, spec, observed(one))
    at = DecisionInputs(state, last, spec, observed(last))
    check(at, nearest_changes(at))


@pytest.mark.parametrize("policy", ["tide", "hpa"])
def test_an_input_at_its_recorded_value_changes_nothing(policy: str) -> None:
    """Varying an input by nothing gives the recorded decision, whichever input it is."""
    for at in made(policy)[5::40]:
        was = decide(at)
        for one in inputs_of(at, was):
            assert outcome(decide(one.change(one.value))) == outcome(was), one.name


@pytest.mark.parametrize("policy", ["tide", "hpa"])
def test_the_evidence_shows_the_value_asked_for(policy: str) -> None:
    """A rate, a lag or a capacity that is asked for is what the engine then measures."""
    for at in made(policy)[60::50]:
        was = decide(at)
        for one in inputs_of(at, was):
            for factor in (1.0, 1.5, 3.0):
                if one.seen is None or not one.value:
                    continue
                seen = one.seen(decide(one.change(round(one.value * factor))).evidence)
                assert seen == pytest.approx(round(one.value * factor), rel=0.01, abs=1.0), (one.name, factor)
