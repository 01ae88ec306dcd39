"""Properties of step() with all guards: bounds, useful sizes, a small history, and silence while all is well."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.engine import step
from tests.support.events import NO_WAIT, job, observed, steady
from tidegate.engine.guards import GUARDS
from tidegate.engine.history import (
    ORDERS_KEPT,
    Growth,
    History,
    history_from_wire,
    history_to_wire,
    note_order,
    note_proposal,
)
from tidegate.engine.state import JobState, from_wire, to_wire
from tidegate.events.snapshot import Pool, StateOperator

GB = 10**9
DAY = 86_400


@settings(max_examples=60)
@given(
    rate=st.integers(0, 2000),
    capacity=st.integers(1, 2000),
    current=st.integers(1, 24),
    low=st.integers(1, 8),
    more=st.integers(0, 16),
    partitions=st.integers(1, 40),
    state_gb=st.none() | st.integers(0, 300),
    free=st.integers(0, 40),
    quota=st.none() | st.integers(1, 30),
)
def test_every_command_is_within_all_bounds(
    rate: int,
    capacity: int,
    current: int,
    low: int,
    more: int,
    partitions: int,
    state_gb: int | None,
    free: int,
    quota: int | None,
) -> None:
    """A command's size is within the spec, and growth never past partitions, state partitions, pool and quota (I7)."""
    high = low + more
    guards = dict(NO_WAIT)
    if quota is not None:
        guards["quota"] = {"slots": quota}
    spec = job(min_parallelism=low, max_parallelism=high, guards=guards)
    kept: dict[str, Any] = {
        "pool": Pool(pool_id="default", slots_total=current + free, slots_used=current, workers_alive=1)
    }
    if state_gb is not None:
        kept["state_operators"] = (StateOperator(name="s", rows=1, memory_bytes=state_gb * GB, partitions=12),)
    state = JobState.new()
    for shot in steady(8, rate=rate, capacity=capacity, slots=current, partitions=partitions):
        shot = shot.model_copy(update=kept)  # noqa: PLW2901
        state, decision = step(state, shot, spec, observed(shot))
        if decision.command is None:
            continue
        size = decision.command.to_parallelism
        # A job below its least size is brought as far up as the other bounds let it.
        assert low <= size <= high or current < size <= low
        if size > current:
            assert size <= max(partitions, current)
            assert size <= current + free
            assert quota is None or size <= quota
            assert state_gb is None or size <= 12
        break


@given(st.lists(st.tuples(st.integers(0, 3 * DAY), st.integers(1, 20), st.integers(1, 20)), max_size=80))
def test_the_history_is_bounded_and_survives_the_wire(orders: list[tuple[int, int, int]]) -> None:
    """Orders of a day at most, the newest kept, and what is written reads back equal."""
    history = History()
    for at, before, after in sorted(orders):
        history = note_proposal(history, after, before, float(at))
        history = note_order(history, float(at), before, after, 12.5)
    assert len(history.ordered_at) <= ORDERS_KEPT
    assert all(at > max(orders)[0] - DAY for at in history.ordered_at) or not orders
    assert history_from_wire(history_to_wire(history)) == history


@given(st.lists(st.integers(1, 9), min_size=1, max_size=30))
def test_a_scale_down_stays_pending_while_fewer_slots_are_proposed(proposed: list[int]) -> None:
    """The history remembers since when fewer than 5 have been proposed without a break, and the largest of them."""
    history = History()
    for at, size in enumerate(proposed):
        history = note_proposal(history, size, 5, float(at))
    unbroken = len(proposed)
    while unbroken and proposed[unbroken - 1] < 5:
        unbroken -= 1
    run = proposed[unbroken:]
    assert history.shrink == ((float(unbroken), max(run)) if run else None)


def test_a_quiet_history_writes_nothing() -> None:
    """A job that was never changed has the state on the wire that it had before there was a history."""
    assert "history" not in to_wire(JobState.new())
    for growth in (
        Growth(5.0, 2, 4, None),
        Growth(5.0, 2, 4, 200.0, worked=True),
        Growth(5.0, 2, 4, 200.0, repeated=True),
    ):
        grown = JobState(history=History(ordered_at=(5,), growth=growth, shrink=(6.0, 3), halt="STOPPED"))
        assert from_wire(to_wire(grown)) == grown


@settings(max_examples=30)
@given(st.integers(1, 1000))
def test_a_content_job_hears_from_no_guard(rate: int) -> None:
    """With default options and nothing unusual measured, no guard speaks while the policy is content."""
    state = JobState.new()
    names = {guard.name for guard in GUARDS}
    for shot in steady(8, rate=rate, capacity=max(1, rate * 4 // 3)):
        state, decision = step(state, shot, job(guards={}), observed(shot))
        if decision.proposed_parallelism == decision.current_parallelism:
            assert not names & {entry.by for entry in decision.trail}
