"""The policies that use the capacity: threshold, pid, queueing, forecast, cost and learning."""

from __future__ import annotations

import math
from itertools import islice
from typing import Any

import pytest

from bench.streams import decided
from tests.support.cases import AT, case, evidence, policy, propose
from tests.support.engine import check_spec
from tests.support.events import job
from tidegate.engine.case import Case
from tidegate.engine.decide import KEYFRAME_EVERY
from tidegate.engine.options import BadOption
from tidegate.engine.state import Slice
from tidegate.events.job import Scaling
from tidegate.events.snapshot import Pool
from tidegate.events.way import Way
from tidegate.policies import forecast_rules, queueing_rules
from tidegate.policies.cost import Cost, CostOptions, lag_integral
from tidegate.policies.forecast import ForecastMemory
from tidegate.policies.learning import Learning, LearningMemory, LearningOptions, splitmix64, uniform, updated
from tidegate.policies.pid import velocity
from tidegate.policies.sizing import Workload, step_to
from tidegate.policies.threshold import ThresholdMemory, dstreams_change

WEIGHTS = forecast_rules.Smoothing(level=0.4, trend=0.1, season=0.3, damping=0.9)


def test_dstreams_thresholds() -> None:
    """The mean is cut to whole milliseconds; from 0.9 on it adds the rounded ratio, up to 0.3 it removes one slot."""
    given = {"memory": ThresholdMemory(AT - 60), "batch_interval_seconds": 1.0}
    assert propose("threshold", case(evidence(batch_seconds=0.9005)), **given).numbers["ratio"] == 0.9
    assert [dstreams_change(ratio) for ratio in (0.89, 0.9, 1.49, 1.5, 3.2, 0.3, 0.31)] == [0, 1, 1, 2, 3, -1, 0]


def test_threshold_looks_once_an_interval() -> None:
    """Between two checks it says when the next one is due; then batch time over interval decides."""
    rule = policy("threshold", batch_interval_seconds=1.0)
    first = rule.propose(case(evidence(batch_seconds=2.4)), rule.Memory())
    assert (first.size, first.code) == (4, "THRESHOLD_NOT_DUE")
    due = rule.propose(case(evidence(batch_seconds=2.4), after=60), first.memory)
    assert (due.size, due.code) == (6, "THRESHOLD_UP")  # 2.4 rounds to 2
    assert due.memory == ThresholdMemory(AT + 60)


def test_threshold_can_look_at_lag_too() -> None:
    """With `lag_up_seconds`, a long lag adds one slot although batches are short."""
    seen = evidence(utilization=0.2, lag_records=40_000)
    given, memory = case(seen), ThresholdMemory(AT - 60)
    assert propose("threshold", given, memory).size == 3
    assert propose("threshold", given, memory, lag_up_seconds=60.0).size == 5


@pytest.mark.parametrize(
    ("extreme", "limit", "problem"),
    [
        (
            {"policy": "threshold", "policy_options": {"batch_interval_seconds": 5e-324}},
            {"policy": "threshold", "policy_options": {"batch_interval_seconds": 0.001}},
            "scaling.policy_options.batch_interval_seconds: must be at least 0.001, found 5e-324",
        ),
        (
            {"policy": "learning", "policy_options": {"lag_price": 1.7e308}},
            {"policy": "learning", "policy_options": {"slot_price": 1e9, "lag_price": 1e9, "restart_price": 1e9}},
            "scaling.policy_options.lag_price: must be at most 1e+09, found 1.7e+308",
        ),
        (
            {"guards": {"quota": {"memory_gb": 1.7e308}}},
            {"guards": {"quota": {"memory_gb": 1e12}}},
            "scaling.guards.quota.memory_gb: must be at most 1e+12, found 1.7e+308",
        ),
    ],
)
def test_an_option_that_nothing_can_be_calculated_with_is_refused(
    extreme: dict[str, Any], limit: dict[str, Any], problem: str
) -> None:
    """Its results were infinite, so the engine failed on the job's snapshots. With the limit it decides."""
    assert check_spec(job(**extreme)) == [problem]
    scaling = Scaling(max_parallelism=32, **limit)
    decisions = [decision for _, decision in decided("rates", KEYFRAME_EVERY + 2, scaling=scaling, seed=3)]
    assert decisions[KEYFRAME_EVERY].keyframe is not None


