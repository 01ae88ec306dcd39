"""What-if: the same spec changes nothing, another one is judged as well as a run of it, and the twin says how well."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import tidegate
from tests.support.history import decided_twice, history, write_history
from tests.support.policy_packages import put_policy
from tests.support.tried import NIGHT, SPEC, recorded, simulated, write_hour
from tidegate.cli import app
from tidegate.console.whatif import asked_change, try_out
from tidegate.engine.decide import ENGINE_VERSION
from tidegate.engine.state import JobState
from tidegate.events.envelope import value_of
from tidegate.events.job import Mode
from tidegate.events.snapshot import MetricSnapshot, snapshot_id
from tidegate.events.way import Way
from tidegate.events.wire import Scalar
from tidegate.installed import engine
from tidegate.twin.calibrate import Calibration, calibrate
from tidegate.whatif.continuation import Continuation, model_for
from tidegate.whatif.course import Course, course_of
from tidegate.whatif.differences import differences_of, first_difference
from tidegate.whatif.engines import OtherEngine, ThisEngine
from tidegate.whatif.figures import Row, figures_of, length, rows_of, spread
from tidegate.whatif.picture import figure_of
from tidegate.whatif.recorded import CannotTry, RecordedJob, job_of, moments_of, state_before
from tidegate.whatif.report import changes_of_spec, how_sure
from tidegate.whatif.trial import Trial, TrialLoop, attempt
from tidegate.whatif.vary import checked, values_of, varied

PACKAGE = Path(tidegate.__file__).parent


@cache
def tried(policy: str | None = None) -> Trial:
    """Return the trial of a policy on the hour that `tide` scaled."""
    hour = recorded()
    return attempt(hour, moments_of(hour), ThisEngine(), lambda spec: varied(spec, policy=policy), seeds=2)


def course_under(policy: str) -> Course:
    """Return the hour as the policy really scales it."""
    found = simulated(policy)
    return course_of(zip(found.snapshots, found.decisions, strict=True))


def short() -> RecordedJob:
    """Return a history with too few batches for a twin."""
    steps = history()
    return RecordedJob(
        [s.snapshot for s in steps],
        [s.decision.command for s in steps if s.decision.command is not None],
        [r for s in steps for r in s.results],
        [s.decision for s in steps],
    )


def test_the_same_spec_changes_nothing() -> None:
    """Every decision is the recorded one, bit for bit: nothing is simulated, all figures are measured."""
    same = tried()
    assert same.courses == (same.recorded,)
    assert (same.leaves_at, same.sureness, differences_of(same)) == (None, None, [])
    assert all(row.recorded == row.tried for row in rows_of(same))
    assert "all of this was measured" in how_sure(same)[-1]


def test_an_observed_job_says_how_to_see_what_would_have_happened() -> None:
    """In mode advise every trial keeps the size, whatever its policy: that is no answer, and the answer says so."""
    hour = recorded(mode=Mode.ADVISE)
    moments = moments_of(hour)
    kept = attempt(hour, moments, ThisEngine(), lambda spec: varied(spec, policy="hpa"), seeds=1)
    assert kept.leaves_at is None
    assert how_sure(kept)[-1] == "In mode advise no size changes: try it with scaling.mode=active."
    acts = attempt(hour, moments, ThisEngine(), lambda spec: varied(spec, values={"scaling.mode": "active"}), seeds=1)
    assert acts.leaves_at is not None
    assert not any("In mode" in line for line in how_sure(acts))


def test_the_form_of_the_console_tries_an_observed_job_as_if_it_were_active() -> None:
    """Who only observes a job asks what would have happened; the form has no field for the mode."""
    shown = try_out(recorded(mode=Mode.ADVISE), asked_change("tide", "", {}))
    assert Row("mode", "advise", "active", "") in shown.rows
    assert any("simulated" in line for line in shown.sure)
    same = try_out(recorded(), asked_change("tide", "", {}))
    assert "mode" not in {row.name for row in same.rows}


def test_the_picture_has_whole_slots_and_room_for_its_legend() -> None:
    """Half a slot is no size, and no line runs behind the legend."""
    trial = tried()
    size = figure_of(trial).axes[0]
    assert all(tick == int(tick) for tick in size.get_yticks())
    most = max(point.slots for course in (trial.recorded, *trial.courses) for point in course)
    assert size.get_ylim()[1] >= 1.25 * most


@pytest.mark.parametrize("policy", ["hpa", "threshold", "flip271"])
def test_another_policy_is_judged_as_well_as_if_it_had_run(policy: str) -> None:
    """From a recording of `tide`, lateness and slots under another policy are found within a fifth of the true ones."""
    trial, truth = tried(policy), figures_of(course_under(policy), SPEC)
    found = [figures_of(course, SPEC) for course in trial.courses]
    assert sum(f.late_seconds for f in found) / len(found) == pytest.approx(truth.late_seconds, rel=0.2)
    assert sum(f.slot_seconds for f in found) / len(found) == pytest.approx(truth.slot_seconds, rel=0.2)
    assert truth.late_seconds > 5 * figures_of(trial.recorded, SPEC).late_seconds  # there was something to find


@pytest.mark.parametrize("way", [Way.RESTART, Way.HANDOVER])
def test_a_job_that_is_stopped_for_a_while_is_judged_as_well(way: Way) -> None:
    """Stops, starts and changes that need another driver happen on the twin as well, and take as long as they did."""
    hour = recorded("tide", NIGHT, way)
    trial = attempt(hour, moments_of(hour), ThisEngine(), lambda spec: varied(spec, policy="hpa"), seeds=1)
    assert "From then on it is simulated, once." in how_sure(trial)
    found = simulated("hpa", NIGHT, way)
    truth = figures_of(course_of(zip(found.snapshots, found.decisions, strict=True)), SPEC)
    assert any(point.slots == 0 for point in trial.courses[0])
    tried = figures_of(trial.courses[0], SPEC)
    assert tried.slot_seconds == pytest.approx(truth.slot_seconds, rel=0.1)
    assert tried.late_seconds == pytest.approx(truth.late_seconds, rel=0.25, abs=30)
    assert trial.sureness is not None
    was, control = (figures_of(course, SPEC) for course in (trial.recorded, trial.sureness.control))
    assert control.slot_seconds == pytest.approx(was.slot_seconds, rel=0.02)
    assert control.late_seconds == pytest.approx(was.late_seconds, abs=60)


def test_recorded_snapshots_are_the_truth_until_another_change() -> None:
    """Up to the first different change the snapshots are the recorded ones; the twin takes over at the next one."""
    trial = tried("threshold")
    place = trial.leaves_at
    assert place is not None
    for course in trial.courses:
        measured = [[(p.slots, p.delay_seconds, p.lag_records) for p in each] for each in (course, trial.recorded)]
        assert measured[0][: place + 1] == measured[1][: place + 1]
        assert measured[0][place + 1] != measured[1][place + 1]
    ordered = [each[place].command for each in (trial.decisions, trial.made)]
    assert ordered[0] != ordered[1]


@cache
def found_in_the_hour() -> Calibration:
    """Return the twin of the hour."""
    return calibrate(recorded().snapshots, recorded().results)


def test_the_twin_goes_on_where_the_recording_stood() -> None:
    """What arrived stays, what is committed and the ids of batches only rise, and every snapshot is valid."""
    hour = recorded()
    loop = TrialLoop(ThisEngine(), moments_of(hour).each, {}, lambda _share: None, runs=1)
    was = hour.snapshots[100:]
    for seed in range(3):
        found = [s for s, _ in loop.on_the_twin(found_in_the_hour(), hour, 99, seed, as_recorded=True)]
        for real, ours in zip(was, found, strict=True):
            assert [s.end_offsets for s in ours.sources] == [s.end_offsets for s in real.sources]
            MetricSnapshot.model_validate(ours.model_dump())
        committed = [[done or 0 for done in s.sources[0].committed_offsets] for s in [hour.snapshots[99], *found]]
        assert all(b >= a for one, other in pairwise(committed) for a, b in zip(one, other, strict=True))
        ids = [batch.batch_id for s in found for batch in s.batches]
        assert all(b > a for a, b in pairwise(ids))
        assert ids[0] > max(batch.batch_id for s in hour.snapshots for batch in s.batches)


def test_the_batch_that_was_at_work_ends_when_it_would_have() -> None:
    """The twin starts within that batch; a new one would end later, and take what had arrived since."""
    hour = recorded("hpa", NIGHT, Way.HANDOVER)
    found, most = calibrate(hour.snapshots, hour.results), SPEC.scaling.max_parallelism
    model = model_for(SPEC, found).without_noise()
    batches = {batch.started_at: batch for snapshot in hour.snapshots for batch in snapshot.batches}
    compared = 0
    for place, snapshot in enumerate(hour.snapshots[:-5], start=1):
        began, size = snapshot.current_batch_started_at, snapshot.slots_granted or 0
        real = batches.get(began) if began is not None else None
        steady = {s.slots_granted for s in hour.snapshots[max(0, place - 5) : place + 4]} == {size}
        if real is None or real.duration_seconds < 8.0 or not steady:
            continue
        rest = hour.snapshots[place - 1 :]
        twin = Continuation(rest, model, found.shares, size=size, most=most, last_batch=0, seed=0)
        ours = next(batch for s in hour.snapshots[place:] for batch in twin.advance(s)[0].batches)
        assert ours.started_at == real.started_at
        assert ours.input_records == pytest.approx(real.input_records, rel=0.1)
        assert ours.duration_seconds == pytest.approx(real.duration_seconds, rel=0.2)
        compared += 1
    assert compared > 3


def test_the_twin_says_how_far_to_trust_it() -> None:
    """The recorded changes, carried out on the twin, give nearly the measured figures; sizes never seen are named."""
    trial = tried("threshold")
    assert trial.sureness is not None
    was, control = (figures_of(course, SPEC) for course in (trial.recorded, trial.sureness.control))
    assert control.slot_seconds == pytest.approx(was.slot_seconds, rel=0.02)
    assert abs(control.late_seconds - was.late_seconds) <= 30
    assert trial.sureness.batch_error < 0.05
    assert any(re.search(r"never ran with [\d, ]+ slots", line) for line in how_sure(trial))


def test_money_follows_from_the_prices() -> None:
    """0.3 an hour and slot, 0.6 a minute late, 0.1 a change."""
    prices: dict[str, Scalar] = {"currency": "EUR", "slot_hour": 0.3, "late_minute": 0.6, "change": 0.1}
    trial = tried("threshold")
    priced = varied(SPEC, values={f"scaling.prices.{name}": value for name, value in prices.items()})
    rows = rows_of(replace(trial, specs=((priced, priced),)))
    was = figures_of(trial.recorded, SPEC)
    expected = 0.3 * was.slot_seconds / 3600 + 0.6 * was.late_seconds / 60 + 0.1 * was.changes
    money = {row.name: row.recorded for row in rows if "EUR" in row.recorded}
    assert money["cost"] == f"{expected:,.2f} EUR"
    assert money["cost of a month like this"] == f"{expected * 30 * 86_400 / was.seconds:,.2f} EUR"


def test_a_change_of_an_earlier_version_is_listed() -> None:
    """The newest recorded version may have the tried value already: what is tried there is no change, before it is."""
    hour = short()  # its last version stops the job
    trial = attempt(hour, moments_of(hour), ThisEngine(), lambda spec: varied(spec, values={"running": False}))
    assert differences_of(trial)
    assert changes_of_spec(trial) == ["running: True → False"]


def test_without_a_twin_the_answer_ends_at_the_first_other_change() -> None:
    """A recording with too few batches says so; what is known until there is shown."""
    hour = short()
    trial = attempt(hour, moments_of(hour), ThisEngine(), lambda spec: varied(spec, policy="hpa"))
    assert "batches" in trial.unknown_because
    assert trial.leaves_at == len(trial.made) - 1
    assert rows_of(trial) == []
    assert differences_of(trial)


def test_decisions_before_the_first_keyframe_are_counted() -> None:
    """They cannot be made again, nor can those without their snapshot."""
    hour = short()
    late = replace(hour, decisions=hour.decisions[3:], snapshots=hour.snapshots[:-1])
    moments = moments_of(late)
    assert (moments.before_keyframe, moments.without_inputs) == (6, 1)
    with pytest.raises(CannotTry, match="keyframe"):
        moments_of(replace(hour, decisions=hour.decisions[1:3]))


@pytest.mark.parametrize("lost", ["both", "decisions", "snapshots"])
def test_what_follows_a_gap_in_the_recording_is_no_difference(lost: str) -> None:
    """The state after it is known from the next keyframe on; what was decided until then is left out, and said so."""
    hour = recorded()
    snapshots, decisions = ([*each[:60], *each[120:]] for each in (hour.snapshots, hour.decisions))
    torn = replace(
        hour,
        snapshots=hour.snapshots if lost == "decisions" else snapshots,
        decisions=hour.decisions if lost == "snapshots" else decisions,
    )
    same = attempt(torn, moments_of(torn), ThisEngine(), lambda spec: spec, seeds=1)
    assert same.leaves_at is None
    assert differences_of(same) == []
    assert same.left_out[-1] == "80 decisions that follow missing ones"
    assert len(same.made) == 220


@pytest.mark.parametrize("gap", [3, 40])
def test_what_follows_a_gap_after_the_last_keyframe_is_left_out(gap: int) -> None:
    """No later state counts the missing decisions: the window of the next one shows that there were some."""
    hour = recorded()
    last = max(place for place, each in enumerate(hour.decisions) if each.keyframe is not None)
    torn = replace(
        hour,
        snapshots=[*hour.snapshots[: last + 10], *hour.snapshots[last + 10 + gap :]],
        decisions=[*hour.decisions[: last + 10], *hour.decisions[last + 10 + gap :]],
    )
    same = attempt(torn, moments_of(torn), ThisEngine(), lambda spec: spec, seeds=1)
    assert (same.leaves_at, differences_of(same), len(same.made)) == (None, [], last + 10)
    assert same.left_out == (f"{len(hour.decisions) - last - 10 - gap} decisions that follow missing ones",)


def test_a_time_without_snapshots_is_no_gap_in_the_recording() -> None:
    """A collector that was away for a while leaves one: the decider decided on every snapshot that there was."""
    hour, state, made = recorded(), JobState.new(), []
    kept = [each for place, each in enumerate(zip(hour.snapshots, hour.decisions, strict=True)) if place % 40 < 30]
    for snapshot, decision in kept:
        state, decided = engine().step(state, snapshot, SPEC, replace(decision.observed, results=()))
        made.append(decided)
    moments = moments_of(RecordedJob([snapshot for snapshot, _ in kept], [], [], made))
    assert [moment.decision for moment in moments.each] == made


def test_the_twin_goes_on_with_its_own_state_after_a_gap() -> None:
    """The recorded state after the gap is that of a job of another size, which has committed something else."""

    class CountingEngine(ThisEngine):
        read_states = 0

        def read(self, state: Mapping[str, Any]) -> object:
            self.read_states += 1
            return super().read(state)

    hour, engine = recorded(), CountingEngine()
    torn = replace(hour, decisions=[*hour.decisions[:60], *hour.decisions[120:]])
    trial = attempt(torn, moments_of(torn), engine, lambda spec: varied(spec, policy="hpa"), seeds=1)
    assert trial.leaves_at is not None
    assert trial.leaves_at < 60
    assert engine.read_states == 1  # that of the first keyframe


def test_a_state_is_found_by_making_the_decisions_again() -> None:
    """It is the one before the decision; an engine that decides otherwise cannot know it."""
    hour = short()
    engine = tidegate.installed.engine()
    state, moment = state_before(hour, hour.decisions[12].sequence, engine)
    assert engine.step(state, moment.snapshot, moment.spec, moment.decision.observed)[1] == hour.decisions[12]
    other = hour.decisions[2].model_copy(update={"sentence": "Something else."})
    forged = replace(hour, decisions=[*hour.decisions[:2], other, *hour.decisions[3:]])
    with pytest.raises(CannotTry, match="does not make the recorded decision"):
        state_before(forged, hour.decisions[5].sequence, engine)
    with pytest.raises(CannotTry, match="not recorded: 1"):
        state_before(
            replace(hour, snapshots=[hour.snapshots[0], *hour.snapshots[2:]]), hour.decisions[4].sequence, engine
        )


@pytest.mark.parametrize("change", [{"policy": "of-somebody-else"}, {"policy_options": {"gone": 1}}])
def test_a_decision_of_a_policy_that_is_not_here_says_so(change: dict[str, object]) -> None:
    """The decider may have a policy, or an option of another version, that this Python has not."""
    hour = short()
    first = hour.decisions[0]
    assert first.keyframe is not None
    spec = first.keyframe.spec
    spec = spec.model_copy(update={"scaling": spec.scaling.model_copy(update=change)})
    theirs = first.model_copy(update={"keyframe": first.keyframe.model_copy(update={"spec": spec})})
    with pytest.raises(CannotTry, match=r"of-somebody-else|gone"):
        state_before(replace(hour, decisions=[theirs, *hour.decisions[1:]]), hour.decisions[2].sequence, engine())


def test_of_a_snapshot_measured_twice_the_first_counts() -> None:
    """The decider dropped the second one: with that, no decision would be the recorded one."""
    found = short()
    again = found.snapshots[-1].model_copy(update={"slots_granted": 1})
    read = job_of([*found.snapshots, again, *found.commands, *found.results, *found.decisions])
    assert read.snapshots == found.snapshots
    _, moment = state_before(read, again.sequence, engine())
    assert moment.snapshot == found.snapshots[-1]


def test_of_two_decisions_on_a_snapshot_the_last_counts() -> None:
    """The decider went on from it, after it had died before it saved its state: the same spec gives the same bytes."""
    steps, at, other = decided_twice()
    found = short()
    decisions = [*found.decisions[:at], other, *found.decisions[at:]]
    read = job_of([*found.snapshots, *found.commands, *found.results, *decisions])
    made = attempt(read, moments_of(read), ThisEngine(), lambda spec: spec).made
    assert [value_of(decision) for decision in made] == [value_of(each.decision) for each in steps]


def test_of_a_command_or_a_result_that_is_written_twice_the_first_counts() -> None:
    """The actuator carried out the first command, and the decider took the first result: the second ones are later."""
    found, later = short(), timedelta(seconds=30)
    again = [one.model_copy(update={"issued_at": one.issued_at + later, "to_parallelism": 9}) for one in found.commands]
    told = [one.model_copy(update={"at": one.at + later}) for one in found.results]
    assert again
    assert told
    read = job_of([*found.snapshots, *found.commands, *again, *found.results, *told, *found.decisions])
    assert (read.commands, read.results) == (found.commands, found.results)


def test_a_snapshot_from_the_future_changes_nothing() -> None:
    """The decider refuses it as a dead letter, and it stays on the topic: the job was not observed until then."""
    hour, ahead = recorded(), 2**62
    forged = {"sequence": ahead, "snapshot_id": snapshot_id("orders", ahead)}
    more = replace(hour, snapshots=[*hour.snapshots, hour.snapshots[9].model_copy(update=forged)])
    one, other = (
        attempt(each, moments_of(each), ThisEngine(), lambda spec: varied(spec, policy="hpa"), seeds=1)
        for each in (hour, more)
    )
    assert one.sureness is not None
    assert (one.courses, one.sureness) == (other.courses, other.sureness)


def test_values_are_put_where_their_path_says() -> None:
    """Nested options are reached by dots, a policy brings its own defaults, and what is wrong is named."""
    made = varied(SPEC, policy="hpa", values=values_of(["scaling.guards.cooldown.up_seconds=5", "scaling.mode=advise"]))
    assert (made.scaling.policy, made.scaling.policy_options) == ("hpa", {})
    assert made.scaling.guards["cooldown"] == {"up_seconds": 5}
    assert made.scaling.mode == "advise"
    wrong = {"nonsense": "nonsense", "scaling.max_parallelism=many": "max_parallelism", "a.b=1": "a"}
    for line, says in {**wrong, "x." * 3000 + "y=1": "dots"}.items():
        with pytest.raises(CannotTry, match=says):
            varied(SPEC, values=values_of([line]))
    with pytest.raises(CannotTry, match="unheard_of"):
        checked(varied(SPEC, values={"scaling.policy_options.unheard_of": 1}))


def test_a_difference_names_the_first_other_reason() -> None:
    """Figures do not count, the first other guard does, and the same trail at another size is a difference too."""
    steps = history()
    one, other = steps[8].decision, steps[9].decision
    assert first_difference(one, one) == ""
    assert " ⇒ " in first_difference(one, other)
    moved = one.model_copy(update={"current_parallelism": 9})
    assert first_difference(one, moved) == f"{one.current_parallelism} slots ⇒ 9 slots"


def test_lengths_and_ranges_read_well() -> None:
    """A short recording is no `0.0 hours`."""
    words = ["90 s", "2 min", "1 h 0 min", "2 h 5 min", "3 days 2 h"]
    assert [length(seconds) for seconds in (90, 120, 3600, 7500, 74 * 3600)] == words
    assert spread([1, 3, 2], "s") == "2 s (1 to 3)"
    assert spread([2, 2, 2]) == "2"


def copied(folder: Path, *changes: tuple[str, str, str]) -> Path:
    """Return a copy of the package's engine in a folder, with texts replaced in its files."""
    for part in ("events", "engine", "policies"):
        shutil.copytree(
            PACKAGE / part, folder / "tidegate" / part, ignore=shutil.ignore_patterns("__pycache__", "*.so")
        )
    (folder / "tidegate/__init__.py").write_text("")
    for file, old, new in changes:
        path = folder / "tidegate" / file
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
    return folder


