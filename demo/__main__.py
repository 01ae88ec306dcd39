"""`python -m demo`: the whole loop on this machine, watched live and judged."""

from __future__ import annotations

import typer

from demo.command import demo
from tidegate.cli.problems import Door

app = typer.Typer(cls=Door, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
app.callback(invoke_without_command=True)(demo)

if __name__ == "__main__":
    app(prog_name="python -m demo")
