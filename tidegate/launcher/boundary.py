"""Ends a streaming query exactly between two micro-batches. Spark has no call for that.

`StreamingQuery.stop()` cancels the running batch: its offsets are logged but not committed, so the batch runs again
after the restart, sinks included. Spark can end cleanly, but only for `Trigger.AvailableNow`: the engine sets its own
state to TERMINATED and leaves its loop when the batch is done. This module sets the same state from outside.

That is not safe at every moment: `runBatch` interrupts itself if it finds the state TERMINATED after it has logged the
offsets and before it has run them (MicroBatchExecution of Spark 4.2). The stack of the query's thread shows where the
query is. The engine holds `awaitProgressLock` while it logs offsets and commits, so holding that lock keeps the query
from moving on while we look:

    between triggers    nothing is logged       set TERMINATED; `stop()` may wake the query at once
    adding the batch    past the check          set TERMINATED; the batch commits, then the query ends
    anywhere else       planning or committing  release the lock, look again some milliseconds later

Between two looks the thread may go from "between triggers" to waiting for the lock, having checked the state just
before we set it. Then the state goes back to ACTIVE, and we look again. All calls on the lock come from one Python
thread, which py4j ties to one thread of the JVM.

`between_batches` uses the same lock to do something while no query runs a batch, and ends none. A query that has
committed its batch and is about to construct the next one waits for the lock, so it is held between two batches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from enum import Enum
from typing import Any

from pyspark import SparkContext

_LOOK_SECONDS = 0.005
_HOLD_SECONDS = 0.1
"""How long a query may be kept from committing, or from starting its next batch, while the others are not there yet."""
_LOCK_MILLISECONDS = 500
"""How long to wait for a query that holds its lock itself: it asks its sources for new records, or commits."""


class Place(Enum):
    """Where a query's thread is in its loop."""

    BETWEEN_TRIGGERS = "between triggers"
    ADDING_BATCH = "adding the batch"
    CONSTRUCTING = "constructing"
    ELSEWHERE = "elsewhere"


def place_of(frames: list[str]) -> Place:
    """Return where a query is, from the frames of its thread, innermost first, each with class and method."""

    def any_frame(part: str) -> bool:
        return any(part in frame for frame in frames)

    if any_frame("MicroBatchExecution.constructNextBatch"):
        return Place.CONSTRUCTING
    if any_frame("MicroBatchExecution.runBatch"):
        # only the sink is called inside an SQL execution; planning and committing are not
        return Place.ADDING_BATCH if any_frame(".SQLExecution$.") else Place.ELSEWHERE
    if any_frame("MicroBatchExecution.executeOneBatch"):
        return Place.ELSEWHERE
    # before the loop, while it creates sources and reads the logs, the stack has no TriggerExecutor
    return Place.BETWEEN_TRIGGERS if any_frame("Executor.execute") else Place.ELSEWHERE


def stop_at_boundary(query: Any, deadline: float) -> bool:
    """End `query` between two batches; fall back to a plain `stop()` when `time.monotonic()` passes `deadline`.

    Returns True when the query ended at a boundary. Raises what the query itself failed with, if it did.
    """
    clean = False
    engine = _engine_of(query)
    if engine is not None:
        clean = _ask_to_end(engine, deadline)
    if clean:
        while time.monotonic() < deadline and engine is not None and engine.queryExecutionThread().isAlive():
            if place_of(_stack(engine)) is Place.BETWEEN_TRIGGERS:
                break  # it sleeps until the next trigger, which will do nothing
            time.sleep(_LOOK_SECONDS)
        else:
            clean = engine is not None and not engine.queryExecutionThread().isAlive()
    query.stop()
    return clean


def between_batches(queries: Iterable[Any], seconds: float, act: Callable[[], None]) -> float | None:
    """Call `act` while all of `queries` are between two batches, which they cannot leave before it returns.

    Returns for how many seconds the queries were held. Returns None, and has not called `act`, if they were not
    between two batches at the same moment within `seconds`.
    """
    deadline = time.monotonic() + seconds
    engines = [_engine_of(query) for query in queries]
    if None in engines:
        return None
    while True:
        with ExitStack() as locks:
            if all(_lock(engine, locks) for engine in engines):
                since = time.monotonic()
                if _wait_at_boundary(engines):
                    act()
                    return time.monotonic() - since
        if time.monotonic() >= deadline:
            return None
        time.sleep(_LOOK_SECONDS)


def _lock(engine: Any, locks: ExitStack) -> bool:
    milliseconds = SparkContext._jvm.java.util.concurrent.TimeUnit.MILLISECONDS
    lock = engine.awaitProgressLock()
    if not lock.tryLock(_LOCK_MILLISECONDS, milliseconds):
        return False
    locks.callback(lock.unlock)
    return True


def _wait_at_boundary(engines: list[Any]) -> bool:
    """Wait until every query is between two batches, as long as none of them runs one; the caller holds the locks."""
    until = time.monotonic() + _HOLD_SECONDS
    while True:
        places = {place_of(_stack(engine)) for engine in engines}
        # one that constructs its next batch cannot have begun: it waits for the lock
        if places <= {Place.BETWEEN_TRIGGERS, Place.CONSTRUCTING}:
            return True
        if Place.ADDING_BATCH in places or time.monotonic() > until:
            return False
        time.sleep(_LOOK_SECONDS)


def _engine_of(query: Any) -> Any | None:
    """Return the JVM's MicroBatchExecution behind a PySpark query, or None for an engine of another kind."""
    wrapper = query._jsq
    engine = wrapper.streamingQuery() if hasattr(wrapper, "streamingQuery") else wrapper
    return engine if engine.getClass().getSimpleName() == "MicroBatchExecution" else None


def _stack(engine: Any) -> list[str]:
    # as one text: a call for each frame would take longer than a query stays where it is
    frames = engine.queryExecutionThread().getStackTrace()
    return str(SparkContext._jvm.scala.runtime.ScalaRunTime.stringOf(frames)).split(", ")


def _ask_to_end(engine: Any, deadline: float) -> bool:
    state = engine.state()
    lock = engine.awaitProgressLock()
    while time.monotonic() < deadline:
        active = state.get()
        if active.toString() == "TERMINATED":
            return False  # something else is stopping it, or it has ended by itself
        if active.toString() == "ACTIVE":
            terminated = _terminated(engine, active)
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
    place = place_of(_stack(engine))
    if place is Place.ADDING_BATCH:
        return bool(state.compareAndSet(active, terminated))
    if place is not Place.BETWEEN_TRIGGERS or not state.compareAndSet(active, terminated):
        return False
    while True:
        place = place_of(_stack(engine))
        if place is Place.CONSTRUCTING:  # it checked the state just before we set it
            state.compareAndSet(terminated, active)
            return False
        if place is Place.BETWEEN_TRIGGERS or not engine.queryExecutionThread().isAlive():
            return True


def _terminated(engine: Any, active: Any) -> Any:
    """Return the engine's TERMINATED state; this version of Spark keeps it next to ACTIVE."""
    loader = engine.getClass().getClassLoader()
    name = active.getClass().getName().replace("ACTIVE", "TERMINATED")
    return loader.loadClass(name).getField("MODULE$").get(None)
