"""Calibration: the fit finds the parameters behind a recording, or says why it cannot."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import cache
from pathlib import Path
from random import Random
from statistics import median
from time import process_time
from weakref import ref

import pytest
from typer.testing import CliRunner

from tests.support.events import batch, overloaded
from tests.support.plans import PlanDecider
from tests.support.recordings import RATES
from tidegate.cli import app
from tidegate.cli.calibrate import calibrate_and_compare
from tidegate.cli.recorded import recorded_job
from tidegate.cli.simulate import _recorded as _read
from tidegate.events.envelope import decode
from tidegate.events.result import Phase
from tidegate.events.snapshot import MetricSnapshot, MicroBatch, Part, snapshot_id
from tidegate.events.way import Way
from tidegate.lab.jobs import one_job, spec_for
from tidegate.lab.simulate import simulate
from tidegate.twin.calibrate import _limit, _trigger, batch_error, calibrate
from tidegate.twin.calibrate_ways import InPlaceFit, Sized
from tidegate.twin.load import Load
from tidegate.twin.model import JobModel, RestartCosts, StageModel
from tidegate.twin.recorded import CannotCalibrate, RecordedChange, changes_of, load_of, shares_of
from tidegate.twin.rerun import carried_out, compare, rerun
from tidegate.twin.samples import ChangesUnderWay, Sample, samples_of
from tidegate.twin.workloads import step
from tidegate.whatif.recorded import RecordedJob, job_of

MODEL = JobModel(
    "recorded",
    ("orders",),
    (StageModel("map", 0.002),),
    overhead_seconds=0.6,
    max_records_per_trigger=20_000,
    trigger_interval_seconds=5.0,
    noise_share=0.03,
    output_ratio=0.5,
    restart=RestartCosts(exit_seconds=2.0, start_seconds=20.0, start_jitter_seconds=8.0, first_batch_seconds=3.0),
)
MS = timedelta(milliseconds=1)


@cache
def _simulated(way: Way = Way.RESTART) -> RecordedJob:
    """Return an hour with two changes of size in a way, 2 to 8 to 3 slots, under a step."""
    model = replace(MODEL, ways=(way,))
    scenario = one_job(model, spec_for(model), step(2500.0, 3600.0), seed=3)
    plan = PlanDecider([(1000.0, 8), (2800.0, 3)], scenario.epoch)
    found = simulate(scenario, plan, keep_snapshots=True)["recorded"]
    return RecordedJob(found.snapshots, found.commands, found.results)


def _recorded() -> list[MetricSnapshot]:
    return list(_simulated().snapshots)


def test_the_fit_finds_what_the_recording_was_made_of() -> None:
    """Overhead within 5 %, cost within 2 %, restarts and the cold first batch within their noise, settings exactly."""
    found = calibrate(_recorded(), _simulated().results)
    assert found.overhead_seconds == pytest.approx(0.6, rel=0.05)
    assert found.record_cost_seconds == pytest.approx(0.002, rel=0.02)
    assert found.noise_share == pytest.approx(0.03, rel=0.25)
    assert found.first_batch.seconds == pytest.approx(3.0, abs=0.4)
    assert found.output_ratio == pytest.approx(0.5, abs=0.001)
    assert len(found.restart_seconds) == 2
    assert all(22.0 <= seconds <= 30.1 for seconds in found.restart_seconds)
    assert found.exit_seconds == pytest.approx(2.0)
    assert found.trigger_seconds == 5.0
    assert found.max_records == pytest.approx(20_000, rel=0.001)


def test_a_calibrated_twin_repeats_the_recording() -> None:
    """The twin's run of the same load, with other noise, has median errors of at most 5 % in lag and duration."""
    recorded = _recorded()
    model = calibrate(recorded, _simulated().results).model("recorded")
    found = compare(recorded, rerun(recorded, _simulated().commands, model, seed=99), model)
    assert found.lag_error <= 0.05
    assert found.batch_error <= 0.05
    assert found.lag_points > 300
    assert found.batch_points > 300


def test_the_figures_of_a_handover_are_found() -> None:
    """Warm-up, switch and the second driver's first batch come from the results and the batches around the switch."""
    recorded = _simulated(Way.HANDOVER)
    found = calibrate(recorded.snapshots, recorded.results)
    assert found.handover is not None
    assert found.handover.seen == 2
    assert (found.restart, found.in_place) == (None, None)
    costs = found.model("recorded").handover
    assert costs.warm_seconds == pytest.approx(MODEL.handover.warm_seconds, abs=0.1)
    assert costs.switch_seconds == pytest.approx(MODEL.handover.switch_seconds, abs=0.1)
    assert costs.first_batch_seconds == pytest.approx(MODEL.handover.first_batch_seconds, abs=0.4)
    assert found.record_cost_seconds == pytest.approx(0.002, rel=0.02)


