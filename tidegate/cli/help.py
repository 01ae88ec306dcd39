"""Registering commands so that their help keeps the lines of the examples."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import typer

from tidegate.cli.problems import EXIT_CODES

KEEP_LINES = "\b\n"
"""In front of a paragraph of help, this keeps its line breaks."""


def register(app: typer.Typer, callback: Callable[..., Any], name: str | None = None) -> None:
    """Make `callback` a command whose help is its docstring and the exit codes."""
    text = inspect.cleandoc(callback.__doc__ or "").replace("Example:", f"{KEEP_LINES}Example:")
    app.command(name, help=text, epilog=EXIT_CODES)(callback)


def group(text: str, *callbacks: Callable[..., Any]) -> typer.Typer:
    """Return a group of commands, each with the name of its function."""
    app = typer.Typer(help=text, no_args_is_help=True, rich_markup_mode=None)
    for callback in callbacks:
        register(app, callback)
    return app
