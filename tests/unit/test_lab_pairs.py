"""The lab's three sets: what they hold, that they share nothing, and how policies are compared on them."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from importlib import import_module
from itertools import combinations
from pathlib import Path
from typing import Final

import pytest
from typer.testing import CliRunner

from tidegate.events.way import Way
from tidegate.installed import engine
from tidegate.lab import attain, compare
from tidegate.lab import score as score_module
from tidegate.lab.__main__ import app as lab_app
from tidegate.lab.ablation import MECHANISMS, settings_of, worths
from tidegate.lab.attain import attainable, digest
from tidegate.lab.compare import PairRun, run_one, setting_of, summary_of
from tidegate.lab.jobs import SOURCE, lab_model, spec_for
from tidegate.lab.kinds import KINDS, drawn_kind
from tidegate.lab.loads import SHAPES, Draw, drawn
from tidegate.lab.pairs import DATA, ROUND, SEEDS, WINDOWS, PairSet, minute_peak, pairs
from tidegate.lab.simulate import JobRecording, Scenario
from tidegate.lab.suite import UnknownName
from tidegate.lab.traces import read_points
from tidegate.lab.tunings import FinalConstant, Setting, Tuning, with_constants
from tidegate.twin.load import Load

RESTART = (Way.RESTART,)
DECAY = next(pair for pair in pairs(PairSet.TRAIN) if pair.load == "decay")


def _keep(folder: Path, moves: list[list[float]]) -> None:
    """Keep a plan for DECAY, so that no oracle has to look for one."""
    path = folder / digest() / f"{DECAY.seed}-restart.json"
    path.parent.mkdir(parents=True)
    parts = {"slots": 30_000.0, "lateness": 1_000.0, "changes": 1_000.0}
    path.write_text(json.dumps({"moves": moves, "parts": parts, "late_seconds": 20.0, "changes": len(moves)}))


@pytest.mark.parametrize("chosen", PairSet)
def test_a_round_has_every_kind_and_every_load(chosen: PairSet) -> None:
    """Forty pairs: each kind of job five times, each shape twice, and all traces of the set."""
    found = pairs(chosen)
    assert set(Counter(pair.kind for pair in found).values()) == {ROUND // len(KINDS)}
    loads = Counter(pair.load for pair in found)
    assert all(loads[shape] == 2 for shape in SHAPES)
    assert set(loads) == {*SHAPES, *WINDOWS[chosen]}


def test_sets_share_no_seed_and_no_part_of_a_trace() -> None:
    """A pair to report is drawn from a seed, or cut from a part of a trace, that nothing was tuned on."""
    seeds = [pair.seed for chosen in PairSet for pair in pairs(chosen, range(5))]
    assert len(seeds) == len(set(seeds))
    for first, second in combinations(PairSet, 2):
        for name in WINDOWS[first].keys() & WINDOWS[second].keys():
            (begin, end), (other_begin, other_end) = WINDOWS[first][name], WINDOWS[second][name]
            assert end <= other_begin or other_end <= begin, f"{name}: {first} and {second}"
    assert not {"tweets_amzn"} & (WINDOWS[PairSet.TRAIN].keys() | WINDOWS[PairSet.CHOOSE].keys())


def test_windows_lie_within_their_traces() -> None:
    """Each part of a trace exists, and each trace names its source."""
    for name, whole in {name: end for windows in WINDOWS.values() for name, (_, end) in windows.items()}.items():
        path = DATA / f"{name}.csv"
        assert read_points(path)[-1][0] >= (whole - 0.6) * 3600
        assert "Source:" in path.read_text(encoding="utf-8")


def test_a_pair_is_drawn_from_its_seed_alone() -> None:
    """The same pair gives the same job and load; another round's pairs have other figures."""
    again = pairs(PairSet.TRAIN)[DECAY.seed - SEEDS[PairSet.TRAIN]]
    one, same = DECAY.scenario(RESTART), again.scenario(RESTART)
    assert one.models == same.models
    load, other_load = one.topics[SOURCE].load, same.topics[SOURCE].load
    assert load is not None
    assert other_load is not None
    assert load.rates == other_load.rates
    first, other = (drawn_kind("linear", seed, limited=True) for seed in (1, 2))
    assert first.model != other.model


def test_pairs_can_have_another_objective_and_interval() -> None:
    """The spec has them, the job and the load's shape stay, and the plan is kept apart from the usual one."""
    other = replace(DECAY, objective_seconds=300.0, interval_seconds=30)
    usual, spec = DECAY.scenario(RESTART), other.scenario(RESTART).specs[0]
    assert (spec.scaling.lag_objective_seconds, spec.interval_seconds) == (300.0, 30)
    assert (usual.specs[0].scaling.lag_objective_seconds, usual.specs[0].interval_seconds) == (60.0, 10)
    assert other.scenario(RESTART).models == usual.models
    assert (DECAY.key, other.key) == (str(DECAY.seed), f"{DECAY.seed}-300s-every-30s")


