"""The examples in the docs work: commands that need no broker are run, all others are at least understood."""

from __future__ import annotations

import ast
import re
import shlex
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tests.support.fleets import simulated_events
from tidegate.cli import app
from tidegate.events.envelope import value_of

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted([*DOCS.glob("*.md"), *DOCS.glob("how-to/*.md")])
FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
OFFLINE = {"simulate", "decide", "version"}
"""Commands that need no broker."""


@dataclass(frozen=True)
class DocsExample:
    """A command, and its output; figures may differ."""

    page: Path
    words: list[str]
    shows: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.page.name}: {' '.join(self.words)[:60]}"


def fences(page: Path) -> list[tuple[str, str, str]]:
    """Return the blocks of a page: language, file name or "", text."""
    return FENCE.findall(page.read_text("utf-8"))


def examples() -> list[DocsExample]:
    """Return every `tidegate` command in the pages."""
    found: list[DocsExample] = []
    for page in PAGES:
        for language, _, text in fences(page):
            if language != "console":
                continue
            last: DocsExample | None = None
            for line in text.splitlines():
                if line.startswith("$ "):
                    words = shlex.split(line[2:].partition(" > ")[0], comments=True)
                    last = DocsExample(page, words[1:]) if words[0] == "tidegate" else None
                    found += [last] if last else []
                elif last is not None:
                    last.shows.append(line)
    return found


EXAMPLES = examples()


@pytest.fixture(scope="module")
def recorded() -> bytes:
    """An hour of snapshots of the job `rates`, as lines."""
    _, recordings = simulated_events(datetime(2026, 3, 1, 13, tzinfo=UTC))
    return b"".join(value_of(one) + b"\n" for one in recordings["rates"].snapshots)


@cache
def commands() -> Any:
    """Return all commands with their options."""
    return typer.main.get_command(app)


def understood(words: list[str]) -> str:
    """Return the command that these words name, with every option checked; raise the command line's error otherwise."""
    group = commands()
    context = group.make_context("tidegate", list(words), resilient_parsing=True)
    name, command, rest = group.resolve_command(context, list(words))
    while hasattr(command, "commands"):
        name, command, rest = command.resolve_command(context, rest)
    command.make_context(name, rest, parent=context)
    return str(name)


def plain(line: str) -> str:
    """Return a line without its figures, and with single spaces: columns are as wide as their figures."""
    return " ".join(re.sub(r"\d[\d,.]*", "0", line).split())


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_each_command_is_understood(example: DocsExample) -> None:
    """The command, its arguments and its options exist."""
    assert understood(example.words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_command_for_a_job_in_the_text_is_whole(page: Path) -> None:
    """What a sentence tells to run on a `JOB` lacks nothing: somebody types it in the middle of a fault."""
    text = " ".join(re.sub(FENCE, "", page.read_text("utf-8")).split())
    for command in re.findall(r"`tidegate ([^`]*\bJOB\b[^`]*)`", text):
        assert understood(["4" if word == "SLOTS" else word for word in shlex.split(command)]), command


@pytest.mark.parametrize("example", [each for each in EXAMPLES if each.words[0] in OFFLINE], ids=str)
def test_each_command_that_needs_no_broker_works(
    example: DocsExample, recorded: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the files of its page, the command ends well and prints what the page shows, apart from figures."""
    monkeypatch.chdir(tmp_path)
    for _, name, text in fences(example.page):
        if name:
            (tmp_path / name).write_text(text, "utf-8")
    (tmp_path / "seen.ndjson").write_bytes(recorded)
    ran = CliRunner().invoke(app, example.words)
    assert ran.exit_code == 0, ran.output
    if example.shows:
        assert [plain(line) for line in example.shows] == [plain(line) for line in ran.output.splitlines()]


def test_the_pages_have_examples_of_most_commands() -> None:
    """The checks above have something to check: most commands are shown somewhere."""
    shown = {understood(example.words) for example in EXAMPLES}
    assert len(shown & set(commands().commands)) >= 12
    assert {"simulate", "decide"} <= shown


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_python_example_imports_what_exists(page: Path) -> None:
    """The code compiles, and what it imports from Tidegate is there."""
    for language, _, text in fences(page):
        if language == "python":
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tidegate"):
                    assert all(hasattr(import_module(str(node.module)), name.name) for name in node.names)
