"""The command line of the demo, and what it prints at the end."""

from __future__ import annotations

import os
import shutil
import sys
import webbrowser
from enum import StrEnum
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer
from rich.text import Text

from demo.display import LiveDisplay
from demo.environment import sweep
from demo.failed import DemoFailed
from demo.pods import IMAGE
from demo.report import CHANGE_COLUMNS, CHECK_COLUMNS, change_rows, verdict_rows
from demo.run import RunOptions, RunOutcome, run_demo
from demo.script import steady_surge_steady
from demo.verdict import changes
from tidegate.cli.connect import DEMO_DIR, DEMO_STACK_DIR, stack_dir
from tidegate.cli.problems import NO, Problem
from tidegate.events.way import ALL_WAYS, Way
from tidegate.stack import StackInfo, status
from tidegate.terminal import is_terminal, stdout, table


class DemoBackend(StrEnum):
    """Where the demo's job runs."""

    STANDALONE = "standalone"
    KUBERNETES = "kubernetes"
    YARN = "yarn"


def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Leave everything running afterwards, to explore it.")] = False,
    work_dir: Annotated[Path, typer.Option("--work-dir", help="Folder for the runs.")] = DEMO_DIR,
    rate: Annotated[float, typer.Option("--rate", min=1, help="The steady load in records/s.")] = 360.0,
    objective: Annotated[
        float, typer.Option("--objective", min=1, help="The lag objective: how old a record may get, in seconds.")
    ] = 15.0,
    way: Annotated[
        Way | None,
        typer.Option("--way", help="The only way to change the size; by default the best one that the job can go."),
    ] = None,
    backend: Annotated[
        DemoBackend,
        typer.Option(
            "--backend",
            help="Where the job runs: kubernetes is the cluster of KUBECONFIG, yarn that of HADOOP_CONF_DIR.",
        ),
    ] = DemoBackend.STANDALONE,
    image: Annotated[str, typer.Option("--image", help="The image of the job's pods on Kubernetes.")] = IMAGE,
    resource_manager: Annotated[
        str, typer.Option("--resource-manager", help="The web address of YARN's ResourceManager.")
    ] = "http://127.0.0.1:8088",
    files: Annotated[
        str | None,
        typer.Option("--files", help="Where checkpoint, event log and control files are, such as hdfs://nn:8020/demo."),
    ] = None,
    conf: Annotated[
        list[str] | None,
        typer.Option("--conf", metavar="NAME=VALUE", help="A Spark setting of the job; may be repeated."),
    ] = None,
    time_factor: Annotated[
        float | None,
        typer.Option(
            "--time-factor",
            min=1,
            help="Multiply all time limits by this, on a slow or busy machine; default 1, on YARN 2.",
        ),
    ] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Do not open the report in a browser.")] = False,
) -> None:
    """Watch Tidegate scale a real Spark job up and down.

    The demo starts Kafka, Redis and Spark (or uses those of `tidegate up`), Tidegate's three services, and a job that
    needs 2 ms per record. Then it triples the load: the job falls behind, grows and catches up. When the load drops
    again, the job shrinks. It changes its size while it runs; `--way restart` shows a restart instead.

    At the end the demo accounts for every record, audits every hop on Spark, and writes a report with a picture. The
    exit code is 1 if a check fails. It takes about six minutes.

    With `--backend kubernetes` the job runs in pods, with `--backend yarn` in containers of YARN: on a cluster whose
    one node is this machine.

    With `--files` the job shares no folder with the services; TIDEGATE_FILES says how they reach it, and `--conf` what
    Spark needs for it.

    Example:  python -m demo --way restart
    """
    if backend is DemoBackend.YARN and "HADOOP_CONF_DIR" not in os.environ:
        raise Problem("HADOOP_CONF_DIR is not set", "set it to the folder with YARN's yarn-site.xml")
    attach = _running_stack() if backend is DemoBackend.STANDALONE else None
    sweep(work_dir)
    display = LiveDisplay(stdout(), objective)
    ways = ALL_WAYS if way is None else (way,)
    script = steady_surge_steady(rate, objective)
    options = RunOptions(
        work_dir,
        attach,
        script,
        keep,
        # A scale-down waits until it pays, and on YARN a restart costs half a minute.
        time_factor=time_factor or (2.0 if backend is DemoBackend.YARN else 1.0),
        ways=ways,
        image=image if backend is DemoBackend.KUBERNETES else None,
        manager=resource_manager if backend is DemoBackend.YARN else None,
        files=files,
        conf=dict(_setting(text) for text in conf or ()),
    )
    try:
        outcome = run_demo(options, display)
    except DemoFailed as error:
        hint = "`tidegate doctor` checks what the demo needs"
        if backend is DemoBackend.KUBERNETES:
            hint += " of this machine; docs/how-to/kubernetes.md says what it needs of the cluster"
        raise Problem(f"the demo stopped: {error}", hint) from None
    _print(outcome, objective, keep)
    if outcome.page and not no_browser and is_terminal(sys.stdout) and os.environ.get("DISPLAY"):
        webbrowser.open(outcome.page.as_uri())
    if not outcome.passed:
        raise typer.Exit(NO)