def test_threshold_refuses_crossed_ratios() -> None:
    """The upper ratio must be above the lower one, or the size would flap."""
    with pytest.raises(BadOption, match="scaling_up_ratio"):
        policy("threshold", scaling_up_ratio=0.3, scaling_down_ratio=0.3)


def test_the_velocity_form() -> None:
    """0.5 * (0.4 - 0.1) + 0.01 * 0.4 * 10 + 2 * (0.4 - 0.2 + 0.0) / 10 = 0.15 + 0.04 + 0.04."""
    assert velocity((0.4, 0.1, 0.0), 10.0, (0.5, 0.01, 2.0)) == pytest.approx(0.23)


def test_pid_settles_without_error() -> None:
    """On a plant whose capacity follows the size at once, the load ends within the dead band and stays there."""
    rule, size, sizes = policy("pid"), 2, []
    memory = rule.Memory()
    for number in range(120):
        seen = evidence(arrival_rate=1000.0, true_processing_rate=100.0 * size)
        given = case(seen, current=size, after=10.0 * number, spec=job(max_parallelism=64))
        proposal = rule.propose(given, memory)
        memory = proposal.memory
        if proposal.size != size:
            memory, size = rule.ordered(given, memory, proposal, proposal.size), proposal.size
        sizes.append(size)
    assert abs(1000 / (100 * size) - 0.7) <= 0.1
    assert len(set(sizes[60:])) == 1
    assert max(sizes) <= 17  # 1000 / (100 * 0.6): never beyond the far edge of the band


def erlang_c(servers: int, load: float) -> float:
    """Return the probability that an arrival has to wait."""
    blocked = next(islice(queueing_rules.erlang_b(load), servers - 1, None))
    return queueing_rules.erlang_c(servers, load, blocked)


def test_erlang_formulas() -> None:
    """Textbook values: C(1, 4/5) = 4/5, C(2, 1) = 1/3, C(3, 2) = 4/9, B(1, 1) = 1/2, B(2, 1) = 1/5."""
    assert list(islice(queueing_rules.erlang_b(1.0), 2)) == pytest.approx([0.5, 0.2])
    assert erlang_c(1, 0.8) == pytest.approx(0.8)
    assert erlang_c(2, 1.0) == pytest.approx(1 / 3)
    assert erlang_c(3, 2.0) == pytest.approx(4 / 9)
    assert erlang_c(2, 2.0) == 1.0


@pytest.mark.parametrize(
    ("rate", "served", "seconds", "share"), [(8.0, 1.0, 1.0, 0.05), (0.5, 1.0, 0.0, 0.5), (30, 2, 5, 0.01)]
)
def test_the_fewest_servers(rate: float, served: float, seconds: float, share: float) -> None:
    """The number found meets the target, and one server fewer does not."""
    count = queueing_rules.servers_needed(rate, served, seconds, share, 100)
    assert count is not None
    exceeds = [erlang_c(c, rate / served) * math.exp(-(c * served - rate) * seconds) for c in range(1, count + 1)]
    assert exceeds[-1] <= share
    assert all(other > share for other in exceeds[:-1])
    assert queueing_rules.servers_needed(200.0, 1.0, 1.0, 0.05, 100) is None
    assert queueing_rules.servers_needed(1e6, 1.0, 60.0, 0.05, 3) is None  # far over what an exponent can hold


def test_queueing_asks_for_headroom() -> None:
    """8 tasks/s at 1/s per slot need more than 8 slots, and with lag even more."""
    spec = job(max_parallelism=64)
    seen = evidence(arrival_rate=800.0, true_processing_rate=400.0)  # 100 records/s a slot
    quick = propose("queueing", case(seen, spec=spec), task_records=100.0, target_wait_seconds=1.0)
    assert quick.size == queueing_rules.servers_needed(8.0, 1.0, 1.0, 0.05, 64)
    behind = evidence(arrival_rate=800.0, true_processing_rate=400.0, lag_records=24_000)  # 200/s in two minutes
    assert propose("queueing", case(behind, spec=spec), task_records=100.0, target_wait_seconds=1.0).size > quick.size


