"""The command as a whole: help that teaches, errors of one line, exit codes."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.support.events import job
from tidegate.cli import app
from tidegate.cli.connect import instant_of
from tidegate.cli.problems import Problem
from tidegate.cli.specs import differences
from tidegate.events.job import ManualScale, Mode

COMMANDS = sorted(c.name or c.callback.__name__ for c in app.registered_commands if c.callback)
GROUPS = {g.name: sorted(c.name or c.callback.__name__ for c in g.typer_instance.registered_commands if c.callback)
          for g in app.registered_groups if g.typer_instance}  # fmt: skip


@pytest.mark.parametrize("words", [[c] for c in COMMANDS] + [[g, c] for g, cs in GROUPS.items() for c in cs if g])
def test_every_help_has_an_example_and_the_exit_codes(words: list[str]) -> None:
    """`--help` of each command teaches by an example that starts with the command itself, and says its exit codes."""
    ran = CliRunner().invoke(app, [*words, "--help"])
    assert ran.exit_code == 0
    example = ran.stdout.partition("Example:")[2]
    assert "tidegate " + " ".join(words) in " ".join(example.split())
    assert "Exit codes:" in ran.stdout


def test_it_is_a_module_too() -> None:
    """`python -m tidegate` is the same command, for where the script is not on the path."""
    ran = subprocess.run(
        [sys.executable, "-m", "tidegate", "version"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == CliRunner().invoke(app, ["version"]).stdout


def test_the_commands_of_the_door_are_all_there() -> None:
    """The commands that the documents name exist."""
    wanted = {"apply", "jobs", "why", "tail", "pause", "resume", "scale", "remove", "decide"}
    wanted |= {"up", "down", "status", "doctor", "version"}
    assert wanted <= set(COMMANDS)
    assert GROUPS["replay"] == ["publish", "recompute", "record"]


def test_without_a_broker_a_command_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No broker given and no stack running: one line, a hint, exit code 2."""
    monkeypatch.chdir(tmp_path)
    for name in ("TIDEGATE_BOOTSTRAP_SERVERS", "TIDEGATE_STACK_DIR"):
        monkeypatch.delenv(name, raising=False)
    ran = CliRunner().invoke(app, ["jobs"])
    assert ran.exit_code == 2
    assert "no broker is given" in ran.stderr
    assert "tidegate up" in ran.stderr


def test_a_broker_that_is_not_there_is_an_error_of_one_line() -> None:
    """A refused connection gives exit code 2, the address, and no traceback."""
    ran = CliRunner().invoke(app, ["jobs", "-b", "127.0.0.1:1"])
    assert ran.exit_code == 2
    assert "127.0.0.1:1" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("more", [[], ["--rebase"]], ids=["as it was", "moved to now"])
def test_a_recording_is_published_only_where_one_says(monkeypatch: pytest.MonkeyPatch, more: list[str]) -> None:
    """Without a prefix on the command line, variable or not, nothing is published: it could scale the live jobs."""
    monkeypatch.setenv("TIDEGATE_TOPIC_PREFIX", "live.")
    ran = CliRunner().invoke(app, ["replay", "publish", "--from", "noon", "-b", "127.0.0.1:1", *more])
    assert ran.exit_code == 2
    assert ran.stderr.startswith("error: publishing needs --topic-prefix")
    assert len(ran.stderr.splitlines()) == 2, "the error and its hint"


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_exits_130(monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    """Ctrl-C and SIGTERM end any command with a word, also where the interrupt came out as an error of a library."""

    def library(_package: str) -> str:
        with suppress(KeyboardInterrupt):
            signal.raise_signal(number)
        raise SystemError("returned a result with an exception set")

    monkeypatch.setattr(import_module("tidegate.cli.main"), "version", library)
    ran = CliRunner().invoke(app, ["version"])
    assert (ran.exit_code, ran.stderr) == (130, "interrupted\n")


def test_a_bad_spec_is_refused_before_the_broker_is_asked(tmp_path: Path) -> None:
    """`apply` of a bad file names file, line and field with exit code 2, broker or not."""
    file = tmp_path / "job.yaml"
    file.write_text("job_id: rates\nsources: 3\n", encoding="utf-8")
    ran = CliRunner().invoke(app, ["apply", str(file), "-b", "127.0.0.1:1"])
    assert ran.exit_code == 2
    assert f"{file}:2: sources" in ran.stderr


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10m", 600), ("10min", 600), ("1.5h", 5400), ("2d", 172_800)]
)
def test_an_age_is_counted_back_from_now(text: str, seconds: float) -> None:
    """--since takes an age in seconds, minutes, hours or days."""
    instant = instant_of(text)
    assert instant is not None
    assert abs((datetime.now(UTC) - instant).total_seconds() - seconds) < 5


def test_an_instant_is_taken_as_it_is() -> None:
    """--since takes an RFC 3339 instant of any offset."""
    assert instant_of("2026-01-31T14:00:00+02:00") == datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize("text", ["", "soon", "10", "-5m", "2026-01-31T12:00:00", "10 parsecs", "999999999d"])
def test_what_is_no_age_and_no_instant_is_refused(text: str) -> None:
    """A time without unit or offset is refused by name and value, not guessed."""
    with pytest.raises(Problem, match="--since"):
        instant_of(text)


def test_differences_name_each_field_once() -> None:
    """A diff shows changed, added and removed fields, and not the version."""
    now = job(max_parallelism=8)
    wish = ManualScale(request_id="r", parallelism=4, reason="why", requested_at=datetime.now(UTC) - timedelta(hours=1))
    new = job(version=2, max_parallelism=12, mode=Mode.PAUSED, manual=wish)
    lines = differences(now, new)
    assert "~ scaling.max_parallelism: 8 -> 12" in lines
    assert "~ scaling.mode: active -> paused" in lines
    assert "+ manual.parallelism: 4" in lines
    assert not any("version" in line for line in lines)
    assert differences(now, now) == []
    assert "- manual.parallelism: 4" in differences(new, now)
