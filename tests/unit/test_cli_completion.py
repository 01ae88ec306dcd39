"""What a shell completes after `tidegate`: the words of the commands as they are, without starting Python."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tests.support.programs import captured
from tidegate.cli import app

SCRIPT = CliRunner().invoke(app, ["completion", "bash"]).stdout
TYPE = 'COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _tidegate; printf "%s\\n" "${COMPREPLY[@]}"'


def completed(*words: str) -> list[str]:
    """Return what bash offers for the last word."""
    ran = captured("bash", "-c", f"{SCRIPT}\n{TYPE}", "bash", *words)
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["re"], ["resume", "remove", "replay"]),
        (["replay", "re"], ["record", "recompute"]),
        (["replay", "record", "--since", "2h", "--gz"], ["--gzip"]),
        (["tail", "de"], ["decisions", "dead-letters"]),
        (["tail", "decisions", "-f", "--jo"], ["--job"]),
        (["jobs", "--status", "la"], ["late"]),
        (["why", "--since", ""], []),
        (["apply", ""], []),
        (["apply", "job.yaml", "--dr"], ["--dry-run"]),
        (["no-such-command", ""], []),
    ],
)
def test_a_tab_completes_what_fits(words: list[str], offered: list[str]) -> None:
    """Commands, their options, and values of a list; for files, and values that may be anything, the shell's own."""
    assert completed("tidegate", *words) == offered


def test_every_command_and_option_is_known() -> None:
    """A new one is, without anybody thinking of it."""

    def commands(group: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
        for name, command in group.commands.items():
            yield (*words, name), command
            if hasattr(command, "commands"):
                yield from commands(command, (*words, name))

    group: Any = typer.main.get_command(app)
    for words, command in commands(group, ()):
        line = next(line for line in SCRIPT.splitlines() if line.strip().startswith(f'"{" ".join(words)}") words='))
        options = {name for each in command.params for name in each.opts if name.startswith("--")}
        assert options <= {*line.partition('words="')[2].rstrip('" ;').split()}
    assert set(group.commands) <= set(completed("tidegate", ""))


def test_bash_is_told_whom_to_ask() -> None:
    """Where the script knows nothing better, the shell completes files."""
    ran = captured("bash", "-c", f"{SCRIPT}\ncomplete -p tidegate")
    assert ran.stdout == "complete -o bashdefault -o default -F _tidegate tidegate\n"
