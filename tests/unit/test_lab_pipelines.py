"""Pipelines in the lab: jobs linked by topics are planned as one, and decided again bit for bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from typer.testing import CliRunner

from tests.support.engine import step
from tidegate.engine.decide import ENGINE_VERSION
from tidegate.engine.state import JobState
from tidegate.events.way import Way
from tidegate.lab.jobs import spec_for
from tidegate.lab.pipelines import SHAPES, STEP_AT, JobReach, app, pipeline, reaches
from tidegate.lab.simulate import Scenario, TopicPlan, simulate
from tidegate.twin.load import Load
from tidegate.twin.model import JobModel, StageModel
from tidegate.twin.topic import even

RESTART = (Way.RESTART,)


@pytest.fixture(scope="module")
def together() -> list[JobReach]:
    """Return how the jobs of a chain took the step, by restart."""
    return reaches(pipeline("chain", ways=RESTART))


def test_a_chain_grows_in_one_round(together: list[JobReach]) -> None:
    """All four jobs order their growth at the same instant, and the last is as fast as the first.

    The last one was restarted shortly before and must first see three batches, so its order comes one snapshot later.
    """
    orders = [job.ordered for job in together]
    assert orders[:3] == [orders[0]] * 3
    assert orders[3] <= orders[0] + 10.0
    assert together[-1].seconds <= together[0].seconds + 30.0


def test_hop_by_hop_the_last_job_is_several_times_as_late(together: list[JobReach]) -> None:
    """Without the plans of the others each job learns of the load when it arrives, an outage after the one before.

    To know it earlier costs hardly any slots: a growth that was announced is not taken for a flash crowd as it arrives.
    """
    apart = reaches(pipeline("chain", ways=RESTART), hop_by_hop=True)
    orders = [job.ordered for job in apart]
    assert orders == sorted(set(orders))
    assert apart[-1].seconds > 3.0 * together[-1].seconds
    assert apart[-1].lag > 2 * together[-1].lag
    assert apart[-1].age_seconds > together[-1].age_seconds
    assert together[-1].slot_hours < 1.05 * apart[-1].slot_hours


def test_in_the_wrong_order_a_plan_is_seen_an_interval_late_per_hop(together: list[JobReach]) -> None:
    """The last job's snapshot is decided first: three hops cost 30 s."""
    late = reaches(pipeline("chain", ways=RESTART, late_upstream=0.4))
    assert [round(job.ordered) - round(together[0].ordered) for job in late] == pytest.approx([0, 10, 20, 30], abs=2)


def test_a_decision_names_the_job_upstream() -> None:
    """The growth is ordered before the load arrives, and says why; recomputed from `observed` it is the same."""
    case = pipeline("chain", ways=RESTART)
    recording = simulate(case.scenario, keep_snapshots=True)["stored"]
    grown = next(decision for decision in recording.decisions if decision.command is not None)
    assert grown.evidence.arrival_rate is not None
    assert "scored plans to emit " in grown.sentence
    assert grown.trail[0].code == "TIDE_GROW_ANNOUNCED"
    assert grown.trail[0].numbers["emitted"] == pytest.approx(grown.evidence.arrival_rate, rel=0.2)
    state, spec = JobState.new(), next(spec for spec in case.scenario.specs if spec.job_id == "stored")
    pairs = zip(recording.snapshots, recording.decisions, strict=True)
    for snapshot, decision in [pair for pair in pairs if pair[0].sequence <= grown.sequence + 200]:
        state, again = step(state, snapshot, spec, decision.observed)
        assert again.engine_version == ENGINE_VERSION
        assert again.model_dump_json() == decision.model_dump_json()


def test_a_chain_grows_no_further_than_its_last_job_can_follow() -> None:
    """The last of four jobs may have 4 slots. No job before it gets many more, though the load needs 8."""
    case = pipeline("chain", ways=RESTART)
    *specs, last = case.scenario.specs
    last = last.model_copy(update={"scaling": last.scaling.model_copy(update={"max_parallelism": 4})})
    recordings = simulate(replace(case.scenario, specs=(*specs, last)))
    for job_id, recording in recordings.items():
        assert max(tick.slots for tick in recording.ticks) <= 6, job_id
    said = [decision.sentence for decision in recordings["scored"].decisions]
    assert any("stored downstream can process at most" in sentence for sentence in said)