def test_a_changed_engine_shows_its_difference(tmp_path: Path) -> None:
    """The same engine in another process changes nothing; with one constant changed, the difference is shown."""
    hour = recorded()
    moments = moments_of(hour)
    with OtherEngine(copied(tmp_path / "same")) as engine:
        same = attempt(short(), moments_of(short()), engine, lambda spec: spec, seeds=1)
    assert same.courses == (same.recorded,)
    change = ("engine/tide/policy.py", "SWITCHING_THRESHOLD = 1.0", "SWITCHING_THRESHOLD = 20.0")
    with OtherEngine(copied(tmp_path / "other", change)) as engine:
        other = attempt(hour, moments, engine, lambda spec: spec, seeds=1)
    found = differences_of(other)
    assert other.leaves_at is not None
    assert found[0].because.startswith("tide TIDE_")
    assert rows_of(other)[2].tried != rows_of(other)[2].recorded


def test_the_results_of_commands_follow_another_version(tmp_path: Path) -> None:
    """An engine of another version, here a wheel, gives its commands other ids: the recorded results are theirs."""
    hour = short()
    change = ("engine/decide.py", f'ENGINE_VERSION = "{ENGINE_VERSION}"', 'ENGINE_VERSION = "99"')
    made = copied(tmp_path / "next", change)
    wheel = Path(shutil.make_archive(str(tmp_path / "tidegate"), "zip", made)).rename(tmp_path / "tidegate-99.whl")
    with OtherEngine(wheel) as engine:
        assert engine.name.startswith("engine 99 of ")
        trial = attempt(hour, moments_of(hour), engine, lambda spec: spec)
    assert any(d.command is not None for d in trial.decisions)
    assert (trial.leaves_at, differences_of(trial)) == (None, [])


