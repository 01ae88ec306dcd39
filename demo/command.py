"""`demo`: the whole loop on this machine, watched live and judged."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from demo.house import DemoFailed, sweep
from demo.report import CHANGE_COLUMNS, change_rows, verdict_rows
from demo.run import Outcome, Plan, run_demo
from demo.script import steady_surge_steady
from demo.show import Show
from demo.verdict import changes
from tidegate.cli.connect import DEMO_DIR, DEMO_STACK_DIR, stack_dir
from tidegate.cli.problems import NO, Problem
from tidegate.stack import StackInfo, status
from tidegate.terminal import stdout, table


def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Leave stack, services, job and load up for exploring.")] = False,
    work_dir: Annotated[Path, typer.Option("--work-dir", help="Where runs are kept.")] = DEMO_DIR,
    rate: Annotated[float, typer.Option("--rate", min=1, help="The steady load, records/s.")] = 360.0,
    objective: Annotated[float, typer.Option("--objective", min=1, help="The lag objective, seconds of work.")] = 15.0,
    patience: Annotated[
        float, typer.Option("--patience", min=1, help="How many times longer limits are, for a busy machine.")
    ] = 1.0,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Do not open the report.")] = False,
) -> None:
    """Show a real Spark job scaled up and down again.

    It falls behind, is scaled up, catches up, and is scaled down when the load goes. Starts Kafka, Redis and Spark (or
    uses the embedded stack that runs), the three services, a job that takes 2 ms a record, and a load that is steady,
    three times as much, and steady again. At the end every record is accounted for and every decision is recomputed on
    Spark; exit code 1 when a check fails. Takes about six minutes.

    Example:  tidegate demo --keep
    """
    attach = _running_stack()
    sweep(work_dir)
    show = Show(stdout(), objective)
    plan = Plan(work_dir, attach, steady_surge_steady(rate, objective), keep, patience=patience)
    try:
        outcome = run_demo(plan, show)
    except DemoFailed as error:
        raise Problem(f"the demo could not go on: {error}", "`tidegate doctor` checks what it needs") from None
    _print(outcome, objective, keep)
    if outcome.page and not no_browser and sys.stdout.isatty() and os.environ.get("DISPLAY"):
        webbrowser.open(outcome.page.as_uri())
    if not outcome.passed:
        raise typer.Exit(NO)


def _running_stack() -> StackInfo | None:
    """Return the embedded stack that runs here, unless it is one that an earlier demo left behind."""
    folder = stack_dir()
    well = status(folder)
    if folder == DEMO_STACK_DIR or not well or any(c.state != "running" for c in well):
        return None
    return StackInfo.load(folder)


def _print(outcome: Outcome, objective: float, keep: bool) -> None:
    console, house = stdout(), outcome.house
    zero = outcome.stages[0].began if outcome.stages else 0.0
    console.print()
    found = change_rows(changes(outcome.timeline, objective), zero)
    console.print(table("Changes of size", CHANGE_COLUMNS, found))
    console.print()
    rows = [
        [Text(verdict, style="green" if verdict == "passed" else "bold red"), name, text]
        for verdict, name, text in verdict_rows(outcome.checks)
    ]
    console.print(table("Checks", ["", "promise", "what was seen"], rows))
    console.print()
    console.print(f"picture   {outcome.png}\nreport    {outcome.page}", markup=False)
    console.print(f"recording {outcome.recording}\nlogs      {house.logs} and {house.info.log_dir}", markup=False)
    if keep:
        _print_exploring(outcome)
    console.print("[bold green]all checks passed[/]" if outcome.passed else "[bold red]a check failed[/]")


def _print_exploring(outcome: Outcome) -> None:
    house = outcome.house
    where = "" if house.own_stack else f" --topic-prefix {house.prefix}"
    lines = [
        "",
        "everything is still up; the load is at rest. Try:",
        f"  tidegate jobs{where}",
        f"  tidegate why rates{where} --since 10m",
        f"  tidegate tail decisions -f{where}",
        f"  tidegate scale rates 4 --reason 'to see it' --wait{where}",
        f"  echo 1080 > {house.rate_file}      # the load, in records/s",
        f"and to end it: tidegate down --work-dir {house.info.work_dir}",
    ]
    stdout().print("\n".join(lines), markup=False)
