"""Pipelines: linked jobs under one load, and how fast a step at the first one reaches the size of the last.

    chain      orders -> parsed -> joined -> scored -> (nobody)          four jobs, one after the other
    fan-out    orders -> parsed -> {joined, scored, archived}            three readers of one topic
    fan-in     {orders, clicks, visits} -> merged                        one reader of three topics
    diamond    orders -> parsed -> {joined, scored} -> merged            two ways that meet again

Every job starts at the right size for a quarter of its peak, and the load of every first job rises to the peak at once.
Each pipeline runs as it is, and *hop by hop*: with all plans of the other jobs hidden, so that each job learns of the
load when it arrives. A third way has the snapshots arrive in the wrong order, the last job's first: then a plan is seen
an interval late, once per hop.

    right     smallest size that keeps up with the load after the step
    ordered   seconds from the step until the job's first growth is ordered
    seconds   from the step until the job first runs with its right size or more
    lag, age  the largest after the step; age is that of the oldest record that is not committed

    python -m tidegate.lab.pipelines --pipeline chain --ways restart
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tidegate.engine.links import Link
from tidegate.events.decision import Neighbour
from tidegate.events.job import JobSpec
from tidegate.events.way import ALL_WAYS, Way
from tidegate.lab.jobs import batch_bound, sizes_of, spec_for
from tidegate.lab.options import EVERY_WAY, Ways, refused
from tidegate.lab.scenarios import ScenarioCase
from tidegate.lab.simulate import EngineDecider, JobRecording, Scenario, TopicPlan, simulate
from tidegate.lab.suite import UnknownName, ways_of
from tidegate.twin.load import Load
from tidegate.twin.model import InPlaceCosts, JobModel, Measurement, RestartCosts, StageModel
from tidegate.twin.schedule import capacity, demand
from tidegate.twin.topic import even
from tidegate.twin.world import Truth

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

PARTITIONS = even(24)
MAX_PARALLELISM = 16
SECONDS = 1800.0
STEP_AT = 600.0
PEAK = 0.8
"""The load after the step, as a share of the capacity of half the largest size."""
BATCH_SECONDS = 10.0
"""The batch limit, in seconds of arrivals at the peak."""
LOW = 0.25
"""Share of the peak before the step."""

SHAPES: dict[str, dict[str, tuple[str, ...]]] = {
    "chain": {"parsed": (), "joined": ("parsed",), "scored": ("joined",), "stored": ("scored",)},
    "fan-out": {"parsed": (), "joined": ("parsed",), "scored": ("parsed",), "stored": ("parsed",)},
    "fan-in": {"parsed": (), "clicks": (), "visits": (), "merged": ("parsed", "clicks", "visits")},
    "diamond": {"parsed": (), "joined": ("parsed",), "scored": ("parsed",), "merged": ("joined", "scored")},
}
"""By name: the jobs of a pipeline, and which jobs each of them reads."""

OUTPUT_RATIOS = {"parsed": 1.5, "joined": 0.8, "scored": 1.2}
"""Output records per input record; 1 for the others."""


class HopByHop(EngineDecider):
    """The engine with what linked jobs plan left out: each job learns of the load when it arrives."""

    def neighbour(self, link: Link) -> Neighbour:
        """Return a linked job with its size and evidence alone."""
        return replace(super().neighbour(link), emits=None, ceiling=None)


@dataclass(frozen=True, slots=True)
class JobReach:
    """How one job took the step."""

    job_id: str
    right: int
    ordered: float
    """From the step until its first growth was ordered, in seconds; infinite if it never was."""
    seconds: float
    """From the step until it first ran with its right size; infinite if it never did."""
    lag: int
    age_seconds: float
    changes: int
    slot_hours: float


def pipeline(
    name: str, *, ways: tuple[Way, ...] = ALL_WAYS, seed: int = 0, policy: str = "tide", late_upstream: float = 0.0
) -> ScenarioCase:
    """Return a pipeline by its name, or raise `UnknownName`.

    Snapshots arrive `late_upstream` seconds later per job further down the pipeline that is decided before them.
    """
    if name not in SHAPES:
        raise UnknownName(f"unknown pipeline {name!r}, known are {', '.join(sorted(SHAPES))}")
    readers, models, specs = SHAPES[name], list[JobModel](), list[JobSpec]()
    rates: dict[str, float] = {}
    right: dict[str, int] = {}
    sizes: dict[str, int] = {}
    topics: dict[str, TopicPlan] = {}
    for place, (job_id, upstream) in enumerate(readers.items()):
        delay = late_upstream * (len(readers) - 1 - place)
        model = _model(name, job_id, ways, delay=delay)
        spec = spec_for(model, maximum=MAX_PARALLELISM)
        spec = spec.model_copy(update={"scaling": spec.scaling.model_copy(update={"policy": policy})})
        if not upstream:
            rates[job_id] = PEAK * capacity(model, PARTITIONS, MAX_PARALLELISM // 2, batch_bound(spec))
            steps = int(SECONDS / 5)
            load = Load([rates[job_id] * (1.0 if 5 * step >= STEP_AT else LOW) for step in range(steps)])
            topics[model.sources[0]] = TopicPlan(PARTITIONS, load)
        else:
            rates[job_id] = math.fsum(rates[each] * OUTPUT_RATIOS.get(each, 1.0) for each in upstream)
            # As much work per second as the first job has, whatever the number of records.
            cost = models[0].stages[0].record_cost_seconds * rates["parsed"] / rates[job_id]
            model = replace(model, stages=(replace(model.stages[0], record_cost_seconds=cost),))
        model = replace(model, max_records_per_trigger=int(BATCH_SECONDS * rates[job_id]))
        if model.sink:
            topics[model.sink] = TopicPlan(PARTITIONS)
        bound, allowed = batch_bound(spec), sizes_of(spec)
        right[job_id] = demand(model, PARTITIONS, rates[job_id], bound, allowed)
        sizes[job_id] = demand(model, PARTITIONS, LOW * rates[job_id], bound, allowed)
        models.append(model)
        specs.append(spec)
    scenario = Scenario(
        models=tuple(models),
        specs=tuple(specs),
        topics=topics,
        pools={"default": 2 * MAX_PARALLELISM * len(models)},
        sizes=sizes,
        seconds=SECONDS,
        seed=seed,
    )
    return ScenarioCase(name, scenario, right)


def topics_of(name: str, job_id: str) -> tuple[tuple[str, ...], str | None]:
    """Return the topics that a job of a pipeline reads, and the one it writes; None if no job reads that."""
    sources = tuple([f"{each}.out" for each in SHAPES[name][job_id]]) or (f"{job_id}.in",)
    return sources, f"{job_id}.out" if any(job_id in upstream for upstream in SHAPES[name].values()) else None


def _model(name: str, job_id: str, ways: tuple[Way, ...], *, delay: float) -> JobModel:
    """Return a job of a pipeline: 2 ms per record, slightly sub-linear, a start of 25 to 35 s."""
    sources, sink = topics_of(name, job_id)
    return JobModel(
        job_id=job_id,
        pipeline_id=name,
        sources=sources,
        sink=sink,
        output_ratio=OUTPUT_RATIOS.get(job_id, 1.0),
        stages=(StageModel("work", 0.002),),
        overhead_seconds=0.5,
        trigger_interval_seconds=2.0,
        contention=0.005,
        ways=ways,
        restart=RestartCosts(start_seconds=25.0, start_jitter_seconds=10.0),
        in_place=InPlaceCosts(register_seconds=3.0, register_jitter_seconds=11.0),
        measurement=Measurement(delay_seconds=delay),
    )


def reaches(case: ScenarioCase, *, hop_by_hop: bool = False) -> list[JobReach]:
    """Simulate a pipeline; return how each job took the step, in the order of the specs."""
    specs = case.scenario.specs
    recordings = simulate(case.scenario, HopByHop(specs) if hop_by_hop else None)
    return [
        _reach(spec.job_id, case.right[spec.job_id], recordings[spec.job_id], case.scenario.epoch) for spec in specs
    ]


def _reach(job_id: str, right: int, recording: JobRecording, epoch: float) -> JobReach:
    ticks = recording.ticks
    after = [tick for tick in ticks if tick.at >= STEP_AT]
    reached = next((tick.at - STEP_AT for tick in after if tick.running and tick.slots >= right), math.inf)
    grown = [command.issued_at.timestamp() - epoch - STEP_AT for command in recording.commands if command.adds_slots]
    return JobReach(
        job_id=job_id,
        right=right,
        ordered=min((at for at in grown if at >= 0.0), default=math.inf),
        seconds=reached,
        lag=max(tick.lag_records for tick in after),
        age_seconds=max(_ages(ticks)),
        changes=len(recording.commands),
        slot_hours=ticks[-1].core_seconds / 3600.0,
    )


def _ages(ticks: Sequence[Truth]) -> Iterable[float]:
    """Yield the age of the oldest record that is not committed, at each tick after the step."""
    arrived = [tick.arrived for tick in ticks]
    for tick in ticks:
        if tick.at >= STEP_AT:
            # The oldest record that waits is the one after the last committed: when had so many arrived?
            place = bisect_left(arrived, tick.arrived - tick.lag_records + 1.0)
            yield max(0.0, tick.at - ticks[min(place, len(ticks) - 1)].at)


WAYS_OF_TELLING = {"together": (False, 0.0), "wrong order": (False, 0.4), "hop by hop": (True, 0.0)}
"""By label: whether plans are hidden, and how much later each job's snapshots arrive than those of the next."""


