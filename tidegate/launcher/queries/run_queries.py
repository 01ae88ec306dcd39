"""The queries of a run: those that its program has started, until they are seen to have ended."""

from __future__ import annotations

import threading
from typing import Any

from tidegate.launcher.control.files import utc_now
from tidegate.launcher.reports.driver_run import DriverRun
from tidegate.launcher.reports.progress import is_idle, last_batch


class RunQueries:
    """The queries of a run, and what it reports of their state. May be used by several threads."""

    def __init__(self, run: DriverRun) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._queries: list[Any] = []
        self._failed: dict[str, Any] = {}
        """What was reported of queries that failed, by id, until they work again: a script may start them again."""

    def add(self, query: Any) -> None:
        """Add a query that has started."""
        with self._lock:
            self._queries.append(query)

    def known(self) -> list[Any]:
        """Return the queries that have not been seen to end."""
        with self._lock:
            return list(self._queries)

    def running(self) -> list[Any]:
        """Return the queries that run."""
        return [query for query in self.known() if query.isActive]

    def report_idle(self) -> None:
        """Report once that all queries are idle: without data, no batch will show that this run works."""
        if self._run.get("idle_at") is None and self._all_idle():
            self._run.report(idle_at=utc_now())

    def _all_idle(self) -> bool:
        """Whether there are queries, none has failed, and all that run wait for data or for their next trigger."""
        queries = self.known()
        return bool(queries) and self._run.get("error") is None and all(is_idle(query) for query in queries)

    def report_failures(self) -> None:
        """Report why queries have ended that have failed, and forget all that have ended.

        A failure is withdrawn once its query has been started again and works: it would be told as the reason of
        whatever ends the driver later.
        """
        ended = [query for query in self.known() if not query.isActive]
        for query in ended:
            failure = query.exception()
            if failure is not None:
                self._run.report_failure(str(failure))
                self._failed[query.id] = self._run.get("error")
        for query in self.running():
            if query.id in self._failed and (last_batch(query) is not None or is_idle(query)):
                self._run.withdraw_failure(self._failed.pop(query.id))
        with self._lock:
            self._queries = [query for query in self._queries if query not in ended]
