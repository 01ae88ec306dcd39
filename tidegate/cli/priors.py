"""`priors`: what jobs have shown, for similar jobs to start from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer
import yaml

from tidegate.cli.connect import Bootstrap, Prefix, Since, connect, instant_of, refuse_since
from tidegate.cli.problems import Problem
from tidegate.cli.recorded import recorded
from tidegate.client import ClientSettings, received, skip
from tidegate.engine.memory import Recorded, UnreadableMemory, read_memory
from tidegate.engine.state import JobState, from_wire
from tidegate.engine.tide.memory import TideMemory
from tidegate.engine.tide.policy import Tide
from tidegate.engine.tide.prior import learn_prior
from tidegate.events.decision import Decision
from tidegate.events.job import Prior
from tidegate.terminal import stdout, table
from tidegate.words import figure

LOOK_BACK = timedelta(hours=2)
"""A job's state is on the decisions topic with every hundredth decision: every 17 minutes at an interval of 10 s."""


def priors(
    jobs: Annotated[list[str], typer.Argument(metavar="JOB", help="The jobs to learn from.")],
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="DIR", help="Learn from a recording or an archive, not the topics."),
    ] = None,
    since: Since = None,
    as_yaml: Annotated[bool, typer.Option("--yaml", help="Print the prior as a block for a job file.")] = False,
    bootstrap_servers: Bootstrap = None,
    topic_prefix: Prefix = None,
) -> None:
    """Show what jobs have learned, for similar jobs to start from.

    A new job knows neither its capacity nor what changing its size costs, and first measures both. Its spec may give it
    a prior instead: what similar jobs have shown. Put the block that --yaml prints under `scaling` in the job file, or
    let `tidegate apply --prior-from JOB` do that. The job's own measurements soon outweigh it.

    Learned from the newest state of each job in the last two hours of decisions; --since looks further back.

    Example:  tidegate priors rates clicks --yaml
    """
    if source is not None:
        refuse_since(since)
        prior = prior_of(jobs, recorded(source, Decision, jobs), str(source))
    else:
        prior = published_prior(connect(bootstrap_servers, topic_prefix), jobs, instant_of(since))
    if as_yaml:
        block = prior.model_dump(mode="json", exclude_none=True)
        typer.echo(yaml.safe_dump({"scaling": {"prior": block}}, sort_keys=False), nl=False)
        return
    _show(prior)


def published_prior(settings: ClientSettings, jobs: Sequence[str], since: datetime | None = None) -> Prior:
    """Return what jobs have shown by the decisions topic; raises `Problem` for a job without a state there."""
    start = since or LOOK_BACK
    found = (one.event for one in received(Decision, settings, job=jobs, since=start, on_error=skip))
    return prior_of(jobs, found, f"the decisions since {since:%Y-%m-%d %H:%M}" if since else "two hours of decisions")


def prior_of(jobs: Sequence[str], decisions: Iterable[Decision], where: str) -> Prior:
    """Return what jobs have shown by the newest state of each in `decisions`; `where` names these to the user."""
    states: dict[str, tuple[JobState, TideMemory]] = {}
    until: datetime | None = None
    for decision in decisions:
        if decision.job_id in jobs and decision.keyframe is not None:
            states[decision.job_id] = _state(decision.keyframe.state)
            until = decision.decided_at if until is None else max(until, decision.decided_at)
    if missing := [job for job in jobs if job not in states]:
        raise Problem(
            f"no state of {', '.join(missing)} in {where}",
            "every hundredth decision holds one: look further back with --since, or check the name (`tidegate jobs`)",
        )
    assert until is not None  # noqa: S101  (there is a state)
    prior = learn_prior(states, until)
    if not prior.sizes and not prior.ways:
        raise Problem(f"{', '.join(jobs)}: nothing learned yet", "wait until the jobs have processed records")
    return prior


def _state(wire: dict[str, object]) -> tuple[JobState, TideMemory]:
    state = from_wire(wire)
    if state.policy != Tide.name or not isinstance(state.memory, Recorded):
        return state, TideMemory()  # another policy remembers something else
    try:
        return state, read_memory(TideMemory, state.memory.values)
    except UnreadableMemory:  # of another version
        return state, TideMemory()


def _show(prior: Prior) -> None:
    console = stdout()
    columns: tuple[str, ...] = ("slots", "records/s", "overhead s per batch", "batches")
    sizes = [
        (size.slots, figure(1.0 / size.record_seconds), f"{size.overhead_seconds:.2f}", f"{size.batches:.0f}")
        for size in prior.sizes
    ]
    console.print(table(f"Capacity, from {', '.join(prior.learned_from)}", columns, sizes, right=columns))
    columns = ("way", "outage s", "delay s", "changes")
    ways = [(way.way.value, f"{way.outage_seconds:.1f}", f"{way.delay_seconds:.1f}", way.changes) for way in prior.ways]
    console.print(table("Cost of a change", columns, ways, right=columns[1:]))
