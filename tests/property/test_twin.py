"""Properties of the twin and of the engine running against it."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.twins import twin_command
from tidegate.engine.tide.capacity import makespan as formula
from tidegate.events.command import CommandKind
from tidegate.events.envelope import value_of
from tidegate.events.result import ActionResult
from tidegate.events.way import Way
from tidegate.lab.jobs import PARTITIONS, SOURCE, lab_model, lab_peak, one_job, sizes_of, spec_for
from tidegate.lab.simulate import Scenario, TopicPlan, simulate
from tidegate.twin.load import Load
from tidegate.twin.model import Faults, JobModel, Measurement, StageModel
from tidegate.twin.pool import SlotPool
from tidegate.twin.schedule import SlotChange, capacity, changing_makespan, makespan
from tidegate.twin.topic import TwinTopic, even
from tidegate.twin.world import EPOCH, World

SLOW = settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])

costs = st.lists(st.floats(0.0, 100.0), min_size=1, max_size=40)
rates = st.lists(st.floats(0.0, 5_000.0), min_size=1, max_size=20)


@given(costs, st.integers(1, 50))
def test_a_makespan_lies_between_its_bounds(tasks: list[float], slots: int) -> None:
    """Never below the slowest task or the work over the slots; never above both together (Graham's bound)."""
    seconds = makespan(tasks, slots)
    ideal = max(*tasks, sum(tasks) / slots) if len(tasks) > 1 else tasks[0]
    assert ideal * (1 - 1e-9) <= seconds <= sum(tasks) / slots + max(tasks) * (1 + 1e-9) + 1e-9


@given(st.integers(2, 60), st.integers(1, 70), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_the_engine_knows_the_makespan_around_one_slow_task(tasks: int, slots: int, place: float, slow: float) -> None:
    """Its formula gives what scheduling task by task does."""
    ratio, slowest = 1.0 + slow * (min(tasks, 12) - 1), min(tasks - 1, int(place * tasks))
    seconds = [(tasks - ratio) / (tasks - 1)] * tasks
    seconds[slowest] = ratio
    assert formula(tasks, slots, ratio, slowest) == pytest.approx(makespan(seconds, slots))


@given(st.lists(costs, min_size=1, max_size=3), st.integers(1, 50))
def test_without_a_change_stages_take_their_makespans(stages: list[list[float]], slots: int) -> None:
    """A batch whose slots stay the same takes as long as its stages one after another."""
    seconds, worked = changing_makespan(stages, [SlotChange(0.0, slots)], lambda _: 1.0)
    assert seconds == pytest.approx(sum(makespan(tasks, slots) for tasks in stages))
    assert math.isinf(worked)


@given(
    st.lists(st.lists(st.just(7.0), min_size=1, max_size=40), min_size=1, max_size=3),
    st.integers(1, 20),
    st.integers(1, 20),
    st.floats(0.0, 300.0),
    st.floats(0.0, 10.0),
)
def test_more_slots_never_delay_a_running_batch(
    stages: list[list[float]], slots: int, more: int, at: float, cold: float
) -> None:
    """New slots shorten a batch of even tasks or leave it as it is; at best they do as if they had been there."""
    alone = sum(makespan(tasks, slots) for tasks in stages)
    grown = slots + more
    seconds, worked = changing_makespan(stages, [SlotChange(0.0, slots), SlotChange(at, grown, cold)], lambda _: 1.0)
    assert sum(makespan(tasks, grown) for tasks in stages) - 1e-9 <= seconds <= alone + 1e-9
    assert math.isinf(worked) or at + cold + 7.0 <= worked + 1e-9 <= seconds + 2e-9


@given(rates, st.floats(0.0, 500.0), st.floats(0.0, 500.0))
def test_arrivals_never_fall(steps: list[float], first: float, second: float) -> None:
    """A later moment has seen at least as many records."""
    load = Load(steps)
    early, late = sorted((first, second))
    assert load.arrived(early) <= load.arrived(late) + 1e-6


@given(st.integers(1, 64), st.floats(0.0, 2.0), st.integers(1, 50_000))
def test_without_coherency_whole_waves_never_lose_capacity(partitions: int, overhead: float, limit: int) -> None:
    """On a job without contention a larger size can do at least as much."""
    model = JobModel(
        "job", ("in",), (StageModel("map", 0.002),), overhead_seconds=overhead, max_records_per_trigger=limit
    )
    able = [capacity(model, even(partitions), size, 30.0) for size in range(1, 33)]
    assert all(after >= before * (1 - 1e-9) for before, after in pairwise(able))


@SLOW
@given(steps=rates, size=st.integers(1, 16), seed=st.integers(0, 1000), limit=st.sampled_from([None, 500, 20_000]))
def test_no_record_is_lost_or_read_twice(steps: list[float], size: int, seed: int, limit: int | None) -> None:
    """Committed offsets are the sum of the batches, rise, and stay at or below the end offsets."""
    model = replace(lab_model(), max_records_per_trigger=limit)
    topic = TwinTopic(SOURCE, PARTITIONS, Load(steps, 30.0))
    world = World([model], [topic], [SlotPool("default", 16)], sizes={model.job_id: size}, seed=seed)
    records = 0
    for sequence in range(EPOCH + 10, EPOCH + 610, 10):
        world.advance(sequence)
        snapshot = world.snapshot(model.job_id, sequence)
        assert snapshot is not None
        records += sum(batch.input_records for batch in snapshot.batches)
        source = snapshot.sources[0]
        assert records == sum(offset or 0 for offset in source.committed_offsets)
        for end, done in zip(source.end_offsets, source.committed_offsets, strict=True):
            assert end is not None
            assert done is not None
            assert done <= end


@SLOW
@given(
    moves=st.lists(st.tuples(st.floats(0.0, 900.0), st.integers(1, 16), st.sampled_from(Way)), min_size=1, max_size=12),
    faults=st.builds(
        Faults,
        failed_starts=st.frozensets(st.integers(2, 6), max_size=2),
        failed_warm_ups=st.frozensets(st.integers(2, 6), max_size=2),
        failed_growths=st.frozensets(st.integers(1, 4), max_size=2),
    ),
    slots=st.integers(16, 32),
    seed=st.integers(0, 1000),
)
def test_no_change_of_size_loses_a_record(
    moves: list[tuple[float, int, Way]], faults: Faults, slots: int, seed: int
) -> None:
    """In any way and with any fault, each batch is committed once, commands end once, and no slot is left behind."""
    model = replace(lab_model(), faults=faults, start_deadline_seconds=60.0)
    topic = TwinTopic(SOURCE, PARTITIONS, Load([2000.0]))
    world = World([model], [topic], [SlotPool("default", slots)], sizes={model.job_id: 4}, seed=seed)
    ends: Counter[str] = Counter()
    records, seen = 0, []
    moves = sorted(moves, key=lambda move: move[0])
    for sequence in range(EPOCH + 10, EPOCH + 6010, 10):
        while moves and EPOCH + moves[0][0] <= sequence:
            at, size, way = moves.pop(0)
            ends[name := f"c{len(ends)}"] = 0
            command = twin_command(at, size, name=name, ttl=5000.0, way=way)
            world.order(command.model_copy(update={"job_id": model.job_id}))
        ends.update(result.command_id for result in world.advance(sequence) if result.phase.terminal)
        snapshot = world.snapshot(model.job_id, sequence)
        assert snapshot is not None
        assert snapshot.pool is not None
        assert 0 <= (snapshot.slots_granted or 0) <= snapshot.pool.slots_used <= slots
        records += sum(batch.input_records for batch in snapshot.batches)
        seen += [batch.batch_id for batch in snapshot.batches]
        assert records == sum(offset or 0 for offset in snapshot.sources[0].committed_offsets)
    assert seen == list(range(len(seen)))
    assert set(ends.values()) == {1}
    truth = world.truth(model.job_id)
    assert truth.slots == world.job(model.job_id).pool.used


def _scenario(steps: list[float], seed: int, lost: float, missing: float, delay: float, death: float) -> Scenario:
    model = replace(
        lab_model(),
        measurement=Measurement(lost_share=lost, missing_share=missing, delay_seconds=delay, delay_jitter_seconds=12.0),
        faults=Faults(deaths=(death,)),
    )
    return one_job(model, spec_for(model), Load(steps, 120.0), seconds=2400.0, seed=seed)


@SLOW
@given(
    steps=rates,
    seed=st.integers(0, 1000),
    lost=st.floats(0.0, 0.3),
    missing=st.floats(0.0, 0.5),
    delay=st.floats(0.0, 15.0),
    death=st.floats(10.0, 2000.0),
)
def test_the_loop_keeps_its_invariants_on_a_badly_measured_job(
    steps: list[float], seed: int, lost: float, missing: float, delay: float, death: float
) -> None:
    """With lost, late and incomplete snapshots and a death: sizes in bounds, effects once, rising epochs."""
    scenario = _scenario(steps, seed, lost, missing, delay, death)
    spec = scenario.specs[0]
    recording = simulate(scenario)[spec.job_id]
    commands = recording.commands
    assert all(1 <= command.to_parallelism <= spec.scaling.max_parallelism for command in commands)
    epochs = [command.epoch for command in commands]
    assert epochs == sorted(set(epochs))
    ended: dict[str, ActionResult] = {}
    for result in recording.results:
        assert result.command_id not in ended, "a result after the last one of its command"
        if result.phase.terminal:
            ended[result.command_id] = result
    moves = [c.issued_at for c in commands if c.kind is CommandKind.RESCALE and c.way is not Way.IN_PLACE]
    assert all((after - before).total_seconds() >= 60.0 for before, after in pairwise(moves))
    assert all(tick.slots <= spec.scaling.max_parallelism for tick in recording.ticks)
    assert all(tick.lag_records >= 0 for tick in recording.ticks)


@settings(max_examples=5)
@given(steps=rates, seed=st.integers(0, 1000))
def test_the_same_scenario_is_the_same_bytes(steps: list[float], seed: int) -> None:
    """Two runs of one scenario give the same snapshots, decisions and results, byte for byte."""
    runs = [
        simulate(_scenario(steps, seed, 0.05, 0.1, 2.0, 900.0), keep_snapshots=True)[lab_model().job_id]
        for _ in range(2)
    ]
    for kind in ("snapshots", "decisions", "results"):
        first, second = ([value_of(event) for event in getattr(run, kind)] for run in runs)
        assert first == second


@SLOW
@given(
    slots=st.integers(4, 24), rate=st.floats(100.0, 4000.0), other=st.floats(100.0, 4000.0), seed=st.integers(0, 100)
)
def test_jobs_in_one_pool_never_hold_more_than_it_has(slots: int, rate: float, other: float, seed: int) -> None:
    """Whatever two growing jobs request, the granted slots stay within the pool."""
    models = tuple(replace(lab_model(name), sources=(name,)) for name in ("first", "second"))
    specs = tuple(spec_for(model) for model in models)
    scenario = Scenario(
        models=models,
        specs=specs,
        topics={"first": TopicPlan(PARTITIONS, Load([rate])), "second": TopicPlan(PARTITIONS, Load([other]))},
        pools={"default": slots},
        sizes={"first": 2, "second": 2},
        seconds=2400.0,
        seed=seed,
    ).with_policy("flip271", {"metrics_window_seconds": 60.0, "stabilization_interval_seconds": 0.0})
    recordings = simulate(scenario)
    for mine, theirs in zip(recordings["first"].ticks, recordings["second"].ticks, strict=True):
        assert mine.slots + theirs.slots <= slots
    for recording in recordings.values():
        assert all(command.to_parallelism <= slots for command in recording.commands)


def test_the_lab_peak_needs_three_quarters_of_the_largest_size() -> None:
    """The lab's loads fit its job: no workload exceeds the largest size's capacity."""
    model = lab_model()
    spec = spec_for(model)
    peak = lab_peak(model, spec)
    assert peak < capacity(model, PARTITIONS, sizes_of(spec)[-1], 30.0)
    assert peak > capacity(model, PARTITIONS, 8, 30.0)
