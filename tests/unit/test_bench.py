"""The program that runs the benchmarks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest

import bench.__main__ as program
from bench import many_changes, month, random_changes
from bench.table import BenchRow
from tests.support.programs import ROOT
from tidegate.runtime.poll import wait_until
from tidegate.stack.processes import inherited

KNOWN = SimpleNamespace(main=lambda: [BenchRow("pace", "5/s", "", 5, 4)], __doc__="The first.")


def note_how_it_ends() -> None:
    """Be a benchmark that takes long and has something to end."""
    try:
        Path("started").touch()
        time.sleep(60)
    finally:
        Path("ended").touch()


class Here:
    """Runs a benchmark in this process."""

    def __init__(self, *_args: object, **_more: object) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def submit(self, work: Callable[[], Any]) -> Future[Any]:
        """Return the outcome."""
        done: Future[Any] = Future()
        done.set_result(work())
        return done


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_benchmark_that_fails_does_not_cost_the_rows_of_those_before(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run takes hours: what was measured is printed, also on Ctrl-C."""

    def fail() -> None:
        raise error("no Java")

    known = {
        "first": KNOWN,
        "second": SimpleNamespace(main=fail, __doc__="The second."),
    }
    monkeypatch.setattr(program, "benchmarks", lambda: known)
    monkeypatch.setattr(program, "ProcessPoolExecutor", Here)
    monkeypatch.setattr(sys, "argv", ["bench"])
    with pytest.raises(error):
        program.main()
    assert "pace  5/s" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "measure", "run", "options"),
    [
        ("month", "main", lambda: month._run(lambda _size: []), ["--jobs", "--days", "--interval"]),
        ("many_changes", "grow_together", many_changes.run, ["--jobs", "--slots"]),
        ("random_changes", "main", random_changes.run, ["--changes"]),
    ],
)
def test_a_benchmark_of_nothing_is_refused_before_anything_starts(
    name: str, measure: str, run: Callable[[], int], options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would meet its bars."""
    monkeypatch.setattr(f"bench.{name}.{measure}", lambda *_args: [])
    for option in options:
        for number in ("0", "-3"):
            monkeypatch.setattr(sys, "argv", [name, option, number])
            with pytest.raises(SystemExit, match="2"):
                run()


def test_the_program_runs_a_benchmark_as_make_bench_does(tmp_path: Path) -> None:
    """By `python -m bench`, in which a process of a benchmark's own finds nothing that the program itself defines."""
    (tmp_path / "quick.py").write_text(
        '"""A quick one."""\nfrom bench.table import BenchRow\n'
        'def main():\n    return [BenchRow("pace", "5/s", "", 5.0, 1.0)]\n'
    )
    (tmp_path / "sitecustomize.py").write_text(f"import bench\nbench.__path__.append({str(tmp_path)!r})\n")
    ours = {**inherited(), "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "bench", "quick"]
    ran = subprocess.run(command, cwd=tmp_path, env=ours, capture_output=True, text=True, timeout=200, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "pace  5/s" in ran.stdout


@pytest.mark.parametrize("where", ["foreground", "background"])
def test_a_benchmark_ends_with_the_program_that_was_ended(tmp_path: Path, where: str) -> None:
    """SIGTERM or SIGKILL of the program alone, such as that of `timeout`, leaves nothing running."""
    script = (
        "import types; import bench.__main__ as program; from tests.unit import test_bench\n"
        "program.benchmarks = lambda: {'long': types.SimpleNamespace(main=test_bench.note_how_it_ends)}\n"
        "program.main()\n"
    )
    started, ended = tmp_path / "started", tmp_path / "ended"
    ours = {**inherited(), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", script, "long"]
    if where == "background":  # as a shell starts it there
        command = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command]
    with subprocess.Popen(command, cwd=tmp_path, env=ours, stderr=subprocess.DEVNULL, start_new_session=True) as ran:
        try:
            assert wait_until(started.exists, 30)
            ran.kill()
            ran.wait()
            assert wait_until(ended.exists, 30)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(ran.pid, signal.SIGKILL)
