"""Expected errors: one line of what is wrong, one of what to do, exit code 2. Tracebacks are for our own faults."""

from __future__ import annotations

import os
from typing import Any

import typer
from confluent_kafka import KafkaException
from pydantic import ValidationError
from typer.core import TyperGroup

from tidegate.client import NoSuchTopic, Unreachable
from tidegate.interrupts import interruptible
from tidegate.runtime.kafka import NotDelivered, TopicsDoNotFit
from tidegate.stack import StackError
from tidegate.terminal import stderr

NO = 1
"""Exit code: it was done, and the answer is no (a check failed, decisions differ, a change did not succeed)."""
COULD_NOT = 2
"""Exit code: it could not be done (wrong usage, bad file, unknown job, no broker)."""

EXIT_CODES = """Exit codes: 0 done · 1 done, and the answer is no (a check failed, decisions differ, a change did not
succeed) · 2 it could not be done (wrong usage, bad file, unknown job, no broker) · 130 interrupted."""


class Problem(Exception):
    """Something a user can mend: what is wrong, with field, value and place, and what to do about it."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def problem_of(error: BaseException) -> Problem | None:
    """Return an expected error as a `Problem`; None for what is a fault of ours."""
    match error:
        case Problem():
            return error
        case Unreachable():
            return Problem(str(error), "start it (`tidegate up` for an embedded one) or give --bootstrap-servers")
        case NoSuchTopic():
            return Problem(str(error), "check --topic-prefix; `tidegate doctor --create-topics` creates them")
        case TopicsDoNotFit():
            return Problem(str(error), "`tidegate doctor` shows what is there and what is wanted")
        case NotDelivered():
            return Problem(f"the broker did not acknowledge: {error}", "see the broker's log; `tidegate doctor`")
        case KafkaException():
            return Problem(f"Kafka: {error.args[0].str()}", "`tidegate doctor` looks at the broker")
        case StackError():
            return Problem(str(error))
        case ValidationError():
            first = error.errors(include_url=False)[0]
            field = ".".join(map(str, first["loc"])) or error.title
            return Problem(f"setting {field}: {first['msg']}", "settings come from TIDEGATE_… variables and options")
        case TimeoutError():
            return Problem(str(error), "the broker answers slowly; try again, or a shorter --since")
        case FileNotFoundError() | IsADirectoryError() | PermissionError() | NotADirectoryError():
            return Problem(f"{error.filename}: {error.strerror}")
        case _:
            return None


class CommandGroup(TyperGroup):
    """The group of all subcommands; turns expected errors into a line, a hint and exit code 2, and hears Ctrl-C."""

    def invoke(self, ctx: Any) -> Any:
        """Run the subcommand."""
        try:
            with interruptible():
                return super().invoke(ctx)
        except BrokenPipeError:  # `tidegate tail … | head` is not an error
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            raise typer.Exit(0) from None
        except KeyboardInterrupt:
            stderr().print("interrupted", style="yellow")
            raise typer.Exit(130) from None
        except Exception as error:
            problem = problem_of(error)
            if problem is None:
                raise
            show(problem)
            raise typer.Exit(COULD_NOT) from None


def show(problem: Problem) -> None:
    """Print a problem to standard error."""
    console = stderr()
    console.print("[bold red]error[/]", end=": ")
    console.print(str(problem), markup=False)
    if problem.hint:
        console.print(f"  hint: {problem.hint}", markup=False, style="yellow" if console.is_terminal else "")