def test_a_reader_that_keeps_up_with_small_batches_limits_nobody() -> None:
    """The next batch starts at once, and lasts a second however little it reads: always busy, and far from full.

    Its rate within batches is what arrives. Taken for all it can process, it would hold the first job at its size.
    """
    first = JobModel("a", ("in",), (StageModel("work", 0.002),), "two", sink="out", trigger_interval_seconds=2.0)
    reader = JobModel("b", ("out",), (StageModel("work", 0.002),), "two", overhead_seconds=1.0)
    specs = []
    for model, policy in ((first, "tide"), (reader, "hpa")):
        spec = spec_for(model)
        least = 16 if policy == "hpa" else 1
        scaling = spec.scaling.model_copy(update={"policy": policy, "min_parallelism": least})
        specs.append(spec.model_copy(update={"scaling": scaling}))
    load = Load([300.0 if place < 120 else 3000.0 for place in range(240)])
    topics = {"in": TopicPlan(even(24), load), "out": TopicPlan(even(24))}
    recordings = simulate(Scenario((first, reader), tuple(specs), topics, {"default": 64}, {"a": 1, "b": 16}, 1200.0))
    said = [entry.code for decision in recordings["a"].decisions for entry in decision.trail]
    assert "DOWNSTREAM_FULL" not in said
    assert recordings["a"].ticks[-1].age_seconds < 60.0


def test_jobs_in_a_circle_raise_nobody_s_demand() -> None:
    """A job reads what comes of its own output. All three are decided, on what arrives alone, and none grows."""
    sources = {"x": ("in", "c"), "y": ("a",), "z": ("b",)}
    models = [
        JobModel(
            job_id=job_id,
            pipeline_id="ring",
            sources=sources[job_id],
            sink=sink,
            output_ratio=0.8,
            stages=(StageModel("work", 0.002),),
        )
        for job_id, sink in (("x", "a"), ("y", "b"), ("z", "c"))
    ]
    specs = [spec_for(model) for model in models]
    tide = [spec.model_copy(update={"scaling": spec.scaling.model_copy(update={"policy": "tide"})}) for spec in specs]
    topics = {name: TopicPlan(even(8), Load([300.0]) if name == "in" else None) for name in ("in", "a", "b", "c")}
    sizes = {"x": 3, "y": 3, "z": 3}
    ring = Scenario(tuple(models), tuple(tide), topics, {"default": 48}, sizes, 900.0)
    for recording in simulate(ring).values():
        assert len(recording.decisions) == 90
        assert any(n.emits for decision in recording.decisions for n in decision.observed.neighbours)
        assert all(tick.slots <= 3 for tick in recording.ticks)
        assert not any("ANNOUNCED" in entry.code for decision in recording.decisions for entry in decision.trail)


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_every_pipeline_starts_at_its_right_sizes(name: str) -> None:
    """Before the step nothing has to grow, and after it every job has to."""
    case = pipeline(name)
    assert all(case.scenario.sizes[job_id] < right <= 16 for job_id, right in case.right.items())
    assert case.scenario.seconds > STEP_AT


def test_the_lab_prints_the_pipelines() -> None:
    """One row per job, with the figures of each way to tell."""
    shown = CliRunner().invoke(app, ["--pipeline", "chain", "--ways", "restart", "--seeds", "1"])
    assert shown.exit_code == 0
    for job_id in SHAPES["chain"]:
        assert job_id in shown.stdout


def test_an_unknown_pipeline_is_refused() -> None:
    """The message lists those there are."""
    shown = CliRunner().invoke(app, ["--pipeline", "ring"])
    assert shown.exit_code == 2
    assert "unknown pipeline 'ring', known are chain, diamond, fan-in, fan-out" in shown.stderr