def _setting(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise typer.BadParameter(f"{text!r} must be like NAME=VALUE", param_hint="--conf")
    return name, value


def _running_stack() -> StackInfo | None:
    """Return the embedded stack that runs here, unless an earlier demo left it behind."""
    folder = stack_dir()
    well = status(folder)
    if folder == DEMO_STACK_DIR or not well or any(c.state != "running" for c in well):
        return None
    return StackInfo.load(folder)


def _print(outcome: RunOutcome, objective: float, keep: bool) -> None:
    console, environment = stdout(), outcome.environment
    zero = outcome.phases[0].began if outcome.phases else 0.0
    console.print()
    found = change_rows(changes(outcome.timeline, objective), zero)
    console.print(table("Changes of size", CHANGE_COLUMNS, found))
    console.print()
    rows = [
        [Text(verdict, style="green" if verdict == "passed" else "bold red"), name, text]
        for verdict, name, text in verdict_rows(outcome.checks)
    ]
    console.print(table("Checks", CHECK_COLUMNS, rows))
    console.print()
    console.print(f"picture   {outcome.png}\nreport    {outcome.page}")
    console.print(f"recording {outcome.recording}\nlogs      {environment.logs} and {environment.info.log_dir}")
    if keep:
        _print_exploring(outcome)
    verdict, style = ("all checks passed", "bold green") if outcome.passed else ("a check failed", "bold red")
    console.print(verdict, style=style)
    if not all(phase.reached for phase in outcome.phases):
        console.print("  hint: on a slow or busy machine, give it more time with --time-factor 2")


def _print_exploring(outcome: RunOutcome) -> None:
    environment, pods = outcome.environment, outcome.environment.pods
    where = "" if environment.own_stack else f" --topic-prefix {environment.prefix}"
    lines = [
        "",
        "Everything is still running, under the steady load. Try:",
        f"  tidegate jobs{where}",
        f"  tidegate why rates{where} --since 10m",
        f"  tidegate tail decisions -f{where}",
        f"  tidegate console{where}      # the same in a browser",
        f"  tidegate scale rates 4 --reason 'trying it out' --wait{where}",
        f"  echo 1080 > {quote(str(environment.rate_file))}      # set the load, in records/s",
        f"Stop everything with: tidegate down --work-dir {quote(str(environment.info.work_dir))}",
        *([] if pods is None else [f"and the job's pods with: kubectl delete namespace {pods.namespace}"]),
    ]
    if shutil.which("tidegate") is None:
        lines.insert(1, "The command `tidegate` is in .venv/bin: run `source .venv/bin/activate` first.")
    stdout().print("\n".join(lines))