def test_queueing_says_when_nothing_is_enough() -> None:
    """If the load exceeds the largest size, the policy proposes that size and says so."""
    proposal = propose("queueing", case(evidence(arrival_rate=9000.0)), task_records=100.0)
    assert (proposal.size, proposal.code) == (16, "QUEUE_OVERLOAD")


def test_smoothing_follows_a_trend() -> None:
    """A ramp of 10 per step is forecast to go on with damping: above the last value, below the undamped line."""
    model = None
    for step in range(60):
        model = forecast_rules.learn(model, 100.0 + 10 * step, 0, 0, WEIGHTS)
    assert model is not None
    coming = forecast_rules.ahead(model, 5, (), 0.9, 0.0)
    assert 690 < coming < 740


def test_a_forecast_has_at_most_a_day_of_minutes() -> None:
    """All steps are computed at each snapshot, so too many would stop the decider."""
    policy("forecast", step_seconds=1.0)
    policy("forecast", horizon_seconds=86_400.0)
    with pytest.raises(BadOption, match=r"step_seconds: must be at least 1, found 0\.001"):
        policy("forecast", step_seconds=0.001)
    with pytest.raises(BadOption, match=r"step_seconds: must be at least 60, a 1440th of horizon_seconds, found 59"):
        policy("forecast", step_seconds=59.0, horizon_seconds=86_400.0)


def test_smoothing_learns_a_season() -> None:
    """A profile of four buckets repeats: the forecast distinguishes the high bucket from the low ones."""
    profile, model = (100.0, 500.0, 100.0, 100.0), None
    for step in range(400):
        model = forecast_rules.learn(model, profile[step % 4], step % 4, 4, WEIGHTS)
    assert model is not None
    assert forecast_rules.ahead(model, 1, (1,), 0.9, 0.0) == pytest.approx(500, rel=0.15)
    assert forecast_rules.ahead(model, 1, (2,), 0.9, 0.0) == pytest.approx(100, rel=0.5)


def ramp(number: int) -> Case:
    """Return the case at minute `number` of a load that rises by 20/s per minute from 300/s."""
    arrived = sum(60 * (300 + 20 * minute) for minute in range(number))
    window = [Slice(AT + 60 * number, arrived, arrived)]
    seen = evidence(arrival_rate=300.0 + 20 * number, true_processing_rate=400.0)
    return case(seen, window=window, after=60.0 * number, spec=job(max_parallelism=64))


def test_forecast_is_ahead_of_a_ramp() -> None:
    """It proposes more than the present load needs, because it expects the load to keep rising."""
    rule = policy("forecast")
    proposal = rule.propose(ramp(0), rule.Memory())
    for number in range(1, 20):
        proposal = rule.propose(ramp(number), proposal.memory)
    present = math.ceil((300 + 20 * 19) / 0.7 / 100)
    assert proposal.numbers["coming"] > 300 + 20 * 19  # type: ignore[operator]
    assert proposal.size > present


@pytest.mark.parametrize("after", [630.0, 700.0])
def test_forecast_starts_over_with_a_recreated_topic(after: float) -> None:
    """An end offset that falls, within a step or after it, is no negative load: the step starts again."""
    rule = policy("forecast")
    first = rule.propose(ramp(10), rule.Memory())
    window = [Slice(AT + after, 5, 5)]
    again = rule.propose(case(window=window, after=after), first.memory)
    assert again.memory == ForecastMemory(since=(AT + after, 5), per_slot=100.0)