def pipelines_table(names: Iterable[str], *, ways: tuple[Way, ...], seeds: Sequence[int], policy: str) -> Table:
    """Return the table of all jobs of the named pipelines, means over the seeds."""
    table = Table(title=f"A step at the first job of a pipeline: {policy}, {len(seeds)} seeds", expand=False)
    for column in ("pipeline", "job", "right", "plans"):
        table.add_column(column, no_wrap=True)
    for column in ("ordered, s", "right size, s", "peak lag", "peak age, s", "changes", "slot-hours"):
        table.add_column(column, justify="right")
    for name in names:
        runs = {
            label: [
                reaches(pipeline(name, ways=ways, seed=seed, policy=policy, late_upstream=late), hop_by_hop=hidden)
                for seed in seeds
            ]
            for label, (hidden, late) in WAYS_OF_TELLING.items()
        }
        for place, job_id in enumerate(SHAPES[name]):
            for number, (label, found) in enumerate(runs.items()):
                of_job = [run[place] for run in found]
                first = (name if place == 0 else "", job_id, str(of_job[0].right)) if number == 0 else ("", "", "")
                table.add_row(*first, label, *_cells(of_job), end_section=number == len(runs) - 1)
    return table


def _cells(runs: Sequence[JobReach]) -> list[str]:
    """Return the means of one job's figures over its runs."""
    count = len(runs)
    return [
        f"{sum(run.ordered for run in runs) / count:.0f}",
        f"{sum(run.seconds for run in runs) / count:.0f}",
        f"{sum(run.lag for run in runs) / count:,.0f}",
        f"{sum(run.age_seconds for run in runs) / count:.0f}",
        f"{sum(run.changes for run in runs) / count:.1f}",
        f"{sum(run.slot_hours for run in runs) / count:.2f}",
    ]


@app.command()
def main(
    pipelines: Annotated[list[str] | None, typer.Option("--pipeline", help="Only this pipeline; repeatable.")] = None,
    ways: Ways = EVERY_WAY,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Runs to take the mean of.")] = 3,
    policy: Annotated[str, typer.Option("--policy", help="The policy of all jobs.")] = "tide",
) -> None:
    """Run pipelines with a step at the first job; print how fast and how late each job follows."""
    try:
        table = pipelines_table(pipelines or SHAPES, ways=ways_of(ways), seeds=range(seeds), policy=policy)
    except UnknownName as error:
        raise refused("tidegate.lab.pipelines", error) from None
    Console(width=180).print(table)


if __name__ == "__main__":
    app(prog_name="python -m tidegate.lab.pipelines")
