"""The lab: the loop, the oracle, the suite, the tuner and their output."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path
from time import sleep

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from tests.support.programs import ROOT, captured
from tidegate.engine.reservations import Answer, hold_for
from tidegate.engine.third_party import PolicyFailed
from tidegate.events.result import Phase
from tidegate.events.way import Way
from tidegate.lab import tune as tuner
from tidegate.lab.__main__ import app as lab_app
from tidegate.lab.jobs import PARTITIONS, SOURCE, batch_bound, lab_job, lab_model, lab_peak, one_job, spec_for
from tidegate.lab.matrix import chosen, draw_curves, draw_scores
from tidegate.lab.oracle import oracle
from tidegate.lab.reservations import MemoryReservations
from tidegate.lab.score import Parts, Prices, score
from tidegate.lab.simulate import Scenario, TopicPlan, simulate
from tidegate.lab.suite import ORACLE, CellResult, UnknownName, cells, run, spread
from tidegate.lab.table import against_oracle, detail, summary
from tidegate.lab.tunings import Tuning, tunings
from tidegate.twin.load import Load
from tidegate.twin.model import Faults
from tidegate.twin.schedule import capacity
from tidegate.twin.workloads import SHAPES, step

PNG = b"\x89PNG\r\n\x1a\n"


def _step_scenario(way: Way = Way.RESTART) -> Scenario:
    model = lab_model(ways=(way,))
    spec = spec_for(model)
    return one_job(model, spec, step(lab_peak(model, spec), 3600.0))


def test_the_oracle_grows_for_the_step_and_shrinks_after_it() -> None:
    """It knows the load and what a change costs: in place less than a handover, and that less than a restart.

    The step comes at 900 s. What arrives after it may wait for a minute, so a restart may begin a little later. None is
    late for more than a moment, and a restart, ordered in time, not at all. That is cheaper than flip271.
    """
    scenario = _step_scenario()
    found = {way: oracle(_step_scenario(way)) for way in Way}
    best = found[Way.RESTART]
    assert len(best.moves) == 2
    (up, large), (down, small) = best.moves
    assert up <= 930
    assert down >= 2690
    assert small < large
    assert best.score.violated_seconds == 0
    recording = simulate(scenario)[lab_model().job_id]
    assert best.score.cost < score(scenario.models[0], scenario.specs[0], PARTITIONS, recording).cost

    costs = [found[way].score.cost for way in (Way.IN_PLACE, Way.HANDOVER, Way.RESTART)]
    assert costs == sorted(costs)
    assert all(each.score.violated_seconds <= 10 for each in found.values())
    assert [found[way].score.restarts > 0 for way in Way] == [False, False, True]
    assert [found[way].score.handovers > 0 for way in Way] == [False, True, False]
    assert [found[way].score.in_place > 0 for way in Way] == [True, False, False]


def test_the_oracle_is_not_afraid_of_noise() -> None:
    """If single seconds exceed the capacity but no minute does, the oracle keeps its size where changes cost."""
    model = lab_model(ways=(Way.RESTART,))
    spec = spec_for(model)
    able = capacity(model, PARTITIONS, 4, batch_bound(spec))
    rates = [1.5 * able if place % 12 in {5, 6} else 0.8 * able for place in range(360)]
    best = oracle(one_job(model, spec, Load(rates)))
    assert best.moves == ()
    assert {tick.slots for tick in best.recording.ticks} == {4}
    assert best.score.violated_seconds == 0


def test_the_oracle_stays_where_it_is_when_restarts_cost_too_much() -> None:
    """If restarts and violations cost more than any slot, the oracle holds one sufficient size."""
    prices = Prices(violated_second=1000.0, restart=1e5)
    best = oracle(_step_scenario(), prices)
    assert best.score.violated_seconds == 0
    assert best.score.restarts == 1


def test_the_oracle_plans_for_one_job_only() -> None:
    """The oracle refuses a scenario of two jobs."""
    scenario = _step_scenario()
    two = replace(scenario, models=(*scenario.models, lab_model("other")))
    with pytest.raises(ValueError, match="plans for one job with one source topic"):
        oracle(two)


def test_a_dead_job_is_started_again_by_the_engine() -> None:
    """The loop closes over a death: the engine orders a start, and the job commits again."""
    model = replace(lab_model(), faults=Faults(deaths=(600.0,)))
    spec = spec_for(model)
    scenario = one_job(model, spec, Load([1000.0]), seconds=1800.0)
    recording = simulate(scenario.with_policy("flip271"))[spec.job_id]
    assert [command.kind.value for command in recording.commands] == ["start"]
    assert recording.results[-1].phase is Phase.VERIFIED
    assert recording.ticks[-1].running
    assert recording.ticks[-1].lag_records < 30_000


def test_two_jobs_in_a_small_pool_show_it_exhausted() -> None:
    """Two jobs need 8 slots each in a pool of 10: one gets POOL_EXHAUSTED."""
    models = tuple(replace(lab_model(name), sources=(name,)) for name in ("first", "second"))
    specs = tuple(spec_for(model) for model in models)
    rate = capacity(models[0], PARTITIONS, 8, batch_bound(specs[0]))
    scenario = Scenario(
        models=models,
        specs=specs,
        topics={name: TopicPlan(PARTITIONS, Load([rate])) for name in ("first", "second")},
        pools={"default": 10},
        sizes={"first": 2, "second": 2},
        seconds=3000.0,
    )
    recordings = simulate(scenario)
    statuses = {decision.status.value for recording in recordings.values() for decision in recording.decisions}
    assert "POOL_EXHAUSTED" in statuses


def test_a_slot_is_promised_once() -> None:
    """One job cannot take slots promised to another; the end of a command releases its promise."""
    scenario = _step_scenario()
    spec = scenario.specs[0]
    command = simulate(scenario)[spec.job_id].commands[0]
    now, granted = command.issued_at.timestamp(), command.from_parallelism
    promised = command.to_parallelism - granted
    table = MemoryReservations()
    assert table.reserve(hold_for(spec, command, granted), 100, now) is Answer.TAKEN
    assert table.view("other", spec.pool_id, now).pool_reserved == promised
    other = spec.model_copy(update={"job_id": "other"})
    theirs = command.model_copy(update={"job_id": "other", "command_id": "c2"})
    assert table.reserve(hold_for(other, theirs, granted), promised, now) is Answer.POOL
    seen = table.view(spec.job_id, spec.pool_id, now + 1)
    assert (seen.pool_reserved, seen.cooldown_owner) == (0, command.command_id)
    assert seen.cooldown_until is not None
    later = table.view(spec.job_id, spec.pool_id, seen.cooldown_until.timestamp() + 1)
    assert (later.cooldown_until, later.cooldown_owner) == (None, None)
    table.release(spec.job_id, spec.pool_id, command.command_id)
    assert table.view("other", spec.pool_id, now).pool_reserved == 0


def test_the_suite_scores_every_cell_the_same_in_any_process() -> None:
    """Two processes give the same rows as one; the table shows them next to the oracle's 1.00."""
    todo = cells(["flip271"], ["step"], ways=(Way.RESTART,), seconds=1800.0)
    assert [cell.policy for cell in todo if not cell.tuned] == [ORACLE, "flip271"]
    here = [run(cell) for cell in todo]
    there = sorted(spread(run, todo, processes=2), key=lambda row: todo.index(row.cell))
    assert [row.score for row in here] == [row.score for row in there]
    assert against_oracle(here)["step", ORACLE] == 1.0
    console = Console(width=200, file=StringIO())
    console.print(detail(here), summary(here))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "flip271" in text
    assert f"{here[1].score.cost:.0f}" in text


