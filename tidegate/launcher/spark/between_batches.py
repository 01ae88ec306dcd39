"""Does something while no query runs a batch, and ends none.

The engine of a query holds `awaitProgressLock` while it constructs a batch and commits it (see `boundary.py`).
A query that is about to construct its next batch waits for the lock, so it stays between two batches. One that has just
constructed it and given the lock away does not wait: it runs the batch. One that is about to commit its batch waits
too: it is let go, and since the lock is fair, the lock comes back just after the commit. Several queries are held one
by one, each at its own boundary.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tidegate.launcher.spark.query_loop import (
    EngineThread,
    Place,
    execution_of,
    place_of,
    runs_micro_batches,
    static_field,
)

_LOOK_SECONDS = 0.005
_HOLD_SECONDS = 1.0
"""How long a query is kept from its next batch at first while others still run theirs; each further try doubles it."""
_LOCK_MILLISECONDS = 500
"""How long to wait for a query that holds its lock itself: it asks its sources for new records, or commits."""


def between_batches(
    queries: Iterable[Any], seconds: float, act: Callable[[], None], stopping: threading.Event
) -> float | None:
    """Call `act` while all of `queries` are between two batches, which they cannot leave before it returns.

    Returns for how many seconds the queries were held. Returns None, and has not called `act`, if they were not
    between two batches at the same moment within `seconds`, or if the queries are being stopped.
    """
    deadline = time.monotonic() + seconds

    def give_up() -> bool:
        return stopping.is_set() or time.monotonic() > deadline

    engines = [execution_of(query) for query in queries]
    if not all(runs_micro_batches(engine) for engine in engines):
        return None
    if not engines:
        act()
        return 0.0
    lanes = [_Lane(engine) for engine in engines]
    longest = _HOLD_SECONDS
    while True:
        try:
            since = _hold_all(lanes, longest, give_up)
            if since is not None:
                act()
                return time.monotonic() - since
        finally:
            for lane in lanes:
                lane.let_go()
        if give_up():
            return None
        longest *= 2


def _hold_all(lanes: Sequence[_Lane], longest: float, give_up: Callable[[], bool]) -> float | None:
    """Hold each query as it comes to its boundary, until all are held; return since when the first one has been.

    Returns None if the first one has been held for `longest` seconds, so that its batches must go on.
    """
    since = None
    while True:
        waiting = sum([lane.holds_at_boundary() for lane in lanes])
        now = time.monotonic()
        if not waiting:
            since = None
        elif since is None:
            since = now
        if waiting == len(lanes):
            return since
        if give_up() or (since is not None and now - since > longest):
            return None
        time.sleep(_LOOK_SECONDS)


class _Lane:
    """The lock of one query, and what its thread does meanwhile."""

    def __init__(self, engine: Any) -> None:
        # looked up once: between commit and next batch there is only time for a few calls to the JVM
        self._lock = engine.awaitProgressLock()
        self._milliseconds = static_field(engine, "java.util.concurrent.TimeUnit", "MILLISECONDS")
        self._thread = EngineThread(engine)
        self._held = False

    def holds_at_boundary(self) -> bool:
        """Take the lock if it is not held; return whether it is, and the query waits between two batches.

        A query that waits to commit is let go, and the lock taken again at once: it is fair, so it comes back just
        after the commit.
        """
        for _ in range(2):
            self._held = self._held or self._lock.tryLock(_LOCK_MILLISECONDS, self._milliseconds)
            if not self._held:
                return False
            stack = self._thread.frames()
            place, waits = place_of(stack), any("ReentrantLock.lock" in frame for frame in stack)
            # one that constructs its next batch and does not wait may have had the lock, and then runs the batch
            if place is Place.BETWEEN_TRIGGERS or (place is Place.CONSTRUCTING and waits):
                return True
            if not waits:
                return False
            self.let_go()
        return False

    def let_go(self) -> None:
        """Let the query go on."""
        if self._held:
            self._lock.unlock()
            self._held = False
