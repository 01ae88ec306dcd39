"""One run of a job inside its driver: puts its parts together, watches it, stops its queries, and ends the driver.

A thread watches for the stop marker and for orders of a handover; another one holds the executors at the ordered
number, and one flushes the event log.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, Protocol

from tidegate.launcher.control.files import Control, utc_now
from tidegate.launcher.handover.second_driver import SecondDriver
from tidegate.launcher.handover.turn import Turn
from tidegate.launcher.handover.warm_up import WarmUp
from tidegate.launcher.queries.query_start import FENCED, Fenced, QueryStart
from tidegate.launcher.queries.run_queries import RunQueries
from tidegate.launcher.reports.driver_log import DriverLog
from tidegate.launcher.reports.driver_run import DriverRun
from tidegate.launcher.reports.event_log import EventLogFlusher
from tidegate.launcher.reports.progress import RunProgress
from tidegate.launcher.run.sizing import LOOK_SECONDS, SizeKeeper
from tidegate.launcher.run.starting import QueryStarter
from tidegate.launcher.run.stopping import Stop
from tidegate.launcher.spark.executors import SparkExecutors

_WATCH_SECONDS = 0.1
_LEAVE_SECONDS = 5.0
"""How long a program may go on after its queries have ended."""


class Program(Protocol):
    """The user's program: a script or a main class. Its queries start only as its launch allows."""

    @property
    def hands_over(self) -> bool:
        """Whether its queries can be rehearsed by a second driver, and paused by a first one."""

    @property
    def waits(self) -> bool:
        """Whether its queries wait until another driver hands over."""

    def context(self) -> Any | None:
        """Return the SparkContext of its application; None while there is none."""

    def run(self, launch: Launch) -> None:
        """Run it to its end. If it fails, tell the launch why, and raise."""

    def new_queries(self) -> list[Any]:
        """Return the queries that have started since the last call, unless the program has told the launch of them."""

    def prepare_to_stop(self) -> None:
        """Keep the program from ending the driver while its queries end; wait for starts that are under way."""

    def stopped(self) -> None:
        """Let the program end the driver again: its queries have ended."""

    def end(self, code: int) -> None:
        """End the driver with an exit code, whatever the program does."""


class Launch:
    """One run of a job inside its driver."""

    def __init__(self, control: Control, run: DriverRun, program: Program, log: DriverLog) -> None:
        self._control = control
        self._program = program
        self._log = log
        self.say = log.say
        self.run = run
        self.turn = Turn(control, run, log, waits=program.waits)
        self.queries = RunQueries(run)
        self.starter = QueryStarter(control, run, self.turn, self.queries, log)
        warm_up = WarmUp(control, run, self.turn, log)
        self.second = SecondDriver(self.turn, warm_up, self.starter.start, self.leave, log)
        self._progress = RunProgress(control, run.token)
        self._ended = threading.Event()

    def start_query(self, start: Callable[..., Any], writer: Any, *args: Any, **kwargs: Any) -> Any:
        """Start a query of a script as soon as this driver may; or keep it until then, and return a handle of it."""
        script = traceback.extract_stack(limit=3)[0]
        how = QueryStart(start, writer, args, kwargs, line=f"{script.filename}:{script.lineno}")
        try:
            self.starter.prepare(how)
            taken = self.second.take(how)
            return self.starter.start_in_turn(how) if taken is None else taken
        except Fenced as fenced:
            self._log.complain(fenced.text)
            raise

    def watch(self) -> None:
        """Wait for the stop marker, then stop all queries. Runs in its own thread until the driver ends."""
        attempt = self._log.attempt
        while (asked := attempt("read the stop marker", self._control.seconds_to_stop, self.run.token)) is None:
            attempt("see new queries", self._see_new_queries)
            attempt("report that the queries are idle", self.queries.report_idle)
            attempt("report progress", self._report_progress)
            if self._program.hands_over:
                attempt("read or answer an order", self.turn.look)
            time.sleep(_WATCH_SECONDS)
        attempt("stop the queries", self._stop, asked)
        self._ended.set()
        self._end_driver("its queries have ended", 0)

    def flush_log(self) -> None:
        """Flush the event log again and again until a stop. Runs in its own thread: a file system may not answer."""
        flusher = EventLogFlusher(self._program.context, self._log.say)
        while not self.run.stopping.wait(_WATCH_SECONDS):
            flusher.flush()

    def hold_size(self) -> None:
        """Hold the executors at the ordered number until a stop. Runs in its own thread."""
        keeper = SizeKeeper(self._control, self._executors, self.queries.running, self.run.stopping)
        while not self.run.stopping.wait(LOOK_SECONDS):
            try:
                keeper.look(self.run.token)
            except Exception as error:  # noqa: BLE001 - the user's program must go on, whatever Spark or a disk says
                self._log.complain(f"cannot hold the ordered size: {type(error).__name__}: {error}")

    def finish(self) -> None:
        """After the program has ended, wait for a stop in progress, so that the exit does not cut off a batch."""
        self._log.attempt("report failed queries", self.queries.report_failures)
        self.wait_for_stop()

    def wait_for_stop(self) -> None:
        """Wait for a stop in progress, if there is one."""
        if self.run.stopping.is_set():
            self._ended.wait()

    def leave(self, failure: BaseException) -> None:
        """End the driver if the program goes on although its queries cannot be started."""
        fenced = isinstance(failure, Fenced)
        if not fenced:
            self.run.report_failure(failure)
        if not self.run.stopping.is_set():  # or the driver ends anyway, once those that run have ended
            self._end_driver("its queries could not be started", FENCED if fenced else 1)

    def _executors(self) -> SparkExecutors | None:
        context = self._program.context()
        return None if context is None else SparkExecutors(context)

    def _see_new_queries(self) -> list[Any]:
        """Take in the queries that the program has started by itself; return them."""
        new = self._program.new_queries()
        self.starter.take_in(new)
        return new

    def _report_progress(self) -> None:
        """Report now and then how far the queries have come, and why those that have failed did."""
        if self._progress.token != self.run.token:  # after a handover: the newer run has not committed yet
            self._progress = RunProgress(self._control, self.run.token)
        if self.starter.context is None or not self._progress.due:
            return
        self.queries.report_failures()
        self._progress.look(self.starter.context, self.queries.known())

    def _stop(self, seconds: float) -> None:
        """End all queries, also those that were just being started, and write how they ended."""
        self._log.say(f"run {self.run.token} must stop within {seconds:g} s")
        self.run.stopping.set()
        with self.turn.lock:
            queries = [query for query in self.queries.known() if not self.turn.holds(query)]
        self.turn.end()
        self._log.attempt("keep the program from ending the driver", self._program.prepare_to_stop)
        try:
            stop = Stop(seconds, self.run, self.starter.context, self._log)
            stop.end(queries + (self._log.attempt("see new queries", self._see_new_queries) or []))
            facts = {**stop.facts, "stopped_at": utc_now()}
            self._log.attempt("write how the queries ended", self._control.write_stopped, self.run.token, facts)
        finally:
            self._log.attempt("let the program end the driver", self._program.stopped)

    def _end_driver(self, why: str, code: int) -> None:
        """End the driver if its program goes on for too long."""
        time.sleep(_LEAVE_SECONDS)
        self._log.say(f"the program still runs {_LEAVE_SECONDS:g} s after {why}: ending the driver")
        sys.stdout.flush()
        sys.stderr.flush()
        self._program.end(code)
