"""A second driver before its turn: takes the script's queries, rehearses them, and starts all of them when let go.

If the script waited at its first `start`, its other queries would be cold at the handover, and start one after the
other. So it is let past: it gets a handle of a query that is started later, and goes on to its next one. Whoever uses
such a handle waits until the query has started; to the script, that is as if `start` had taken so long. The queries are
all there once the script waits for one of them, or for a while no other has come.

The script is not let past the start of a query without a commit, nor of one with a memory sink: it may go on to use a
table that is not there before the query has started.

When the driver is let go, the queries start in the script's order, each with the settings that it found. If one cannot
be started, neither are those after it; the script learns that from its handles, and the driver ends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from tidegate.launcher.control.json_files import ControlError
from tidegate.launcher.handover.turn import Turn
from tidegate.launcher.handover.warm_up import TakenQueries, WarmUp
from tidegate.launcher.queries.checkpoints import has_committed, private_field
from tidegate.launcher.queries.query_start import Fenced, PendingQuery, QueryStart
from tidegate.launcher.reports.driver_log import DriverLog

GO_SECONDS = 0.02
"""Between two looks at whether it is this driver's turn: they add to the time without commits."""
WAIT_SECONDS = 900.0
"""How long the driver waits for its turn before it ends: nobody may be left to give it."""
_TRY_SECONDS = 1.0
_LOOK_SECONDS = 0.1


class SecondDriver:
    """What a driver does until its turn has come; nothing, if it does not have to wait for that."""

    def __init__(
        self,
        turn: Turn,
        warm_up: WarmUp,
        start: Callable[[QueryStart, PendingQuery], Any],
        leave: Callable[[BaseException], None],
        log: DriverLog,
    ) -> None:
        """`start` starts a query behind its handle, and `leave` ends a driver whose queries cannot be started."""
        self._turn = turn
        self._warm_up = warm_up
        self._start = start
        self._leave = leave
        self._log = log
        self._taken = TakenQueries()
        self._over = threading.Event()
        self._failure: BaseException | None = None
        if not turn.waits:
            self._over.set()

    def take(self, how: QueryStart) -> PendingQuery | None:
        """Take a query, and return the script's handle; None if the script may start the query itself."""
        own = self._past(how) if self._turn.waits else None
        with self._turn.lock:
            if not self._turn.waits:
                return None
            query = PendingQuery(own or how, self.wait)
            self._taken.add(query)
            if len(self._taken.queries) == 1:
                threading.Thread(target=self._work, name="tidegate-second", daemon=True).start()
        if own is None:
            self.wait()
        return query

    def wait(self) -> None:
        """Wait until the queries have started; raise why they have not."""
        self._taken.script_waits.set()
        while not self._over.wait(_LOOK_SECONDS):
            if self._turn.over:
                raise self._turn.not_come()
        if self._failure is not None:
            raise self._failure

    def wait_for_taken(self) -> None:
        """Wait until the queries have started, if there are any yet."""
        if self._taken.queries:
            self.wait()

    def _past(self, how: QueryStart) -> QueryStart | None:
        """Return a start that the script cannot change if it may go on before the query has started."""
        try:
            sink = how.asked.get("format") or private_field(how.writer, "source")
            return how.on_its_own() if sink != "memory" and has_committed(how) else None
        except Exception as error:  # noqa: BLE001 - on a Spark of another kind, the script waits
            self._log.say(f"the script waits at the start of a query: {type(error).__name__}: {error}")
            return None

    def _work(self) -> None:
        try:
            self._warm_up.get_ready(self._taken)
            self._wait_for_go()
            self._start_all()
        except BaseException as error:  # noqa: BLE001 - the script gets it
            self._failure = error
            self._log.say(error.text if isinstance(error, Fenced) else f"a query could not be started: {error}")
        self._over.set()
        if self._failure is not None:
            self._leave(self._failure)

    def _wait_for_go(self) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline and not self._turn.over:
            try:
                if self._turn.may_go():
                    return
            except (ControlError, OSError) as error:  # the next look may succeed
                self._log.say(f"cannot see whose turn it is: {error}")
                time.sleep(_TRY_SECONDS)
            time.sleep(GO_SECONDS)
        raise self._turn.not_come()

    def _start_all(self) -> None:
        with self._turn.lock:  # an order that comes now waits for all queries and misses none
            self._turn.waits = False
            for query in self._taken.queries:
                self._start(query.how, query)
