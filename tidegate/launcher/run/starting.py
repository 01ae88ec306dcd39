"""Starts the queries of a run, or lets its program start them: only as long as the fence allows the run.

Just before a query's first write the fence is checked, and a query without a checkpoint gets one.

A driver that runs the job sees a newer fence before the order that comes with it: to pause, or to stop. A script that
starts a query again just then waits for the order. It would end otherwise, and cut off the batches of its other
queries; and in a handover, this driver may have to go on.
"""

from __future__ import annotations

import time
from typing import Any

from tidegate.launcher.control.files import Control, Token
from tidegate.launcher.handover.turn import StartedQuery, Turn
from tidegate.launcher.queries.checkpoints import CheckpointPlaces
from tidegate.launcher.queries.query_start import Fenced, PendingQuery, QueryStart
from tidegate.launcher.queries.run_queries import RunQueries
from tidegate.launcher.reports.driver_log import DriverLog
from tidegate.launcher.reports.driver_run import DriverRun
from tidegate.launcher.reports.progress import MANY_QUERIES

ORDER_SECONDS = 60.0
"""How long a start waits for the order: there may be none, if nobody knows of this driver any more."""
_LOOK_SECONDS = 0.1


class QueryStarter:
    """Starts queries, and reports them. Whoever starts one holds the turn's lock."""

    def __init__(self, control: Control, run: DriverRun, turn: Turn, queries: RunQueries, log: DriverLog) -> None:
        self._control = control
        self._run = run
        self._turn = turn
        self._queries = queries
        self._log = log
        self._places = CheckpointPlaces()
        self.context: Any = None
        """The SparkContext of the newest query; None before the first one."""

    def arrive(self) -> None:
        """Report the run; raise `Fenced` if a newer one is allowed, or if another driver was submitted as this one."""
        token, first = self._run.token, (self._control.running(self._run.token) or {}).get("submission_id")
        if first not in (None, self._run.submission_id):
            raise Fenced(f"run {token} must not start: driver {first} is that run")
        self._run.report(**({"waits": True} if self._turn.waits else {}))
        self.check_fence()

    def check_fence(self) -> None:
        """Raise `Fenced` if a newer run is allowed, or if this one is already being stopped."""
        token, newer = self._run.token, self._newer()
        if newer is not None:
            raise Fenced(f"run {token} must not start a query: {self._control.place} allows only run {newer}")
        if self._run.stopping.is_set():
            raise Fenced(f"run {token} is being stopped and must not start another query")

    def prepare(self, how: QueryStart) -> None:
        """Check the fence for a query that a script starts, now or later, and give it a checkpoint."""
        self._await_order()
        with self._turn.lock:
            self._admit(how.writer._spark.sparkContext)
            origin = self._log.attempt("see which query it is", lambda: how.origin) or ""
            self._log.attempt("give the query a checkpoint", self._places.place, how, origin)

    def allow(self, context: Any, session: Any, statement: Any) -> str | None:
        """Check the fence for a query that a main class starts; return a place for its checkpoint if it has none.

        `session` and `statement` are the JVM's: a SparkSession, and the plan that Spark makes of the start.
        """
        with self._turn.lock:
            self._admit(context)
            of_statement = self._places.of_statement
            place: str | None = self._log.attempt("give the query a checkpoint", of_statement, session, statement)
        return place

    def _newer(self) -> Token | None:
        """Return the newer run that is allowed, if there is one."""
        held = self._control.fence(newest=True)
        return held[0] if held is not None and held[0] > max(self._run.token, self._turn.taken_back) else None

    def _await_order(self) -> None:
        """Wait for the order that comes with a newer fence, and for the end of the pause, if it is to pause."""
        until = time.monotonic() + ORDER_SECONDS
        while self.context is not None and self._newer() and not self._turn.over:
            if not (self._turn.holding or self._turn.waits) and time.monotonic() > until:
                return
            time.sleep(_LOOK_SECONDS)

    def _admit(self, context: Any) -> None:
        """Check the fence, and report the application of a query that is about to start."""
        self.check_fence()
        self.context = context
        self._run.report_application(context)

    def start_in_turn(self, how: QueryStart) -> Any:
        """Start a query as soon as no query is held for another driver."""
        while self._turn.wait_until_released(None) and not self._turn.over:
            with self._turn.lock:  # an order that comes now waits for the new query and does not miss it
                if not self._turn.holding:
                    return self.start(how)
        raise self._turn.not_come()

    def start(self, how: QueryStart, handle: PendingQuery | None = None) -> Any:
        """Start a query, behind the handle that the script has, if it has one; the caller holds the lock."""
        self.check_fence()
        query = how()
        if handle is not None:
            handle._jsq = query._jsq
            query = handle
        self._log.attempt("remember the checkpoint", self._places.started, how, query)
        if how.surroundings is None:  # the script may use the writer and its session again before a resume
            how = self._log.attempt("keep how the query was started", how.on_its_own) or how
        self._turn.remember(StartedQuery(query, how))
        self._remember(query)
        return query

    def take_in(self, queries: list[Any]) -> None:
        """Take in queries that the program has started by itself."""
        if queries:
            with self._turn.lock:
                for query in queries:
                    self._remember(query)

    def _remember(self, query: Any) -> None:
        self._queries.add(query)
        self._log.attempt("report the query", self._report, query)

    def _report(self, query: Any) -> None:
        told = self._places.describe(query)
        again = {one["id"] for one in told}  # a script may stop a query and start it again, for ever
        known = [one for one in self._run.get("queries") if one["id"] not in again]
        if len(known) >= MANY_QUERIES:
            running = {one.id for one in self._queries.running()}
            known = [one for one in known if one["id"] in running]
        self._run.report(queries=[*known, *told])
