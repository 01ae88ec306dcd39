"""Pipelines whose jobs and loads are drawn by seed: what it saves that linked jobs are planned as one.

Each of the four pipelines of `tidegate.lab.pipelines` runs for two hours under each shape of `tidegate.lab.loads`, with
jobs of the kinds in `KINDS` and output ratios from 0.3 to 2. The peak is 60 to 90 % of what a job can process at most.
Every pipeline runs *together*, and *hop by hop*: with all plans of the other jobs hidden.

Only jobs downstream count, since the first ones never have a plan. A job's cost is that of `tidegate.lab.score`, over
its largest size, so that large jobs weigh no more than small ones.

    cost     of the jobs downstream together, over that hop by hop, mean of the pipelines; ± is its standard error
    slots    slot-seconds together, over those hop by hop
    late     seconds for which the oldest record of a job downstream was over the lag objective

    python -m tidegate.lab.drawn_pipelines --count 56 --ways restart
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Annotated, NamedTuple

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from tidegate.events.job import JobSpec
from tidegate.events.way import Way
from tidegate.lab.compare import standard_error
from tidegate.lab.jobs import batch_bound, sizes_of, spec_for
from tidegate.lab.kinds import DrawnJob, drawn_kind
from tidegate.lab.loads import SHAPES as LOADS
from tidegate.lab.loads import Draw, drawn
from tidegate.lab.options import EVERY_WAY, Processes, Ways, refused
from tidegate.lab.pipelines import SHAPES, HopByHop, topics_of
from tidegate.lab.score import score
from tidegate.lab.simulate import Scenario, TopicPlan, simulate
from tidegate.lab.suite import UnknownName, spread, ways_of
from tidegate.twin.model import JobModel
from tidegate.twin.schedule import demand
from tidegate.twin.topic import even

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

KINDS = ("linear", "sub-linear", "noisy")
"""Kinds of job that do not depend on the partitions of their topic, which they share with others here."""

SECONDS = 7200.0
FIRST_SEED = 40_000


@dataclass(frozen=True, slots=True)
class DrawnPipeline:
    """A pipeline and a load, all of it drawn from one number."""

    number: int
    ways: tuple[Way, ...]

    @property
    def shape(self) -> str:
        """Which of the four pipelines."""
        return list(SHAPES)[self.number % len(SHAPES)]

    @property
    def load(self) -> str:
        """The shape of the load of its first jobs: each pipeline meets all of them in turn."""
        place, shape = divmod(self.number, len(SHAPES))
        return list(LOADS)[(place + 5 * shape) % len(LOADS)]

    def scenario(self) -> Scenario:
        """Return the scenario; every job starts at the right size for its load."""
        seed = FIRST_SEED + 10 * self.number
        draw, load = Draw(seed, "pipeline"), drawn(self.load, seed, SECONDS).scaled(1.0)
        shares, peak, readers = even(draw.whole(12, 48)), draw.scale(1000.0, 20_000.0), SHAPES[self.shape]
        models, specs = list[JobModel](), list[JobSpec]()
        topics, sizes, emitted = dict[str, TopicPlan](), dict[str, int](), dict[str, float]()
        for place, (job_id, upstream) in enumerate(readers.items()):
            kind = drawn_kind(KINDS[draw.whole(0, len(KINDS) - 1)], seed + place, limited=False, ways=self.ways)
            rate = math.fsum(emitted[each] for each in upstream) if upstream else peak
            ratio = draw.scale(0.3, 2.0)
            sources, sink = topics_of(self.shape, job_id)
            model = replace(
                kind.model,
                job_id=job_id,
                pipeline_id=self.shape,
                sources=sources,
                sink=sink,
                output_ratio=ratio,
            )
            if draw.chance(0.6):
                model = replace(model, max_records_per_trigger=round(rate * draw.between(20.0, 40.0)))
            job = _fitted(replace(kind, model=model, shares=shares), rate / draw.between(0.6, 0.9))
            model, emitted[job_id] = job.model, rate * ratio
            spec = spec_for(model, maximum=job.spec.scaling.max_parallelism)
            if not upstream:
                topics[sources[0]] = TopicPlan(shares, load.scaled(rate))
            if sink:
                topics[sink] = TopicPlan(shares)
            sizes[job_id] = demand(model, shares, load.rate(0.0) * rate, batch_bound(spec), sizes_of(spec))
            models.append(model)
            specs.append(spec)
        slots = sum(2 * spec.scaling.max_parallelism for spec in specs)
        return Scenario(tuple(models), tuple(specs), topics, {"default": slots}, sizes, SECONDS, seed)


class DownstreamCost(NamedTuple):
    """The jobs downstream of one pipeline in one run; cost and slot-seconds are over a job's largest size."""

    cost: float
    slot_seconds: float
    late_seconds: float