def _noted(work: tuple[Path, int]) -> int:
    """Fail on the first item; else leave a file."""
    folder, number = work
    if number == 0:
        raise ValueError("the first one fails")
    sleep(0.2)
    (folder / str(number)).touch()
    return number


def test_the_first_error_ends_a_run_instead_of_all_that_is_left(tmp_path: Path) -> None:
    """Who mistypes an option does not wait for hours of simulations until that is said."""
    with pytest.raises(ValueError, match="the first one fails"):
        list(spread(_noted, [(tmp_path, number) for number in range(400)], processes=2))
    assert len(list(tmp_path.iterdir())) < 200


def test_unknown_names_are_told_with_the_known_ones() -> None:
    """An unknown policy or workload is refused with a list of the known ones."""
    with pytest.raises(UnknownName, match=r"unknown policy 'nope', known are .*flip271"):
        cells(["nope"])
    with pytest.raises(UnknownName, match="unknown workload 'nope', known are step"):
        cells([], ["nope"])


def test_the_pictures_fit_a_page(tmp_path: Path) -> None:
    """With all shapes and 25 rows each, scores and curves are PNGs at most 2,400 pixels wide."""
    base, other = (run(cell) for cell in cells(["flip271"], ["step"], seconds=600.0) if not cell.tuned)
    labels = [(f"policy {number}", tuned) for number in range(12) for tuned in (False, True)]
    rows = [
        replace(row, cell=replace(row.cell, workload=workload, policy=policy, tuned=tuned))
        for workload in SHAPES
        for row, policy, tuned in ((base, ORACLE, False), *((other, name, tuned) for name, tuned in labels))
    ]
    for draw in (draw_scores, draw_curves):
        picture = tmp_path / "deep" / f"{draw.__name__}.png"
        draw(rows, picture, objective_seconds=60.0)
        data = picture.read_bytes()
        assert data.startswith(PNG)
        assert 1500 < int.from_bytes(data[16:20], "big") <= 2400


