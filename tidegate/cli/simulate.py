"""`tidegate simulate`: runs a spec on a simulated job under a load, with tables and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from tidegate.cli.bars import timed_bars
from tidegate.cli.described import FITTED, Overhead, Partitions, RecordCost, Trigger, described, refuse_given
from tidegate.cli.offline import read_events
from tidegate.cli.outputs import Output, even_if_unread, png, write_files
from tidegate.cli.problems import Problem
from tidegate.cli.specfile import load_specs
from tidegate.engine.cron import FIRST_YEAR, LAST_YEAR
from tidegate.engine.plan import UnknownPolicy
from tidegate.events.job import JobSpec
from tidegate.events.snapshot import MetricSnapshot
from tidegate.fleet.explain import sizes_of
from tidegate.installed import engine
from tidegate.lab.bill import bill_in_words, monthly_bill
from tidegate.lab.jobs import batch_bound, one_job
from tidegate.lab.score import Curve, Score, TooShort, changes_in_words, curve, score
from tidegate.lab.simulate import JobRecording, Scenario, simulate
from tidegate.lab.traces import MOST_HOURS, Playback, read_trace
from tidegate.terminal import stdout, table
from tidegate.twin.calibrate import calibrate
from tidegate.twin.load import BadLoad, Load
from tidegate.twin.model import JobModel
from tidegate.twin.recorded import of_one_time
from tidegate.twin.schedule import capacity
from tidegate.twin.topic import even
from tidegate.twin.workloads import SHAPES
from tidegate.twin.world import EPOCH
from tidegate.words import some

START = f"{datetime.fromtimestamp(EPOCH, UTC):%Y-%m-%d}"
"""When simulations start unless they are told otherwise."""


def simulate_command(
    context: typer.Context,
    spec: Annotated[Path, typer.Option("--spec", help="The job's spec, YAML or JSON.")],
    load: Annotated[
        str, typer.Option("--load", help=f"CSV with the header seconds,records_per_second, or {', '.join(SHAPES)}.")
    ],
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            metavar="NAME",
            help="Use this policy with its defaults instead of the spec's; repeat it to compare.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the noise.")] = 0,
    out: Annotated[Path | None, typer.Option("--out", callback=png, help="Write the picture (PNG) here.")] = None,
    snapshots: Annotated[
        Path | None, typer.Option("--snapshots", help="Recorded snapshots (NDJSON) to fit the simulated job to.")
    ] = None,
    record_cost_ms: RecordCost = 2.0,
    overhead: Overhead = 0.5,
    trigger: Trigger = 5.0,
    partitions: Partitions = 16,
    peak: Annotated[
        float | None, typer.Option("--peak", min=0.001, max=1e9, help="Scale the load to this peak, records/s.")
    ] = None,
    hours: Annotated[
        float | None,
        typer.Option("--hours", min=0.01, max=MOST_HOURS, help="Hours to simulate. Default: the whole trace, or 3."),
    ] = None,
    speed: Annotated[float, typer.Option("--speed", min=0.001, help="Play the trace this many times faster.")] = 1.0,
    since: Annotated[float, typer.Option("--from", min=0.0, help="Start at this hour of the trace.")] = 0.0,
    start: Annotated[
        datetime,
        typer.Option(
            "--start",
            metavar="TIME",
            formats=["%Y-%m-%dT%H:%M", "%Y-%m-%d"],
            help="The simulated time at the start, in UTC, such as 2026-11-27T06:00; the guards schedule and"
            " excluded_periods look at it.",
        ),
    ] = START,  # type: ignore[assignment]  # typer reads it
) -> None:
    """Simulate a job under a load, scaled by its spec.

    Shows each change of size with its reason, how far the job lagged, and what it cost. The simulated job (the twin,
    docs/twin.md) is fitted to --snapshots or set by the other options. A named load peaks at three quarters of the
    largest size's capacity. Between the points of a CSV the load changes linearly; for a step, put two points close
    together. The last point holds for as long as the time between the last two. If the spec has `scaling.prices`, it
    shows what a month like this would cost. With several policies, it compares them.

    Example:  tidegate simulate --spec job.yaml --load flash_crowd --policy keda --out run.png
    """
    if snapshots is not None:
        refuse_given(context, FITTED, f"{snapshots} tells that", "leave it out, or --snapshots")
    jobs = [_spec(spec, name) for name in policy] if policy else [_spec(spec, None)]
    if out is not None and len(jobs) > 1:
        raise Problem("--out: shows one policy; leave it out, or give one --policy")
    job = jobs[0]
    plain = described(job.job_id, record_cost_ms, overhead, trigger)
    model, shares = _model(job, snapshots, plain, even(partitions))
    able = capacity(model, shares, job.scaling.max_parallelism, batch_bound(job))
    arrivals = _load(load, able, Playback(speed=speed, since_hours=since, hours=hours, peak=peak))
    if not FIRST_YEAR <= start.year <= LAST_YEAR:
        raise Problem(f"--start: must be from {FIRST_YEAR} to {LAST_YEAR}, found {start:%Y-%m-%d}")
    epoch = int(start.replace(tzinfo=UTC).timestamp())
    scenarios = [replace(one_job(model, each, arrivals, shares=shares, seed=seed), epoch=epoch) for each in jobs]
    recordings = [_recording(scenario) for scenario in scenarios]
    try:
        scores = [score(model, job, shares, each) for job, each in zip(jobs, recordings, strict=True)]
    except TooShort as error:
        raise Problem(f"--load {load}: {error}") from None
    if len(jobs) > 1:
        _compare(jobs, scores)
        return
    recording, epoch = recordings[0], scenarios[0].epoch
    with even_if_unread():
        _show(job, recording, scores[0], epoch)

    def draw(path: Path) -> None:
        _draw(job, recording, curve(model, job, shares, recording.ticks), epoch, path)

    write_files([Output("--out", "picture", out, draw)])


def _recording(scenario: Scenario) -> JobRecording:
    """Simulate the one job of a scenario, with a progress bar."""
    job = scenario.specs[0]
    with timed_bars() as bars:
        task = bars.add_task(f"simulating {job.scaling.policy}", total=1.0)
        return simulate(scenario, progress=lambda share: bars.update(task, completed=share))[job.job_id]


def _spec(path: Path, policy: str | None) -> JobSpec:
    specs = load_specs(path)
    if len(specs) != 1:
        raise Problem(f"{path}: holds {len(specs)} specs; simulate takes one")
    if policy is None:
        return specs[0]
    try:
        engine().policy_type(policy)
    except UnknownPolicy as error:
        raise Problem(f"--policy: {error}") from None
    other = specs[0].scaling.model_copy(update={"policy": policy, "policy_options": {}})
    return specs[0].model_copy(update={"scaling": other})


def _model(
    job: JobSpec, snapshots: Path | None, plain: JobModel, shares: tuple[float, ...]
) -> tuple[JobModel, tuple[float, ...]]:
    """Return the model of the job and the shares of its partitions, fitted to a recording or as given."""
    model = plain.as_specified(job)
    if snapshots is None:
        return model, shares
    found = calibrate(_recorded(snapshots, job.job_id))
    return found.model(job.job_id, model), found.shares


def _recorded(path: Path, job_id: str) -> list[MetricSnapshot]:
    found: dict[int, MetricSnapshot] = {}
    jobs = set[str]()
    for snapshot in read_events(path, MetricSnapshot):
        jobs.add(snapshot.job_id)
        if snapshot.job_id == job_id:
            found.setdefault(snapshot.sequence, snapshot)  # as the decider does
    if not found:
        held = some(jobs) or "nothing"
        raise Problem(f"--snapshots {path}: holds no snapshot of {job_id!r}, the job of the spec, but {held}")
    return of_one_time(found.values())


def _load(name: str, able: float, play: Playback) -> Load:
    """Return a named load with a peak of three quarters of the largest size's capacity, or a trace."""
    if name in SHAPES:
        if play.speed != 1.0 or play.since_hours:
            raise Problem(f"--speed, --from: only for a CSV, and {name} is a named load", "leave them out; use --hours")
        return SHAPES[name](play.peak or 0.75 * able, (play.hours or 3.0) * 3600)
    if not Path(name).exists():
        raise BadLoad(f"--load: {name!r} is neither a file nor one of {', '.join(SHAPES)}")
    return read_trace(Path(name), play)


