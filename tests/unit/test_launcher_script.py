"""The launcher as Spark runs it, by its path, with a script that starts no query."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery, StreamingQueryManager
from pyspark.sql.streaming.readwriter import DataStreamWriter

import tidegate
from tidegate import launcher
from tidegate.launcher.control.files import Control, Token
from tidegate.launcher.programs.script import Script

if TYPE_CHECKING:
    from tidegate.launcher.run.launch import Launch

PACKAGES = ("launcher", "engine", "schemas", "services", "runtime", "control", "tidegate")

SCRIPT = f"""
import json, sys
from importlib import import_module

files = {{name: import_module(name).__file__ for name in {PACKAGES!r}}}
print(json.dumps({{"files": files, "argv": sys.argv, "path": sys.path}}))
"""

AGAIN = """
import pathlib, time, types
from pyspark.sql.streaming.readwriter import DataStreamWriter

while not pathlib.Path("control-dir/rates/stopped-1-1.json").exists():
    time.sleep(0.01)
DataStreamWriter.start(types.SimpleNamespace(_spark=types.SimpleNamespace(sparkContext=None)))
"""
"""Starts a query while the run is being stopped."""


STARTS = """
from pyspark.sql.streaming.readwriter import DataStreamWriter

DataStreamWriter.start("writer", path="p")
DataStreamWriter.toTable("other", "t")
"""
"""Starts two queries."""

WRAPPED = (
    (DataStreamWriter, ("start", "toTable")),
    (StreamingQuery, ("awaitTermination", "stop", "isActive")),
    (StreamingQueryManager, ("awaitAnyTermination", "active", "get")),
    (SparkContext, ("stop", "_initialize_context")),
    (SparkSession.Builder, ("getOrCreate", "create")),
)


class FakeLaunch:
    """What a script's launch is asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.run = types.SimpleNamespace(report_failure=self.asked.append, explain_missing=self.asked.append)
        self.second = types.SimpleNamespace(wait_for_taken=lambda: self.asked.append("wait for taken"))
        self.turn = types.SimpleNamespace()
        self.say = self.wait_for_stop = lambda *_: None

    def start_query(self, start: Callable[..., Any], writer: Any, *args: Any, **kwargs: Any) -> Any:
        """Note the start."""
        self.asked.append((start, writer, args, kwargs))


@pytest.fixture
def fake_launch(monkeypatch: pytest.MonkeyPatch) -> FakeLaunch:
    """Return a launch for scripts in this process, whose wraps end with the test."""
    for of, names in WRAPPED:
        for name in names:
            monkeypatch.setattr(of, name, getattr(of, name))
    monkeypatch.setattr(Script, "_make_way", lambda _script: None)
    return FakeLaunch()


def _launched(script: Path) -> subprocess.CompletedProcess[str]:
    """Run the launcher with a script, far from the repository."""
    entry = Path(launcher.__file__).with_name("__main__.py")
    options = ["--control-dir", str(script.parent / "control-dir"), "--job-id", "rates", "--epoch", "1"]
    command = [sys.executable, str(entry), *options, "--parallelism", "2", str(script), "--limit", "7"]
    return subprocess.run(command, cwd=script.parent, capture_output=True, text=True, check=False, timeout=200)


def _run(script: Path) -> dict[str, object]:
    """Run the launcher with a script; return what the script printed."""
    ended = _launched(script)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, object] = json.loads(ended.stdout)
    return found


def test_a_script_finds_its_own_packages(tmp_path: Path) -> None:
    """Packages next to the script win, even those with names that Tidegate's tree has: `tidegate` itself included."""
    for name in PACKAGES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    found = _run(script)
    assert found["files"] == {name: str(tmp_path / name / "__init__.py") for name in PACKAGES}


def test_a_script_runs_as_if_python_ran_it(tmp_path: Path) -> None:
    """The script has its own arguments; its folder is first on the path, and the launcher's is not on it."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace(repr(PACKAGES), "('json',)"))
    found = _run(script)
    assert found["argv"] == [str(script), "--limit", "7"]
    path = found["path"]
    assert isinstance(path, list)
    assert path[0] == str(tmp_path)
    places = {Path(entry).resolve() for entry in path if entry}
    assert places & {Path(launcher.__file__).parent, Path(tidegate.__file__).parent} == set()


def test_a_script_that_fails_says_why(tmp_path: Path) -> None:
    """The exception ends the driver as ever, with its traceback, and its text is in the control directory."""
    script = tmp_path / "script.py"
    script.write_text("import os\nos.environ['API_TOKEN'] = 's3cr3t'\nraise ValueError('no topic for s3cr3t')\n")
    ended = _launched(script)
    assert ended.returncode == 1
    assert "ValueError: no topic for s3cr3t" in ended.stderr
    facts = json.loads((tmp_path / "control-dir" / "rates" / "running-1-1.json").read_text())
    assert facts["error"] == "ValueError: no topic for *****"


def test_a_script_that_exits_keeps_its_exit_code(tmp_path: Path) -> None:
    """An exit code other than 0 is a failure; `sys.exit()` is none."""
    script = tmp_path / "script.py"
    for code, error in ((0, None), (3, "SystemExit: 3")):
        script.write_text(f"import sys\nsys.exit({code})\n")
        assert _launched(script).returncode == code
        facts = json.loads((tmp_path / "control-dir" / "rates" / "running-1-1.json").read_text())
        assert facts.get("error") == error


def test_each_way_to_start_a_query_asks_the_launch(tmp_path: Path, fake_launch: FakeLaunch) -> None:
    """And all that a script could learn, or end, or change by itself is wrapped before it runs."""
    before = [(of, name, getattr(of, name)) for of, names in WRAPPED for name in names]
    start, to_table = DataStreamWriter.start, DataStreamWriter.toTable
    script = tmp_path / "script.py"
    script.write_text(STARTS)
    Script(str(script), []).run(cast("Launch", fake_launch))
    started = [(start, "writer", (), {"path": "p"}), (to_table, "other", ("t",), {})]
    assert fake_launch.asked == [*started, "wait for taken"]
    assert [(of, name) for of, name, was in before if getattr(of, name) is was] == []


@pytest.mark.parametrize(
    ("ends", "fails"),
    [
        ("raise ValueError('no topic')", True),
        ("import sys; sys.exit('no topic')", True),
        ("import sys; sys.exit(3)", True),
        ("import sys; sys.exit()", False),
        ("import sys; sys.exit(0)", False),
        ("from tidegate.launcher.queries.query_start import Fenced; raise Fenced('a newer run is allowed')", False),
    ],
)
def test_a_script_that_does_not_end_as_it_meant_to_has_failed(
    tmp_path: Path, fake_launch: FakeLaunch, ends: str, *, fails: bool
) -> None:
    """Nobody waits for queries then, and its end is what Python makes of it."""
    script = tmp_path / "script.py"
    script.write_text(ends)
    with pytest.raises((ValueError, SystemExit)) as ended:
        Script(str(script), []).run(cast("Launch", fake_launch))
    assert fake_launch.asked == ([ended.value] if fails else [])


def test_a_script_that_starts_its_query_again_ends_well_when_the_run_is_stopped(tmp_path: Path) -> None:
    """It does so whenever the query has ended. Otherwise the job would seem to have failed, although it was stopped."""
    script = tmp_path / "script.py"
    script.write_text(AGAIN)
    Control.at(tmp_path / "control-dir", "rates").request_stop(Token(2), "c", 5.0)
    ended = _launched(script)
    assert "run 1-1 is being stopped and must not start another query" in ended.stderr
    assert ended.returncode == 0, ended.stderr
