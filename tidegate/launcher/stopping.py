"""Ends the queries of a run, each at its own batch boundary if it comes in time, and says how they ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from tidegate.launcher.boundary import last_batch, stop_at_boundary

_LOOK_SECONDS = 0.1
_LATE_SECONDS = 10.0
"""How long after the deadline a query may take to be cut off."""


class Stop:
    """The stop of one run. Its queries have `seconds` to come to a boundary, all at the same time."""

    def __init__(self, seconds: float, extend: Callable[[Any], float], explain: Callable[[str], str]) -> None:
        """`extend` returns how much longer the running batch of a query may take, and `explain` shortens an error."""
        self._deadline = time.monotonic() + seconds
        self._extend = extend
        self._explain = explain
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
            facts["clean"] = stop_at_boundary(query, self._deadline, lambda: self._longer(query))
            failure = query.exception()
            facts["error"] = None if failure is None else self._explain(str(failure))
        except Exception as error:  # noqa: BLE001 - the driver must report how it ended, whatever the query raised
            facts["error"] = f"{type(error).__name__}: {error}"[:500]
        facts["last_batch_id"] = last_batch(query)
        self._outcomes[query.id] = facts

    def _longer(self, query: Any) -> float:
        extension = self._extend(query)
        self._extension = max(self._extension, extension)
        return extension
