"""Scenarios with a known answer: `tide` and `flip271` reach it as far as their rules can."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from tidegate.lab.jobs import PARTITIONS, batch_bound, lab_peak, sizes_of
from tidegate.lab.scenarios import (
    AIMS,
    ScenarioOutcome,
    grid,
    noisy_sine,
    outcome,
    restarts,
    word_count,
    worst_sawtooth,
)
from tidegate.lab.score import score
from tidegate.lab.simulate import play, simulate
from tidegate.lab.trials import figures, settings, trials_table
from tidegate.twin.schedule import demand


def test_word_count_reaches_its_right_size() -> None:
    """DS2's word count: FlatMap goes from 1 to 10 in one decision, Count follows to 20, and neither passes it."""
    case, aims = word_count(), AIMS["flip271"]
    recordings = simulate(case.scenario.with_policy("flip271", aims.options, aims.guards))
    _counts_words({job: outcome(case, job, recordings[job]) for job in case.right})


def _counts_words(found: dict[str, ScenarioOutcome]) -> None:
    flatmap, count = found["flatmap"], found["count"]
    assert flatmap.sizes == (10,)
    # One decision on what reached it from the small FlatMap, one once the whole demand can be seen.
    assert count.sizes[-1] == 20
    assert count.decisions <= 2
    assert not count.over


@pytest.mark.timeout(600)
def test_the_grid_of_starts_converges() -> None:
    """36 starts on sub-linear jobs: at the right size or one slot off, in two decisions on average."""
    outcomes: list[ScenarioOutcome] = []
    aims = AIMS["flip271"]
    for case in grid():
        (job_id,) = case.right
        scenario = case.scenario.with_policy("flip271", {**aims.options, "alignment_mode": "OFF"}, aims.guards)
        found = outcome(case, job_id, simulate(scenario)[job_id])
        last = found.sizes[-1] if found.sizes else found.start
        assert abs(last - found.right) <= 1, case.name
        assert all(size <= found.right + 1 for size in found.sizes if size > found.start), case.name
        outcomes.append(found)
    assert sum(found.decisions <= 3 for found in outcomes) >= 33
    assert sum(found.decisions for found in outcomes) / len(outcomes) <= 2.0


@pytest.mark.parametrize(("policy", "most"), [("flip271", 3), ("tide", 11)])
def test_a_noisy_sine_stays_inside_the_restart_budget(policy: str, most: int) -> None:
    """Six hours of a noisy sine: no more restarts than the cheapest plan that knows the load makes, which is 11."""
    case = noisy_sine()
    recording = simulate(case.scenario.with_policy(policy))[case.scenario.specs[0].job_id]
    assert 1 <= restarts(recording) <= most
    downtimes = [result.downtime_seconds for result in recording.results if result.downtime_seconds]
    assert all(28 <= seconds <= 60 for seconds in downtimes)


@pytest.mark.parametrize("period", [600, 900, 1800, 3600])
def test_a_sawtooth_makes_a_rule_not_flap(period: int) -> None:
    """At any period of the sawtooth `flip271` has fewer restarts than teeth, and never more than 8 in three hours."""
    case = worst_sawtooth(float(period))
    recording = simulate(case.scenario.with_policy("flip271"))[case.scenario.specs[0].job_id]
    assert restarts(recording) <= min(8, 2 * 10_800 // period)


@pytest.mark.parametrize("period", [600, 900, 1800, 3600])
def test_following_a_sawtooth_is_cheaper_than_waiting_at_its_peak(period: int) -> None:
    """`tide` may restart the job for every tooth, but then it costs less than the size that the peaks need, held."""
    scenario = worst_sawtooth(float(period)).scenario
    (model,), (spec,) = scenario.models, scenario.specs
    largest = demand(model, PARTITIONS, lab_peak(model, spec), batch_bound(spec), sizes_of(spec))

    followed, held = simulate(scenario.with_policy("tide"))[spec.job_id], play(scenario, [(0.0, largest)])
    cost, limit = (score(model, spec, PARTITIONS, recording).cost for recording in (followed, held))
    assert cost < limit


def test_an_outcome_tells_growth_past_the_right_size() -> None:
    """Going above the right size from at or below it counts as over; coming down to it does not."""
    assert ScenarioOutcome(1, (10, 11), 10).over
    assert ScenarioOutcome(10, (11,), 10).over
    assert not ScenarioOutcome(28, (12, 10), 10).over
    assert not ScenarioOutcome(1, (9, 10), 10).over


@pytest.mark.timeout(600)
def test_tide_is_right_in_every_scenario(monkeypatch: pytest.MonkeyPatch) -> None:
    """With DS2's aim, each of 36 starts on sub-linear jobs ends at the right size, in few decisions, never over.

    So does the word count, and a noisy sine is followed in few restarts.
    """
    monkeypatch.setattr("tidegate.lab.trials.SAWTOOTH_PERIODS", (600.0,))  # one period shows that the table has it
    (setting,) = (each for each in settings(["tide"]) if each.tuning == AIMS["tide"])
    found = figures(setting)
    assert found.settled == len(found.grid) == 36
    assert not any(each.over for each in found.grid)
    assert max(each.decisions for each in found.grid) <= 3
    assert sum(each.decisions for each in found.grid) / len(found.grid) <= 1.6
    _counts_words(found.word_count)
    assert 1 <= found.sine_restarts <= 22, "with these aims it keeps no headroom"
    console = Console(width=200, file=StringIO())
    console.print(trials_table([found]))
    row = next(line for line in console.file.getvalue().splitlines() if "tide (DS2's aims)" in line)  # type: ignore[attr-defined]
    assert "36 of 36" in row


def test_each_policy_is_shown_plain_tuned_and_with_the_aims_it_has() -> None:
    """The default row comes first; policies with options for DS2's aim have an extra row."""
    labels = [setting.label for setting in settings(["tide", "keda"])]
    assert labels[0] == "tide"
    assert "tide (DS2's aims)" in labels
    assert "keda" in labels
    assert "keda (DS2's aims)" not in labels
