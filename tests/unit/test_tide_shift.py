"""tide: from some moment on a record costs another amount, and all sizes are believed to be slower or faster."""

from __future__ import annotations

import re

import pytest

from tests.support.engine import step
from tests.support.events import batch, job, observed, snapshot
from tests.support.plant import Plant
from tests.unit.test_tide_variation import batch_of, sums_of
from tidegate.engine.batch_sums import BatchSums
from tidegate.engine.state import JobState
from tidegate.engine.tide.capacity import SizeFit, fit_model
from tidegate.engine.tide.memory import TideMemory
from tidegate.engine.tide.shift import KNOWN_BATCHES, MOST_SHIFT, NO_SHIFT, NO_STREAK, STREAK, Shift, shifted
from tidegate.events.snapshot import MicroBatch
from tidegate.events.way import Way


def size_of(size: int, cost: float) -> SizeFit:
    """Return what a size has shown whose batches last a second, and `cost` seconds a record."""
    shown = [batch_of(n, 1.0 + cost * n) for n in [500, 1000, 1500, 1000] * 10]
    return SizeFit(size, sums_of(shown), overhead=1.0, cost=cost)


KNOWN = size_of(4, 0.01)


def batches(factor: float, *records: int, longer: float = 0.0) -> list[MicroBatch]:
    """Return batches of `KNOWN` that last so much longer, and whose records cost `factor` times as much."""
    return [batch_of(n, 1.0 + longer + factor * 0.01 * n) for n in records]


@pytest.mark.parametrize("factor", [2.0, 1.3, 0.7, 0.25])
def test_a_streak_tells_what_a_record_costs_now(factor: float) -> None:
    """Whatever the numbers of records are, and whether the batches come with one snapshot or with several."""
    first = NO_STREAK.after(batches(factor, 1000, 3000), KNOWN, 0.02)
    assert not first.is_shift
    streak = first.after(batches(factor, 500, 1000), KNOWN, 0.02)
    assert streak.sums.batches == STREAK
    assert streak.is_shift
    assert streak.explained(KNOWN) == pytest.approx((0.0, factor))


@pytest.mark.parametrize("longer", [20.0, 5.0])
def test_a_streak_tells_that_every_batch_lasts_longer(longer: float) -> None:
    """A slow commit: batches of 500 to 1,500 records all last as much longer, and a record costs what it did."""
    streak = NO_STREAK.after(batches(1.0, 1000, 500, 1500, 1000, longer=longer), KNOWN, 0.02)
    assert streak.is_shift
    assert streak.explained(KNOWN) == pytest.approx((longer, 1.0))
    assert streak.factor(KNOWN) == pytest.approx(1.0 + 4 * longer / (4 + 0.01 * 4000))


@pytest.mark.parametrize(
    "factors", [(2.0, 2.0, 2.0, 1.0, 2.0), (2.0, 2.0, 0.4, 2.0, 2.0), (1.1, 1.1, 1.1, 1.1, 1.1), (5.0,)]
)
def test_what_is_no_streak(factors: tuple[float, ...]) -> None:
    """One usual batch in between, a fast one among slow ones, a small deviation, a single batch that hung."""
    streak = NO_STREAK
    for factor in factors:
        streak = streak.after(batches(factor, 1000), KNOWN, 0.02)
        assert not streak.is_shift


def test_an_idle_trigger_neither_counts_nor_ends_a_streak() -> None:
    """A batch without records says nothing about what they cost."""
    slow, idle = batches(2.0, 1000), [batch_of(0, 30.0)]
    streak = NO_STREAK.after(slow * 2 + idle + slow, KNOWN, 0.02)
    assert streak.sums.batches == 3
    assert streak.after(idle + slow, KNOWN, 0.02).is_shift


def test_a_size_must_be_well_known() -> None:
    """A line through a few batches may be wrong by as much as a shift."""
    young = KNOWN._replace(sums=KNOWN.sums._replace(batches=KNOWN_BATCHES - 1))
    assert NO_STREAK.after(batches(2.0, *[1000] * 9), young, 0.02) == NO_STREAK


