"""Registering commands so that their help keeps the lines of its examples."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import typer

from tidegate.cli.problems import EXIT_CODES

KEEP_LINES = "\b\n"
"""Before a paragraph of help: the formatter leaves its lines as they are."""


def register(app: typer.Typer, callback: Callable[..., Any], name: str | None = None) -> None:
    """Make `callback` a command: its docstring is the help, examples line by line, and the exit codes follow."""
    text = inspect.cleandoc(callback.__doc__ or "").replace("Example:", f"{KEEP_LINES}Example:")
    app.command(name, help=text, epilog=EXIT_CODES)(callback)
