"""One run of a job inside its driver: what it says about itself, the queries it starts, and how it stops them.

Just before a query's first write the fence is checked, and a query without a checkpoint gets one. A thread watches for
the stop marker and for orders of a handover; another one holds the executors at the ordered number.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from tidegate.launcher.checkpoints import CheckpointPlaces
from tidegate.launcher.control import STOP_EXTENSION, Control, ControlError, Token, utc_now
from tidegate.launcher.event_log import EventLogFlusher
from tidegate.launcher.executors import SparkExecutors, size_limits
from tidegate.launcher.facts import RunFacts
from tidegate.launcher.failure import explanation, secrets_of
from tidegate.launcher.handover import StartedQuery, Turn
from tidegate.launcher.program import Program
from tidegate.launcher.progress import RunProgress, running_batch
from tidegate.launcher.second import SecondDriver
from tidegate.launcher.sizing import LOOK_SECONDS, SizeKeeper
from tidegate.launcher.starts import FENCED, Fenced, PendingQuery, QueryStart
from tidegate.launcher.stopping import Stop

_WATCH_SECONDS = 0.1
_LEAVE_SECONDS = 5.0
"""How long a program may go on after its queries have ended."""


class Launch:
    """One run of a job inside its driver."""

    def __init__(
        self, control: Control, token: Token, program: Program, parallelism: int, say: Callable[[str], None]
    ) -> None:
        self._control = control
        self._program = program
        self._say = say
        self.parallelism = parallelism
        self._facts = RunFacts(control, token, parallelism, hands_over=program.hands_over)
        self.report = self._facts.report
        """Adds facts to what this run says about itself, and writes it."""
        self.turn = Turn(control, self, say, waits=program.waits)
        self.second = SecondDriver(control, self, self.turn, self._start, say)
        self._lock = self.turn.lock
        self._queries: list[Any] = []
        self._context: Any = None
        self._settings: list[tuple[str, str]] = []
        self._places = CheckpointPlaces()
        self._progress = RunProgress(control, token)
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._complaint = ""
        self._event_log = EventLogFlusher(program.context, say)

    def report_failure(self, failure: BaseException | str) -> None:
        """Say why the program or a query failed; a problem with that must not hide the failure itself."""
        try:
            text = failure if isinstance(failure, str) else "".join(traceback.format_exception_only(failure))
            self.report(error=self._explained(text))
        except Exception as error:  # noqa: BLE001 - the JVM may be gone
            self._complain(f"cannot report a failure: {error}")

    @property
    def token(self) -> Token:
        """The run that this driver is."""
        return self._facts.token

    @property
    def submission_id(self) -> str:
        """Its driver."""
        return str(self._facts.get("submission_id"))

    def adopt(self, token: Token) -> None:
        """Go on as a newer run."""
        self._facts.adopt(token)
        self._progress = RunProgress(self._control, token)

    def _explained(self, text: str) -> str:
        return explanation(text, secrets_of(os.environ, self._settings))

    def check_fence(self) -> None:
        """Raise `Fenced` if a newer run is allowed, or if this one is already being stopped."""
        held = self._control.fence(newest=True)
        if held is not None and held[0] > self.token:
            raise Fenced(f"run {self.token} must not start a query: {self._control.place} allows only run {held[0]}")
        if self._stopping.is_set():
            raise Fenced(f"run {self.token} is being stopped and must not start another query")

    def start_query(self, start: Callable[..., Any], writer: Any, *args: Any, **kwargs: Any) -> Any:
        """Check the fence, and start a query of the user's and remember it, as soon as this driver may."""
        try:
            return self._start_when_allowed(QueryStart(start, writer, args, kwargs))
        except Fenced as fenced:
            self._say(fenced.text)
            raise

    def _start_when_allowed(self, how: QueryStart) -> Any:
        with self._lock:
            self._prepare(how)
        taken = self.second.take(how)
        if taken is not None:
            return taken
        while self.turn.wait_until_released(None) and not self.turn.over:
            with self._lock:  # an order that comes now waits for the new query and does not miss it
                if not self.turn.holding:
                    return self._start(how)
        raise Fenced(f"run {self.token} must not start a query: its turn has not come")

    def allow_start(self, context: Any, session: Any, statement: Any) -> str | None:
        """Check the fence for a query that a main class starts; return a place for its checkpoint if it has none.

        `session` and `statement` are the JVM's: a SparkSession, and the plan that Spark makes of the start.
        """
        with self._lock:
            self._admit(context)
            place: str | None = self._try("give the query a checkpoint", self._places.of_statement, session, statement)
        return place

    def _prepare(self, how: QueryStart) -> None:
        self._admit(how.writer._spark.sparkContext)
        place = self._places.place
        self._try("give the query a checkpoint", place, how.function, how.writer, how.args, how.kwargs)

    def _admit(self, context: Any) -> None:
        """Check the fence, and report the application of a query that is about to start."""
        self.check_fence()
        self._context = context
        application_id = context.applicationId
        if application_id != self._facts.get("application_id"):  # a program may start a new session
            self._settings = context.getConf().getAll()  # a failure may be reported when the JVM is gone
            application = dict(self._settings).get("spark.tidegate.application")
            limits = size_limits(context)
            self.report(
                application_id=application_id, application=application, started_at=utc_now(), queries=[], **limits
            )

    def _start(self, how: QueryStart, handle: PendingQuery | None = None) -> Any:
        """Start a query, behind the handle that the script has, if it has one; the caller holds the lock."""
        self.check_fence()
        query = how()
        if handle is not None:
            handle._jsq = query._jsq
            query = handle
        self.turn.remember(StartedQuery(query, how))
        self._remember(query)
        return query

    def _remember(self, query: Any) -> None:
        self._queries.append(query)
        self._try("report the query", self._report_query, query)

    def _report_query(self, query: Any) -> None:
        told = self._places.describe(query)
        again = {one["id"] for one in told}  # a script may stop a query and start it again, for ever
        self.report(queries=[*(one for one in self._facts.get("queries") if one["id"] not in again), *told])

    def _see_new_queries(self) -> list[Any]:
        """Take in the queries that the program has started by itself; return them."""
        new = self._program.new_queries()
        if new:
            with self._lock:
                for query in new:
                    self._remember(query)
        return new

    def watch(self) -> None:
        """Wait for the stop marker, then stop all queries. Runs in its own thread until the driver ends."""
        while (asked := self.asked_to_stop()) is None:
            self._try("see new queries", self._see_new_queries)
            self._try("report that the queries are idle", self._report_idle)
            self._try("report progress", self._report_progress)
            if self._program.hands_over:
                self._try("read or answer an order", self.turn.look)
            time.sleep(_WATCH_SECONDS)
        self._say(f"run {self.token} must stop within {asked:g} s")
        self._stopping.set()
        with self._lock:
            queries = [query for query in self._queries if not self.turn.holds(query)]
        self.turn.end()
        self._stop(queries, asked)
        self._ended.set()
        self._leave("its queries have ended", 0)

    def leave(self, failure: BaseException) -> None:
        """End the driver if the program goes on although its queries cannot be started."""
        fenced = isinstance(failure, Fenced)
        if not fenced:
            self.report_failure(failure)
        if not self._stopping.is_set():  # or the driver ends anyway, once those that run have ended
            self._leave("its queries could not be started", FENCED if fenced else 1)

    def _leave(self, why: str, code: int) -> None:
        time.sleep(_LEAVE_SECONDS)
        self._say(f"the program still runs {_LEAVE_SECONDS:g} s after {why}: ending the driver")
        sys.stdout.flush()
        sys.stderr.flush()
        self._program.end(code)

    def flush_log(self) -> None:
        """Flush the event log again and again until a stop. Runs in its own thread: a file system may not answer."""
        while not self._stopping.wait(_WATCH_SECONDS):
            self._event_log.flush()

    def hold_size(self) -> None:
        """Hold the executors at the ordered number until a stop. Runs in its own thread."""
        keeper = SizeKeeper(self._control, self.token, self._executors, self._running_queries, self._stopping)
        while not self._stopping.wait(LOOK_SECONDS):
            keeper.token = self.token  # a handover changes it
            try:
                keeper.look()
            except Exception as error:  # noqa: BLE001 - the user's program must go on, whatever Spark or a disk says
                self._complain(f"cannot hold the ordered size: {type(error).__name__}: {error}")

    def _executors(self) -> SparkExecutors | None:
        context = self._program.context()
        return None if context is None else SparkExecutors(context)

    def _running_queries(self) -> list[Any]:
        with self._lock:
            queries = list(self._queries)
        return [query for query in queries if query.isActive]

    def finish(self) -> None:
        """After the program has ended, wait for a stop in progress, so that the exit does not cut off a batch."""
        self._try("report failed queries", self._report_failed_queries)
        if self._stopping.is_set():
            self._ended.wait()

    def asked_to_stop(self) -> float | None:
        """Return how many seconds this run has to stop, or None if no marker asks it to."""
        try:
            marker = self._control.stop_marker()
        except (ControlError, OSError) as error:  # the next look may succeed: a disk may come back
            self._complain(f"cannot read the stop marker: {error}")
            return None
        return marker[1] if marker is not None and marker[0] > self.token else None

    def _stop(self, queries: list[Any], seconds: float) -> None:
        """End `queries`, and those that were just being started, and write how they ended."""
        self._try("keep the program from ending the driver", self._program.prepare_to_stop)
        try:
            stop = Stop(seconds, lambda query: self._extend(query, seconds), self._explained)
            stop.end(queries + (self._try("see new queries", self._see_new_queries) or []))
            self._control.write_stopped(self.token, {**stop.facts, "stopped_at": utc_now()})
        except OSError as error:
            self._say(f"could not write how the queries ended: {error}")
        finally:
            self._try("let the program end the driver", self._program.stopped)

    def _extend(self, query: Any, seconds: float) -> float:
        """Return how much longer than `seconds` the running batch may take: something only if it is nearly done."""
        limit = seconds * STOP_EXTENSION
        try:
            batch = running_batch(self._context, query)
            remaining = None if batch is None else batch.remaining_seconds(time.time())
            if batch is None or remaining is None or remaining > limit:
                return 0.0
            self.report(stop_extended_seconds=limit)  # first: whoever waits for the stop must know
        except Exception as error:  # noqa: BLE001 - the query must be stopped, whatever this is
            self._complain(f"cannot tell how far the batch is: {error}")
            return 0.0
        self._say(
            f"batch {batch.batch_id} has finished {batch.done} of {batch.tasks} tasks and needs about {remaining:.0f} s"
            f" more: the stop waits for up to {limit:g} s longer"
        )
        return limit

    def _report_idle(self) -> None:
        """Report once that all queries are idle: without data, no batch will show that this run works."""
        if self._facts.get("idle_at") is None and self._all_idle():
            self.report(idle_at=utc_now())

    def _report_progress(self) -> None:
        """Report now and then how far the queries have come, and why those that have failed did."""
        if self._context is None or not self._progress.due:
            return
        self._report_failed_queries()
        with self._lock:
            queries = list(self._queries)
        self._progress.look(self._context, queries)

    def _report_failed_queries(self) -> None:
        """Report why queries have ended that have failed, and forget all that have ended."""
        with self._lock:
            queries = list(self._queries)
        ended = [query for query in queries if not query.isActive]
        for query in ended:
            failure = query.exception()
            if failure is not None:
                self.report_failure(str(failure))
        with self._lock:
            self._queries = [query for query in self._queries if query not in ended]

    def _try(self, what: str, action: Callable[..., Any], *args: Any) -> Any:
        """Do something that the program does not depend on, and return its result; None, and say so, if it fails."""
        try:
            return action(*args)
        except Exception as error:  # noqa: BLE001 - whatever it is, the program must not notice
            self._complain(f"cannot {what}: {error}")
            return None

    def _complain(self, text: str) -> None:
        """Print a problem, but not the same one twice in a row."""
        if text != self._complaint:
            self._say(text)
        self._complaint = text

    def _all_idle(self) -> bool:
        """Whether there are queries, none has failed, and all that run wait for data or for their next trigger."""
        with self._lock:
            queries = list(self._queries)
        return (
            bool(queries)
            and self._facts.get("error") is None
            and all(query.status["message"].startswith("Waiting for") for query in queries)
        )
