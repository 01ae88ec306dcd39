"""What the command prints: texts from the topics cannot steer the terminal that shows them."""

from __future__ import annotations

import io

import pytest

from tidegate.events.decision import Status
from tidegate.terminal import STYLES, PipingConsole, table

FORGED = "ValueError: \x1b]0;all is well\x07\x1b[2J\x9b31m\rlate\u202eenif\u2066 \x7fbatch"
"""The message of a user's exception, as it comes to a result's sentence: it sets the window's title, clears the screen,
colours and turns round what follows."""


@pytest.mark.parametrize("terminal", [True, False])
def test_a_text_cannot_steer_the_terminal(terminal: bool) -> None:
    """Control characters and marks of direction are left out, in a table as in a line; our own colours stay."""
    console = PipingConsole(file=io.StringIO(), force_terminal=terminal, width=200, highlight=False)
    console.print(table("", ["job", "why"], [["rates", FORGED]]))
    console.print(FORGED, markup=False)
    console.print("done", style="bold red")
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue().replace("\x1b[0m", "").replace("\x1b[1m", "").replace("\x1b[1;31m", "")
    assert "ValueError: ]0;all is well[2J31mlateenif batch" in text
    assert text.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("width", "lines"),
    [
        (20, ["job     rates", "lag     23,456,789", "status  PENDING_SCAL", "        E_DOWN", "", "job     clicks"]),
        (40, ["job            lag  status", "rates   23,456,789  PENDING_SCALE_DOWN", "clicks           0"]),
    ],
)
def test_a_narrow_terminal_cuts_no_figure(width: int, lines: list[str]) -> None:
    """Where the words of a table have no room side by side, each has a line of its own; an empty cell has none."""
    console = PipingConsole(file=io.StringIO(), width=width, highlight=False)
    rows = [["rates", "23,456,789", "PENDING_SCALE_DOWN"], ["clicks", "0", ""]]
    console.print(table("", ["job", "lag", "status"], rows, right=["lag"]))
    assert isinstance(console.file, io.StringIO)
    shown = [line.rstrip() for line in console.file.getvalue().splitlines()]
    assert shown[: len(lines)] == lines


def test_every_status_has_a_colour() -> None:
    """They are named there: to import the events takes longer than all else that a short command does."""
    assert STYLES.keys() >= set(Status)
