"""The launcher's main: check the fence, and run the user's program with its queries under control (see `run`).

    spark-submit <conf> launcher/__main__.py --control-dir D --job-id J --epoch E --run R --parallelism N SCRIPT ARGS…
    spark-submit <conf> launcher/__main__.py … --main-class CLASS JAR ARGS…

The program is a PySpark script or the main class of a jar, and runs unchanged (see `programs`). With `--handover`, the
driver warms up, and the queries start when its turn has come (see `handover`). If the program or one of its queries
fails, the reason is reported, and the exception goes its way.
Exit codes: those of the program; 75 (`FENCED`) when a newer run is allowed, 2 for wrong arguments.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from pyspark.version import __version__ as SPARK_VERSION  # noqa: N812 - a constant

from tidegate.launcher.control.files import Control, Token, utc_now
from tidegate.launcher.programs.main_class import MainClass
from tidegate.launcher.programs.script import Script
from tidegate.launcher.queries.query_start import FENCED, Fenced
from tidegate.launcher.reports.driver_log import DriverLog
from tidegate.launcher.reports.driver_run import DriverRun
from tidegate.launcher.reports.shipping import ship_event_logs
from tidegate.launcher.run.launch import Launch, Program
from tidegate.launcher.spark.hadoop import remote

PATIENCE_SECONDS = 120.0
"""How long a write to the control files, or a look at the fence, may wait for an API server or HDFS."""
_OLDEST_FOR_MAIN_CLASSES = 4
"""The first version of Spark whose analyzer can be given a rule that sees a start before its checkpoint is touched."""


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Return the arguments; exit with 2 and a message if they are wrong."""
    parser = argparse.ArgumentParser(prog="launcher", description="Runs a streaming program under Tidegate.")
    parser.add_argument(
        "--control-dir",
        required=True,
        help="where the control files are: a folder or its URI, or configmap:NAMESPACE",
    )
    parser.add_argument("--job-id", required=True, help="the job that the program runs")
    parser.add_argument("--epoch", type=int, required=True, help="epoch of the command that starts this run")
    parser.add_argument("--run", type=int, default=1, help="number of this start of the command (default 1)")
    parser.add_argument("--parallelism", type=int, required=True, help="size of the job in task slots")
    parser.add_argument("--handover", action="store_true", help="warm up, then wait for another driver to hand over")
    parser.add_argument("--event-log", help="object store to which Spark's event log is shipped, as s3a://bucket/path")
    parser.add_argument("--main-class", help="class of the jar to run; without it, a PySpark script is run")
    parser.add_argument("script", help="PySpark script to run, or the jar of the main class")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="arguments of the program")
    found = parser.parse_args(argv)
    if found.epoch < 0 or found.run < 1 or found.parallelism < 1:
        given = f"--epoch {found.epoch} --run {found.run} --parallelism {found.parallelism}"
        parser.error(f"{given}: the epoch must be at least 0, the others at least 1")
    if not Path(found.script).is_file():
        kind = "script" if found.main_class is None else "jar"
        parser.error(f"{kind} {found.script!r}: there is no such file on this machine")
    if found.main_class is not None and int(SPARK_VERSION.partition(".")[0]) < _OLDEST_FOR_MAIN_CLASSES:
        said = f"jobs in Scala or Java need Spark {_OLDEST_FOR_MAIN_CLASSES}.0 or later, and this is {SPARK_VERSION}"
        parser.error(f"--main-class {found.main_class}: {said}")
    if found.handover and found.main_class is not None:
        parser.error(f"--handover: the main class {found.main_class} cannot take over from another driver")
    return found


def main(argv: Sequence[str]) -> int:
    """Run a program until it ends; return the driver's exit code."""
    found = parse(argv)
    token = Token(found.epoch, found.run)
    control = Control.at(found.control_dir, found.job_id, patience_seconds=PATIENCE_SECONDS, open_folder=remote)
    program, log = _program(found), DriverLog(_say)
    run = DriverRun(control, token, found.parallelism, log, hands_over=program.hands_over)
    launch = Launch(control, run, program, log)
    try:
        launch.starter.arrive()
    except Fenced as fenced:
        _say(fenced.text)
        return FENCED
    threading.Thread(target=launch.watch, name="tidegate-stop", daemon=True).start()
    threading.Thread(target=launch.hold_size, name="tidegate-size", daemon=True).start()
    threading.Thread(target=launch.flush_log, name="tidegate-log", daemon=True).start()
    try:
        if found.event_log is not None:
            _ship_event_logs(found.event_log, run)
        program.run(launch)
    except Fenced:  # of a program that starts its query again whenever it has ended
        if not run.stopping.is_set():
            raise
    finally:
        launch.finish()
    return 0


def _ship_event_logs(place: str, run: DriverRun) -> None:
    try:
        ship_event_logs(place)
    except Exception as failure:
        run.report_failure(f"application.event_log_dir {place}: {failure}")
        raise


def _program(found: argparse.Namespace) -> Program:
    if found.main_class is None:
        return Script(found.script, found.args, waits=found.handover)
    return MainClass(found.main_class, found.args, _say)


def _say(text: str) -> None:
    print(f"{utc_now()} tidegate launcher: {text}", file=sys.stderr, flush=True)
