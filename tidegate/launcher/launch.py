"""The launcher's main: check the fence, and run the user's script with its queries under control (see `run.py`).

    spark-submit <conf> launcher/__main__.py --control-dir D --job-id J --epoch E --run R --parallelism N SCRIPT ARGS…

`runpy` runs the script unchanged, as `__main__`, with its own `sys.argv` and its own folder on the import path. The
launcher's modules are taken out of `sys.modules` first, so the script may bring packages of the same names. Only the
start of a query is wrapped, and what a script can learn about its end. With `--handover`, the driver warms up, and the
queries start when its turn has come (see `second.py`). If the script or one of its queries fails, the reason is
reported, and the exception goes its way.
Exit codes: those of the script; 75 (`FENCED`) when a newer run is allowed, 2 for wrong arguments.
"""

from __future__ import annotations

import argparse
import runpy
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.readwriter import DataStreamWriter

from tidegate.launcher.control import Control, Token, utc_now
from tidegate.launcher.run import Launch
from tidegate.launcher.starts import FENCED, Fenced
from tidegate.launcher.waits import patch_waits


def patch(launch: Launch) -> None:
    """Wrap every way to start a streaming query."""
    for name in ("start", "toTable"):
        original = getattr(DataStreamWriter, name)

        def wrapped(writer: Any, *args: Any, _original: Callable[..., Any] = original, **kwargs: Any) -> Any:
            return launch.start_query(_original, writer, *args, **kwargs)

        setattr(DataStreamWriter, name, wrapped)
    patch_waits(launch.turn, launch.second)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Return the arguments; exit with 2 and a message if they are wrong."""
    parser = argparse.ArgumentParser(prog="launcher", description="Runs a PySpark script under Tidegate.")
    parser.add_argument("--control-dir", required=True, help="folder that the actuator and the driver share")
    parser.add_argument("--job-id", required=True, help="the job that the script runs")
    parser.add_argument("--epoch", type=int, required=True, help="epoch of the command that starts this run")
    parser.add_argument("--run", type=int, default=1, help="number of this start of the command (default 1)")
    parser.add_argument("--parallelism", type=int, required=True, help="size of the job in task slots")
    parser.add_argument("--handover", action="store_true", help="warm up, then wait for another driver to hand over")
    parser.add_argument("script", help="PySpark script to run")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="arguments of the script")
    found = parser.parse_args(argv)
    if found.epoch < 0 or found.run < 1 or found.parallelism < 1:
        given = f"--epoch {found.epoch} --run {found.run} --parallelism {found.parallelism}"
        parser.error(f"{given}: the epoch must be at least 0, the others at least 1")
    if not Path(found.script).is_file():
        parser.error(f"script {found.script!r}: there is no such file on this machine")
    return found


def main(argv: Sequence[str]) -> int:
    """Run a script until it ends; return the driver's exit code."""
    found = parse(argv)
    token = Token(found.epoch, found.run)
    control = Control(found.control_dir, found.job_id)
    launch = Launch(control, token, found.parallelism, _say, handover=found.handover)
    try:
        launch.report()
        launch.check_fence()
    except Fenced as fenced:
        _say(fenced.text)
        return FENCED
    patch(launch)
    threading.Thread(target=launch.watch, name="tidegate-stop", daemon=True).start()
    threading.Thread(target=launch.hold_size, name="tidegate-size", daemon=True).start()
    _make_way(found.script, found.args)
    try:
        runpy.run_path(found.script, run_name="__main__")
        launch.second.wait_for_taken()
    except BaseException as failure:
        if not _is_success(failure):
            launch.report_failure(failure)
        raise
    finally:
        launch.finish()
    return 0


def _is_success(end: BaseException) -> bool:
    """Return whether a script ended as it meant to: by `sys.exit()`, or because a newer run is allowed."""
    return isinstance(end, Fenced) or (isinstance(end, SystemExit) and end.code in (None, 0))


def _make_way(script: str, args: list[str]) -> None:
    """Give the script the arguments, the import path and the free module names it has when Python runs it directly."""
    sys.argv = [script, *args]
    sys.path[0] = str(Path(script).resolve().parent)
    for name in [name for name in sys.modules if name.partition(".")[0] == "tidegate"]:
        del sys.modules[name]


def _say(text: str) -> None:
    print(f"{utc_now()} tidegate launcher: {text}", file=sys.stderr, flush=True)