def test_the_figures_of_changes_in_place_are_found() -> None:
    """Registration, the first batch with new executors and the fastest shrink; batches in between fit no size."""
    recorded = _simulated(Way.IN_PLACE)
    found = calibrate(recorded.snapshots, recorded.results)
    assert found.in_place is not None
    assert (found.in_place.grown, found.in_place.shrunk) == (1, 1)
    assert (found.restart, found.handover) == (None, None)
    costs = found.model("recorded").in_place
    assert costs.register_seconds == pytest.approx(MODEL.in_place.register_seconds, abs=0.1)
    assert costs.first_batch_seconds == pytest.approx(MODEL.in_place.first_batch_seconds, abs=0.4)
    assert MODEL.in_place.shrink_seconds <= costs.shrink_seconds <= MODEL.in_place.shrink_seconds + 5.0
    assert found.record_cost_seconds == pytest.approx(0.002, rel=0.02)


@pytest.mark.parametrize("way", [Way.HANDOVER, Way.IN_PLACE])
def test_the_first_batch_on_new_executors_is_one_figure_for_all_sizes(way: Way) -> None:
    """The model has no part per slot for it, so where it grows with the size, the fit takes the median."""
    model = replace(MODEL, ways=(way,))
    scenario = one_job(model, spec_for(model), step(2500.0, 3600.0), seed=3)
    sizes = (3, 4, 6, 3, 8, 5, 8, 3, 5, 7, 8, 6, 8)
    plan = PlanDecider([(200.0 * place, size) for place, size in enumerate(sizes, start=1)], scenario.epoch)
    recording = simulate(scenario, plan, keep_snapshots=True)["recorded"]
    samples = samples_of(recording.snapshots, shares_of(recording.snapshots), changes_of(recording.results))
    slots = {sample.batch.batch_id: sample.slots for sample in samples if sample.cold is way}
    longer = [
        s.model_copy(
            update={
                "batches": tuple(
                    b.model_copy(update={"duration_seconds": b.duration_seconds + 2.0 * slots.get(b.batch_id, 0)})
                    for b in s.batches
                )
            }
        )
        for s in recording.snapshots
    ]
    costs = calibrate(longer, recording.results).model("recorded")
    found, true = (
        (each.in_place if way is Way.IN_PLACE else each.handover).first_batch_seconds for each in (costs, MODEL)
    )
    assert len(set(slots.values())) >= 3
    assert found == pytest.approx(true + 2.0 * median(slots.values()), abs=2.5)


@pytest.mark.parametrize("way", [Way.HANDOVER, Way.IN_PLACE])
def test_a_twin_repeats_a_recording_in_any_way(way: Way) -> None:
    """The commands are repeated in the way they were carried out in, whatever they named."""
    recorded = _simulated(way)
    model = calibrate(recorded.snapshots, recorded.results).model("recorded")
    named = [command.model_copy(update={"way": Way.RESTART}) for command in recorded.commands]
    twin = rerun(recorded.snapshots, carried_out(named, recorded.results), model, seed=99)
    found = compare(recorded.snapshots, twin, model)
    assert found.lag_error <= 0.05
    assert found.batch_error <= 0.05
    assert len({snapshot.incarnation for snapshot in twin}) == (3 if way is Way.HANDOVER else 1)


def test_a_twin_runs_although_the_first_snapshots_do_not_tell_its_slots() -> None:
    """The job has the first size that is known, instead of not running for the whole recording."""
    recorded = _recorded()
    blind = [s.model_copy(update={"slots_granted": None, "missing": (Part.CAPACITY,)}) for s in recorded[:2]]
    model = calibrate(recorded, _simulated().results).model("recorded").without_noise()
    snapshots = [*blind, *recorded[2:]]
    twin = rerun(snapshots, _simulated().commands, model)
    assert [s.slots_granted for s in twin[:3]] == [2, 2, 2]
    assert compare(snapshots, twin, model).lag_error <= 0.05


