"""How output looks: Rich on a terminal, and plain aligned columns without cuts or wraps in a pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from typing import TextIO

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text
from typing_extensions import override

PIPE_WIDTH = 4000
"""Width of a pipe: more than any row needs, so nothing is cut."""

STYLES: dict[str, str] = {
    "FINE": "green",
    "UNKNOWN": "magenta",
    "LATE": "bold red",
    "PENDING_SCALE_UP": "yellow",
    "PENDING_SCALE_DOWN": "cyan",
    "POOL_EXHAUSTED": "bold red",
    "STOPPED_STATE_LIMIT": "bold red",
    "FAILED_STATE_LIMIT": "bold red",
    "verified": "green",
    "rolled_back": "bold red",
    "failed": "bold red",
    "rejected": "yellow",
    "ok": "green",
    "warn": "yellow",
    "fail": "bold red",
}


_CONTROL = {*range(0x20), *range(0x7F, 0xA0)} - {ord("\t"), ord("\n")}
_DIRECTION = {0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)}
_OBEYED = dict.fromkeys(_CONTROL | _DIRECTION)
"""Characters that a terminal obeys instead of showing them: those of control, and those that turn round a text."""


def harmless(text: str) -> str:
    """Return a text without what a terminal obeys: anyone's exception or reason may be in it."""
    return text if text.isprintable() else text.translate(_OBEYED)


_ESCAPES = {each: f"\\u{each:04x}" for each in _OBEYED}


def harmless_json(text: str) -> str:
    """Return JSON in which what a terminal obeys is escaped; JSON itself asks that of the first 32 characters only."""
    return text if text.isprintable() else text.translate(_ESCAPES)


class PipingConsole(Console):
    """A console that leaves a closed pipe to the command, which ends with success: Rich itself would exit with 1."""

    @override
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError

    @override
    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(harmless(segment.text), segment.style)


def stdout() -> Console:
    """Return a console on the current standard output."""
    return _console(stderr=False)


def stderr() -> Console:
    """Return a console on the current standard error."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    terminal = is_terminal(sys.stderr if stderr else sys.stdout)
    return PipingConsole(
        stderr=stderr,
        highlight=False,
        markup=False,  # names and paths may hold brackets
        soft_wrap=not terminal,
        width=None if terminal else PIPE_WIDTH,
        no_color=None if terminal else True,
        force_terminal=terminal,
    )


def print_nowhere() -> None:
    """Drop what is still to be printed: nobody reads it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal; one that is closed from the start, which is None, is not."""
    return stream is not None and stream.isatty()


def styled(word: str) -> Text:
    """Return a status, phase or verdict in its colour."""
    return Text(word, style=STYLES.get(word, ""))


NARROW = 60
"""Up to this width, a table whose words have no room side by side is shown row by row."""


class _FoldedTable(Table):
    """A table that goes on row by row, a line for each cell, where a narrow terminal would cut words and figures."""

    @override
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not cuts_words(self, console, options.max_width):
            yield from super().__rich_console__(console, options)
            return
        upright = Table(title=self.title, title_justify="left", box=None, pad_edge=False, show_header=False)
        upright.add_column(style="bold")
        upright.add_column(overflow="fold")
        for number, row in enumerate(zip(*(column.cells for column in self.columns), strict=True)):
            if number:
                upright.add_row()
            for column, cell in zip(self.columns, row, strict=True):
                if str(cell):
                    upright.add_row(column.header, cell)
        yield upright


def cuts_words(shown: RenderableType, console: Console, width: int) -> bool:
    """Return whether so narrow a terminal has no room for the longest words of a table's columns side by side."""
    free = console.options.update_width(PIPE_WIDTH)  # what is measured never needs more than there is
    return width <= NARROW and Measurement.get(console, free, shown).minimum > width


def table(title: str, columns: Iterable[str], rows: Iterable[Iterable[object]], *, right: Iterable[str] = ()) -> Table:
    """Return a table; cells are `Text` or anything with a `str`; columns in `right` are aligned to the right."""
    terminal = is_terminal(sys.stdout)
    shown = _FoldedTable(
        title=title if terminal and title else None,
        title_justify="left",
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
        header_style="bold",
    )
    aligned = set(right)
    for column in columns:
        shown.add_column(column, justify="right" if column in aligned else "left", overflow="fold")
    for row in rows:
        shown.add_row(*map(cell_of, row))
    return shown


def cell_of(shown: object) -> Text:
    """Return what stands in a row, on one line: anyone's reason must not look like a row of its own."""
    return shown if isinstance(shown, Text) else Text(str(shown).replace("\n", " "))
