"""The `tidegate` command with all its subcommands."""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from platform import python_version
from typing import Annotated, Any

import typer

from tidegate.cli.help import register
from tidegate.cli.problems import EXIT_CODES, CommandGroup
from tidegate.runtime.extras import FROM_THE_WHEEL, needs
from tidegate.terminal import stdout

COMMANDS = {
    "apply": ("specs:apply", "Add jobs to Tidegate, or change their specs."),
    "jobs": ("why:jobs", "Show jobs and their last decisions."),
    "why": ("why:why", "Explain why a job has its current size."),
    "tail": ("tail:tail", "Show the events of a topic."),
    "pause": ("specs:pause", "Keep a job at its current size."),
    "resume": ("specs:resume", "Resume scaling of a paused job, or retry a failed one."),
    "scale": ("specs:scale", "Request a size by hand."),
    "remove": ("specs:remove", "Remove a job from Tidegate without stopping it."),
    "priors": ("priors:priors", "Show what jobs have learned, for similar jobs to start from."),
    "decide": ("offline:decide", "Decide on recorded snapshots, offline."),
    "up": ("stack:up", "Start Kafka, Redis and Spark on this machine."),
    "down": ("stack:down", "Stop what `tidegate up` started."),
    "status": ("stack:status", "Show the state of the embedded stack."),
    "doctor": ("doctor.command:doctor", "Check what Tidegate needs, here and at the broker."),
    "top": ("top:top", "Watch all jobs live, those that need attention first."),
    "console": ("console:console", "Show all jobs in a browser, live."),
    "audit": ("audit:audit", "Check every hop from the cluster to a change of size."),
    "simulate": ("simulate:simulate_command", "Simulate a job under a load, scaled by its spec."),
    "calibrate": ("calibrate:calibrate_command", "Fit the simulated job (the twin) to a recording."),
    "backtest": ("backtest:backtest_command", "Show what Tidegate would have done, by event logs."),
    "what-if": ("whatif:what_if", "Show what another policy or engine would have done."),
    "version": ("main:show_version", "Show the versions of Tidegate, its engine and Python."),
    "completion": ("completion:completion", "Print the script that completes commands and options at Tab."),
    "replay": ("replay:app", "Record topics, go through recordings, publish them."),
    "archive": ("archive:app", "Archive the topics as Parquet, every record once."),
    "chain": ("chain:app", "Sign what is archived, and verify it."),
}
"""Where each command is, and the first sentence of its help.

That is its module in this package, and its function or, for a group, its app.
"""


@cache
def _command(name: str) -> Any:
    """Return a command; its module is imported now, because all modules together take most of a second."""
    module, _, attribute = COMMANDS[name][0].partition(":")
    with needs("tidegate", "cli", FROM_THE_WHEEL):
        found = getattr(import_module(f"tidegate.cli.{module}"), attribute)
    one = typer.Typer(rich_markup_mode=None)
    if isinstance(found, typer.Typer):
        one.add_typer(found, name=name)
    else:
        register(one, found, name)
    return typer.main.get_group(one).commands[name]


class _Commands(Mapping[str, Any]):
    """All commands by name, each made when it is asked for."""

    def __getitem__(self, name: str) -> Any:
        return _command(name)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class _AllCommands(CommandGroup):
    """The group of all commands."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given | {"commands": _Commands()})

    def format_commands(self, _: Any, formatter: Any) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, said) for name, (_, said) in COMMANDS.items()])


app = typer.Typer(
    name="tidegate",
    cls=_AllCommands,
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
    from tidegate.installed import engine_name  # noqa: PLC0415  (imports the engine)

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


def main() -> None:
    """Run the command: the entry point of the `tidegate` script."""
    warnings.simplefilter("ignore", ResourceWarning)
    if isinstance(sys.stdout, io.TextIOWrapper):  # what its encoding does not know, such as an arrow, is escaped
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        app()
    except KeyboardInterrupt:  # before or after a command
        raise SystemExit(130) from None
