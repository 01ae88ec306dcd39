"""The oracle's program against the twin, and the search that improves its plans there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tidegate.events.way import Way
from tidegate.lab.jobs import PARTITIONS, SOURCE, lab_model, lab_peak, one_job, spec_for
from tidegate.lab.oracle import oracle
from tidegate.lab.program import BatchProgram
from tidegate.lab.score import Prices, score
from tidegate.lab.simulate import Scenario, play
from tidegate.twin.load import Load
from tidegate.twin.model import JobModel
from tidegate.twin.workloads import step


def _quiet(way: Way, **more: object) -> Scenario:
    """Return the lab's job without noise under a step of half an hour."""
    model: JobModel = replace(lab_model(ways=(way,)).without_noise(), **more)  # type: ignore[arg-type]
    spec = spec_for(model)
    return one_job(model, spec, step(lab_peak(model, spec), 1800.0))


@pytest.mark.parametrize(("way", "limit"), [(Way.RESTART, 20_000), (Way.RESTART, None), (Way.IN_PLACE, 20_000)])
def test_a_plan_costs_on_the_twin_what_the_program_expects(way: Way, limit: int | None) -> None:
    """Without noise, slots, lateness and changes of the cheapest path add up to its value within a twentieth."""
    scenario = _quiet(way, max_records_per_trigger=limit)
    program, start = BatchProgram(scenario, Prices(), 1.0), scenario.sizes[scenario.models[0].job_id]
    program.solve()
    moves = program.walk(start)
    sizes = [size for _, size in moves]
    assert start < max(sizes) > sizes[-1]
    found = score(scenario.models[0], scenario.specs[0], PARTITIONS, play(scenario, moves))
    assert program.values[0][program.sizes.index(start), 0] == pytest.approx(found.cost, rel=0.05)


def test_a_longer_backlog_is_never_cheaper() -> None:
    """The program's values rise with the backlog, up to the error of interpolation."""
    program = BatchProgram(_quiet(Way.RESTART), Prices(), 1.0)
    program.solve()
    assert (np.diff(program.values, axis=2) >= -0.02 * program.values.max()).all()


def test_the_search_on_the_twin_only_improves() -> None:
    """More trials never make the plan dearer."""
    model = lab_model(ways=(Way.RESTART,))
    scenario = _quiet(Way.RESTART, noise_share=model.noise_share)
    first, better = oracle(scenario, trials=0), oracle(scenario, trials=6)
    assert better.score.cost <= first.score.cost


def test_a_plan_waits_until_the_job_can_change() -> None:
    """Two moves at once: the second is carried out when the first has ended."""
    scenario = _quiet(Way.RESTART)
    start = scenario.sizes[scenario.models[0].job_id]
    recording = play(scenario, [(300.0, start + 1), (310.0, start + 2)])
    assert [command.to_parallelism for command in recording.commands] == [start + 1, start + 2]
    assert {result.code for result in recording.results} == {"OK"}
    assert recording.ticks[-1].slots == start + 2


def test_a_topic_without_a_load_has_no_plan() -> None:
    """The program refuses what it cannot know."""
    scenario = _quiet(Way.RESTART)
    plan = replace(scenario.topics[SOURCE], load=None)
    with pytest.raises(ValueError, match="topic 'orders' has no load"):
        BatchProgram(replace(scenario, topics={SOURCE: plan}), Prices(), 1.0)


def test_silence_costs_no_lateness() -> None:
    """While nothing arrives, nothing is late, on the twin and in the program: the smallest size is enough."""
    model = lab_model(ways=(Way.RESTART,)).without_noise()
    scenario = one_job(model, spec_for(model), Load([100.0] * 60 + [0.0] * 240))
    best = oracle(scenario, trials=0)
    assert best.moves == ()
    assert best.score.violated_seconds == 0
    program = BatchProgram(scenario, Prices(), 1.0)
    program.solve()
    assert program.values[0][0, 0] == pytest.approx(best.score.cost, rel=0.05)
