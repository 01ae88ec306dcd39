"""Ends the queries of a run, each at its own batch boundary if it comes in time, and says how they ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from tidegate.launcher.control.files import STOP_EXTENSION
from tidegate.launcher.reports.driver_log import DriverLog
from tidegate.launcher.reports.driver_run import DriverRun
from tidegate.launcher.reports.progress import last_batch, running_batch
from tidegate.launcher.spark.boundary import stop_at_boundary

_LOOK_SECONDS = 0.1
_LATE_SECONDS = 10.0
"""How long after the deadline a query may take to be cut off."""


class Stop:
    """The stop of one run. Its queries have `seconds` to come to a boundary, all at the same time."""

    def __init__(self, seconds: float, run: DriverRun, context: Any, log: DriverLog) -> None:
        """`context` is the SparkContext of the queries."""
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds
        self._run = run
        self._context = context
        self._log = log
        self._extension = 0.0
        self._asked = 0
        self._outcomes: dict[str, dict[str, Any]] = {}

    @property
    def facts(self) -> dict[str, Any]:
        """How the queries have ended, by id, and whether all of them ended at a boundary."""
        clean = len(self._outcomes) == self._asked and all(facts["clean"] for facts in self._outcomes.values())
        return {"clean": clean, "queries": self._outcomes}

    def end(self, queries: Sequence[Any]) -> None:
        """End queries; return when they have ended, or when none of them can be waited for any longer."""
        self._asked += len(queries)
        threads = [threading.Thread(target=self._end, args=(query,), daemon=True) for query in queries]
        for thread in threads:
            thread.start()
        while self._may_wait() and any(thread.is_alive() for thread in threads):
            time.sleep(_LOOK_SECONDS)

    def _may_wait(self) -> bool:
        return time.monotonic() < self._deadline + self._extension + _LATE_SECONDS

    def _end(self, query: Any) -> None:
        facts: dict[str, Any] = {"clean": False}
        try:
            facts["clean"] = stop_at_boundary(query, self._deadline, lambda: self._extend(query))
            failure = query.exception()
            facts["error"] = None if failure is None else self._run.explain(str(failure))
        except Exception as error:  # noqa: BLE001 - the driver must report how it ended, whatever the query raised
            facts["error"] = f"{type(error).__name__}: {error}"[:500]
        facts["last_batch_id"] = last_batch(query)
        self._outcomes[query.id] = facts

    def _extend(self, query: Any) -> float:
        """Return how much longer the running batch may take: something only if it is nearly done."""
        extension: float = self._log.attempt("tell how far the batch is", self._extension_of, query) or 0.0
        self._extension = max(self._extension, extension)
        return extension

    def _extension_of(self, query: Any) -> float:
        limit = self._seconds * STOP_EXTENSION
        batch = running_batch(self._context, query)
        remaining = None if batch is None else batch.remaining_seconds(time.time())
        if batch is None or remaining is None or remaining > limit:
            return 0.0
        self._run.report(stop_extended_seconds=limit)  # first: whoever waits for the stop must know
        self._log.say(
            f"batch {batch.batch_id} has finished {batch.done} of {batch.tasks} tasks and needs about {remaining:.0f} s"
            f" more: the stop waits for up to {limit:g} s longer"
        )
        return limit
