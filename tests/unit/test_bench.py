"""The program that runs the benchmarks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, Self

import pytest

import bench.__main__ as program
from bench.table import BenchRow


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
        "first": SimpleNamespace(main=lambda: [BenchRow("pace", "5/s", "", 5, 4)], __doc__="The first."),
        "second": SimpleNamespace(main=fail, __doc__="The second."),
    }
    monkeypatch.setattr(program, "benchmarks", lambda: known)
    monkeypatch.setattr(program, "ProcessPoolExecutor", Here)
    monkeypatch.setattr(sys, "argv", ["bench"])
    with pytest.raises(error):
        program.main()
    assert "pace  5/s" in capsys.readouterr().out