def test_an_engine_that_cannot_be_used_says_why(tmp_path: Path) -> None:
    """No package, one that does not import, a spec it refuses: each is an error in words, and the child has ended."""
    with pytest.raises(CannotTry, match="neither a wheel nor"):
        OtherEngine(tmp_path)
    broken = copied(tmp_path / "broken", ("engine/decide.py", "KEYFRAME_EVERY: Final = 100", "import no_such_module"))
    with pytest.raises(CannotTry, match="no_such_module"):
        OtherEngine(broken)
    hour = short()
    with OtherEngine(copied(tmp_path / "same")) as engine:
        with pytest.raises(CannotTry, match="unknown policy 'magic'"):
            attempt(hour, moments_of(hour), engine, lambda spec: varied(spec, policy="magic"))
        child = engine._child
    assert child.returncode is not None


def test_a_policy_that_another_engine_refuses_is_named_to_its_own_jobs_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It imports, but with a reason that is the engine's: jobs of other policies are tried all the same."""
    put_policy(tmp_path, "acme", reasons="{'COOLDOWN': Reason('something else')}")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    hour = short()
    with OtherEngine(copied(tmp_path / "same")) as engine:
        assert attempt(hour, moments_of(hour), engine, lambda spec: spec).leaves_at is None
        with pytest.raises(CannotTry, match=r"policy .mine. of acme 1\.5 cannot be used: ValueError: reason code"):
            attempt(hour, moments_of(hour), engine, lambda spec: varied(spec, policy="mine"))


