"""A running batch of the twin, by its finished tasks, and what tide makes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidegate.events.snapshot import RunningBatch
from tidegate.events.way import Way
from tidegate.lab.jobs import SOURCE, lab_model, lab_peak, one_job, spec_for
from tidegate.lab.simulate import Scenario, simulate
from tidegate.twin.load import Load
from tidegate.twin.model import JobModel, StageModel
from tidegate.twin.pool import SlotPool
from tidegate.twin.topic import TwinTopic, even
from tidegate.twin.workloads import SHAPES
from tidegate.twin.world import EPOCH, World

MODEL = JobModel(
    "job",
    (SOURCE,),
    (StageModel("map", 0.001), StageModel("sum", 0.0005, tasks=2)),
    overhead_seconds=1.0,
    noise_share=0.0,
)


def running_at(world: World, at: int) -> RunningBatch:
    """Return the running batch of the snapshot at a second."""
    world.advance(EPOCH + at)
    shot = world.snapshot("job", EPOCH + at)
    assert shot is not None
    assert shot.running is not None
    return shot.running[0]


def test_the_twin_tells_the_tasks_that_have_finished() -> None:
    """Six tasks of 10 s read on two slots, then two of 15 s follow, which are not known before."""
    topic = TwinTopic(SOURCE, even(6), Load([0.0]))
    topic.written = 60_000
    world = World([MODEL], [topic], [SlotPool("default", 2)], sizes={"job": 2})
    world.advance(EPOCH + 5)
    shot = world.snapshot("job", EPOCH + 5)
    assert shot is not None
    assert shot.running is None, "it is shorter than an interval"
    seen = [running_at(world, at) for at in (10, 20, 30, 40, 45)]
    assert [b.tasks for b in seen] == [6, 6, 6, 8, 8]
    assert [b.read_tasks_finished for b in seen] == [0, 2, 4, 6, 6]
    assert [b.records_read for b in seen] == [0, 20_000, 40_000, 60_000, 60_000]
    assert [b.busy_seconds for b in seen] == pytest.approx([0, 20, 40, 60, 60])
    assert seen[1].slowest_read_seconds == pytest.approx(10.0)
    world.advance(EPOCH + 50)
    shot = world.snapshot("job", EPOCH + 50)
    assert shot is not None
    assert shot.running is None
    assert shot.batches[0].duration_seconds == pytest.approx(1 + 30 + 15)


def of_long_batches(*ways: Way) -> Scenario:
    """Return a job whose first batch lasts 110 s on its only slot, while a quarter more arrives than that slot does."""
    model = JobModel("job", (SOURCE,), (StageModel("map", 1 / 250),), overhead_seconds=2.0, ways=ways)
    scenario = one_job(model, spec_for(model, maximum=8), Load([2700.0] + [313.0] * 89, 10.0))
    topics = {name: replace(plan, shares=(1 / 6,) * 6) for name, plan in scenario.topics.items()}
    return replace(scenario, topics=topics, sizes={"job": 1}).with_policy("tide")


@pytest.mark.parametrize("ways", [(Way.IN_PLACE,), (Way.RESTART,)])
def test_a_long_batch_is_decided_on_before_it_ends(ways: tuple[Way, ...]) -> None:
    """The job grows as soon as it may change at all, which is a minute after its start, and not after its batch."""
    recording = simulate(of_long_batches(*ways))["job"]
    first = next(decision for decision in recording.decisions if decision.command is not None)
    assert first.trail[0].code == "TIDE_GROW_EARLY"
    assert first.sequence - EPOCH <= 70
    proposed = next(d for d in recording.decisions if d.proposed_parallelism > d.current_parallelism)
    assert proposed.sequence - EPOCH <= 40, "the guard waits, and the policy does not"
    assert recording.decisions[-1].evidence.lag_seconds is not None
    assert recording.decisions[-1].evidence.lag_seconds < 60.0


@pytest.mark.parametrize("shape", ["ramp", "sawtooth"])
def test_long_batches_within_a_long_objective_are_on_time(shape: str) -> None:
    """Without a limit of a batch's records, and with 300 s to process them, the job shrinks and grows all the same.

    A size for which the next batch would be too long is not chosen, and a batch at work does not stop growth.
    """
    model = replace(lab_model(ways=(Way.IN_PLACE,)), max_records_per_trigger=None)
    plain = spec_for(model)
    spec = plain.model_copy(update={"scaling": plain.scaling.model_copy(update={"lag_objective_seconds": 300.0})})
    load = SHAPES[shape](lab_peak(model, spec), 5400.0)
    scenario = one_job(model, spec, load).with_policy("tide")
    recording = simulate(scenario)[spec.job_id]
    assert max(tick.age_seconds for tick in recording.ticks) < 300.0
    assert len({decision.final_parallelism for decision in recording.decisions}) > 4
    assert "CONSUMER_STUCK" not in {entry.code for decision in recording.decisions for entry in decision.trail}
