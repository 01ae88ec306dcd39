"""Expected errors: a line that says what is wrong, a hint, and exit code 2. Only bugs of Tidegate print a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.text import Text
from typer.core import TyperGroup

from tidegate.interrupts import interruptible
from tidegate.terminal import print_nowhere, stderr

NO = 1
"""Exit code: the command ran and the answer is no (a check failed, decisions differ, a change did not succeed)."""
ERROR = 2
"""Exit code: the command could not run (wrong usage, bad file, unknown job, no broker)."""

EXIT_CODES = """Exit codes: 0 success · 1 the answer is no (a check failed, decisions differ, a change did not
succeed) · 2 error (wrong usage, bad file, unknown job, no broker) · 130 interrupted."""


class Problem(Exception):
    """Something the user can fix: what is wrong, with place, field and value, and a hint what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class CommandGroup(TyperGroup):
    """The group of all subcommands; prints expected errors as a line and a hint, and handles Ctrl-C."""

    def make_context(self, *args: Any, **more: Any) -> Any:
        """Parse the options of the group itself."""
        with _reported():
            return super().make_context(*args, **more)

    def invoke(self, ctx: Any) -> Any:
        """Parse and run the subcommand."""
        with _reported(), interruptible():
            return super().invoke(ctx)


@contextmanager
def _reported() -> Iterator[None]:
    """Print what ends a command early and exit with its code."""
    try:
        yield
    except BrokenPipeError:  # `tidegate tail … | head` is no error
        print_nowhere()
        raise typer.Exit(0) from None
    except KeyboardInterrupt:
        stderr().print("interrupted", style="yellow")
        raise typer.Exit(130) from None
    except typer.Exit:
        raise
    except Exception as error:
        from tidegate.cli.expected import problem_of  # noqa: PLC0415  (imports most packages)

        problem = problem_of(error)
        if problem is None:
            raise
        _show(problem)
        raise typer.Exit(ERROR) from None


def _show(problem: Problem) -> None:
    """Print a problem to standard error."""
    console = stderr()
    console.print(Text.assemble(("error", "bold red"), f": {problem}"))
    if problem.hint:
        console.print(f"  hint: {problem.hint}", style="yellow" if console.is_terminal else "")
