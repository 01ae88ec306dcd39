"""Priors: what jobs have shown, as what a similar new job starts from."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.support.events import START
from tidegate.cli import app
from tidegate.cli.priors import prior_of
from tidegate.cli.problems import Problem
from tidegate.engine.batch_sums import one_batch
from tidegate.engine.costs import ChangeMemory, MeasuredCost
from tidegate.engine.state import JobState
from tidegate.engine.tide.capacity import SizeFit, fit, learn
from tidegate.engine.tide.memory import TideMemory
from tidegate.engine.tide.prior import WORTH, learn_prior, seeds
from tidegate.engine.ways import ASSUMED, PlannedChange, assumed
from tidegate.events.decision import Decision
from tidegate.events.job import Prior
from tidegate.events.way import Way
from tidegate.lab.jobs import lab_model, lab_peak, one_job, spec_for
from tidegate.lab.simulate import JobRecording, simulate
from tidegate.twin.load import Load
from tidegate.twin.workloads import step

MODEL = lab_model(ways=(Way.IN_PLACE,))
SPEC = spec_for(MODEL)
PEAK = lab_peak(MODEL, SPEC)


def shown(size: int, records: list[int], overhead: float, cost: float) -> tuple[SizeFit, ...]:
    """Return what batches with this overhead and cost per record show of a size."""
    sizes: tuple[SizeFit, ...] = ()
    for count in records:
        seconds = overhead + cost * count
        sizes = learn(sizes, size, one_batch(count, seconds))
    return sizes


@cache
def past() -> list[Decision]:
    """Return the decisions of two hours of a job under a step of load."""
    (recording,) = simulate(one_job(MODEL, SPEC, step(PEAK, 7200.0), seed=1).with_policy("tide")).values()
    return recording.decisions


def new_job(prior: Prior | None) -> JobRecording:
    """Return five minutes of a new job of the same kind that starts far too small, at 0.9 of the peak load."""
    scenario = one_job(MODEL, SPEC, Load((0.9 * PEAK,) * 30, 10.0), seed=7).with_policy("tide")
    scaling = scenario.specs[0].scaling.model_copy(update={"prior": prior})
    spec = scenario.specs[0].model_copy(update={"scaling": scaling})
    (recording,) = simulate(replace(scenario, specs=(spec,), sizes={MODEL.job_id: 2})).values()
    return recording


def test_a_prior_says_what_the_jobs_have_shown() -> None:
    """Batches of one size are added up over the jobs; a seed has the same line and a bounded weight."""
    memories = [TideMemory(sizes=shown(4, [100, 300, 200, 400, 500, 150, 350, 250] * 3, 1.0, 0.01)) for _ in range(2)]
    prior = learn_prior({f"job-{n}": (JobState(), memory) for n, memory in enumerate(memories)}, START)
    (size,) = prior.sizes
    assert size.slots == 4
    assert (size.overhead_seconds, size.record_seconds) == pytest.approx((1.0, 0.01), rel=1e-3)
    (seed,) = seeds(prior)
    assert seed.sums.batches == WORTH
    assert fit(seed.sums, 0.0) == pytest.approx((1.0, 0.01), rel=1e-3)


def test_a_change_costs_what_it_has_cost_similar_jobs() -> None:
    """The median of each way; a way that nobody used keeps its assumption."""
    costs = tuple(
        MeasuredCost(Way.IN_PLACE, 0, outage, delay) for outage, delay in ((0.0, 4.0), (1.0, 20.0), (0.0, 8.0))
    )
    prior = learn_prior({"old": (JobState(changes=ChangeMemory(costs=costs)), TideMemory())}, START)
    spec = SPEC.model_copy(update={"scaling": SPEC.scaling.model_copy(update={"prior": prior})})
    assert assumed(spec, Way.IN_PLACE, 30.0) == PlannedChange(Way.IN_PLACE, 0.0, 8.0)
    assert assumed(spec, Way.HANDOVER, 30.0) == ASSUMED[Way.HANDOVER]
    assert assumed(SPEC, Way.IN_PLACE, 30.0) == ASSUMED[Way.IN_PLACE]


def test_a_new_job_with_a_prior_grows_before_it_has_shown_its_capacity() -> None:
    """Without a prior it must first see its own batches; with one it is at the right size minutes earlier."""
    blind, informed = new_job(None), new_job(prior_of([SPEC.job_id], past(), "the past"))
    first = [next(d for d in recording.decisions if d.command is not None) for recording in (blind, informed)]
    assert first[1].trail[0].code == "TIDE_GROW_PRIOR"
    assert SPEC.job_id in first[1].sentence
    assert first[0].sequence - first[1].sequence >= 3
    assert max(tick.age_seconds for tick in informed.ticks) < max(tick.age_seconds for tick in blind.ticks)


def test_a_job_that_has_changed_its_size_is_like_any_other() -> None:
    """The prior lets the job grow early once; afterwards its own measurements count."""
    decisions = new_job(prior_of([SPEC.job_id], past(), "the past")).decisions
    ordered = next(n for n, decision in enumerate(decisions) if decision.command is not None)
    later = {entry.code for decision in decisions[ordered + 1 :] for entry in decision.trail}
    assert "TIDE_GROW_PRIOR" not in later


def test_a_job_without_a_state_is_named() -> None:
    """The message says which job, where, and what to do."""
    with pytest.raises(Problem, match="no state of clicks in the past") as caught:
        prior_of([SPEC.job_id, "clicks"], past(), "the past")
    assert "--since" in caught.value.hint


def test_a_job_that_has_shown_nothing_gives_no_prior() -> None:
    """Its first keyframe holds an empty state."""
    with pytest.raises(Problem, match="nothing learned yet"):
        prior_of([SPEC.job_id], past()[:1], "the past")


def test_a_folder_that_is_no_recording_is_an_error_of_one_line(tmp_path: Path) -> None:
    """`tidegate priors --from` says that a folder holds no recording, as every command with --from does."""
    ran = CliRunner().invoke(app, ["priors", "rates", "--from", str(tmp_path)])
    assert ran.exit_code == 2
    assert ran.stderr.startswith(f"error: {tmp_path} is not a recording")
