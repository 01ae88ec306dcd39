"""What would change a decision, in cases whose answer is known."""

from __future__ import annotations

import pytest

from tests.support.events import job, observed, steady
from tests.support.history import history
from tidegate.engine.state import JobState
from tidegate.events.decision import Decision
from tidegate.events.job import JobSpec
from tidegate.installed import engine
from tidegate.whatif.altered import DecisionInputs
from tidegate.whatif.nearest import NearestChange, decide, in_words, nearest_changes, what_would_change
from tidegate.whatif.recorded import RecordedJob


def found(spec: JobSpec, **load: int) -> tuple[Decision, dict[str, NearestChange]]:
    """Return the eighth decision on a steady load, and what would change it, by sentence."""
    state = JobState.new()
    *before, last = steady(8, **load)
    for one in before:
        state, _ = engine().step(state, one, spec, observed(one))
    at = DecisionInputs(state, last, spec, observed(last))
    return decide(at), {in_words(change): change for change in nearest_changes(at)}


def test_a_job_at_its_largest_size_would_grow_with_a_larger_limit() -> None:
    """3,000 records/s on 4 slots of 250 each call for more than the 4 slots that the spec allows."""
    decision, changes = found(job(max_parallelism=4), rate=3000, capacity=1000)
    assert decision.final_parallelism == 4
    limit = next(change for change in changes.values() if change.name == "max_parallelism")
    assert (limit.was, limit.value, limit.before) == (4, 5, 4)
    assert "It would have grown to 5 slots if max_parallelism were 5 slots instead of 4." in changes


def test_a_full_pool_is_named_with_the_slots_it_takes() -> None:
    """With no slot free nothing grows; one free slot is enough for one more."""
    decision, changes = found(job(), rate=3000, capacity=1000, free=0)
    assert decision.final_parallelism == 4
    assert "It would have grown to 5 slots if the pool had 1 free slot instead of 0." in changes


def test_a_job_that_keeps_up_would_grow_at_a_higher_rate_and_shrink_at_a_lower_one() -> None:
    """What changes is stated in percent, with both figures; several times as much is stated as such."""
    decision, changes = found(job(), rate=700, capacity=1000)
    assert decision.final_parallelism == 4
    more = next(c for c in changes.values() if c.name == "the arrival rate" and c.shown > c.was)
    less = next(c for c in changes.values() if c.name == "the arrival rate" and c.shown < c.was)
    assert more.decision.final_parallelism > 4 > less.decision.final_parallelism
    assert more.shown == pytest.approx(1000, rel=0.002)  # the capacity: from there on the lag grows
    assert more.shown / more.was == pytest.approx(1 + more.distance)
    grown = "It would have grown to 8 slots if the arrival rate were 43% higher (1,000 records/s instead of 700)."
    assert grown in changes
    assert any("times as high" in sentence for sentence in changes)


def test_a_change_under_way_is_changed_by_no_single_input() -> None:
    """Whatever is measured, the next change waits for the end of the one before."""
    spec, state = job(), JobState.new()
    shots = steady(12, rate=3000, capacity=1000)
    for place, one in enumerate(shots):
        state, decision = engine().step(state, one, spec, observed(one))
        if decision.command is not None:
            last = shots[place + 1]
            break
    at = DecisionInputs(state, last, spec, observed(last))
    assert decide(at).trail[-1].code == "COMMAND_IN_FLIGHT"
    assert nearest_changes(at) == []


def test_a_recorded_decision_is_asked_by_its_sequence() -> None:
    """The state follows from the keyframe before it."""
    steps = history()
    recorded = RecordedJob([s.snapshot for s in steps], [], [], [s.decision for s in steps])
    assert "max_parallelism" in {change.name for change in what_would_change(recorded, steps[8].snapshot.sequence)}
