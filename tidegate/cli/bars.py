"""Progress bars on standard error, which show nothing in a pipe."""

from __future__ import annotations

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from tidegate.terminal import stderr


def bars() -> Progress:
    """Return bars that count, and stay."""
    console = stderr()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal)


def timed_bars() -> Progress:
    """Return bars with a share and the time it has taken, which vanish at the end."""
    console = stderr()
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