def test_only_what_was_carried_out_is_repeated() -> None:
    """A command that was rejected is not; one whose results were not recorded keeps the way that it names."""
    recorded = _simulated(Way.IN_PLACE)
    first, second = recorded.commands
    refused = [
        r.model_copy(update={"phase": Phase.REJECTED, "code": "EXPIRED", "way": None})
        for r in recorded.results
        if r.command_id == first.command_id and r.phase is Phase.ACCEPTED
    ]
    found = carried_out(recorded.commands, refused)
    assert [(command.command_id, command.way) for command in found] == [(second.command_id, Way.IN_PLACE)]


def test_a_long_recording_is_compared_in_seconds() -> None:
    """Each recorded batch finds the nearest of the twin's by its time: looking at all would take hours for a week."""
    recorded = _recorded()
    batches = [b.model_copy(update={"started_at": b.started_at + k * MS}) for b in _batches(recorded) for k in range(9)]
    long = [recorded[0].model_copy(update={"batches": tuple(batches)}), *recorded[1:]]
    began = process_time()
    found = compare(long, long, MODEL)
    assert (found.batch_error, found.batch_points) == (0.0, len(batches) + len(_batches(recorded[1:])))
    assert found.batch_points > 6000
    assert process_time() - began < 5.0


def test_many_changes_in_place_cost_no_batch_a_search() -> None:
    """A day of a job that grows and shrinks has hundreds of changes, and most batches are far from each of them."""
    recorded = _recorded()
    batches = [b.model_copy(update={"started_at": b.started_at + k * MS}) for b in _batches(recorded) for k in range(9)]
    long = [recorded[0].model_copy(update={"batches": tuple(batches)}), *recorded[1:]]
    begin, shares = recorded[0].observed_at.timestamp(), shares_of(recorded)
    far = [_change(begin + 10.0 * place) for place in (*range(-1500, -100), *range(500, 1900))]
    began = process_time()
    assert samples_of(long, shares, far) == samples_of(long, shares, [])
    assert process_time() - began < 3.0


def _change(at: float, seconds: float = 1.0) -> RecordedChange:
    return RecordedChange(Way.IN_PLACE, 4, None, {Phase.ACCEPTED: at}, at + seconds, at + seconds)


def test_the_change_under_way_is_the_first_one_that_was() -> None:
    """Also of changes that overlap, or are in no order: services have clocks of their own."""
    drawn = Random(7)
    for _ in range(300):
        changes = [_change(drawn.uniform(0, 90), drawn.uniform(0, 20)) for _ in range(drawn.randrange(12))]
        found = ChangesUnderWay(changes)
        for _ in range(20):
            begin = drawn.uniform(-5, 100)
            end = begin + drawn.uniform(0, 9)
            under_way = [c for c in changes if begin < c.working_at and end > c.ordered_at]
            assert found.within(begin, end) is (under_way[0] if under_way else None)


def test_the_batch_limit_of_a_long_recording_is_found_at_once() -> None:
    """The largest batch is looked for once, not for each batch: of a week, that was minutes."""
    last = overloaded()[-1]
    shots = [last.model_copy(update={"sequence": last.sequence + 10 * place}) for place in range(20_000)]
    began = process_time()
    assert _limit(shots) == last.batches[-1].input_records
    assert process_time() - began < 3.0


def test_the_trigger_of_a_long_recording_is_found_at_once() -> None:
    """Batches that start when records come have hundreds of intervals; most fit none of the first batches."""
    drawn, at, samples = Random(7), 0.0, []
    for place in range(40_000):
        at += drawn.uniform(1.0, 60.0)
        one = batch(at / 10, place, 10, 0.1)
        samples.append(Sample(one, 10.0, 4, None, one.started_at.timestamp() - 0.5))
    began = process_time()
    assert _trigger(samples) == 0.0
    assert process_time() - began < 4.0


def _batches(snapshots: list[MetricSnapshot]) -> list[MicroBatch]:
    return [batch for snapshot in snapshots for batch in snapshot.batches]


def test_an_uncalibrated_twin_is_told_apart() -> None:
    """A twin with twice the cost per record has a clearly larger error."""
    recorded = _recorded()
    wrong = replace(calibrate(recorded), record_cost_seconds=0.004).model("recorded")
    assert compare(recorded, rerun(recorded, _simulated().commands, wrong), wrong).batch_error > 0.3