def test_where_batches_vary_a_shift_must_be_larger() -> None:
    """A batch that lasts a third longer is nothing special where they vary by 30 %."""
    assert NO_STREAK.after(batches(1.4, *[1000] * STREAK), KNOWN, 0.1).is_shift
    assert not NO_STREAK.after(batches(1.4, *[1000] * STREAK), KNOWN, 0.3).is_shift
    assert NO_STREAK.after(batches(2.0, *[1000] * STREAK), KNOWN, 0.3).is_shift


def test_a_shift_has_limits() -> None:
    """Batches that hang, or that lasted no longer than the overhead, say nothing of the kind."""
    records = (1000, 2000, 3000, 4000)
    assert NO_STREAK.after(batches(100.0, *records), KNOWN, 0.02).explained(KNOWN) == (0.0, MOST_SHIFT)
    assert NO_STREAK.after(batches(0.01, *records), KNOWN, 0.02).explained(KNOWN) == (0.0, 1 / MOST_SHIFT)


def test_batches_shorter_than_the_overhead_tell_nothing_of_the_records() -> None:
    """A record cannot cost less than nothing, so it is the overhead that is smaller now."""
    faster = [batch_of(n, seconds) for n, seconds in ((20, 0.6), (25, 0.5), (30, 0.4), (25, 0.5))]
    streak = NO_STREAK.after(faster, KNOWN, 0.02)
    assert streak.is_shift
    assert streak.explained(KNOWN) == pytest.approx((-0.75, 1.0))


def test_a_shift_is_named_for_ten_minutes() -> None:
    """Two within that time are one to a person; a scale-up an hour later has another cause."""
    first = NO_SHIFT.after(1000.0, 1.5)
    assert first.named(1600.0) == 1.5
    assert first.named(1601.0) == 1.0
    assert first.after(1300.0, 2.0) == Shift(1300.0, 3.0)
    assert first.after(4600.0, 2.0) == Shift(4600.0, 2.0)


@pytest.mark.parametrize(("longer", "factor"), [(0.0, 3.0), (0.0, 0.5), (2.0, 1.0), (-0.5, 1.0)])
def test_all_sizes_become_slower_and_scale_as_before(longer: float, factor: float) -> None:
    """Either a record costs another amount, at every size by as much, or every batch lasts longer."""
    sizes = (size_of(8, 0.006), KNOWN)
    found = shifted(sizes, longer, factor, 1.0 + longer)
    assert [each.size for each in found] == [8, 4]
    for before, after in zip(sizes, found, strict=True):
        assert after.cost == pytest.approx(factor * before.cost)
        assert after.overhead == pytest.approx(1.0 + longer)
        assert after.sums.batches == before.sums.batches
    models = [fit_model(each, 4, ((64, 1.0, 1.0, -1),), 60.0) for each in (sizes, found)]
    assert models[0] is not None
    assert models[1] is not None
    assert models[0].scaling.beta == pytest.approx(models[1].scaling.beta)
    assert models[0].scaling.beta < 1.0


def test_a_size_that_has_shown_next_to_nothing_stays_as_it_is() -> None:
    """Its batches lasted less long than all batches are shorter now."""
    tiny = SizeFit(2, BatchSums(2, 2, 0.5, 2, 0.5), overhead=0.25, cost=0.001)
    (found,) = shifted((tiny,), -1.0, 1.0, 0.0)
    assert found.cost > 0.0
    (found,) = shifted((tiny._replace(overhead=0.3),), -1.0, 1.0, 0.0)
    assert found == tiny._replace(overhead=0.3)


