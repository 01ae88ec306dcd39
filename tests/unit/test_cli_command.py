"""The command as a whole: help that teaches, errors of one line, exit codes."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import typer
from pydantic import SecretStr
from rich.console import Console, Group
from typer.testing import CliRunner

from demo.__main__ import app as demo_app
from demo.command import _print_exploring
from tests.support.events import job
from tests.support.fleets import decision
from tests.support.history import write_history
from tests.support.programs import ROOT, captured
from tests.support.recordings import RATES
from tests.support.sample_events import sample_events
from tidegate import operate
from tidegate.archive.keys import BadKey, read_key
from tidegate.archive.store import BadArchive, load
from tidegate.cli import app, connect, main, specs, why
from tidegate.cli.connect import instant_of
from tidegate.cli.doctor import machine
from tidegate.cli.doctor.redis import redis_of
from tidegate.cli.expected import problem_of
from tidegate.cli.main import COMMANDS as LISTED
from tidegate.cli.problems import Problem
from tidegate.cli.tail import FORMATS
from tidegate.client import BadRecord, ClientSettings, Received
from tidegate.engine import decide
from tidegate.events.decision import Status
from tidegate.events.envelope import Unreadable
from tidegate.events.job import ManualScale, Mode, SpecChange
from tidegate.events.result import ActionResult
from tidegate.events.wire import Wire
from tidegate.operate import differences
from tidegate.replay.source import NoSpark, start_session
from tidegate.stack import StackError
from tidegate.terminal import PIPE_WIDTH
from tidegate.words import clock

STEP = timedelta(seconds=10)
ALL: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
GROUPS = {name: sorted(each.commands) for name, each in ALL.items() if hasattr(each, "commands")}
COMMANDS = sorted(ALL.keys() - GROUPS.keys())


@pytest.mark.parametrize(("width", "lines"), [(40, 25), (60, 23), (80, 11), (140, 7), (PIPE_WIDTH, 3)])
def test_no_word_of_the_table_of_jobs_is_cut(width: int, lines: int) -> None:
    """Where there is no room for the reasons next to the figures, they stand below, or each figure on its line."""
    figures: list[object] = ["12 slots", Status.PENDING_SCALE_DOWN, "23,456,789", ">1,204 s", "10 s ago"]
    reason = "Scale down from 12 to 8 slots in place: 8 slots have been enough for 300 s; but the job is paused."
    rows = [[name, "paused", "tide", *figures, reason] for name in ("orders-enrich", "clicks")]
    console = Console(width=width, file=io.StringIO(), markup=False)
    console.print(Group(*why.job_tables(rows, console)))
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert shown.count("\n") == lines
    assert all(shown.count(str(figure)) == 2 for figure in figures)


@pytest.mark.parametrize("words", [[c] for c in COMMANDS] + [[g, c] for g, cs in GROUPS.items() for c in cs if g])
def test_every_help_has_an_example_and_the_exit_codes(words: list[str]) -> None:
    """`--help` of each command shows an example that uses it, and the exit codes."""
    ran = CliRunner().invoke(app, [*words, "--help"])
    assert ran.exit_code == 0
    example = ran.stdout.partition("Example:")[2]
    assert "tidegate " + " ".join(words) in " ".join(example.split())
    assert "Exit codes:" in ran.stdout


@pytest.mark.parametrize(
    ("words", "usage"),
    [
        (["apply"], "tidegate apply [OPTIONS] {FILE}..."),
        (["jobs"], "tidegate jobs [OPTIONS] [NAME]..."),
        (["priors"], "tidegate priors [OPTIONS] {JOB}..."),
        (["what-if"], "tidegate what-if [OPTIONS] [JOB]"),
    ],
)
def test_usage_says_once_what_may_be_left_out_or_repeated(words: list[str], usage: str) -> None:
    """Typer puts brackets and dots around a name by itself."""
    ran = CliRunner().invoke(app, [*words, "--help"])
    assert ran.stdout.splitlines()[0].replace("root ", "tidegate ") == f"Usage: {usage}"


@pytest.mark.parametrize("words", [[], *([name] for name in GROUPS if name)])
def test_a_list_of_commands_cuts_no_sentence(words: list[str]) -> None:
    """In a terminal of 80 columns, what a command does is said to the end."""
    ran = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "80"})
    known = {*COMMANDS, *GROUPS, *(name for names in GROUPS.values() for name in names)}
    listed = ran.stdout.partition("Commands:")[2].splitlines()
    commands = [line for line in listed if re.match(r"  [a-z]", line) and line.split()[0] in known]
    assert len(commands) >= 3
    assert [line for line in commands if not line.endswith(".") or line.endswith("...")] == []


def test_the_list_of_commands_says_what_their_own_help_says() -> None:
    """It is made without the commands."""
    assert {name: said for name, (_, said) in LISTED.items()} == {
        name: each.get_short_help_str(PIPE_WIDTH) for name, each in ALL.items()
    }


def test_the_list_of_commands_imports_none_of_them() -> None:
    """They and the models of all events take most of a second."""
    program = "import sys; sys.argv = ['tidegate', '--help']; from tidegate.cli import main\ntry: main()\nfinally: "
    program += "print({'pydantic', 'yaml', 'tidegate.cli.why'} & {*sys.modules})"
    ran = captured(sys.executable, "-c", program)
    assert (ran.returncode, ran.stderr, ran.stdout.splitlines()[-1]) == (0, "", "set()")


def test_it_is_a_module_too() -> None:
    """`python -m tidegate` is the same command."""
    ran = captured(sys.executable, "-m", "tidegate", "version")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == CliRunner().invoke(app, ["version"]).stdout


def test_without_its_packages_the_command_says_what_to_install() -> None:
    """`pip install tidegate`, for the Python client alone, puts the command on the path too."""
    program = "import sys; sys.modules['typer'] = None; from tidegate.cli import main"
    ran = captured(sys.executable, "-c", program)
    assert ran.returncode == 2
    assert ran.stderr == "tidegate: the package typer is not installed: pip install 'tidegate[cli]'\n"


def test_a_command_needs_only_its_own_packages() -> None:
    """The lab, the archive and the others take most of a second to import; and one that lacks a package says which."""
    others = "{'lab', 'archive', 'backtest', 'replay', 'whatif', 'stack'}"
    program = "import sys; sys.argv = ['tidegate', *{}]; sys.modules['yaml'] = None; from tidegate.cli import main\n"
    program += f"try: main()\nfinally: print({others} & {{name.split('.')[1] for name in sys.modules if '.' in name}})"
    ran = captured(sys.executable, "-c", program.replace("{}", "['version']", 1))
    assert (ran.returncode, ran.stderr, ran.stdout.splitlines()[-1]) == (0, "", "set()")
    ran = captured(sys.executable, "-c", program.replace("{}", "['apply', '--help']", 1))
    assert ran.returncode == 2
    assert ran.stderr == "tidegate: the package yaml is not installed: pip install 'tidegate[cli]'\n"
    ran = captured(sys.executable, "-c", program.replace("{}", "['console']", 1).replace("yaml", "uvicorn"))
    assert ran.returncode == 2
    assert ran.stderr == "tidegate: the package uvicorn is not installed: pip install 'tidegate[console]'\n"


@pytest.mark.parametrize(("file", "said"), [("decide.py", False), (f"decide{EXTENSION_SUFFIXES[0]}", True)])
def test_the_version_says_whether_the_engine_is_compiled(
    monkeypatch: pytest.MonkeyPatch, file: str, said: bool
) -> None:
    """`tidegate version` names the engine, and whether it is compiled."""
    monkeypatch.setattr(decide, "__file__", file)
    ran = CliRunner().invoke(app, ["version"])
    assert (f"engine {decide.ENGINE_VERSION}, compiled, " in ran.stdout) == said


def test_the_version_is_an_option_too() -> None:
    """`tidegate --version`, which people type by habit, answers like `tidegate version`."""
    ran = CliRunner().invoke(app, ["--version"])
    assert (ran.exit_code, ran.stdout) == (0, CliRunner().invoke(app, ["version"]).stdout)


def test_every_documented_command_exists() -> None:
    """The commands named in the documentation exist."""
    wanted = {"apply", "jobs", "why", "tail", "pause", "resume", "scale", "remove", "decide"}
    wanted |= {"up", "down", "status", "doctor", "version"}
    assert wanted <= set(COMMANDS)
    assert GROUPS["replay"] == ["publish", "recompute", "record", "step"]


def test_without_a_broker_a_command_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a broker or an embedded stack: one line, a hint, and exit code 2."""
    monkeypatch.chdir(tmp_path)
    for name in ("TIDEGATE_BOOTSTRAP_SERVERS", "TIDEGATE_STACK_DIR"):
        monkeypatch.delenv(name, raising=False)
    ran = CliRunner().invoke(app, ["jobs"])
    assert ran.exit_code == 2
    assert "no broker given" in ran.stderr
    assert "tidegate up" in ran.stderr


