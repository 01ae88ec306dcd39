"""Calibration: the fit finds what the recording was made of, and says when it cannot."""

from __future__ import annotations

from dataclasses import replace

import pytest

from schemas.snapshot import MetricSnapshot
from tidegate.lab.jobs import one_job, spec_for
from tidegate.lab.oracle import PlanDecider
from tidegate.lab.simulate import simulate
from twin.calibrate import CannotCalibrate, calibrate, compare, load_of, rerun, shares_of
from twin.load import Load
from twin.model import JobModel, Restart, Stage
from twin.workloads import step

MODEL = JobModel(
    "recorded",
    ("orders",),
    (Stage("map", 0.002),),
    overhead_seconds=0.6,
    max_records_per_trigger=20_000,
    trigger_interval_seconds=5.0,
    noise_share=0.03,
    output_ratio=0.5,
    restart=Restart(exit_seconds=2.0, start_seconds=20.0, start_jitter_seconds=8.0, first_batch_seconds=3.0),
)
BLANK = replace(MODEL, stages=(Stage("unknown", 0.0),), overhead_seconds=0.0, noise_share=0.0, output_ratio=1.0)


def _recorded() -> list[MetricSnapshot]:
    """Return an hour with two restarts, 2 to 8 to 3 slots, under a step."""
    scenario = one_job(MODEL, spec_for(MODEL), step(2500.0, 3600.0), seed=3)
    plan = PlanDecider([(1000.0, 8), (2800.0, 3)], scenario.epoch)
    return simulate(scenario, plan, keep_snapshots=True)["recorded"].snapshots


def test_the_fit_finds_what_the_recording_was_made_of() -> None:
    """Overhead within 5 %, cost within 2 %, restarts and the cold first batch within their noise."""
    found = calibrate(_recorded())
    assert found.overhead_seconds == pytest.approx(0.6, rel=0.05)
    assert found.record_cost_seconds == pytest.approx(0.002, rel=0.02)
    assert found.noise_share == pytest.approx(0.03, rel=0.25)
    assert found.first_batch_seconds == pytest.approx(3.0, abs=0.4)
    assert found.output_ratio == pytest.approx(0.5, abs=0.001)
    assert len(found.restart_seconds) == 2
    assert all(22.0 <= seconds <= 30.1 for seconds in found.restart_seconds)


def test_a_calibrated_twin_repeats_the_recording() -> None:
    """The twin's run of the same load, with other noise, has median errors of at most 5 % in lag and duration."""
    recorded = _recorded()
    twin = rerun(recorded, calibrate(recorded).model("recorded", BLANK), seed=99)
    found = compare(recorded, twin)
    assert found.lag_error <= 0.05
    assert found.batch_error <= 0.05
    assert found.lag_points > 300
    assert found.batch_points > 300


def test_an_uncalibrated_twin_is_told_apart() -> None:
    """A twin at twice the cost per record shows it in its error."""
    recorded = _recorded()
    wrong = replace(calibrate(recorded), record_cost_seconds=0.004)
    assert compare(recorded, rerun(recorded, wrong.model("recorded", BLANK))).batch_error > 0.3


def test_the_recorded_load_is_the_growth_of_the_end_offsets() -> None:
    """What arrived between the first and the last snapshot is what the load delivers, gaps included."""
    recorded = _recorded()
    thinned = recorded[:40] + recorded[60:]
    for snapshots in (recorded, thinned):
        first, last = (sum(end or 0 for end in s.sources[0].end_offsets) for s in (snapshots[0], snapshots[-1]))
        load = load_of(snapshots)
        assert load.arrived(snapshots[-1].sequence - snapshots[0].sequence) == pytest.approx(last - first, rel=1e-6)
    assert sum(shares_of(recorded)) == pytest.approx(1.0, abs=1e-4)


def test_a_recording_that_says_too_little_is_refused() -> None:
    """No arrivals, too few batches, or batches of one size: each is named instead of fitted."""
    recorded = _recorded()
    with pytest.raises(CannotCalibrate, match="at least 2 snapshots"):
        calibrate(recorded[:1])
    with pytest.raises(CannotCalibrate, match="batches of known size and slots were recorded, 10 are needed"):
        calibrate(recorded[:3])
    steady = replace(MODEL, trigger_interval_seconds=5.0, noise_share=0.0)
    scenario = one_job(steady, spec_for(steady), Load([1000.0]), seconds=600.0)
    same = simulate(scenario, PlanDecider([], scenario.epoch), keep_snapshots=True)["recorded"].snapshots
    with pytest.raises(CannotCalibrate, match="nearly one size"):
        calibrate(same)