def test_curves_are_those_of_the_oracle_of_tide_and_of_its_best_rival() -> None:
    """`tide` with its defaults is shown even if others are cheaper; its tuning only if there is no other policy."""
    (base,) = (run(cell) for cell in cells(["flip271"], ["step"], seconds=600.0) if cell.policy == ORACLE)

    def row(policy: str, cost: float, *, tuned: bool = False) -> CellResult:
        return replace(
            base,
            cell=replace(base.cell, policy=policy, tuned=tuned),
            score=replace(base.score, parts=Parts(cost, 0.0, 0.0)),
        )

    group = [row("keda", 2.0), row("keda", 1.5, tuned=True), row("tide", 1.7), row("tide", 1.1, tuned=True), base]
    assert [each.cell.label for each in chosen(group)] == [ORACLE, "tide", "keda (tuned)"]
    assert [each.cell.label for each in chosen(group[2:])] == [ORACLE, "tide", "tide (tuned)"]
    assert [each.cell.label for each in chosen([*group[:2], base])] == [ORACLE, "keda (tuned)", "keda"]


def test_the_lab_command_prints_and_draws(tmp_path: Path) -> None:
    """`python -m tidegate.lab` ends with a table, the ratios and the paths of both pictures."""
    picture = tmp_path / "lab.png"
    options = ["--quick", "--policy", "flip271", "--workload", "spike", "--ways", "restart", "--processes", "1"]
    options += ["--out", str(picture)]
    result = CliRunner().invoke(lab_app, options)
    assert result.exit_code == 0, result.output
    assert "× oracle" in result.output
    assert "spike" in result.output
    for path in (picture, tmp_path / "lab-curves.png"):
        assert path.read_bytes().startswith(PNG)
        assert str(path) in result.output
    told = CliRunner().invoke(lab_app, ["--ways", "restart,teleport"])
    assert told.exit_code == 2
    assert "unknown way 'teleport', known are in_place, handover, restart" in told.output
    refused = CliRunner().invoke(lab_app, ["--policy", "nope"])
    assert refused.exit_code == 2
    assert "unknown policy 'nope'" in refused.output


