"""`python -m demo`: the whole loop on this machine, live, and checked at the end."""

from __future__ import annotations

import typer

from demo.command import demo
from tidegate.cli.problems import CommandGroup

app = typer.Typer(
    cls=CommandGroup, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None, subcommand_metavar=""
)
app.callback(invoke_without_command=True)(demo)

if __name__ == "__main__":
    app(prog_name="python -m demo")