def test_pairs_can_have_arrivals_in_pulses() -> None:
    """As many records arrive, all in a fifth of the time, and the plan is kept apart from the usual one."""
    other = replace(DECAY, pulse_seconds=60.0)
    usual, pulsed = (pair.scenario(RESTART).topics[SOURCE].load for pair in (DECAY, other))
    assert usual is not None
    assert pulsed is not None
    assert pulsed.arrived(3600.0) == pytest.approx(usual.arrived(3600.0))
    assert pulsed.arrived(12.0) == pytest.approx(usual.arrived(60.0))
    assert other.key == f"{DECAY.seed}-pulses-60s"


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_can_take_a_load_and_differs_from_the_others(kind: str) -> None:
    """Each kind has a capacity, and a batch limit only if it is asked for."""
    found = drawn_kind(kind, 7, limited=False, ways=RESTART)
    assert found.most > 0
    assert found.model.max_records_per_trigger is None
    limit = drawn_kind(kind, 7, limited=True, ways=RESTART).model.max_records_per_trigger
    assert limit is not None
    assert limit > 5 * found.most


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_is_drawn_anew_by_seed(shape: str) -> None:
    """The same seed gives the same load, another seed another one; none is negative or silent throughout."""
    one, same, other = (drawn(shape, seed, 3600.0) for seed in (3, 3, 4))
    assert one.rates == same.rates
    assert one.rates != other.rates
    assert min(one.rates) >= 0
    assert one.peak > 0


def test_draws_stay_in_their_ranges() -> None:
    """Whole numbers include both ends, waits are positive, and no number depends on who else draws."""
    draw = Draw(1, "a")
    assert {draw.whole(1, 3) for _ in range(100)} == {1, 2, 3}
    assert all(draw.wait(10.0) >= 0 for _ in range(100))
    assert all(2 <= draw.scale(2.0, 8.0) < 8 for _ in range(100))
    assert Draw(1, "a").between(0, 1) == Draw(1, "a").between(0, 1) != Draw(1, "b").between(0, 1)


def test_the_peak_of_a_load_is_that_of_a_minute() -> None:
    """Seconds far above the rest do not make a trace's scale."""
    rates = [1.0] * 24
    rates[6] = 13.0
    assert minute_peak(Load(rates)) == pytest.approx(2.0)


def test_a_kept_plan_is_not_looked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call asks the oracle and keeps its plan; the second one reads it, and a change of code forgets it."""
    asked = []

    def oracle(scenario: object) -> object:
        asked.append(scenario)
        raise ValueError("asked")

    monkeypatch.setattr(attain, "oracle", oracle)
    _keep(tmp_path, [[600.0, 3]])
    assert attainable(DECAY, RESTART, tmp_path).moves == ((600.0, 3),)
    assert not asked
    monkeypatch.setattr(attain, "digest", lambda: "another")
    with pytest.raises(ValueError, match="asked"):
        attainable(DECAY, RESTART, tmp_path)


def test_a_policys_parts_add_up_to_its_cost_over_the_attainable(tmp_path: Path) -> None:
    """Slots, lateness and changes are all multiples of the plan's whole cost; so are those of the plan itself."""
    _keep(tmp_path, [])
    found = run_one(PairRun(DECAY, setting_of("threshold"), RESTART, tmp_path))
    assert found.best.total == pytest.approx(1.0)
    assert found.best.lateness == pytest.approx(1 / 32)
    assert found.ratio == pytest.approx(sum(found.parts.values))
    assert found.over_restarting == pytest.approx(found.ratio)
    summary = summary_of("threshold", [found, found])
    assert (summary.pairs, summary.ratio, summary.error) == (2, found.ratio, 0.0)


def test_entries_name_a_policy_and_its_options() -> None:
    """`policy:option=value,guard.option=value` sets options of the policy and of guards."""
    setting = setting_of("tide:horizon_seconds=1800,catch_up=false,cooldown.up_seconds=90")
    assert setting.policy == "tide"
    assert setting.tuning.options == {"horizon_seconds": 1800, "catch_up": False}
    assert setting.tuning.guards == {"cooldown": {"up_seconds": 90}}
    assert setting_of("keda (tuned)").tuning.options
    assert setting_of("flip271 (180 s)").policy == "flip271"
    with pytest.raises(UnknownName, match="unknown policy 'nothing', known are "):
        setting_of("nothing")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("tide:horizon=1800", r"tide:horizon=1800: scaling.policy_options.horizon: unknown option, known are catch_up"),
        ("tide:headroom", r"scaling.policy_options.headroom: must be a number, found ''"),
        ("hpa:cooldon.up_seconds=9", r"scaling.guards.cooldon: unknown guard, known are "),
    ],
)
def test_an_entry_with_a_bad_option_is_refused_before_anything_runs(text: str, told: str) -> None:
    """Plans for all pairs take minutes: a mistyped option is not found out after them, as a traceback."""
    with pytest.raises(UnknownName, match=told):
        setting_of(text)