def test_the_twin_of_a_real_run_is_off_by_less_than_the_bar() -> None:
    """A job on real Spark, 2 to 8 to 4 slots: lag and batches within 15 %, also of batches that were not fitted."""
    found = calibrate_and_compare(recorded_job(RATES))
    everything, even, odd, halves = found.splits
    for split in (everything, even, odd):
        assert split.run.lag_error <= 0.15
        assert split.run.batch_error <= 0.15
        assert split.duration_error <= 0.15
    assert (everything.run.lag_points, everything.run.batch_points) == (50, 27)
    # The first half knows 2 slots and no restart: what a batch takes on 8 it foretells, when batches begin it cannot.
    assert halves.run.lag_error <= 0.15
    assert halves.duration_error <= 0.15
    assert found.found.trigger_seconds == 4.0
    shares: list[float] = []
    assert found.twin == calibrate_and_compare(recorded_job(RATES), shares.append).twin
    assert shares == [0.25, 0.5, 0.75], "the day of a job takes a minute, in which the command must show something"


@pytest.mark.parametrize("sequence", [2**62, 2**33, 86_400])
def test_a_snapshot_from_a_wrong_clock_does_not_make_the_recording_years_long(sequence: int, tmp_path: Path) -> None:
    """The decider refuses it, and it stays on the topic: the fit is the same as without it."""
    right = _recorded()
    wrong = right[9].model_copy(update={"sequence": sequence, "snapshot_id": snapshot_id("recorded", sequence)})
    assert job_of([*right, wrong]).snapshots == right
    path = tmp_path / "snapshots.ndjson"
    path.write_text("".join(f"{each.model_dump_json()}\n" for each in (*right, wrong)))
    assert _read(path, "recorded") == right


def test_the_snapshots_of_other_jobs_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten minutes of 1,000 jobs took 750 MB, of which one job was simulated."""
    ours = _recorded()
    names, at = [f"job-{number}" for number in range(90)], ours[0].sequence
    others = [ours[0].model_copy(update={"job_id": job, "snapshot_id": snapshot_id(job, at)}) for job in names]
    path = tmp_path / "snapshots.ndjson"
    path.write_text("".join(f"{each.model_dump_json()}\n" for each in (*others, *ours)))
    read: list[ref[MetricSnapshot]] = []
    held = []

    def counted(model: type[MetricSnapshot], value: bytes) -> MetricSnapshot:
        held.append(sum(each() is not None for each in read))
        made = decode(model, value)
        read.append(ref(made))
        return made

    monkeypatch.setattr("tidegate.cli.offline.decode", counted)
    assert _read(path, "recorded") == ours
    assert max(held[: len(others)]) <= 2


def test_starts_of_several_sizes_give_a_line() -> None:
    """Three real starts, of 2, 8 and 4 slots: more executors take longer to start, and stay cold longer."""
    recorded = recorded_job(RATES)
    found = calibrate(recorded.snapshots, recorded.results)
    assert found.restart is not None
    assert found.restart.at(8) == pytest.approx(18.7, abs=1.0)
    assert found.first_batch.at(8) == pytest.approx(13.0, abs=1.5)
    assert found.first_batch.at(2) == pytest.approx(6.0, abs=1.5)


def test_a_job_without_overhead_is_fitted_by_a_line_through_nought() -> None:
    """Where the best line would give a negative overhead, records do not cost more than they did."""
    recorded = [
        s.model_copy(
            update={
                "batches": tuple(b.model_copy(update={"duration_seconds": b.duration_seconds**1.5}) for b in s.batches)
            }
        )
        for s in _recorded()
    ]
    results = _simulated().results
    found = calibrate(recorded, results)
    assert found.overhead_seconds == 0.0
    assert batch_error(found, recorded, results) <= 0.05


def test_one_slow_start_does_not_make_all_starts_slow() -> None:
    """The middle of the twin's starts and registrations is the median of the recorded ones, however far these spread.

    Somebody may stop a job over night, and one executor may wait an hour for its machine.
    """
    slow = Sized(20.0, spread_seconds=3600.0)
    found = replace(calibrate(_recorded()), restart=slow, exit_seconds=2.0, in_place=InPlaceFit(3, 0, slow, None, None))
    model = found.model("recorded").without_noise()
    assert model.restart.exit_seconds + model.restart.start_seconds == pytest.approx(20.0)
    assert model.in_place.register_seconds == pytest.approx(20.0)


def test_calibrate_prints_the_fit_the_errors_and_draws_both(tmp_path: Path) -> None:
    """`tidegate calibrate DIR` ends with two tables and the picture's path."""
    picture = tmp_path / "both.png"
    ran = CliRunner().invoke(app, ["calibrate", str(RATES), "--out", str(picture)])
    assert ran.exit_code == 0, ran.output
    assert "4 s" in ran.stdout
    assert "even batches" in ran.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([str(RATES), "--job", "other"], ("does not hold job 'other', but rates", "hint: name a job that it holds")),
        (["nowhere"], ("not a recording", "makes a recording")),
    ],
)
def test_calibrate_says_what_is_lacking(options: list[str], told: tuple[str, str]) -> None:
    """A folder without a recording of the job gives one line of error and what to do."""
    ran = CliRunner().invoke(app, ["calibrate", *options])
    assert ran.exit_code == 2
    assert all(words in ran.stderr for words in told)