@pytest.mark.parametrize("module", ["", ".drawn_pipelines", ".pipelines", ".tune", ".zero"])
def test_without_its_packages_a_program_of_the_lab_says_what_to_install(module: str) -> None:
    """As `tidegate` does after `pip install tidegate`: one line, no traceback."""
    ran = captured(sys.executable, "-S", "-m", f"tidegate.lab{module}", cwd=ROOT)
    assert ran.returncode == 2
    assert ran.stderr == "tidegate.lab: the package typer is not installed: pip install 'tidegate[cli]'\n"


def test_the_lab_names_a_policy_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of another package may raise any error: the lab ends with its name, and without a traceback."""

    def failing(*_: object, **__: object) -> None:
        raise PolicyFailed("policy 'mine' of acme 1.5 failed in propose: ZeroDivisionError")

    for name in ("_run_suite", "_run_set", "_run_scenarios"):
        monkeypatch.setattr(f"tidegate.lab.__main__.{name}", failing)
    for options in (["--quick"], ["--set", "train"], ["--scenarios"]):
        refused = CliRunner().invoke(lab_app, [*options, "--policy", "hpa"])
        assert refused.exit_code == 2
        assert "tidegate.lab: policy 'mine' of acme 1.5 failed in propose" in refused.output


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--set", "train", "--hours", "4"], "--hours has no meaning with --set"),
        (["--set", "train", "--trace", "load.csv"], "--trace has no meaning with --set"),
        (["--interval", "30"], "--interval needs --set"),
        (["--ablate"], "--ablate needs --set"),
        (["--out", "lab.jpg"], "--out: a picture is a .png, found lab.jpg"),
        (["--scenarios", "--trace", "load.csv"], "--trace has no meaning with --scenarios"),
        (["--scenarios", "--json", "scores.json"], "--json has no meaning with --scenarios"),
        (["--set", "choose", "--kind", "tinny"], "unknown kind 'tinny', known are few, linear"),
        (["--set", "choose", "--load", "tweets_amzn"], "unknown load 'tweets_amzn', known are bursts"),
    ],
)
def test_the_lab_refuses_options_that_would_do_nothing(options: list[str], told: str) -> None:
    """Otherwise its figures would not be those that were asked for."""
    refused = CliRunner().invoke(lab_app, options)
    assert refused.exit_code == 2
    assert told in refused.output


def test_a_tuning_is_never_worse_than_the_defaults_it_began_with() -> None:
    """The tuner keeps the cheapest of its trials, is the same each time, and its options fit the policy."""
    peak = lab_peak(lab_model(), spec_for(lab_model()))
    loads = [SHAPES["step"](peak, 1800.0)]
    defaults = tuner.tune("flip271", loads, trials=1)
    found = tuner.tune("flip271", loads, trials=8, seed=1)
    assert defaults.tuning == Tuning({}, {})
    assert found.cost <= defaults.cost
    assert found == tuner.tune("flip271", loads, trials=8, seed=1)


def test_loads_change_between_two_snapshots_scored_or_trained_on() -> None:
    """Changes on the collector's 10 s grid come half an interval later, in both the suite and the tuner."""
    load = step(1000.0, 1200.0)
    scenario = lab_job(load, ways=(Way.RESTART,), seed=23)
    moved = scenario.topics[SOURCE].load
    assert moved is not None
    assert (load.rate(299.9), load.rate(300.0)) == (250.0, 1000.0)
    assert (moved.rate(304.9), moved.rate(305.0)) == (250.0, 1000.0)
    assert moved.seconds == load.seconds
    scenario = scenario.with_policy("flip271")
    model, spec = scenario.models[0], scenario.specs[0]
    cost = score(model, spec, PARTITIONS, simulate(scenario)[spec.job_id]).cost
    assert tuner.tune("flip271", [load], trials=1).cost == cost
    todo = cells(["flip271"], traces={"mine": load}, ways=(Way.RESTART,), seed=23)
    assert next(run(cell) for cell in todo if cell.label == "flip271").score.cost == cost


