"""`tidegate what-if`: recorded snapshots decided again by another policy, other options or another engine."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from tidegate.cli.bars import timed_bars
from tidegate.cli.connect import Bootstrap, Prefix, Since, connect, instant_of, refuse_since, spec_of
from tidegate.cli.outputs import Output, echo_json, even_if_unread, png, write_files
from tidegate.cli.problems import Problem
from tidegate.cli.recorded import recorded_job
from tidegate.cli.specfile import load_specs
from tidegate.events.job import JobSpec, Scaling
from tidegate.terminal import stdout, table
from tidegate.whatif.differences import DecisionDifference, differences_of
from tidegate.whatif.engines import OtherEngine, ThisEngine
from tidegate.whatif.figures import rows_of
from tidegate.whatif.recorded import RecordedJob, moments_of
from tidegate.whatif.report import (
    COLUMNS,
    FIGURE_COLUMNS,
    as_json,
    changes_of_spec,
    difference_rows,
    heading,
    how_sure,
)
from tidegate.whatif.topics import received_job
from tidegate.whatif.trial import SEEDS, Trial, attempt
from tidegate.whatif.vary import checked, values_of, varied

DEFAULT_SINCE = "1h"


def what_if(
    job: Annotated[
        str | None, typer.Argument(metavar="JOB", help="The job; not needed if only one is recorded.")
    ] = None,
    source: Annotated[
        Path | None, typer.Option("--from", metavar="DIR", help="A recording or an archive, instead of the topics.")
    ] = None,
    policy: Annotated[str | None, typer.Option("--policy", help="Another policy, with its defaults.")] = None,
    values: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Another value in the job file; may be repeated."),
    ] = None,
    spec: Annotated[Path | None, typer.Option("--spec", metavar="FILE", help="A job file, for its `scaling`.")] = None,
    engine: Annotated[
        Path | None,
        typer.Option("--engine", metavar="PATH", help="Another engine: a checkout of Tidegate, or a wheel."),
    ] = None,
    seeds: Annotated[
        int, typer.Option("--seeds", min=1, max=100, help="How many times the twin runs, with other noise.")
    ] = SEEDS,
    rows: Annotated[int, typer.Option("--rows", min=1, help="Most rows of the table of differences.")] = 30,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", callback=png, help="Write the picture (PNG) here.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a page with everything here.")
    ] = None,
    as_text: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    since: Since = None,
    bootstrap_servers: Bootstrap = None,
    topic_prefix: Prefix = None,
) -> None:
    """Show what another policy or engine would have done.

    Every recorded decision is made again with another policy, other options or another engine. While the changes of
    size stay the same, the recorded snapshots are the truth. After the first different change, the job is simulated by
    the twin (docs/twin.md), which is fitted to the recording; the output says how far to trust it. Reads a recording or
    an archive with --from, or the last hour of the topics.

    In mode advise no size changes. To see what would have happened with a job that is only observed, add
    `--set scaling.mode=active`.

    Example:  tidegate what-if rates --policy hpa --since 6h
              tidegate what-if --from noon --set scaling.policy_options.late_price=4 --html what-if.html
              tidegate what-if --from noon --engine ../tidegate-next
    """
    trial = _trial(_recorded(job, source, since, bootstrap_servers, topic_prefix), policy, values, spec, engine, seeds)
    found = differences_of(trial)
    with even_if_unread():
        if as_text:
            echo_json(as_json(trial, found))
        else:
            _show(trial, found, rows)
    _write(trial, found, out, html, tell=not as_text)


def _write(trial: Trial, found: list[DecisionDifference], out: Path | None, html: Path | None, *, tell: bool) -> None:
    if out is None and html is None:
        return
    from tidegate.whatif.picture import draw  # noqa: PLC0415  (matplotlib takes seconds to import)

    picture = draw(trial)

    def whole(path: Path) -> None:
        from tidegate.whatif.page import page  # noqa: PLC0415  (only a page needs Jinja)

        path.write_text(page(trial, found, picture), encoding="utf-8")

    write_files(
        (
            Output("--out", "picture", out, lambda path: path.write_bytes(picture)),
            Output("--html", "page", html, whole),
        ),
        tell=tell,
    )


def _show(trial: Trial, found: list[DecisionDifference], rows: int) -> None:
    console = stdout()
    console.print(heading(trial, found))
    for line in changes_of_spec(trial):
        console.print(f"  {line}")
    console.print()
    if found:
        console.print(table("Decisions that differ", COLUMNS, difference_rows(found[:rows]), right=("times",)))
        if len(found) > rows:
            console.print(f"… and {len(found) - rows} more; --rows shows more, --html and --json all")
        console.print()
    if figures := rows_of(trial):
        columns = FIGURE_COLUMNS if trial.sureness is not None else FIGURE_COLUMNS[:-1]
        cells = [row[: len(columns)] for row in figures]
        console.print(table("In figures", columns, cells, right=columns[1:]))
        console.print()
    for line in how_sure(trial):
        console.print(line)


def _recorded(
    job: str | None, source: Path | None, since: str | None, bootstrap_servers: str | None, topic_prefix: str | None
) -> RecordedJob:
    if source is not None:
        refuse_since(since)
        return recorded_job(source, job)
    if job is None:
        raise Problem("name the job, or give a recording or an archive with --from", "`tidegate jobs` lists the jobs")
    settings = connect(bootstrap_servers, topic_prefix)
    spec_of(settings, job)  # raises if the job is unknown
    return received_job(settings, job, instant_of(since or DEFAULT_SINCE))


def _trial(
    recorded: RecordedJob,
    policy: str | None,
    values: list[str] | None,
    spec: Path | None,
    engine: Path | None,
    seeds: int,
) -> Trial:
    """Return the trial that the options ask for. Only this engine checks a spec before: another one may know more."""
    moments = moments_of(recorded)
    given, scaling = values_of(values or ()), None if spec is None else _scaling(spec, moments.each[0].spec.job_id)

    def vary(one: JobSpec) -> JobSpec:
        made = varied(one, policy=policy, values=given, scaling=scaling)
        return made if engine is not None else checked(made)

    with ExitStack() as opened:
        steps = ThisEngine() if engine is None else opened.enter_context(OtherEngine(engine))
        bars = opened.enter_context(timed_bars())
        task = bars.add_task("deciding again", total=1.0)
        return attempt(
            recorded, moments, steps, vary, seeds=seeds, progress=lambda share: bars.update(task, completed=share)
        )


def _scaling(path: Path, job: str) -> Scaling:
    """Return the `scaling` of a job file: of the same job, or of the only one."""
    specs = load_specs(path)
    mine = [each for each in specs if each.job_id == job] or specs
    if len(mine) != 1:
        raise Problem(f"{path}: holds {len(specs)} specs, and none of {job}", "give the file of this job")
    return mine[0].scaling