def test_what_if_says_that_a_recording_has_no_decisions() -> None:
    """It does not tell to start earlier, which brings no decision either."""
    ran = CliRunner().invoke(app, ["what-if", "--from", str(RATES), "--policy", "threshold"])
    assert (ran.exit_code, "no decision on the job was recorded" in ran.stderr) == (2, True), ran.stderr


def test_the_recorded_load_is_the_growth_of_the_end_offsets() -> None:
    """The load delivers exactly what arrived between the first and the last snapshot, gaps included."""
    recorded = _recorded()
    thinned = recorded[:40] + recorded[60:]
    for snapshots in (recorded, thinned):
        first, last = (sum(end or 0 for end in s.sources[0].end_offsets) for s in (snapshots[0], snapshots[-1]))
        load = load_of(snapshots)
        assert load.arrived(snapshots[-1].sequence - snapshots[0].sequence) == pytest.approx(last - first, rel=1e-6)
    assert sum(shares_of(recorded)) == pytest.approx(1.0, abs=1e-4)


def test_the_load_starts_at_the_first_snapshot_even_if_its_end_offsets_are_not_known() -> None:
    """Arrivals keep their time, and go on backwards at the first known rate; the twin still repeats the recording."""
    recorded = _recorded()
    blind = [
        s.model_copy(
            update={"sources": tuple(t.model_copy(update={"end_offsets": (None,) * 32}) for t in s.sources)},
        )
        for s in recorded[:30]
    ]
    headless = [*blind, *recorded[30:]]
    whole, load = load_of(recorded), load_of(headless)
    for begin, end in ((310.0, 900.0), (900.0, 1000.0), (1000.0, 3590.0)):
        assert load.arrived(end) - load.arrived(begin) == pytest.approx(whole.arrived(end) - whole.arrived(begin))
    assert load.arrived(290.0) == pytest.approx(290.0 * whole.rate(301.0), rel=1e-6)
    model = calibrate(recorded, _simulated().results).model("recorded").without_noise()
    found = compare(headless, rerun(headless, _simulated().commands, model), model)
    assert found.lag_error_tenth <= 0.05


def test_the_recorded_load_keeps_its_time_when_the_interval_changes() -> None:
    """A spec with another interval in the middle of a recording makes the load neither longer nor shorter."""
    recorded = _recorded()
    whole = load_of(recorded)
    mixed = [*recorded[:180:3], *recorded[180:]]  # every 30 s, then every 10 s
    mixed = [s.model_copy(update={"interval_seconds": 30 if place < 60 else 10}) for place, s in enumerate(mixed)]
    for snapshots in (mixed, [*recorded[::3], recorded[-1]]):
        load = load_of(snapshots)
        assert load.seconds == whole.seconds
        assert load.arrived(whole.seconds) == pytest.approx(whole.arrived(whole.seconds))


def test_a_recording_that_says_too_little_is_refused() -> None:
    """No arrivals, too few batches, or batches of one size: each is reported instead of fitted."""
    recorded = _recorded()
    with pytest.raises(CannotCalibrate, match="at least 2 snapshots"):
        calibrate(recorded[:1])
    with pytest.raises(CannotCalibrate, match="batches of known size and slots were recorded, 10 are needed"):
        calibrate(recorded[:3])
    steady = replace(MODEL, trigger_interval_seconds=5.0, noise_share=0.0)
    scenario = one_job(steady, spec_for(steady), Load([1000.0]), seconds=600.0)
    same = simulate(scenario, PlanDecider([], scenario.epoch), keep_snapshots=True)["recorded"].snapshots
    with pytest.raises(CannotCalibrate, match="nearly the same size"):
        calibrate(same)