@pytest.mark.parametrize("command", ["jobs", "top", "console"])
def test_an_unreachable_broker_is_an_error_of_one_line(command: str) -> None:
    """A refused connection gives exit code 2 and the address, without a traceback."""
    ran = CliRunner().invoke(app, [command, "-b", "127.0.0.1:1"])
    assert ran.exit_code == 2
    assert "127.0.0.1:1" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_ctrl_c_while_the_command_loads_leaves_no_traceback(tmp_path: Path) -> None:
    """The imports take half a second; here one of them is interrupted."""
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt\n")
    path = os.pathsep.join((str(tmp_path), str(Path(__file__).parents[2])))
    ran = subprocess.run(
        [sys.executable, "-m", "tidegate", "--help"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        timeout=200,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (130, b"")


def test_ctrl_c_while_typer_reads_the_options_leaves_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """That takes another half second, before any command could handle it."""

    def interrupted(_app: typer.Typer) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("typer.main.get_command", interrupted)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130


def test_a_console_without_its_packages_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra `console`: one line, the command that installs it, and exit code 2."""
    monkeypatch.delitem(sys.modules, "tidegate.console.server", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    ran = CliRunner().invoke(app, ["console"])
    assert ran.exit_code == 2
    assert "pip install 'tidegate[console]'" in ran.stderr
    assert "Traceback" not in ran.stderr


WRONG = [["jobs", "--nope"], ["--nope"], ["nonsense"], ["scale", "rates", "six"], ["apply"], ["tail"], ["tail", "x"]]


@pytest.mark.parametrize("words", WRONG)
@pytest.mark.parametrize("program", [app, demo_app], ids=["tidegate", "demo"])
def test_wrong_usage_is_an_error_of_one_line(program: typer.Typer, words: list[str]) -> None:
    """Wrong options, arguments or commands give exit code 2, a line of what is wrong, and where the help is."""
    ran = CliRunner().invoke(program, words)
    assert (ran.exit_code, ran.stdout) == (2, "")
    error, hint = ran.stderr.splitlines()
    assert error.startswith("error: ")
    assert "Value error" not in error, "that is what pydantic calls it"
    assert "--help` shows how to use it" in hint


def test_settings_that_do_not_fit_together_are_an_error_of_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a check of the settings says is printed as it is, without pydantic's name for it."""
    monkeypatch.setenv("TIDEGATE_SASL_USERNAME", "me")
    ran = CliRunner().invoke(app, ["jobs", "-b", "127.0.0.1:1"])
    assert (ran.exit_code, ran.stdout) == (2, "")
    error, _hint = ran.stderr.splitlines()
    assert "sasl_mechanism, sasl_username and sasl_password must be set together" in error
    assert "Value error" not in error


@pytest.mark.parametrize("more", [[], ["--rebase"]], ids=["as it was", "moved to now"])
def test_publishing_a_recording_needs_an_explicit_prefix(monkeypatch: pytest.MonkeyPatch, more: list[str]) -> None:
    """Without a prefix on the command line nothing is published, since services could rescale live jobs by it."""
    monkeypatch.setenv("TIDEGATE_TOPIC_PREFIX", "live.")
    ran = CliRunner().invoke(app, ["replay", "publish", "--from", "noon", "-b", "127.0.0.1:1", *more])
    assert ran.exit_code == 2
    assert ran.stderr.startswith("error: --topic-prefix is required")
    assert len(ran.stderr.splitlines()) == 2, "the error and its hint"


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_exits_130(monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    """Ctrl-C and SIGTERM end any command with one word, even if a library turned the interrupt into an error."""

    def library(_package: str) -> str:
        with suppress(KeyboardInterrupt):
            signal.raise_signal(number)
        raise SystemError("returned a result with an exception set")

    monkeypatch.setattr(import_module("tidegate.cli.main"), "version", library)
    ran = CliRunner().invoke(app, ["version"])
    assert (ran.exit_code, ran.stderr) == (130, "interrupted\n")


def test_a_bad_spec_is_rejected_before_connecting(tmp_path: Path) -> None:
    """`apply` of a bad file names file, line and field with exit code 2, even without a broker."""
    file = tmp_path / "job.yaml"
    file.write_text("job_id: rates\nsources: 3\n", encoding="utf-8")
    ran = CliRunner().invoke(app, ["apply", str(file), "-b", "127.0.0.1:1"])
    assert ran.exit_code == 2
    assert f"{file}:2: sources" in ran.stderr


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10m", 600), ("10min", 600), ("1.5h", 5400), ("2d", 172_800)]
)
def test_an_age_counts_back_from_now(text: str, seconds: float) -> None:
    """--since takes an age in seconds, minutes, hours or days."""
    instant = instant_of(text)
    assert instant is not None
    assert abs((datetime.now(UTC) - instant).total_seconds() - seconds) < 5


def test_an_instant_is_used_as_given() -> None:
    """--since takes an RFC 3339 instant with any offset."""
    assert instant_of("2026-01-31T14:00:00+02:00") == datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize("text", ["", "soon", "10", "-5m", "2026-01-31T12:00:00", "10 parsecs", "999999999d"])
def test_anything_but_an_age_or_an_instant_is_rejected(text: str) -> None:
    """A time without unit or offset is rejected, not guessed."""
    with pytest.raises(Problem, match="--since"):
        instant_of(text)


def test_differences_name_each_field_once() -> None:
    """The differences are changed, added and removed fields, without the version."""
    now = job(max_parallelism=8)
    request = ManualScale(
        request_id="r", parallelism=4, reason="why", requested_at=datetime.now(UTC) - timedelta(hours=1)
    )
    new = job(version=2, max_parallelism=12, mode=Mode.PAUSED, manual=request)
    lines = differences(now, new)
    assert "~ scaling.max_parallelism: 8 -> 12" in lines
    assert "~ scaling.mode: active -> paused" in lines
    assert "+ manual.parallelism: 4" in lines
    assert not any("version" in line for line in lines)
    assert differences(now, now) == []
    assert "- manual.parallelism: 4" in differences(new, now)
    changed = new.model_copy(update={"change": SpecChange(by="ada", reason="repairs", at=datetime.now(UTC))})
    assert differences(new, changed) == [], "who asked for a version is not part of the job"


@pytest.mark.parametrize("event", sample_events().values(), ids=list(sample_events()))
def test_tail_has_a_cell_for_each_column(event: Wire) -> None:
    """Each event that `tail` shows fits its table; a change of size shows its way, delay and outage."""
    for topic in FORMATS.values():
        if isinstance(event, topic.model):
            cells = [str(cell) for cell in topic.row(event)]
            assert len(cells) == len(topic.columns)
            if isinstance(event, ActionResult) and event.way is not None:
                named = dict(zip((name for name, _ in topic.columns), cells, strict=True))
                seen = {"in_place": ("9.2 s", "0.0 s"), "handover": ("38.5 s", "1.2 s")}[event.way]
                assert (named["way"], named["delay"], named["outage"]) == (event.way.value, *seen)


def tails(monkeypatch: pytest.MonkeyPatch, events: Sequence[Received[Any]], *bad: BadRecord) -> list[Received[Any]]:
    """Let `tail` find these events, oldest first, and these bad records; return a list of the events that it reads."""
    read: list[Received[Any]] = []

    def received(
        *_args: object, on_error: Callable[[BadRecord], None], since: datetime | None = None, **_more: object
    ) -> Iterator[Received[Any]]:
        for each in bad:
            on_error(each)
        for one in events:
            if since is None or one.written_at >= since:
                read.append(one)
                yield one

    newest = max((one.written_at for one in events), default=None)
    monkeypatch.setattr("tidegate.cli.tail.received", received)
    monkeypatch.setattr("tidegate.cli.tail.check_reachable", lambda *_args: None)
    monkeypatch.setattr("tidegate.cli.tail.newest_at", lambda *_args: newest)
    return read


@pytest.mark.parametrize(("limit", "most"), [([], 100), (["-n", "5"], 10), (["-n", "3000"], 10_000)])
def test_tail_does_not_read_two_weeks_for_the_newest_few(
    monkeypatch: pytest.MonkeyPatch, limit: list[str], most: int
) -> None:
    """The topic holds 14 days, of some jobs more than is read in the minute after which reading fails."""
    end, made = datetime(2026, 3, 15, tzinfo=UTC), decision(job(), datetime(2026, 3, 1, tzinfo=UTC))
    whole = [
        Received(made.model_copy(update={"sequence": place}), place % 3, place // 3, end - (20_000 - place) * STEP, b"")
        for place in range(20_001)
    ]
    read = tails(monkeypatch, whole)
    ran = CliRunner().invoke(app, ["tail", "decisions", "--json", *limit, "-b", "127.0.0.1:9"])
    assert (ran.exit_code, ran.stderr) == (0, "")
    shown = [json.loads(line)["sequence"] for line in ran.stdout.splitlines()]
    assert shown == list(range(20_001))[-int(limit[1] if limit else 20) :]
    assert len(read) <= most


def test_tail_finds_the_few_events_of_a_topic_wherever_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer than are shown, days apart. A record that cannot be read is named once, not at each look."""
    at, made = datetime(2026, 3, 1, tzinfo=UTC), decision(job(), datetime(2026, 3, 1, tzinfo=UTC))
    few = [Received(made, 0, place, at + timedelta(days=3 * place), b"") for place in range(4)]
    tails(monkeypatch, few, BadRecord("decisions", 0, 4, Unreadable("NOT_JSON", "it is not JSON"), b"?"))
    ran = CliRunner().invoke(app, ["tail", "decisions", "--json", "-b", "127.0.0.1:9"])
    assert (ran.exit_code, len(ran.stdout.splitlines())) == (0, 4)
    assert ran.stderr.count("skipped") == 1


@pytest.mark.parametrize("options", [[], ["-f"]], ids=["the newest", "as they come"])
def test_a_reason_cannot_forge_a_row(monkeypatch: pytest.MonkeyPatch, options: list[str]) -> None:
    """A script may read the rows: what somebody gives as a reason is never one, whatever line breaks are in it."""
    at = datetime(2026, 3, 1, 12, tzinfo=UTC)
    change = SpecChange(by="ada", reason="sale\nrates  9  active\r\nrates  9", at=at)
    soon = datetime.now(UTC) + timedelta(minutes=1)
    tails(monkeypatch, [Received(job().model_copy(update={"change": change}), 0, 0, soon, b"rates")])
    ran = CliRunner().invoke(app, ["tail", "jobs", *options, "-b", "127.0.0.1:9"])
    assert (ran.exit_code, ran.stderr) == (0, "")
    rows = [line for line in ran.stdout.splitlines() if not line.startswith("time")]
    assert [row.split()[-7:] for row in rows] == [["ada", "sale", "rates", "9", "active", "rates", "9"]]


def test_tail_shows_who_changed_a_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    """`jobs` is a topic like the others; a spec of an older version of Tidegate does not say who asked for it."""
    at = datetime(2026, 3, 1, 12, tzinfo=UTC)
    change = SpecChange(by="ada", reason="sale on Sunday", at=at)
    paused = job(version=2, mode=Mode.PAUSED).model_copy(update={"change": change})
    found = [job(), paused, job(version=3, running=False)]
    events = [Received(spec, 0, place, at, b"rates") for place, spec in enumerate(found)]
    tails(monkeypatch, events)
    ran = CliRunner().invoke(app, ["tail", "jobs", "-b", "127.0.0.1:9"])
    assert (ran.exit_code, ran.stderr) == (0, "")
    assert [line.split() for line in ran.stdout.splitlines()] == [
        ["time", "job", "version", "mode", "policy", "slots", "by", "why"],
        ["rates", "1", "active", "flip271", "1", "to", "16"],
        [*clock(at).split(), "rates", "2", "paused", "flip271", "1", "to", "16", "ada", "sale", "on", "Sunday"],
        ["rates", "3", "stopped", "flip271", "1", "to", "16"],
    ]


@pytest.mark.parametrize(
    "words",
    [
        ["simulate", "--spec", "a" * 300, "--load", "flash_crowd"],
        ["decide", "--spec", "a" * 300, "--snapshots", "-"],
        ["backtest", "hdfs:///events", "--trials", "0"],
    ],
)
def test_what_the_file_system_refuses_is_an_error_of_one_line(words: list[str]) -> None:
    """A name that is too long, and a file system that nobody has set up, give an error and no traceback."""
    ran = CliRunner().invoke(app, words)
    assert (ran.exit_code, type(ran.exception)) == (2, SystemExit)
    assert ran.stderr.startswith("error: ")


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    """`tidegate … | head` ends with success: 1 would say that the answer is no."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as pipe:
        ran = subprocess.run(
            [sys.executable, "-m", "tidegate", "version"], stdout=pipe, stderr=subprocess.PIPE, timeout=200, check=False
        )
    assert (ran.returncode, ran.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("words", "files", "code"),
    [
        (("backtest", "load.csv", "--trials", "0", "--json", "b", "--job-file", "c"), ("b", "c"), 0),
        (("backtest", "rec", "--trials", "0"), (), 1),
        (("what-if", "--from", "rec", "--out", "run.png"), ("run.png",), 0),
        (("simulate", "--spec", "job.yaml", "--load", "load.csv", "--out", "run.png"), ("run.png",), 0),
    ],
)
def test_a_reader_that_has_seen_enough_costs_neither_files_nor_the_answer(
    words: tuple[str, ...], files: tuple[str, ...], code: int, tmp_path: Path
) -> None:
    """With `| head`, what the command was asked to write is written, and a no is a no."""
    (tmp_path / "load.csv").write_text("seconds,records_per_second\n0,1\n600,2\n", "utf-8")
    (tmp_path / "job.yaml").write_text(SHORT_JOB, "utf-8")
    write_history(tmp_path / "rec")
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as pipe:
        ran = subprocess.run(
            [sys.executable, "-m", "tidegate", *words],
            stdout=pipe,
            stderr=subprocess.PIPE,
            timeout=120,
            check=False,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    assert (ran.returncode, ran.stderr) == (code, b"")
    assert all((tmp_path / name).exists() for name in files)


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_closed_streams_are_as_good_as_devnull(closed: str) -> None:
    """A command that is started without standard output runs as with `/dev/null`."""
    ran = subprocess.run(
        ["/bin/sh", "-c", f'exec "$0" -m tidegate version {closed}', sys.executable],
        stderr=subprocess.PIPE,
        timeout=200,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, b"")


SHORT_JOB = """\
job_id: rates
sources: [in]
application:
  {backend: local, master: "local[2]", script: /a.py, checkpoint_location: /c, event_log_dir: /e, control_dir: /d}
"""


@pytest.mark.parametrize("command", ["simulate", "backtest"])
def test_a_load_that_is_too_short_is_an_error_of_one_line(tmp_path: Path, command: str) -> None:
    """A load of a second gives an error that says how long it must be."""
    load, spec = tmp_path / "load.csv", tmp_path / "job.yaml"
    load.write_text("seconds,records_per_second\n0,1\n1,2\n", "utf-8")
    spec.write_text(SHORT_JOB, "utf-8")
    words = {
        "simulate": ["simulate", "--spec", str(spec), "--load", str(load)],
        "backtest": ["backtest", str(load), "--trials", "0"],
    }
    ran = CliRunner().invoke(app, words[command])
    assert ran.exit_code == 2
    assert "it must last more than 10 s" in ran.stderr


@pytest.mark.parametrize("option", ["--overhead", "--trigger", "--record-cost-ms", "--hours"])
def test_infinite_figures_of_a_job_are_refused(tmp_path: Path, option: str) -> None:
    """An option of the simulated job that is not finite is refused by its name."""
    ran = CliRunner().invoke(app, ["simulate", "--spec", str(tmp_path / "a"), "--load", "step", option, "inf"])
    assert ran.exit_code == 2
    assert f"'{option}'" in ran.stderr


def test_brackets_in_names_are_no_markup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path and a job's name with brackets are printed as they are."""
    load, spec, picture = tmp_path / "load.csv", tmp_path / "job.yaml", tmp_path / "[run]x.png"
    load.write_text("seconds,records_per_second\n0,1\n60,2\n", "utf-8")
    spec.write_text(SHORT_JOB, "utf-8")
    ran = CliRunner().invoke(app, ["simulate", "--spec", str(spec), "--load", str(load), "--out", str(picture)])
    assert ran.stdout.endswith(f"picture: {picture}\n")
    tails(monkeypatch, ())
    ran = CliRunner().invoke(app, ["tail", "decisions", "--job", "[/x]", "-b", "127.0.0.1:1"])
    assert (ran.exit_code, ran.stderr) == (0, "no decisions of [/x] yet\n")
    ran = CliRunner().invoke(app, ["status", "--work-dir", str(tmp_path / "[/x]")])
    assert (ran.exit_code, ran.stdout.partition(";")[0]) == (1, f"no stack is running in {tmp_path}/[/x]")


def test_a_command_to_paste_works_with_a_space_in_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """How to stop what `up` and the demo have started, and what errors advise, is quoted for a shell."""
    folder = tmp_path / "a b"
    for name in ("start_stack", "ensure_topics", "show_stack"):
        monkeypatch.setattr(f"tidegate.cli.stack.{name}", MagicMock())
    monkeypatch.setattr("tidegate.cli.stack.ClientSettings", MagicMock())
    ran = CliRunner().invoke(app, ["up", "--work-dir", str(folder)])
    assert ran.stdout.endswith(f"Stop with: tidegate down --work-dir '{folder}'\n")
    outcome = MagicMock()
    outcome.environment.info.work_dir, outcome.environment.rate_file = folder, folder / "rate"
    _print_exploring(outcome)
    printed = capsys.readouterr().out
    assert f"tidegate down --work-dir '{folder}'\n" in printed
    assert f"echo 1080 > '{folder}/rate' " in printed
    with pytest.raises(BadArchive, match=f"`tidegate archive run '{folder}'` makes one"):
        load(folder)
    folder.touch(0o644)
    with pytest.raises(BadKey, match=f"`chmod 600 '{folder}'`"):
        read_key(folder)


@pytest.mark.parametrize(
    "words",
    [
        ["load.csv", "--job", "orders"],
        ["events", "--spec", "job.yaml"],
        ["load.csv", "--policy", "tide", "--spec", "job.yaml"],
        ["load.csv", "--objective", "30", "--spec", "job.yaml"],
        ["load.csv", "--max-slots", "8", "--spec", "job.yaml"],
        ["load.csv", "--slot-hour", "0.05", "--spec", "job.yaml"],
        ["events", "--record-cost-ms", "2.0"],
        ["events", "--partitions", "16"],
    ],
)
def test_backtest_ignores_no_option_that_does_not_fit(words: list[str]) -> None:
    """An option for event logs with a CSV, one for a CSV with event logs, and what a spec says, are refused by name."""
    ran = CliRunner().invoke(app, ["backtest", *words])
    assert ran.exit_code == 2
    assert ran.stderr.startswith(f"error: {words[1]}: ")


def test_a_spark_that_does_not_start_is_an_error_of_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A master that Spark does not know, or that does not answer, is named with what Spark says."""

    def refuse(**_settings: object) -> None:
        raise RuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited.")

    monkeypatch.setattr("pyspark.SparkContext._ensure_initialized", refuse)
    with pytest.raises(NoSpark) as caught:
        start_session("foo://bar")
    problem = problem_of(caught.value)
    assert problem is not None
    assert "the master foo://bar: [JAVA_GATEWAY_EXITED]" in str(problem)


def test_the_two_tables_of_a_backtest_are_told_apart_in_a_pipe(tmp_path: Path) -> None:
    """They have the same columns and rows, so each has its title above it."""
    load = tmp_path / "load.csv"
    load.write_text("seconds,records_per_second\n0,1\n600,2\n", "utf-8")
    ran = CliRunner().invoke(app, ["backtest", str(load), "--trials", "0"])
    kept, whole = (ran.stdout.index(f"\n{title}:\n") for title in ("On the part kept back", "On all of it"))
    assert kept < whole


@pytest.mark.parametrize("command", ["priors", "what-if"])
def test_a_time_with_a_recording_is_refused(command: str) -> None:
    """A recording is read whole: `--since` with `--from` would change nothing, and says so."""
    ran = CliRunner().invoke(app, [command, "rates", "--from", "noon", "--since", "1h"])
    assert ran.exit_code == 2
    assert ran.stderr.startswith("error: --since is for the topics; what --from names is read whole")


def test_output_in_an_encoding_without_its_characters_is_escaped(tmp_path: Path) -> None:
    """A terminal or pipe that is not in UTF-8 gets an escape for an arrow, and the command goes on."""
    write_history(tmp_path / "rec")
    step = ("replay", "step", "--from", str(tmp_path / "rec"), "--speed", "max")
    ran = captured(sys.executable, "-m", "tidegate", *step, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "\\u2192" in ran.stdout


@pytest.mark.parametrize(
    "command", [("tail", "decisions"), ("tail", "decisions", "-f"), ("why", "rates", "--since", "1h")]
)
def test_json_lines_are_json_in_any_encoding(monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]) -> None:
    """JSON is in UTF-8, whatever the terminal takes: Python's escapes of letters that it lacks are not JSON's."""
    made = decision(job(), datetime.now(UTC)).model_copy(update={"sentence": "für 4 slots 🙂"})
    one = Received(made, 0, 0, made.decided_at, b"rates")
    tails(monkeypatch, (one,))
    for module in ("tail", "why"):
        monkeypatch.setattr(f"tidegate.cli.{module}.received", lambda *_args, **_more: iter((one,)))
    written = io.BytesIO()
    out = io.TextIOWrapper(written, encoding="iso-8859-1", errors="backslashreplace")
    monkeypatch.setattr(sys, "stdout", out)
    app([*command, "--json", "-b", "127.0.0.1:9"], standalone_mode=False)
    out.flush()
    assert json.loads(written.getvalue())["sentence"] == made.sentence


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["what-if", "--from"], "a recording"),
        (["replay", "recompute", "--from"], "a recording"),
        (["archive", "show"], "an archive"),
    ],
)
def test_a_folder_that_is_not_there_is_said_to_be_missing(words: list[str], what: str, tmp_path: Path) -> None:
    """Whose name is wrong need not look for a manifest in it."""
    absent = tmp_path / "noon"
    ran = CliRunner().invoke(app, [*words, str(absent)])
    assert ran.exit_code == 2
    assert ran.stderr.startswith(f"error: {absent} is not {what}: there is no such folder")


def test_days_in_the_wrong_order_are_refused(tmp_path: Path) -> None:
    """An export from a day to one before it would be an empty recording."""
    days = ["--first-day", "2026-03-02", "--last-day", "2026-03-01"]
    ran = CliRunner().invoke(app, ["archive", "export", str(tmp_path), str(tmp_path / "out"), *days])
    assert ran.exit_code == 2
    assert ran.stderr.startswith("error: --first-day 2026-03-02 is after --last-day 2026-03-01")


@pytest.mark.parametrize(
    ("keep", "what"), [(["400d", "4d"], "all topics"), (["decisions=400d", "90d", "decisions=4d"], "decisions")]
)
def test_two_times_to_keep_the_same_are_refused(keep: list[str], what: str, tmp_path: Path) -> None:
    """What is expired is gone: the last one does not quietly win."""
    words = [word for text in keep for word in ("--keep", text)]
    ran = CliRunner().invoke(app, ["archive", "expire", str(tmp_path), *words])
    assert ran.exit_code == 2
    assert ran.stderr.startswith(f"error: --keep '{keep[-1]}': there is a time to keep {what} already\n")


def test_what_is_no_address_of_a_redis_is_refused(tmp_path: Path) -> None:
    """`tidegate audit` says what is wrong with the address, not that a key in Redis is damaged."""
    ran = CliRunner().invoke(app, ["audit", "--from", str(tmp_path), "--redis", "localhost:6379"])
    assert ran.exit_code == 2
    assert "damaged" not in ran.stderr
    assert "redis://HOST:PORT/0" in ran.stderr


@pytest.mark.parametrize("url", ["redis://:s3cret@127.0.0.1:1/0", "redis://127.0.0.1:1/0?password=s3cret"])
def test_an_audit_does_not_show_the_password_of_redis(url: str, tmp_path: Path) -> None:
    """Whoever audits in a pipeline has the messages in its log."""
    ran = CliRunner().invoke(app, ["audit", "--from", str(tmp_path), "--redis", url])
    assert ran.exit_code == 2
    assert "--redis redis://" in ran.stderr
    assert "s3cret" not in ran.stderr


@pytest.mark.parametrize("value", ["[]", "3", '{"decision_id": "a", "until": null}', "{"])
def test_a_damaged_key_in_redis_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """Whatever its value is: the audit says that it cannot read it."""

    class Damaged:
        def scan_iter(self, match: str) -> list[str]:
            return [match.replace("*", "rates")]

        def get(self, name: str) -> str:
            return "{}" if name == "tidegate:view" else value

    monkeypatch.setattr("tidegate.remote.redis_client.RedisClient.whole", lambda *_: Damaged())
    ran = CliRunner().invoke(app, ["audit", "--from", str(tmp_path), "--redis", "redis://127.0.0.1:1/0"])
    assert ran.exit_code == 2
    assert "is damaged" in ran.stderr


REDIS = {"redis_version": "7.4.1"}
CLUSTER = {"redis_mode": "cluster"}
VALKEY = {"redis_version": "7.2.4", "valkey_version": "8.1.1"}


@pytest.mark.parametrize(
    ("info", "verdict", "shown"),
    [
        (REDIS | {"redis_mode": "standalone"}, "ok", "7.4.1 at "),
        (VALKEY | {"server_mode": "standalone"}, "ok", "Valkey 8.1.1 at "),
        (REDIS | CLUSTER, "ok", "7.4.1 at .+ in cluster mode, password accepted"),
        (VALKEY | {"server_mode": "cluster"}, "ok", "Valkey 8.1.1 at .+ in cluster mode, password accepted"),
        (REDIS | CLUSTER | {"role": "slave", "master_host": "redis-0"}, "ok", "7.4.1 at .+ in cluster mode"),
        (REDIS | CLUSTER | {"cluster_state": "fail"}, "fail", "7.4.1 at .+ is in a cluster whose state is fail"),
        (REDIS | {"role": "slave", "master_host": "redis-0"}, "fail", "7.4.1 at .+ is a replica of redis-0"),
        (REDIS | {"role": "master", "maxmemory": 1, "maxmemory_policy": "volatile-lru"}, "warn", ".+ volatile-lru"),
        (REDIS | {"role": "master", "maxmemory": 0, "maxmemory_policy": "volatile-lru"}, "ok", "7.4.1 at "),
    ],
)
def test_the_doctor_tells_which_redis_it_is(
    monkeypatch: pytest.MonkeyPatch, info: dict[str, str], verdict: str, shown: str
) -> None:
    """Valkey also gives the version of Redis that it replaces. Many are not fit: a replica, or one that drops keys."""
    monkeypatch.setattr("redis.Redis.info", lambda *_: dict(info))
    state = {"cluster_state": info.get("cluster_state", "ok")}
    monkeypatch.setattr("tidegate.remote.redis_client.RedisClient.execute_command", lambda *_: state)
    found = redis_of(ClientSettings(bootstrap_servers="k:9092", redis_password=SecretStr("secret")))
    assert found.verdict == verdict
    assert re.match(shown, found.found)


def test_the_doctor_tells_once_that_pyspark_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The jars are those of its version: they get no line that sends to `tidegate up`, which needs pyspark as well."""

    def missing() -> str:
        raise StackError("pyspark is not installed: pip install 'tidegate[replay]'")

    monkeypatch.setattr(machine, "spark_version", missing)
    found = {finding.what: finding for finding in machine.here(embedded=True)}
    assert "jars" not in found
    spark = found["Spark of the embedded stack"]
    assert (spark.verdict, spark.found, spark.remedy) == (
        "fail", "pyspark is not installed", "pip install 'tidegate[replay]'"
    )  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [
        ["archive", "run", "DIR", "--every", "nan"],
        ["archive", "run", "DIR", "--every", "-1"],
        ["backtest", "load.csv", "--slot-hour", "inf"],
        ["backtest", "load.csv", "--slot-hour", "1", "--late-minute", "inf"],
        ["backtest", "load.csv", "--objective", "inf"],
        ["backtest", "load.csv", "--max-slots", "1000001"],
        ["backtest", "load.csv", "--partitions", "100000001"],
        ["simulate", "--spec", "job.yaml", "--load", "step", "--peak", "1e300"],
        ["scale", "rates", "3", "--reason", "noon", "--timeout", "inf"],
        ["scale", "rates", "1000001", "--reason", "noon"],
    ],
)
def test_a_figure_that_is_none_is_refused_by_its_option(words: list[str]) -> None:
    """Before anything else: the error names the option, or the argument, and what it may be."""
    ran = CliRunner().invoke(app, [*words, *(["-b", "127.0.0.1:1"] if words[0] in {"archive", "scale"} else [])])
    assert ran.exit_code == 2
    assert f"Invalid value for '{words[-2] if words[0] != 'scale' or 'inf' in words else 'SLOTS'}'" in ran.stderr


@pytest.mark.parametrize("amount", ["lots", "8", "0g", "1.5g", ""])
def test_memory_that_is_none_is_refused_before_anything_starts(amount: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's worker would end with its own usage, after Kafka and Redis have started."""
    monkeypatch.setattr("tidegate.cli.stack.start_stack", MagicMock(side_effect=StackError("started")))
    ran = CliRunner().invoke(app, ["up", "--memory", amount])
    assert (ran.exit_code, ran.stderr.splitlines()[0]) == (2, f"error: --memory: {amount!r} is no amount of memory")
    for right in ("8g", "6144m", "2GB"):
        assert CliRunner().invoke(app, ["up", "--memory", right]).stderr == "error: started\n"


@pytest.mark.parametrize("reason", ["", 501 * "a"])
def test_a_reason_that_no_event_may_hold_is_refused(reason: str) -> None:
    """The error names the option, and not a setting."""
    with pytest.raises(Problem, match=r"^--reason: .*[0-9]+ character") as caught:
        specs._change(reason)
    assert "TIDEGATE" not in caught.value.hint


@pytest.mark.parametrize("more", [["--at", "1772366400"], ["--change"]])
def test_why_ignores_no_option_that_does_not_fit(more: list[str]) -> None:
    """`--since` lists decisions; the others are about one."""
    ran = CliRunner().invoke(app, ["why", "rates", "--since", "10m", *more, "-b", "127.0.0.1:1"])
    assert ran.exit_code == 2
    assert f"{more[0]} is about one decision" in ran.stderr


def test_a_file_that_cannot_be_written_does_not_cost_the_others(tmp_path: Path) -> None:
    """A backtest writes up to three files: each is written if it can be, and the error names the one that cannot."""
    load = tmp_path / "load.csv"
    load.write_text("seconds,records_per_second\n0,1\n600,2\n", "utf-8")
    words = [
        "--html",
        str(tmp_path),
        "--json",
        str(tmp_path / "new" / "b.json"),
        "--job-file",
        str(tmp_path / "j.yaml"),
    ]
    ran = CliRunner().invoke(app, ["backtest", str(load), "--trials", "0", *words])
    assert (ran.exit_code, ran.stderr) == (2, f"error: --html: cannot write {tmp_path}: Is a directory\n")
    assert (tmp_path / "new" / "b.json").exists()
    assert (tmp_path / "j.yaml").exists()
    assert f"figures: {tmp_path}/new/b.json" in ran.stdout
    assert "page:" not in ran.stdout


def test_figures_go_to_standard_output_with_a_dash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everywhere else `--json` prints: here it takes a file, or `-`, and then nothing else is on standard output.

    For other options, that is a name like any other.
    """
    monkeypatch.chdir(tmp_path)
    load, found = tmp_path / "load.csv", tmp_path / "found.json"
    load.write_text("seconds,records_per_second\n0,1\n600,2\n", "utf-8")
    words = ["backtest", str(load), "--trials", "0", "--job-file", "-", "--json"]
    assert CliRunner().invoke(app, [*words, str(found)]).exit_code == 0
    ran = CliRunner().invoke(app, [*words, "-"])
    assert (ran.exit_code, ran.stdout) == (0, found.read_text("utf-8"))
    assert "job_id: load" in (tmp_path / "-").read_text("utf-8")
    nothing = CliRunner().invoke(app, ["backtest", str(tmp_path), "--json", "-"])
    assert nothing.exit_code == 1
    assert json.loads(nothing.stdout)["jobs"] == []


def test_a_picture_that_cannot_be_written_names_its_option(tmp_path: Path) -> None:
    """Also where nobody has given the option: it says how to write elsewhere. The reason is there once, in words."""
    spec = tmp_path / "job.yaml"
    spec.write_text(job("rates").model_dump_json(), "utf-8")
    for words in (
        ["calibrate", str(RATES)],
        ["simulate", "--spec", str(spec), "--load", "step", "--hours", "0.01"],
    ):
        ran = CliRunner().invoke(app, [*words, "--out", str(tmp_path)])
        assert (ran.exit_code, ran.stderr) == (2, f"error: --out: cannot write {tmp_path}: Is a directory\n")


@pytest.mark.parametrize(
    "words", [["calibrate", "gone"], ["simulate", "--spec", "gone", "--load", "step"], ["what-if", "--from", "gone"]]
)
def test_a_picture_in_another_format_is_refused(words: list[str]) -> None:
    """Before minutes of work: a PNG named run.jpg opens in few programs. The error says what the name may end in."""
    ran = CliRunner().invoke(app, [*words, "--out", "new/run.jpg"])
    told = "error: --out: a picture is a .png, found new/run.jpg\n  hint: name it run.png\n"
    assert (ran.exit_code, ran.stderr) == (2, told)


def test_what_cannot_be_written_does_not_cost_the_results(tmp_path: Path) -> None:
    """A backtest and a trial may take minutes: their tables come before an error about a file."""
    load = tmp_path / "load.csv"
    load.write_text("seconds,records_per_second\n0,1\n600,2\n", "utf-8")
    write_history(tmp_path / "rec")
    folder = str(tmp_path)  # which no page can be written to
    for words, told in (
        (["backtest", str(load), "--trials", "0"], "On all of it"),
        (["what-if", "--from", str(tmp_path / "rec")], "so all of this was measured"),
    ):
        ran = CliRunner().invoke(app, [*words, "--html", folder])
        assert ran.exit_code == 2
        assert told in ran.stdout
        assert "Is a directory" in ran.stderr


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ([], ["shop-eu", "shop-us", "rates", "workshop"]),
        (["shop"], ["shop-eu", "shop-us", "workshop"]),
        (["shop-*"], ["shop-eu", "shop-us"]),
        (["shop-?u", "rates"], ["shop-eu", "rates"]),
        (["--status", "late"], ["shop-us", "rates"]),
        (["shop*", "--status", "late", "--status", "FINE"], ["shop-eu", "shop-us"]),
        (["nobody"], []),
    ],
)
@pytest.mark.parametrize("as_json", [True, False])
def test_jobs_are_found_by_name_and_status(
    monkeypatch: pytest.MonkeyPatch, words: list[str], shown: list[str], *, as_json: bool
) -> None:
    """With a thousand jobs, a table of all is read by nobody."""
    specs = {name: job(name) for name in ("shop-eu", "shop-us", "rates", "workshop")}
    status = {"shop-eu": Status.FINE, "shop-us": Status.LATE, "rates": Status.LATE}
    newest = {
        name: decision(specs[name], datetime.now(UTC)).model_copy(update={"status": of}) for name, of in status.items()
    }
    monkeypatch.setattr(why, "current_specs", lambda _: specs)
    monkeypatch.setattr(why, "_newest_of_all", lambda _, wanted: ({n: newest[n] for n in wanted if n in newest}, None))
    more = ["--json"] if as_json else []
    ran = CliRunner().invoke(app, ["jobs", *words, *more, "-b", "kafka:9092"], env={"COLUMNS": "300"})
    assert ran.exit_code == 0, ran.output
    if as_json:
        assert [json.loads(line)["job_id"] for line in ran.stdout.splitlines()] == shown
    else:
        assert [name for name in specs if name in ran.stdout.split()] == shown
        assert shown or "none of 4 jobs fits" in ran.stdout


def test_a_job_whose_spec_cannot_be_read_can_be_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not one of the jobs, but on the topic: a damaged spec has to go before another one is published."""
    removed: list[str] = []
    monkeypatch.setattr(specs, "loaded_specs", lambda _: SimpleNamespace(unusable={"rates": "not JSON"}))
    monkeypatch.setattr(connect, "current_specs", lambda _: {})
    monkeypatch.setattr(operate, "remove", lambda _, job_id: removed.append(job_id))
    assert CliRunner().invoke(app, ["remove", "rates", "--yes", "-b", "kafka:9092"]).exit_code == 0
    assert CliRunner().invoke(app, ["remove", "other", "--yes", "-b", "kafka:9092"]).exit_code == 2
    assert removed == ["rates"]


def test_a_record_from_a_clock_that_is_ahead_hides_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """One decider's clock is half an hour ahead: the decisions of the others are no less the newest."""
    now = datetime.now(UTC)
    made = decision(job(), now - timedelta(seconds=5))

    def received(*_: object, since: datetime, **__: object) -> list[Received[Any]]:
        return [Received(made, 0, 0, made.decided_at, b"")] if made.decided_at >= since else []

    monkeypatch.setattr(why, "check_reachable", lambda *_: None)
    monkeypatch.setattr(why, "newest_at", lambda *_: now + timedelta(minutes=30))
    monkeypatch.setattr(why, "received", received)
    newest, since = why._newest_of_all(ClientSettings(), {"rates": 10})
    assert newest == {"rates": made}
    assert since is not None
    assert since < now
