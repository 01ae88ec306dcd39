"""The `tidegate` command with all its subcommands."""

from __future__ import annotations

import io
import sys
import warnings
from importlib.metadata import PackageNotFoundError, version
from platform import python_version
from typing import Annotated

import typer

from tidegate.cli import archive, chain, doctor, offline, priors, replay, specs, stack, tail, why
from tidegate.cli.audit import audit
from tidegate.cli.backtest import backtest_command
from tidegate.cli.calibrate import calibrate_command
from tidegate.cli.completion import completion
from tidegate.cli.console import console
from tidegate.cli.help import register
from tidegate.cli.problems import EXIT_CODES, CommandGroup
from tidegate.cli.simulate import simulate_command
from tidegate.cli.top import top
from tidegate.cli.whatif import what_if
from tidegate.installed import engine_name
from tidegate.terminal import stdout

app = typer.Typer(
    name="tidegate",
    cls=CommandGroup,
    help="Autoscaling for Spark Structured Streaming jobs on Kafka lag. It explains every decision.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def show_version() -> None:
    """Show the versions of Tidegate, its engine and Python.

    Example:  tidegate version
    """
    try:
        ours = version("tidegate")
    except PackageNotFoundError:  # run from a source tree without installation
        ours = "from source"
    stdout().print(f"tidegate {ours}, {engine_name()}, Python {python_version()}")


def _asked_for_version(asked: bool) -> None:
    if asked:
        show_version()
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_asked_for_version, help="Show the versions and exit.")
    ] = False,
) -> None:
    """Take the options of the command itself."""


for command in (
    specs.apply,
    why.jobs,
    why.why,
    tail.tail,
    specs.pause,
    specs.resume,
    specs.scale,
    specs.remove,
    priors.priors,
    offline.decide,
    stack.up,
    stack.down,
    stack.status,
    doctor.doctor,
    top,
    console,
    audit,
):
    register(app, command)
register(app, simulate_command, "simulate")
register(app, calibrate_command, "calibrate")
register(app, backtest_command, "backtest")
register(app, what_if, "what-if")
register(app, show_version, "version")
register(app, completion)
app.add_typer(replay.app, name="replay")
app.add_typer(archive.app, name="archive")
app.add_typer(chain.app, name="chain")


def main() -> None:
    """Run the command: the entry point of the `tidegate` script."""
    warnings.simplefilter("ignore", ResourceWarning)
    if isinstance(sys.stdout, io.TextIOWrapper):  # what its encoding does not know, such as an arrow, is escaped
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        app()
    except KeyboardInterrupt:  # Typer takes half a second to read the options of all commands
        raise SystemExit(130) from None
