"""A driver's part in a handover: the second driver waits for its turn, the first one gives its turn away.

The *second* driver runs the script, but keeps its queries from starting (see `second_driver.py`). It rehearses them,
says so in `ready-…`, and waits until `go` names it. Only then do its queries start.

The *first* driver is told to `hold`. It stops its queries at a batch boundary and says so in `paused-…`, but the script
must not notice: to it, a held query is still active, and whoever waits for its end goes on waiting. If the second
driver fails, `go` names the first one: it starts the same queries again from their checkpoints, and puts them behind
the script's own handles. If the second one succeeds, the stop marker ends the first driver.

If a query reaches no batch boundary in time, or `go` names the first driver before it does, no batch is broken: all
queries go on, and `paused-…` says so.

Neither driver waits for ever. A second driver that is not let go ends after `WAIT_SECONDS`. A first driver that nobody
lets go for `FORGOTTEN_SECONDS` resumes by itself. Each order to pause is one *turn*, which can be taken once: by the
second driver when it is let go, or by the first one when it was forgotten. A file that only one of them can create
decides, so the two never run at the same time, however late a permission comes.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from typing import Any

from tidegate.launcher.control.files import Control, HandoverOrder, Token
from tidegate.launcher.queries.query_start import Fenced, QueryStart
from tidegate.launcher.reports.driver_log import DriverLog
from tidegate.launcher.reports.driver_run import DriverRun
from tidegate.launcher.reports.progress import last_batch
from tidegate.launcher.spark.boundary import end_at_boundary

FORGOTTEN_SECONDS = 60.0
"""How long the first driver stays paused if nobody takes its turn: an actuator that goes on needs a moment for that."""
_TRY_SECONDS = 1.0
_LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class StartedQuery:
    """A query of the script's, and how to start it again."""

    query: Any
    how: QueryStart

    def again(self) -> None:
        """Start the query from its checkpoint, behind the handle that the script has."""
        self.query._jsq = self.how()._jsq


