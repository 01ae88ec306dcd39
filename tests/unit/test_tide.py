"""tide: the price of a change, and a job under the policy."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import fields, replace
from datetime import timedelta

import pytest

from bench import month
from tests.support.engine import step
from tests.support.events import START, batch, job, observed, snapshot
from tests.support.plant import Plant, even
from tests.unit.test_tide_capacity import batches
from tidegate.engine.costs import COSTS_KEPT, MeasuredCost
from tidegate.engine.options import BadOption, parse
from tidegate.engine.state import JobState, to_wire
from tidegate.engine.tide.batch_limits import NO_LIMITS
from tidegate.engine.tide.capacity import fit_model, work_of
from tidegate.engine.tide.memory import TideMemory
from tidegate.engine.tide.options import TideOptions
from tidegate.engine.tide.rollout import Backlog, Goal, Rollout, SlotPrices, Timing
from tidegate.engine.ways import PlannedChange
from tidegate.events.decision import Decision, Emission, EmissionStep, Evidence, Neighbour
from tidegate.events.way import Way
from tidegate.lab.jobs import SOURCE, lab_job, spec_for
from tidegate.lab.score import score
from tidegate.lab.simulate import Scenario, TopicPlan, simulate
from tidegate.twin.load import Load
from tidegate.twin.model import JobModel, StageModel
from tidegate.twin.topic import even as even_shares


def rollout(
    lag: float, *, outage: float, delay: float, demand: float = 500.0, running: float = 0.0, stop: float = math.inf
) -> Rollout:
    """Return the rollout of a job of 4 slots that does 400 records/s, and may have 2 to 8."""
    known = fit_model(batches(4, [1000, 2000, 4000], 0.0, 0.01), 4, even(8), 60.0)
    assert known is not None
    segments = [(delay, demand), (60.0, demand), (540.0 - delay, demand)]
    timing = Timing(PlannedChange(Way.IN_PLACE, outage, delay), delay + 20.0, stop)
    backlog, prices = Backlog(lag, lag / demand, running), SlotPrices(16.0, 16.0, 600.0)
    return Rollout(known, (2, 4, 8), segments, backlog, Goal(60.0, 0.02, 0.0), timing, prices)


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


def test_a_restart_does_not_wait_for_the_end_of_a_batch_that_it_breaks() -> None:
    """40,000 records last 100 s: after a deadline of 60 s they all wait still. One that ends sooner is not broken."""
    broken = rollout(40_000.0, outage=30.0, delay=30.0, stop=60.0)
    assert broken.lag_at_stop == pytest.approx(40_000 + 60 * 500)
    assert broken.age_at_stop == pytest.approx(80 + 60)
    whole = rollout(40_000.0, outage=30.0, delay=30.0)
    for stop, running in ((110.0, 0.0), (60.0, 50.0)):
        ended = rollout(40_000.0, outage=30.0, delay=30.0, running=running, stop=stop)
        assert (ended.lag_at_stop, ended.age_at_stop) == (whole.lag_at_stop, whole.age_at_stop)


def test_a_job_restarts_for_a_batch_that_would_last_for_hours() -> None:
    """Two million records at once, 4 ms each: one slot takes 2.2 hours for them, 16 take 8 minutes."""
    drop = Load([0.0] * 100 + [200_000.0] * 2 + [0.0] * 600)
    model = JobModel("job", ("orders",), (StageModel("read", 0.004),), ways=(Way.RESTART,))
    spec = spec_for(model)
    topics = {"orders": TopicPlan(even_shares(64), drop)}
    scenario = Scenario((model,), (spec,), topics, {"default": 32}, {"job": 1}, 3500.0)
    found = simulate(scenario)["job"]
    assert [command.to_parallelism for command in found.commands] == [16, 1]
    assert found.ticks[-1].lag_records == 0


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
    known = fit_model(batches(8, [1000, 2000, 4000], 0.5, 0.01, 56), 8, even(56), 60.0)
    assert known is not None
    smaller = known.capacity(7)
    segments = [(20.0, 0.8 * smaller), (60.0, soon * smaller), (120.0, 0.9 * smaller), (400.0, 0.8 * smaller)]
    timing = Timing(PlannedChange(Way.RESTART, 20.0, 20.0), 40.0)
    backlog, prices = Backlog(1000.0, 1000.0 / segments[0][1]), SlotPrices(16.0, 240.0, 600.0)
    found = Rollout(known, (6, 7, 8), segments, backlog, Goal(60.0, 0.02, 0.0), timing, prices)
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
    known = fit_model(batches(4, [1000, 2000, 4000], 0.0, 0.01), 4, even(8), 60.0)
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
    assert "the job would be late for" in grown.sentence
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


@pytest.mark.parametrize("way", [Way.RESTART, Way.IN_PLACE])
def test_a_batch_that_takes_too_long_without_its_records_is_told(way: Way) -> None:
    """Four slots do the work of the records. Batches of 40 s more need no sixteen, which would be late as well."""
    load, model = Load([1000.0] * 1440), JobModel("job", ("orders",), (StageModel("read", 0.004),), ways=(way,))
    model = replace(model, overhead_seconds=40.0)
    topics = {"orders": TopicPlan(even_shares(64), load)}
    found = simulate(Scenario((model,), (spec_for(model),), topics, {"default": 32}, {"job": 4}, 7200.0))["job"]
    told = [decision.trail[0] for decision in found.decisions if decision.trail[0].code == "TIDE_HOLD_OVERHEAD"]
    assert "so no size can meet the lag objective of 60 s, and one of " in told[-1].sentence
    assert told[-1].numbers["reachable"] == pytest.approx(160.0, rel=0.05)
    assert max(tick.slots for tick in found.ticks) <= 11


@pytest.mark.parametrize("way", [Way.RESTART, Way.IN_PLACE])
def test_a_job_that_its_record_limit_makes_late_does_not_grow(way: Way) -> None:
    """1,000 records every 5 s, whatever the size: 16 slots would be as late as one when 400 records/s arrive."""
    model = JobModel("job", ("orders",), (StageModel("read", 0.004),), ways=(way,))
    model = replace(model, max_records_per_trigger=1000, trigger_interval_seconds=5.0)
    topics = {"orders": TopicPlan(even_shares(64), Load([150.0] * 360 + [400.0] * 360))}
    found = simulate(Scenario((model,), (spec_for(model),), topics, {"default": 32}, {"job": 1}, 3600.0))["job"]
    assert found.commands == []


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