def _compare(jobs: Sequence[JobSpec], scores: Sequence[Score]) -> None:
    """Print the score of each policy, the cheapest first, and what a month would cost if the job has prices."""
    prices = jobs[0].scaling.prices  # of all: only their policies differ

    def price(found: Score) -> float:
        return found.cost if prices is None else monthly_bill(prices, found).total

    rows = []
    for job, found in sorted(zip(jobs, scores, strict=True), key=lambda pair: price(pair[1])):
        row = (
            job.scaling.policy,
            f"{found.violated_seconds:.0f} s",
            f"{found.core_seconds:.0f}",
            changes_in_words(found),
            f"{found.cost:.0f}",
        )
        rows.append((*row, bill_in_words(monthly_bill(prices, found))) if prices is not None else row)
    month = ("a month",) if prices is not None else ()
    columns = ("policy", "late", "slot-seconds", "changes of size", "cost", *month)
    stdout().print(table("Policies", columns, rows, right=("late", "slot-seconds", "cost")))


def _show(job: JobSpec, recording: JobRecording, found: Score, epoch: int) -> None:
    """Print the changes of size and the score."""
    out = stdout()
    changes = [decision for decision in recording.decisions if decision.command is not None]
    rows = [
        (
            f"{(decision.decided_at.timestamp() - epoch) / 60:.1f}",
            sizes_of(decision),
            decision.sentence,
        )
        for decision in changes
    ]
    out.print(table("Changes", ("minute", "slots", "why"), rows, right=("minute",)))
    figures = [
        ("hours simulated", f"{found.seconds / 3600:.2f}"),
        ("above the lag objective", f"{found.violated_seconds:.0f} s ({found.violated_share:.1%})"),
        ("oldest record", f"{found.worst_age_seconds:.0f} s"),
        ("slot-seconds", f"{found.core_seconds:.0f}"),
        ("changes of size", changes_in_words(found)),
        ("too small", f"{found.under_share:.1%} of the time, {found.under_accuracy:.2f} slots on average"),
        ("too large", f"{found.over_share:.1%} of the time, {found.over_accuracy:.2f} slots on average"),
        ("jitter", f"{found.jitter:+.3f} slots a minute"),
        ("cost", f"{found.cost:.0f} slot-seconds"),
    ]
    if job.scaling.prices is not None:
        figures.append(("a month like this", bill_in_words(monthly_bill(job.scaling.prices, found))))
    out.print()
    out.print(table("Score", ("figure", "value"), figures))


def _draw(job: JobSpec, recording: JobRecording, line: Curve, epoch: int, out: Path) -> None:
    from tidegate.lab.picture import draw_run  # noqa: PLC0415  (matplotlib takes seconds to import)

    draw_run(
        line,
        out,
        changes_at=[command.issued_at.timestamp() - epoch for command in recording.commands],
        objective_seconds=job.scaling.lag_objective_seconds,
        title=f"{job.job_id} under {job.scaling.policy}",
    )