@pytest.mark.parametrize("way", [Way.RESTART, Way.IN_PLACE])
def test_a_job_whose_records_get_twice_as_dear_grows_in_time(way: Way) -> None:
    """Two slots at 75 % need three or four then: the job grows before it is late, not after two and a half minutes."""
    plant = Plant(slots=2, way=way)
    assert plant.run([150.0] * 60) == []
    ordered = plant.run([150.0] * 8, capacity=50.0)
    assert ordered
    assert ordered[0] >= 3
    grown = next(decision.trail[0] for decision in plant.decisions if decision.command is not None)
    assert grown.code == "TIDE_GROW_SLOWER"
    assert re.match(r"the same micro-batches take (1\.9|2\.0) times as long as before, so 2 slots", grown.sentence)
    late = [decision.evidence.delay_seconds or 0.0 for decision in plant.decisions[60:]]
    assert max(late) < plant.spec.scaling.lag_objective_seconds


def learned(*looks: tuple[str, int, float, float]) -> TideMemory:
    """Return what is remembered after looks at a job; each shows four equal batches, or a long one alone, or none.

    A look is (run, records, seconds of their work, seconds of overhead) of a batch.
    """
    state, spec, done = JobState.new(), job(policy="tide", policy_options={}, min_parallelism=4, max_parallelism=4), 0
    for number, (run, records, work, overhead) in enumerate(looks, start=1):
        count, lasted = (0 if not records else 4 if work < 10.0 else 1), work + overhead
        ended = [batch(number - lasted / 10 * later, 4 * number - later, records, lasted) for later in range(count)]
        shown = [each.model_copy(update={"add_batch_seconds": work}) for each in reversed(ended)]
        done += count * records
        shot = snapshot(number, arrived=done, committed=done, batches=shown, incarnation=run)
        state, _decision = step(state, shot, spec, observed(shot))
    assert isinstance(state.memory, TideMemory)
    return state.memory


def test_a_commit_that_gets_faster_makes_no_record_cheaper() -> None:
    """The overhead falls from 2 s to 0.2 s, below what a batch is still believed to last without any record."""
    slow = [("app-1", records, 0.001 * records, 2.0) for records in [200, 400, 300] * 10]
    fast = [("app-1", records, 0.001 * records, 0.2) for records in [200, 400, 300] * 3]
    before, after = learned(*slow), learned(*slow, *fast)
    assert before.sizes[-1].cost == pytest.approx(0.001, rel=0.05)
    assert after.sizes[-1].cost == pytest.approx(0.001, rel=0.2)
    assert after.sizes[-1].overhead == pytest.approx(0.2, abs=0.2)


def test_the_start_of_a_run_is_no_overhead_of_its_batches() -> None:
    """Its first batch loads code for 12 s; it counts, as it lasts more than a minute."""
    usual = [("app-1", records, 0.001 * records, 1.0) for records in [500, 1500, 1000] * 10]
    found = learned(*usual, ("app-2", 0, 0.0, 0.0), ("app-2", 90_000, 90.0, 12.0))
    assert found.overhead == pytest.approx(1.0)
    assert found.sizes[-1].cost == pytest.approx(0.001, rel=0.2)
    assert found.batches > 0


def cost_after(runs: dict[str, tuple[int, float]]) -> float:
    """Return what a record is believed to cost after runs of so many snapshots, at so many seconds a record."""
    state, spec, number = JobState.new(), job(policy="tide", policy_options={}, min_parallelism=4, max_parallelism=4), 0
    for incarnation, (snapshots, cost) in runs.items():
        for _ in range(snapshots):
            number += 1
            done = [batch(number - place / 4, 4 * number - place, 200, 0.1 + 200 * cost) for place in (3, 2, 1, 0)]
            total = 800 * number
            shot = snapshot(number, arrived=total, committed=total, batches=done, incarnation=incarnation)
            state, _decision = step(state, shot, spec, observed(shot))
    assert isinstance(state.memory, TideMemory)
    return state.memory.sizes[-1].cost


def test_a_young_run_is_no_shift() -> None:
    """A run is slow in its first minute. What its size has shown before stays; a minute later it would not."""
    usual = cost_after({"app-1": (40, 0.005)})
    assert cost_after({"app-1": (40, 0.005), "app-2": (6, 0.01)}) < 1.3 * usual
    assert cost_after({"app-1": (40, 0.005), "app-2": (9, 0.01)}) > 1.8 * usual
