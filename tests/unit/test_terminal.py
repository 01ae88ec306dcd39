"""What the command prints: texts from the topics cannot steer the terminal that shows them."""

from __future__ import annotations

import io

import pytest

from tidegate.terminal import PipingConsole, table

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