def test_a_mechanism_is_worth_what_the_cost_rises_without_it(tmp_path: Path) -> None:
    """The difference is taken per pair; a mechanism without which nothing changes is worth nothing."""
    _keep(tmp_path, [])
    whole = run_one(PairRun(DECAY, setting_of("tide"), RESTART, tmp_path))
    labels = [setting.label for setting in settings_of("tide")]
    assert labels[0] == "tide"
    assert len(labels) == len(set(labels)) == 1 + len(MECHANISMS["tide"])
    parts = replace(whole.parts, slots=whole.parts.slots + 0.25)
    dearer = [replace(whole, label=label, parts=parts if "trend" in label else whole.parts) for label in labels]
    found = worths("tide", dearer)
    assert (found[0].name, found[0].dearer) == ("trend", 1)
    assert found[0].more == pytest.approx(0.25)
    assert {each.more for each in found[1:]} == {0.0}
    with pytest.raises(UnknownName, match="the mechanisms of policy 'hpa' are not known"):
        settings_of("hpa")


def test_every_mechanism_can_be_switched_off() -> None:
    """The options of the table exist and are valid, so are its constants, which have their values back afterwards."""
    spec = spec_for(lab_model())
    for policy in MECHANISMS:
        for setting in settings_of(policy):
            scaling = spec.scaling.model_copy(update={"policy": policy, "policy_options": setting.tuning.options})
            assert engine().check(spec.model_copy(update={"scaling": scaling})) == []
            for name in setting.tuning.constants:
                module, _, constant = name.rpartition(".")
                assert hasattr(import_module(module), constant)
            with with_constants(setting.tuning.constants):
                pass


FREE = 1.0
FIXED: Final = 1.0


def test_a_constant_that_a_compiled_engine_would_not_see_changed_is_refused() -> None:
    """Nothing is changed then, not even what could be."""
    changes = with_constants({f"{__name__}.FREE": 2.0, f"{__name__}.FIXED": 2.0})
    with pytest.raises(FinalConstant, match="FIXED is Final"), changes:
        pass
    assert (FREE, FIXED) == (1.0, 1.0)


def test_a_constant_has_its_value_back_after_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An setting's constants hold while it runs, and not longer."""
    _keep(tmp_path, [])
    seen = []

    def simulate(scenario: Scenario) -> dict[str, JobRecording]:
        del scenario
        seen.append(score_module.DEMAND_WINDOW_SECONDS)
        return {}

    monkeypatch.setattr(compare, "simulate", simulate)
    setting = Setting("odd", "tide", Tuning({}, {}, constants={"tidegate.lab.score.DEMAND_WINDOW_SECONDS": 7.0}))
    with pytest.raises(KeyError):
        run_one(PairRun(DECAY, setting, RESTART, tmp_path))
    assert seen == [7.0]
    assert score_module.DEMAND_WINDOW_SECONDS == 60.0


def test_the_command_compares_policies_on_a_set(tmp_path: Path) -> None:
    """`--set` prints each pair, the policies with their spread, and costs by kind and by load; --json has it all."""
    _keep(tmp_path, [])
    scores = tmp_path / "of" / "today" / "scores.json"
    options = ["--set", "train", "--kind", DECAY.kind, "--load", "decay", "--ways", "restart", "--processes", "1"]
    files = ["--cache", str(tmp_path), "--json", str(scores)]
    result = CliRunner().invoke(lab_app, [*options, *files, "--policy", "threshold"])
    assert result.exit_code == 0, result.output
    for told in ("Pairs", "attainable", "Policies", "Cost by kind of job", "Cost by load", "threshold"):
        assert told in result.output
    (row,) = json.loads(scores.read_text())["outcomes"]
    assert row["label"] == "threshold"
    assert row["ratio"] == pytest.approx(sum(row["parts"].values()))
    assert CliRunner().invoke(lab_app, ["--set", "train", "--policy", "nothing"]).exit_code == 2
    refused = CliRunner().invoke(lab_app, [*options, "--policy", "threshold", "--json", str(tmp_path)])
    assert refused.exit_code == 2
    assert f"--json: {tmp_path} is a folder" in refused.output
    twice = CliRunner().invoke(lab_app, [*options, *files, "--policy", "threshold", "--policy", "threshold"])
    assert twice.output == result.output  # one row, whose error is not that of twice as many pairs