def silence(number: int) -> Case:
    """Return the case at minute `number` of a load of 300/s in every fifth minute and none between."""
    arrived = 18_000 * ((number + 4) // 5)
    window = [Slice(AT + 60 * number, arrived, arrived)]
    idle = evidence(arrival_rate=0.0, processing_rate=0.0, true_processing_rate=None, utilization=0.0, lag_seconds=0.0)
    return case(idle if number % 5 else evidence(), window=window, after=60.0 * number, spec=job(max_parallelism=64))


def test_forecast_does_not_forget_in_a_silence_what_comes_after_it() -> None:
    """A silence that the season knows to end within the horizon is no reason for the least size."""
    rule = policy("forecast", season_seconds=300.0, season_buckets=5, widths=0.0)
    proposal = rule.propose(silence(0), rule.Memory())
    for number in range(1, 60):
        proposal = rule.propose(silence(number), proposal.memory)
    assert proposal.numbers["coming"] == pytest.approx(300.0, rel=0.2)
    assert proposal.size == 5  # 300/s at 70 % of 100/s per slot
    unlearned = rule.propose(silence(1), ForecastMemory(per_slot=100.0))
    assert (unlearned.size, unlearned.code) == (1, "IDLE")


def test_a_step_of_the_forecast_lasts_whole_intervals() -> None:
    """With a snapshot every 45 s, a step of 60 s ends after 90 s: 300 s are four steps ahead, not five."""
    rule = policy("forecast", damping=1.0, widths=0.0)
    model = forecast_rules.Model(level=100.0, trend=10.0, steps=9)
    for interval, expected in ((10, 150.0), (45, 140.0), (60, 150.0), (120, 130.0)):
        of = case(evidence(arrival_rate=1.0), window=[])
        of = of._replace(snapshot=of.snapshot.model_copy(update={"interval_seconds": interval}))
        assert rule.propose(of, ForecastMemory(model)).numbers["coming"] == expected


@pytest.mark.parametrize(
    ("lag", "growth", "seconds", "want"),
    [
        (100.0, 0.0, 10.0, 1000.0),
        (100.0, -10.0, 20.0, 500.0),
        (0.0, 10.0, 10.0, 500.0),
        (100.0, -5.0, 10.0, 750.0),
        (5.0, 1.0, 0.0, 0.0),
    ],
)
def test_the_integral_of_lag(lag: float, growth: float, seconds: float, want: float) -> None:
    """The area is made of trapezoids and triangles: an empty queue stays empty."""
    assert lag_integral(lag, growth, seconds) == pytest.approx(want)


def test_a_size_costs_slots_lag_and_restart() -> None:
    """4 slots that keep up cost 4 * 100; a change adds its price and the lag from its pause until it is worked off."""
    rule = Cost(CostOptions(horizon_seconds=100.0, target_utilization=1.0))
    work = Workload(arrival=100.0, lag=0, capacity=200.0, per_slot=50.0)
    assert rule.cost(4, 4, work, 10.0) == 400.0
    # pause: 0 to 1000 records in 10 s = 5000; then 1000 falls by 200/s: 1000² / 400 = 2500; over 200/s: 37.5 s²
    assert rule.cost(6, 4, work, 10.0) == pytest.approx(600 + 37.5 + 60)


def test_cost_weighs_the_restart() -> None:
    """An overload is worth a restart; saving one slot for a minute is not."""
    assert propose("cost", case(evidence(arrival_rate=800.0))).size > 8
    small = evidence(arrival_rate=100.0)  # 2 slots would do
    restarts = job(rescale=(Way.RESTART,))
    assert propose("cost", case(small, spec=restarts), horizon_seconds=60.0).size == 4
    assert propose("cost", case(small), horizon_seconds=60.0).size < 4, "in place nothing stops"
    assert propose("cost", case(small), horizon_seconds=3600.0).size == 2


@pytest.mark.parametrize(("count", "least", "most"), [(3, 99, 101), (4, 99, 102), (64, 69, 132)])
def test_cost_compares_as_many_sizes_as_it_says(
    count: int, least: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`sizes` of them, the current one of 100 slots in the middle."""
    compared = list[int]()

    def cost(_rule: Cost, size: int, *_: object) -> float:
        compared.append(size)
        return float(size)

    monkeypatch.setattr(Cost, "cost", cost)
    propose("cost", case(current=100, spec=job(max_parallelism=1000)), sizes=count)
    assert compared == [*range(least, most + 1), 100]  # the last one is what staying costs
    assert len(compared) == count + 1


def test_splitmix64_is_the_published_generator() -> None:
    """The first three numbers of seed 1234567 are those of its reference implementation."""
    assert [splitmix64(1234567, n) for n in range(3)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]
    rolls = [uniform(7, n) for n in range(2000)]
    assert all(0 <= roll < 1 for roll in rolls)
    assert sum(rolls) / 2000 == pytest.approx(0.5, abs=0.03)


def test_q_learning_update() -> None:
    """1 + 0.5 * (-2 + 0.8 * 3 - 1) = 0.7."""
    assert updated(1.0, -2.0, 3.0, 0.5, 0.8) == pytest.approx(0.7)


def test_learning_starts_with_common_sense() -> None:
    """It scales up when loaded and behind, scales down when idle, and otherwise stays."""
    behind = evidence(utilization=1.0, lag_records=40_000, lag_trend=100.0)
    assert propose("learning", case(behind), exploration=0.0).size == 5
    assert propose("learning", case(evidence(utilization=0.1)), exploration=0.0).size == 3
    assert propose("learning", case(), exploration=0.0).size == 4


def test_learning_learns_from_what_came_of_it() -> None:
    """An action followed by a long lag loses value, but only once its epoch is over."""
    rule = policy("learning", exploration=0.0)
    first = rule.propose(case(evidence(utilization=0.1)), rule.Memory())
    waiting = rule.propose(case(evidence(utilization=0.1), after=30), first.memory)
    assert (waiting.code, waiting.memory) == ("LEARNING_WAITS", None)
    worse = rule.propose(case(evidence(utilization=1.0, lag_records=400_000), current=3, after=60), first.memory)
    assert first.memory is not None
    assert worse.memory is not None
    before, after = first.memory.table, worse.memory.table
    changed = [(s, a) for s in range(18) for a in range(3) if before[s][a] != after[s][a]]
    assert changed == [(0, 0)]
    assert after[0][0] < before[0][0]


def test_learning_judges_no_step_that_a_guard_held_back() -> None:
    """The size stayed, so what came of it is what no step is worth, without the price of a change."""
    rule = policy("learning", exploration=0.0)
    idle = evidence(utilization=0.1)
    first = rule.propose(case(idle), rule.Memory())
    assert first.size == 3
    held = rule.propose(case(idle, after=60), first.memory)
    assert first.memory is not None
    assert held.memory is not None
    assert held.memory.table[0][0] == first.memory.table[0][0]
    reward = -4 / job().scaling.max_parallelism
    table = first.memory.table[0]
    assert held.memory.table[0][1] == pytest.approx(updated(table[1], reward, max(table), 0.2, 0.8), abs=1e-4)


@pytest.mark.parametrize(
    ("name", "options", "want"),
    [
        ("threshold", {}, 4),
        ("learning", {"exploration": 0.0}, 4),
        ("numaflow", {"target_processing_seconds": 1000}, 4),
    ],
)
def test_a_step_down_is_at_least_an_executor(name: str, options: dict[str, Any], want: int) -> None:
    """Sizes are rounded up to whole executors, so a step of two slots would never leave 8 slots of 4 cores each."""
    spec = job(policy=name, policy_options=options, executor_cores=4, min_parallelism=4, max_parallelism=16)
    of = case(evidence(utilization=0.05, lag_records=10), current=8, spec=spec)
    memory = ThresholdMemory(AT - 60) if name == "threshold" else None
    assert propose(name, of, memory, **options).size == want


def test_a_step_leads_to_whole_executors() -> None:
    """Down to the next multiple below the present size, at least one executor; zero and growth stay as they are."""
    spec = job(executor_cores=4, min_parallelism=4, max_parallelism=16)
    four, six, eight, twelve = (case(current=current, spec=spec) for current in (4, 6, 8, 12))
    assert [step_to(eight, size) for size in (0, 1, 5, 7, 11)] == [0, 4, 4, 4, 11]
    assert [step_to(twelve, size) for size in (0, 1, 5, 7, 11)] == [0, 4, 8, 8, 8]
    assert (step_to(six, 5), step_to(four, 1)) == (4, 4)


def test_pid_does_not_wind_up_while_a_guard_holds_its_size() -> None:
    """After an hour of too much load that no size could be added for, it lets go as soon as the load falls."""
    rule = policy("pid")
    memory = rule.Memory()
    spec = job(max_parallelism=40)
    for second in range(0, 3600, 10):
        memory = rule.propose(case(evidence(arrival_rate=380.0), after=second, spec=spec), memory).memory
    assert memory.output < 5.5, "4 slots at 95 % of their capacity: 5.43 would be at 70 %"
    for second in range(3600, 3660, 10):
        proposal = rule.propose(case(evidence(arrival_rate=80.0), after=second, spec=spec), memory)
        memory = proposal.memory
    assert proposal.size < 4


def test_pid_shrinks_by_whole_executors() -> None:
    """That 7 of 8 slots are rounded up to 8 again is no size held back: the integral goes on until 4 are enough."""
    rule = policy("pid")
    memory, spec = rule.Memory(), job(min_parallelism=4, max_parallelism=40, executor_cores=4)
    for second in range(0, 600, 10):
        proposal = rule.propose(case(evidence(arrival_rate=80.0), current=8, after=second, spec=spec), memory)
        memory = proposal.memory
    assert proposal.size <= 4


def test_pid_integrates_over_no_gap_in_the_evidence() -> None:
    """Ten minutes without end offsets are not ten minutes of the error that follows them."""
    rule = policy("pid")
    busy, blind = evidence(arrival_rate=340.0), evidence(arrival_rate=None)
    first = rule.propose(case(busy), rule.Memory())
    gone = rule.propose(case(blind, after=10), first.memory)
    found = rule.propose(case(busy, after=600), gone.memory)
    outputs = [first.numbers["output"], found.numbers["output"]]
    assert outputs == pytest.approx([4.36, 4.42])  # + 4 · 0.01 · 0.15 · 10


def test_cost_counts_the_outage_of_each_size_by_its_own_way() -> None:
    """A handover has room for 8 more slots next to the 5, so only sizes up to 8 are cheap: 9 takes a restart."""
    spec = job(rescale=(Way.HANDOVER, Way.RESTART), max_parallelism=16)
    busy = evidence(arrival_rate=714.0, processing_rate=500.0, true_processing_rate=500.0)
    of = case(busy, current=5, spec=spec)
    pool = Pool(pool_id="pool", slots_total=13, slots_used=5, workers_alive=1)
    of = of._replace(snapshot=of.snapshot.model_copy(update={"pool": pool}))
    proposal = propose("cost", of)
    assert proposal.expectation is not None
    assert proposal.numbers["outage"] == proposal.expectation.outage_seconds
    rule, work = Cost(CostOptions()), Workload(714.0, 0, 500.0, 100.0)
    costs = {size: rule.cost(size, 5, work, 3.0 if size <= 8 else 30.0) for size in range(1, 17)}
    assert proposal.size == min(costs, key=lambda size: costs[size])


def test_learning_never_tries_a_step_down_while_behind() -> None:
    """It never explores an action that is known to hurt, whatever the random numbers."""
    rule = Learning(LearningOptions(exploration=1.0))
    behind = evidence(utilization=0.1, lag_records=40_000)
    for rolls in range(0, 400, 2):
        assert rule.propose(case(behind), LearningMemory(rolls=rolls)).size >= 4


@pytest.mark.parametrize("name", ["pid", "queueing", "forecast", "cost"])
def test_an_idle_job_goes_to_its_least_size(name: str) -> None:
    """If arrivals and lag are measured as zero, the capacity need not be known."""
    idle = evidence(arrival_rate=0.0, processing_rate=0.0, true_processing_rate=None, utilization=0.0, lag_seconds=0.0)
    proposal = propose(name, case(idle))
    assert (proposal.size, proposal.code) == (1, "IDLE")
