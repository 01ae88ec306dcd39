"""What pydantic finds wrong with a value, in Tidegate's words."""

from __future__ import annotations

from pydantic import ValidationError
from pydantic_core import ErrorDetails

RAISED = "Value error, "
"""What pydantic writes before the text of an error that a check has raised."""


def first_problem(error: ValidationError, whole: str = "(whole value)") -> str:
    """Return the way to the first field that is wrong, or `whole` if it is none, and what is wrong there."""
    return in_words(error.errors(include_url=False)[0], whole)


def in_words(problem: ErrorDetails, whole: str = "(whole value)") -> str:
    """Return the way to a field, or `whole`, and what is wrong there."""
    return f"{'.'.join(map(str, problem['loc'])) or whole}: {text_of(problem)}"


def text_of(problem: ErrorDetails) -> str:
    """Return what is wrong."""
    return problem["msg"].removeprefix(RAISED)