class Saved(NamedTuple):
    """A pipeline in both ways."""

    pipeline: DrawnPipeline
    together: DownstreamCost
    apart: DownstreamCost
    """Hop by hop."""


def saved(pipeline: DrawnPipeline) -> Saved:
    """Simulate a pipeline in both ways."""
    scenario = pipeline.scenario()
    return Saved(pipeline, _downstream(scenario, hop_by_hop=False), _downstream(scenario, hop_by_hop=True))


def _downstream(scenario: Scenario, *, hop_by_hop: bool) -> DownstreamCost:
    recordings = simulate(scenario, HopByHop(scenario.specs) if hop_by_hop else None)
    cost = slots = late = 0.0
    for model, spec in zip(scenario.models, scenario.specs, strict=True):
        source = scenario.topics[model.sources[0]]
        if source.load is not None:
            continue
        found = score(model, spec, source.shares, recordings[spec.job_id])
        cost += found.cost / spec.scaling.max_parallelism
        slots += found.parts.slots / spec.scaling.max_parallelism
        late += found.violated_seconds
    return DownstreamCost(cost, slots, late)


def _fitted(job: DrawnJob, most: float) -> DrawnJob:
    """Return the job with the costs of its records such that it can keep up with about `most` records/s."""
    # A batch's overhead does not change with the cost of its records, so the first try is only near.
    for _ in range(10):
        share = job.most / most
        stages = tuple(
            replace(stage, record_cost_seconds=stage.record_cost_seconds * share) for stage in job.model.stages
        )
        job = replace(job, model=replace(job.model, stages=stages))
    return job


def saved_table(found: Sequence[Saved]) -> Table:
    """Return the table of all pipelines, and of those of each shape."""
    table = Table(title="Jobs downstream: together, over hop by hop", expand=False)
    for column in ("pipelines", "number", "cost", "slots", "late, s", "hop by hop"):
        table.add_column(column, justify="left" if column == "pipelines" else "right", no_wrap=True)
    for shape in SHAPES:
        if chosen := [each for each in found if each.pipeline.shape == shape]:
            table.add_row(*_cells(shape, chosen))
    table.add_section()
    table.add_row(*_cells("all", found))
    return table


def _cells(name: str, found: Sequence[Saved]) -> tuple[str, ...]:
    ratios = [each.together.cost / each.apart.cost for each in found]
    error = f" ± {standard_error(ratios):.3f}" if len(ratios) > 1 else ""
    slots = sum(each.together.slot_seconds for each in found) / sum(each.apart.slot_seconds for each in found)
    late, apart = sum(each.together.late_seconds for each in found), sum(each.apart.late_seconds for each in found)
    return name, str(len(found)), f"{fmean(ratios):.3f}{error}", f"{slots:.3f}", f"{late:,.0f}", f"{apart:,.0f}"


@app.command()
def main(
    count: Annotated[int, typer.Option("--count", min=1, help="How many pipelines; 56 is each with each load.")] = 56,
    first: Annotated[int, typer.Option("--first", min=0, help="Number of the first pipeline.")] = 0,
    ways: Ways = EVERY_WAY,
    processes: Processes = None,
) -> None:
    """Run pipelines under drawn loads; print what it saves to plan their jobs as one."""
    try:
        allowed = ways_of(ways)
    except UnknownName as error:
        raise refused("tidegate.lab.drawn_pipelines", error) from None
    todo = [DrawnPipeline(number, allowed) for number in range(first, first + count)]
    done = spread(saved, todo, processes=processes)
    found = list(track(done, total=count, description="pipelines", console=Console(stderr=True), transient=True))
    Console(width=120).print(saved_table(sorted(found, key=lambda each: each.pipeline.number)))


if __name__ == "__main__":
    app(prog_name="python -m tidegate.lab.drawn_pipelines")
