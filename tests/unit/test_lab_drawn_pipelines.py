"""Drawn pipelines: what the lab compares is what it says it compares."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from tidegate.events.way import Way
from tidegate.lab.drawn_pipelines import DownstreamCost, DrawnPipeline, Saved, app, saved, saved_table
from tidegate.lab.jobs import batch_bound, sizes_of
from tidegate.lab.loads import SHAPES as LOADS
from tidegate.lab.pipelines import SHAPES
from tidegate.twin.schedule import capacity

RESTART = (Way.RESTART,)


def test_each_pipeline_meets_each_load_once() -> None:
    """56 numbers are four pipelines with fourteen loads."""
    met = {(each.shape, each.load) for each in (DrawnPipeline(number, RESTART) for number in range(56))}
    assert met == {(shape, load) for shape in SHAPES for load in LOADS}


@pytest.mark.parametrize("number", range(8))
def test_every_job_can_keep_up_with_the_peak(number: int) -> None:
    """The peak that reaches a job, through all jobs before it, is 60 to 90 % of what its best size can process."""
    scenario = DrawnPipeline(number, RESTART).scenario()
    emitted: dict[str, float] = {}
    for model, spec in zip(scenario.models, scenario.specs, strict=True):
        topic = scenario.topics[model.sources[0]]
        arrives = sum(emitted.get(source, 0.0) for source in model.sources)
        arrives = arrives if topic.load is None else topic.load.peak
        most = max(capacity(model, topic.shares, size, batch_bound(spec)) for size in sizes_of(spec))
        assert 0.55 * most <= arrives <= 0.95 * most, model.job_id
        if model.sink is not None:
            emitted[model.sink] = arrives * model.output_ratio


def test_a_number_always_draws_the_same_pipeline() -> None:
    """And another number another one."""
    first, again, other = (DrawnPipeline(number, RESTART).scenario() for number in (3, 3, 7))
    assert (first.models, first.specs) == (again.models, again.specs)
    assert [topic.load and topic.load.rates for topic in first.topics.values()] == [
        topic.load and topic.load.rates for topic in again.topics.values()
    ]
    assert first.models != other.models


def test_plans_save_lateness_on_a_diamond() -> None:
    """The last job of a diamond that meets a spike learns of it three hops earlier."""
    found = saved(DrawnPipeline(3, RESTART))
    assert found.together.late_seconds < 0.5 * found.apart.late_seconds
    assert found.together.cost < found.apart.cost


def test_the_table_has_means_errors_and_sums() -> None:
    """Costs are means of ratios, so that no large pipeline outweighs the others; slots and lateness are sums."""
    one = Saved(DrawnPipeline(0, RESTART), DownstreamCost(8.0, 3.0, 20.0), DownstreamCost(10.0, 4.0, 2000.0))
    two = Saved(DrawnPipeline(4, RESTART), DownstreamCost(100.0, 1.0, 5.0), DownstreamCost(100.0, 1.0, 10.0))
    columns = [list(column.cells) for column in saved_table([one, two]).columns]
    assert [column[-1] for column in columns] == ["all", "2", "0.900 ± 0.100", "0.800", "25", "2,010"]


def test_an_unknown_way_is_named() -> None:
    """The error says what was asked for."""
    ran = CliRunner().invoke(app, ["--ways", "teleport"])
    assert ran.exit_code == 2
    assert "teleport" in ran.stderr