def test_the_command_prints_tables_and_writes_a_page(tmp_path: Path) -> None:
    """Tables for reading, a page and a picture to keep, JSON for programs."""
    write_hour(tmp_path / "hour")
    run = ["what-if", "--from", str(tmp_path / "hour"), "--policy", "hpa", "--seeds", "2"]
    page, picture = tmp_path / "page.html", tmp_path / "picture.png"
    ran = CliRunner().invoke(app, [*run, "--html", str(page), "--out", str(picture), "--rows", "3"])
    assert (ran.exit_code, ran.stderr) == (0, "")  # a progress bar is for a terminal
    assert ran.stdout.startswith(f"orders: 1 h 0 min, 360 decisions by engine {ENGINE_VERSION}, ")
    assert "scaling.policy: tide → hpa" in ran.stdout
    assert "more; --rows shows more" in ran.stdout
    assert "above 30 s" in ran.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
    text = page.read_text()
    assert "data:image/png;base64," in text
    assert not re.search(r'(src|href)="(?!data:)', text)
    told = json.loads(CliRunner().invoke(app, [*run, "--json"]).stdout)
    assert (told["job_id"], told["decisions"], len(told["tried"])) == ("orders", 360, 2)
    assert told["differing"] == sum(one["count"] for one in told["differences"])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--policy", "magic"], "unknown policy 'magic'"),
        (["--set", "scaling.policy_options.magic=1"], "magic"),
        (["--set", "scaling.policy_optoins.x=1"], "unknown field; did you mean 'policy_options'?"),
        (["--engine", "nowhere"], "neither a wheel"),
        (["other"], "does not hold job 'other'"),
    ],
)
def test_a_question_that_cannot_be_answered_says_why(tmp_path: Path, options: list[str], says: str) -> None:
    """Exit code 2, and what to change."""
    write_history(tmp_path / "rec")
    ran = CliRunner().invoke(app, ["what-if", *options, "--from", str(tmp_path / "rec")])
    assert ran.exit_code == 2
    assert says in ran.stderr.replace("\n", " ")
