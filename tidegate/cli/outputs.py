"""JSON that a command prints, and the files that it writes at its end, after what it prints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import typer

from tidegate.cli.problems import Problem
from tidegate.terminal import harmless_json, print_nowhere, stdout

STDOUT = Path("-")
"""Given for a file of figures: print them, in place of what the command prints."""


def echo_json(text: str | bytes) -> None:
    """Print JSON, or a line of it, at once, so that a pipe gets each line when it is there."""
    typer.echo(harmless_json(text.decode() if isinstance(text, bytes) else text).encode())


@contextmanager
def even_if_unread() -> Iterator[None]:
    """Print what is not all of a command: where the reader ends, as `head` does, files and exit code are to come."""
    try:
        yield
    except BrokenPipeError:
        print_nowhere()


def png(path: Path | None) -> Path | None:
    """Return where a picture goes, as the callback of its option; `Problem` if the name is that of another format."""
    if path is not None and path.suffix.lower() not in {"", ".png"}:
        raise Problem(f"--out: a picture is a .png, found {path}", f"name it {path.with_suffix('.png').name}")
    return path


class Output(NamedTuple):
    """A file that an option asks for."""

    option: str
    what: str
    path: Path | None
    """None: it was not asked for."""
    write: Callable[[Path], object]


def write_files(outputs: Iterable[Output], *, tell: bool = True) -> None:
    """Write each file and, with `tell`, say where it is; then raise `Problem` with those that cannot be written."""
    failed = []
    for option, what, path, write in outputs:
        if path is None:
            continue
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path)
        except OSError as error:
            failed.append(f"{option}: cannot write {path}: {error.strerror or error}")
            continue
        if tell:
            with even_if_unread():
                stdout().print(f"{what}: {path}")
    if failed:
        raise Problem("\n       ".join(failed))