def test_the_loads_to_train_on_last_as_long_and_are_of_the_labs_size() -> None:
    """Each training load lasts two hours around the lab's peak, and the real day has a flash crowd."""
    peak = lab_peak(lab_model(), spec_for(lab_model()))
    loads = tuner.training_loads(peak)
    assert [load.seconds for load in loads] == [tuner.SECONDS] * len(loads)
    assert all(0.9 * peak < load.peak < 1.3 * peak for load in loads)
    launch = loads[-1]
    crowd = launch.arrived(3600.0) - launch.arrived(2700.0)  # 9 to 10 o'clock
    assert crowd > 4 * (launch.arrived(900.0) - launch.arrived(0.0))


def test_the_tuner_names_a_trace_it_cannot_read(tmp_path: Path) -> None:
    """A bad training trace ends with its error before any trial."""
    app = typer.Typer()
    app.command()(tuner.main)
    result = CliRunner().invoke(app, ["--load", str(tmp_path / "nowhere.csv"), "--policy", "keda"])
    assert result.exit_code == 2
    assert "cannot be read" in result.output


def test_the_tuner_names_a_policy_it_does_not_know() -> None:
    """It is refused before any trial, as everywhere in the lab."""
    app = typer.Typer()
    app.command()(tuner.main)
    result = CliRunner().invoke(app, ["--policy", "keda", "--policy", "nope"])
    assert result.exit_code == 2
    assert "unknown policy 'nope', known are" in result.output


def test_tuners_of_several_policies_may_write_into_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each adds its own to what is there by then, and nobody ever finds half a file."""
    out, app = tmp_path / "tunings.json", typer.Typer()
    app.command()(tuner.main)

    def tuned(policy: str, **_: object) -> tuner.TunedPolicy:
        if policy == "keda":  # meanwhile, another tuner ends
            monkeypatch.setattr(Path, "write_text", written)
            assert CliRunner().invoke(app, [*arguments, "--policy", "hpa"]).exit_code == 0
        return tuner.TunedPolicy(policy, Tuning({"for": policy}, {}), 1.0)

    def written(path: Path, text: str, **_: object) -> None:
        assert path != out
        path.write_bytes(text.encode())

    arguments = ["--out", str(out), "--processes", "1"]
    monkeypatch.setattr(tuner, "tune", tuned)
    result = CliRunner().invoke(app, [*arguments, "--policy", "keda"])
    assert result.exit_code == 0, result.exception
    assert {name: kept["options"] for name, kept in json.loads(out.read_bytes()).items()} == {
        name: {"for": name} for name in ("hpa", "keda")
    }
    assert [path.name for path in tmp_path.iterdir()] == ["tunings.json"]


@pytest.mark.parametrize("text", ["{", "[]", None])
def test_the_tuner_refuses_a_file_that_holds_no_tunings(tmp_path: Path, text: str | None) -> None:
    """It says so before it starts: the search takes minutes."""
    out, app = tmp_path / "tunings.json", typer.Typer()
    app.command()(tuner.main)
    out.mkdir() if text is None else out.write_text(text, "utf-8")
    result = CliRunner().invoke(app, ["--out", str(out), "--policy", "keda", "--trials", "2"])
    assert result.exit_code == 2
    assert "holds no tunings" in result.output


def test_the_kept_tunings_fit_their_policies() -> None:
    """Every tuning in tunings.json is accepted by the engine and says what it was trained on."""
    scenario = _step_scenario()
    for policy, tuning in tunings().items():
        short = replace(scenario.with_policy(policy, tuning.options, tuning.guards), seconds=60.0)
        assert simulate(short)
        assert tuning.trained_on


def test_a_scenario_with_a_bad_option_is_refused() -> None:
    """An unknown option is reported before the simulation starts."""
    with pytest.raises(ValueError, match=r"scaling\.policy_options\.nope: unknown option"):
        simulate(_step_scenario().with_policy("flip271", {"nope": 1}))


def test_topics_are_named_when_missing() -> None:
    """A scenario whose model reads an unknown topic names the topic."""
    scenario = replace(_step_scenario(), topics={})
    with pytest.raises(ValueError, match=f"topic '{SOURCE}' is not in the world"):
        simulate(scenario)
