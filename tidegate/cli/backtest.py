"""`tidegate backtest`: what Tidegate would have done for jobs it never managed, by their event logs, or for a load."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import ValidationError
from rich.progress import Progress

from tidegate.backtest import report as told
from tidegate.backtest.backtest import Choices, Drawn, JobReport, Search, backtest_load, backtest_runs
from tidegate.backtest.jobfile import job_ids
from tidegate.backtest.logs import LeftOut, Logs
from tidegate.backtest.past import CannotBacktest
from tidegate.backtest.search import NOT_SEARCHED, Found, SearchSpace, search
from tidegate.backtest.trial import Replica
from tidegate.cli.bars import timed_bars
from tidegate.cli.described import FITTED, Overhead, Partitions, RecordCost, Trigger, described, refuse_given
from tidegate.cli.outputs import STDOUT, Output, even_if_unread, write_files
from tidegate.cli.problems import NO, Problem
from tidegate.cli.spark import prepare_java
from tidegate.cli.specfile import load_specs
from tidegate.client import ClientSettings
from tidegate.engine.plan import UnknownPolicy
from tidegate.events.invalid import first_problem
from tidegate.events.job import Tariff
from tidegate.events.wire import LONGEST_SECONDS
from tidegate.installed import engine
from tidegate.lab.score import TooShort
from tidegate.lab.traces import read_trace
from tidegate.remote.files import Files
from tidegate.replay.source import start_session, stop_session
from tidegate.terminal import stdout, table
from tidegate.twin.model import JobModel
from tidegate.twin.topic import even
from tidegate.words import some

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


OF_SPEC = ("objective", "max_slots", "policy", "slot_hour", "late_minute", "currency")
"""Options whose figures a spec holds."""


def backtest_command(
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            metavar="LOGS|CSV",
            help="A folder of Spark event logs, or one log, also as a URI; or a CSV of seconds,records_per_second.",
        ),
    ],
    html: Annotated[Path | None, typer.Option("--html", help="Write the page with pictures here.")] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write all figures here as JSON; - prints them instead of the tables.")
    ] = None,
    job_file: Annotated[
        Path | None, typer.Option("--job-file", help="Write the proposed job file here; for several jobs, a folder.")
    ] = None,
    job: Annotated[
        list[str] | None, typer.Option("--job", metavar="NAME", help="Only this application; may be repeated.")
    ] = None,
    objective: Annotated[
        float | None,
        typer.Option(
            "--objective", min=0.1, max=LONGEST_SECONDS, help="The lag objective, seconds. Default: 60, or 3 triggers."
        ),
    ] = None,
    max_slots: Annotated[
        int | None,
        typer.Option(
            "--max-slots", min=1, max=1_000_000, help="The most slots it may have. Default: for 1.5 times the peak."
        ),
    ] = None,
    policy: Annotated[str, typer.Option("--policy", help="The policy to try.")] = "tide",
    slot_hour: Annotated[
        float | None, typer.Option("--slot-hour", min=0.0001, max=1e9, help="Price of a slot for an hour.")
    ] = None,
    late_minute: Annotated[
        float, typer.Option("--late-minute", min=0.0, max=1e9, help="Price of a minute above the lag objective.")
    ] = 0.0,
    currency: Annotated[str, typer.Option("--currency", help="Of the prices; ISO 4217.")] = "EUR",
    trials: Annotated[
        int, typer.Option("--trials", min=0, help="How many settings of the policy to try; 0: only its defaults.")
    ] = 60,
    held_out: Annotated[
        float, typer.Option("--held-out", min=0.1, max=0.7, help="Share of the past that is kept back, to judge on.")
    ] = 0.3,
    spark: Annotated[str, typer.Option("--spark", help="Spark master that the search is spread over.")] = "local[2]",
    spec: Annotated[
        Path | None, typer.Option("--spec", help="With a CSV: the job's spec; its policy, sizes and prices apply.")
    ] = None,
    record_cost_ms: RecordCost = 2.0,
    overhead: Overhead = 0.5,
    trigger: Trigger = 5.0,
    partitions: Partitions = 16,
) -> None:
    """Show what Tidegate would have done, by event logs.

    For jobs that it never managed.
    Reads the event logs that plain spark-submit writes (`spark.eventLog.enabled`), and needs neither Kafka nor a
    cluster: arrivals, commits and slots are in them. It fits a simulated job (the twin, docs/twin.md) to the first part
    of each application's past, says by how much the twin is off on the last part, and runs Tidegate's engine on the
    twin under the same load. It also looks for better options of the policy: on the first part, to judge them on the
    last. The page has pictures. --job-file writes a job file for `tidegate apply`. With a CSV in place of logs, the job
    is described by options.

    Logs that cannot be read are named and left out. The exit code is 1 if no job could be backtested.

    Example:  tidegate backtest /data/events --html backtest.html --job-file job.yaml
              tidegate backtest /data/events --job orders --objective 30 --slot-hour 0.05 --late-minute 0.4
              tidegate backtest hdfs://namenode:8020/spark-events
              tidegate backtest load.csv --record-cost-ms 1.5 --html backtest.html
    """
    try:
        engine().policy_type(policy)
    except UnknownPolicy as error:
        raise Problem(f"--policy: {error}") from None
    drawn_load = source.endswith(".csv")
    if drawn_load and job:
        raise Problem("--job: a CSV is a load, and of no application", "leave it out, or give a folder of event logs")
    if spec is not None and not drawn_load:
        raise Problem(f"--spec: only for a CSV, and {source} is taken for event logs", "leave it out, or give a .csv")
    if spec is not None:
        refuse_given(context, OF_SPEC, f"{spec} says that", "leave it out, or --spec")
    if not drawn_load:
        why = f"only for a CSV, and {source} is taken for event logs"
        refuse_given(context, (*FITTED, "trigger"), why, "leave it out, or give a .csv")
    choices = Choices(objective, max_slots, policy, _tariff(slot_hour, late_minute, currency), held_out)
    left_out: list[LeftOut] = []
    with timed_bars() as bars, _searching(bars, spark, trials) as searching:
        if drawn_load:
            model = described("load", record_cost_ms, overhead, trigger)
            drawn = _of_load(Path(source), spec, model, even(partitions))
            try:
                reports = [backtest_load(drawn, choices, searching)]
            except TooShort as error:
                raise Problem(f"{source}: {error}") from None
        else:
            reports, left_out = _of_logs(source, job, choices, searching, bars)
    with even_if_unread():
        if json_file == STDOUT:
            typer.echo(_figures(reports, left_out), nl=False)
        else:
            _show(reports, left_out, source)
    _write(reports, left_out, source, html, json_file, job_file)
    if not reports:
        raise typer.Exit(NO)


def _of_logs(
    source: str, names: Sequence[str] | None, choices: Choices, searching: Search, bars: Progress
) -> tuple[list[JobReport], list[LeftOut]]:
    looking = bars.add_task("looking at logs", total=None)
    logs = Logs(
        Files(ClientSettings().files).log_place(source),
        lambda done, total: bars.update(looking, completed=done, total=total),
    )
    known, wanted = logs.names, sorted(set(names or logs.names))
    if unknown := [name for name in wanted if name not in known]:
        there = some(known) or "none"
        raise Problem(f"--job: no log of an application {unknown[0]!r} in {source}; there are: {there}")
    reports, ids = [], job_ids(known)
    reading = bars.add_task("reading logs", total=sum(map(logs.size, wanted)))
    tried = bars.add_task("jobs", total=len(wanted))
    left_out, before = list[LeftOut](), 0

    def further(done: int, _total: int) -> None:
        bars.update(reading, completed=before + done)

    for name in wanted:
        try:
            if runs := logs.runs(name, further):
                reports.append(backtest_runs(name, runs, choices, searching, ids[name]))
        except (CannotBacktest, TooShort) as error:
            left_out.append(LeftOut(name, str(error)))
        except ValidationError as error:  # its log holds a figure or a name that no job of Tidegate may have
            value = error.errors()[0]["input"]
            left_out.append(LeftOut(name, f"{first_problem(error)}, found {value!r:.80}"))
        runs = ()  # those of two jobs need not be in memory
        before += logs.size(name)
        bars.advance(tried)
    return reports, [*logs.left_out, *left_out]


def _of_load(source: Path, spec: Path | None, model: JobModel, shares: tuple[float, ...]) -> Drawn:
    """Return the job that a CSV and the options describe."""
    specs = load_specs(spec) if spec is not None else [None]
    if len(specs) != 1:
        raise Problem(f"{spec}: holds {len(specs)} specs; backtest takes one")
    return Drawn(source.stem, read_trace(source), model, shares, specs[0])


def _tariff(slot_hour: float | None, late_minute: float, currency: str) -> Tariff | None:
    if slot_hour is None:
        if late_minute:
            raise Problem("--late-minute needs --slot-hour: only together they say what a slot is worth")
        return None
    try:
        return Tariff(currency=currency, slot_hour=slot_hour, late_minute=late_minute)
    except ValidationError:
        raise Problem(f"--currency: {currency!r} is not an ISO 4217 code, such as EUR") from None


@contextmanager
def _searching(bars: Progress, master: str, trials: int) -> Iterator[Search]:
    """Yield a search on Spark, which starts with the first one and ends with the last, also on Ctrl-C."""
    sessions: list[SparkSession] = []

    def run(replica: Replica, seconds: float, window: float) -> Found:
        if trials == 0:
            return NOT_SEARCHED
        if not sessions:
            waiting = bars.add_task("starting Spark", total=None)
            prepare_java()
            sessions.append(start_session(master))
            bars.remove_task(waiting)
        task = bars.add_task(f"searching options for {replica.spec.job_id}", total=None)

        def progress(done: int, total: int) -> None:
            bars.update(task, completed=done, total=total)

        try:
            return search(SearchSpace(sessions[0], replica, seconds, window), trials, progress)
        finally:
            bars.remove_task(task)  # of 1,000 jobs, the bars would fill the screen

    try:
        yield run
    finally:
        for session in sessions:
            stop_session(session)


def _write(
    reports: Sequence[JobReport],
    left_out: Sequence[LeftOut],
    source: str,
    html: Path | None,
    json_file: Path | None,
    job_file: Path | None,
) -> None:
    def page(path: Path) -> None:
        from tidegate.backtest.page import write_page  # noqa: PLC0415  (matplotlib takes seconds to import)

        write_page(path, reports, left_out, source)

    def figures(path: Path) -> None:
        path.write_text(_figures(reports, left_out), encoding="utf-8")

    def proposed(path: Path) -> None:
        if len(reports) == 1:
            path.write_text(reports[0].job_file, encoding="utf-8")
            return
        path.mkdir(parents=True, exist_ok=True)
        for report in reports:
            (path / f"{report.spec.job_id}.yaml").write_text(report.job_file, encoding="utf-8")

    write_files(
        (
            Output("--html", "page", html, page),
            Output("--json", "figures", None if json_file == STDOUT else json_file, figures),
            Output("--job-file", "job file", job_file if reports else None, proposed),
        ),
        tell=json_file != STDOUT,
    )


def _figures(reports: Sequence[JobReport], left_out: Sequence[LeftOut]) -> str:
    return json.dumps(told.as_json(reports, left_out), indent=2) + "\n"


def _show(reports: Sequence[JobReport], left_out: Sequence[LeftOut], source: str) -> None:
    for report in reports:
        _show_report(report)
    for each in left_out:
        stdout().print(f"left out: {each.name}: {each.why}")
    if not reports:
        stdout().print(f"no job in {source} could be backtested")


def _show_report(report: JobReport) -> None:
    out = stdout()
    out.print(f"{report.name}: {report.source}")
    out.print(f"On the part kept back: {told.headline(report)}.")
    out.print(told.trust(report))
    for remark in report.fit.remarks if report.fit is not None else ():
        out.print(f"Note: {remark}.")
    out.print()
    for title, kept in (("On the part kept back", True), ("On all of it", False)):
        rows = told.result_rows(report, kept=kept)
        out.print(f"{title}:")  # also in a pipe, where tables have no title: the two tables look alike
        out.print(table("", told.RESULT_COLUMNS, rows, right=told.RESULT_COLUMNS[1:]))
        out.print()
    out.print(told.options_in_words(report))
    if report.found.matters:
        out.print(table("Options that matter", told.OPTION_COLUMNS, told.option_rows(report)))
    out.print()