class Turn:
    """Whether this driver may run queries now, and those it has started."""

    def __init__(self, control: Control, run: DriverRun, log: DriverLog, *, waits: bool) -> None:
        self._control = control
        self._run = run
        self._log = log
        self.waits = waits
        """Whether this is a second driver whose turn has not come yet."""
        self._jvm_pid = os.getppid()
        self._started: list[StartedQuery] = []
        self._held: dict[str, StartedQuery] = {}
        self._held_since = 0.0
        self._held_for: list[Token] = []
        """The orders under which the queries are paused."""
        self.taken_back = run.token
        """Up to which fence this driver may start queries, as it was forgotten and has taken its turn back."""
        self.holding = False
        """Whether the queries are paused for another driver, or being paused."""
        self.resumed = 0
        """How often queries were resumed."""
        self._ends = False
        self.lock = threading.Lock()
        """Whoever starts a query holds it, and looks at `holding` first."""

    @property
    def over(self) -> bool:
        """Whether the driver is to end, or its JVM is gone: Spark starts the driver's Python process from its JVM."""
        return self._ends or os.getppid() != self._jvm_pid

    def end(self) -> None:
        """Hold nothing any more: the driver is to end."""
        self._ends = True

    def remember(self, started: StartedQuery) -> None:
        """Remember a query that was just started, in place of an earlier run and of those that have ended.

        Each has a session of its own in the JVM. The caller holds the lock.
        """
        others = (other for other in self._started if other.query.id != started.query.id)
        self._started = [*(other for other in others if other.query.isActive), started]

    def look(self) -> None:
        """Obey new orders; to be called several times a second."""
        if self._was_forgotten():  # first: the files of orders may be broken
            self._resume()
        order = self._control.hold()
        if order is not None and self._is_new(order) and self._control.paused(order.token) is None:
            self._pause(order)
        if not self.waits and self.may_go() and self.holding:
            self._resume()

    def held(self) -> list[Any]:
        """Return the queries that are paused."""
        return [started.query for started in self._held.values()]

    def holds(self, query: Any) -> bool:
        """Whether a query is paused for another driver."""
        return self.holding and query.id in self._held and not self.over

    def drop(self, query: Any) -> None:
        """Do not resume a query: the script itself stops it."""
        if self.holding:
            self._held.pop(query.id, None)

    def renew(self, query: Any) -> bool:
        """Put the newest run of a query behind a handle of the script's; return whether it is another one."""
        with self.lock:
            newest = next((started for started in reversed(self._started) if started.query.id == query.id), None)
        if newest is None or newest.query._jsq == query._jsq:
            return False
        query._jsq = newest.query._jsq
        return True

    def wait_until_released(self, deadline: float | None) -> bool:
        """Wait until no query is held or the driver is to end; False if the deadline comes first."""
        while self.holding and not self.over:
            if deadline is not None and time.monotonic() >= deadline:
                return False
            time.sleep(_LOOK_SECONDS)
        return True

    def may_go(self) -> bool:
        """Whether a new `go` names this driver; if so, it now is the run that `go` says."""
        order = self._control.go()
        if order is None or not self._is_new(order):
            return False
        fence = self._control.fence(newest=True)
        if fence is not None and fence[0] > order.token:
            return False
        if self.waits and not self._control.take_turn(order.token, self._run.submission_id):
            self._log.say(f"run {order.token} comes too late: the first driver goes on")
            self.end()
            return False
        self._run.adopt(order.token)
        return True

    def not_come(self) -> Fenced:
        """Return what ends a driver whose turn has not come."""
        return Fenced(f"run {self._run.token} must not start a query: its turn has not come")

    def _was_forgotten(self) -> bool:
        """Take this driver's turn back if nobody has taken it for a while; return whether it is this driver's again."""
        if not self.holding or time.monotonic() < self._held_since + FORGOTTEN_SECONDS:
            return False
        if not all(self._control.take_turn(token, self._run.submission_id) for token in self._held_for):
            return False
        self._log.say(f"run {self._run.token} was paused and forgotten: it goes on")
        self.taken_back = max(self._held_for)
        return True

    def _is_new(self, order: HandoverOrder) -> bool:
        """Whether an order is for this driver, and newer than the one under which it runs."""
        return order.submission_id == self._run.submission_id and order.token > self._run.token

    def _pause(self, order: HandoverOrder) -> None:
        """Pause all queries if they come to a boundary in time, and say whether they did."""
        if order.token not in self._held_for:  # the answer to an earlier try may not have been written
            self._held_for.append(order.token)
        self._hold(time.monotonic() + order.deadline_seconds)
        self._held_since = time.monotonic()
        last = {id_: last_batch(started.query) for id_, started in self._held.items()}
        self._control.write_paused(order.token, {"paused": self.holding, "queries": last})

    def _hold(self, deadline: float) -> None:
        """Pause all queries; if one does not come to a boundary, resume the others."""
        if self.holding:
            return
        self.holding = True
        with self.lock:
            queries = {started.query.id: started for started in self._started if started.query._jsq.isActive()}
        self._held = dict(queries)
        self._log.say(f"run {self._run.token} pauses {len(queries)} queries")
        running = self._still_running(queries, deadline)
        if running:
            for id_ in running:  # not all of `queries` again: the script may have stopped one meanwhile
                self._held.pop(id_, None)
            self._resume()

    def _still_running(self, queries: dict[str, StartedQuery], deadline: float) -> set[str]:
        """End queries at a batch boundary; return the ids of those that go on, because none came in time."""
        running = set(queries)

        def end(id_: str) -> None:
            while time.monotonic() < deadline and not self._asked_to_stop() and not self._taken_back():
                if end_at_boundary(queries[id_].query, min(deadline, time.monotonic() + _TRY_SECONDS)):
                    running.discard(id_)
                    return

        threads = [threading.Thread(target=end, args=(id_,), daemon=True) for id_ in queries]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return running

    def _asked_to_stop(self) -> bool:
        seconds = self._log.attempt("read the stop marker", self._control.seconds_to_stop, self._run.token)
        return seconds is not None

    def _taken_back(self) -> bool:
        """Whether this driver is told to go on before it has paused."""
        order = self._control.go()
        return order is not None and self._is_new(order) and order.token > self._held_for[-1]

    def _resume(self) -> None:
        for started in self._held.values():
            try:
                started.again()
            except Exception as error:  # noqa: BLE001 - the actuator must hear of it, and the others must go on
                self._log.say(f"a query could not be resumed: {error}")
                self._run.report_failure(error)
        for started in list(self._held.values())[:1]:
            started.how.writer._spark.streams.resetTerminated()  # or waiting for any query would end now
        self._held = {}
        self._held_for = []
        self.resumed += 1
        self.holding = False
