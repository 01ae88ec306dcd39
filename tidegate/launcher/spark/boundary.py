"""Ends a streaming query exactly between two micro-batches. Spark has no call for that.

`StreamingQuery.stop()` cancels the running batch: its offsets are logged but not committed, so the batch runs again
after the restart, sinks included. Spark can end cleanly, but only for `Trigger.AvailableNow`: the engine sets its own
state to TERMINATED and leaves its loop when the batch is done. This module sets the same state from outside.

That is not safe at every moment: `runBatch` interrupts itself if it finds the state TERMINATED after it has logged the
offsets and before it has run them (MicroBatchExecution of Spark 3.5 to 4.2). The stack of the query's thread shows
where the query is. The engine holds `awaitProgressLock` while it logs offsets and commits, so holding that lock keeps
the query from moving on while we look:

    between triggers    nothing is logged       set TERMINATED; `stop()` may wake the query at once
    adding the batch    past the check          set TERMINATED; the batch commits, then the query ends
    anywhere else       planning or committing  release the lock, look again some milliseconds later

Between two looks the thread may go from "between triggers" to waiting for the lock, having checked the state just
before we set it. Then the state goes back to ACTIVE, and we look again. All calls on the lock come from one Python
thread, which py4j ties to one thread of the JVM.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tidegate.launcher.spark.query_loop import (
    Place,
    execution_of,
    frames_of,
    loops,
    place_of,
    runs_micro_batches,
    static_field,
)

_LOOK_SECONDS = 0.005


def stop_at_boundary(query: Any, deadline: float, extension: Callable[[], float] = lambda: 0.0) -> bool:
    """End `query` between two batches; fall back to a plain `stop()` when `time.monotonic()` passes `deadline`.

    If a batch runs at the deadline, `extension` is asked once how many more seconds it may have. Returns True when the
    query ended at a boundary. Raises what the query itself failed with, if it did.
    """
    clean = False
    engine = execution_of(query)
    if runs_micro_batches(engine) and _ask_to_end(engine, deadline):
        clean = _ends(engine, deadline) or _ends(engine, deadline + extension())
    query._jsq.stop()
    return clean


def end_at_boundary(query: Any, deadline: float) -> bool:
    """End `query` between two batches, or leave it running if none ends before the deadline; return whether it ended.

    A query that has ended by itself counts as ended.
    """
    engine = execution_of(query)
    if not runs_micro_batches(engine):
        return False
    if not _ask_to_end(engine, deadline):
        return not engine.queryExecutionThread().isAlive()
    while not _ends(engine, deadline):
        if _take_back(engine):
            return False
        time.sleep(_LOOK_SECONDS)
    query._jsq.stop()
    return True


def _take_back(engine: Any) -> bool:
    """Let a query go on that was asked to end, if it still adds its batch; return whether it goes on."""
    state, lock = engine.state(), engine.awaitProgressLock()
    lock.lock()  # it cannot commit the batch, after which it looks at its state
    try:
        asked = state.get()
        adding = place_of(frames_of(engine)) is Place.ADDING_BATCH
        return adding and bool(state.compareAndSet(asked, _state(engine, asked, "ACTIVE")))
    finally:
        lock.unlock()


def _ends(engine: Any, deadline: float) -> bool:
    """Wait until a query that was asked to end does so; return whether it did before the deadline."""
    while engine.queryExecutionThread().isAlive():
        if place_of(frames_of(engine)) is Place.BETWEEN_TRIGGERS:
            return True  # it sleeps until the next trigger, which will do nothing
        if time.monotonic() >= deadline:
            return False
        time.sleep(_LOOK_SECONDS)
    return True


def _ask_to_end(engine: Any, deadline: float) -> bool:
    state = engine.state()
    lock = engine.awaitProgressLock()
    while time.monotonic() < deadline:
        active = state.get()
        if active.toString() == "TERMINATED":
            return False  # something else is stopping it, or it has ended by itself
        if active.toString() == "ACTIVE":
            terminated = _state(engine, active, "TERMINATED")
            lock.lock()
            try:
                if _ask_now(engine, state, active, terminated):
                    return True
            finally:
                lock.unlock()
        time.sleep(_LOOK_SECONDS)
    return False


def _ask_now(engine: Any, state: Any, active: Any, terminated: Any) -> bool:
    """Set TERMINATED if that can only end the query at a boundary; the caller holds the lock."""
    place = place_of(frames_of(engine))
    if place is Place.ADDING_BATCH:
        return bool(state.compareAndSet(active, terminated))
    if place is not Place.BETWEEN_TRIGGERS or not state.compareAndSet(active, terminated):
        return False
    while True:
        stack = frames_of(engine)
        place = place_of(stack)
        if place is Place.CONSTRUCTING:  # it checked the state just before we set it
            state.compareAndSet(terminated, active)
            return False
        # one that has left its loop needs the lock to end
        if place is Place.BETWEEN_TRIGGERS or not loops(stack):
            return True


def _state(engine: Any, known: Any, wanted: str) -> Any:
    """Return one of the engine's states; this version of Spark keeps them next to each other."""
    return static_field(engine, known.getClass().getName().replace(known.toString(), wanted), "MODULE$")
