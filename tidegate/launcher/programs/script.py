"""A PySpark script: runs unchanged in the launcher's own Python, with every start of a query wrapped.

`runpy` runs it as `__main__`, with its own `sys.argv` and its own folder on the import path. The launcher's modules are
taken out of `sys.modules` first, so the script may bring packages of the same names. What a script can learn about the
end of its queries is wrapped too, so that it does not notice a handover, and what ends them (see `waits.py`).
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.readwriter import DataStreamWriter

from tidegate.launcher.programs.session import keep_settings, refuse_connect
from tidegate.launcher.programs.waits import patch_waits
from tidegate.launcher.queries.query_start import Fenced
from tidegate.launcher.run.launch import Launch
from tidegate.launcher.spark.executors import active_context


class Script:
    """The program of a job in Python."""

    hands_over = True

    def __init__(self, path: str, args: Sequence[str], *, waits: bool = False) -> None:
        self._path = path
        self._args = args
        self.waits = waits

    def context(self) -> Any | None:
        """Return the script's SparkContext; None while there is none."""
        return active_context()

    def run(self, launch: Launch) -> None:
        """Run the script until it ends, and until those of its queries have started that another driver gives away."""
        _patch(launch)
        self._make_way()
        try:
            runpy.run_path(self._path, run_name="__main__")
            launch.second.wait_for_taken()
        except BaseException as failure:
            if not _is_success(failure):
                launch.run.report_failure(failure)
            raise

    def new_queries(self) -> list[Any]:
        """Return nothing: the wrapped start tells the launch."""
        return []

    def prepare_to_stop(self) -> None:
        """Do nothing: a start holds the launch's lock, and the launcher's main waits for the stop."""

    def stopped(self) -> None:
        """Do nothing."""

    def end(self, code: int) -> None:
        """End the Python process; the JVM that started it follows."""
        os._exit(code)

    def _make_way(self) -> None:
        """Give the script the arguments, the import path and the free module names it has when Python runs it."""
        sys.argv = [self._path, *self._args]
        sys.path[0] = str(Path(self._path).resolve().parent)
        for name in [name for name in sys.modules if name.partition(".")[0] == "tidegate"]:
            del sys.modules[name]


def _patch(launch: Launch) -> None:
    """Wrap every way to start a streaming query, and to make a session."""
    for name in ("start", "toTable"):
        original = getattr(DataStreamWriter, name)

        def wrapped(writer: Any, *args: Any, _original: Callable[..., Any] = original, **kwargs: Any) -> Any:
            return launch.start_query(_original, writer, *args, **kwargs)

        setattr(DataStreamWriter, name, wrapped)
    keep_settings(launch.say, launch.run.explain_missing)
    refuse_connect()
    patch_waits(launch.turn, launch.second, launch.wait_for_stop)


def _is_success(end: BaseException) -> bool:
    """Return whether a script ended as it meant to: by `sys.exit()`, or because a newer run is allowed."""
    return isinstance(end, Fenced) or (isinstance(end, SystemExit) and end.code in (None, 0))
