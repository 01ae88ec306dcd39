"""Ends a streaming query exactly between two micro-batches, which Spark itself has no call for.

`StreamingQuery.stop()` cancels the batch that runs: its offsets are logged, its commit is not, and the batch runs
again after the restart, sinks included. Spark does have a clean end, for `Trigger.AvailableNow`: the engine sets its
own state to TERMINATED and leaves the loop when the batch is done. We set the same state from outside, and the
question is only *when* that is safe, because `runBatch` interrupts itself if it finds the state TERMINATED between
logging the offsets and running them (MicroBatchExecution of Spark 4.2). Where the query is, is seen in the stack of
its thread, and `awaitProgressLock`, which the engine holds while it logs offsets and commits, keeps it from going
from one place to the next while we look:

    between triggers    nothing is logged       set TERMINATED; `stop()` may wake it at once
    adding the batch    past the check          set TERMINATED; the batch commits, then the query ends
    anywhere else       planning or committing  let go, look again in some milliseconds

Between two looks the thread may pass from "between triggers" to the lock, its check of the state already behind it:
then the state is put back to ACTIVE and the search goes on. All calls on the lock come from one Python thread, which
py4j pins to one thread of the JVM.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import Enum
from typing import Any

_LOOK_SECONDS = 0.005


class Place(Enum):
    """Where a query's thread is in its loop."""

    BETWEEN_TRIGGERS = "between triggers"
    ADDING_BATCH = "adding the batch"
    CONSTRUCTING = "constructing"
    ELSEWHERE = "elsewhere"


def place_of(frames: list[str]) -> Place:
    """Return where a query is, by the `class.method` frames of its thread, innermost first."""

    def any_frame(part: str) -> bool:
        return any(part in frame for frame in frames)

    if any_frame("MicroBatchExecution.constructNextBatch"):
        return Place.CONSTRUCTING
    if any_frame("MicroBatchExecution.runBatch"):
        # the sink is called inside an SQL execution; planning before and commit after are not
        return Place.ADDING_BATCH if any_frame(".SQLExecution$.") else Place.ELSEWHERE
    if any_frame("MicroBatchExecution.executeOneBatch"):
        return Place.ELSEWHERE
    # before the loop (creating sources, reading the logs) there is no TriggerExecutor in the stack
    return Place.BETWEEN_TRIGGERS if any_frame("Executor.execute") else Place.ELSEWHERE


def stop_at_boundary(query: Any, deadline: float, clock: Callable[[], float] = time.monotonic) -> bool:
    """End `query` between two batches; fall back to a plain `stop()` when `clock()` passes `deadline`.

    Returns True when the query ended at a boundary. Raises what the query itself failed with, if it did.
    """
    clean = False
    engine = engine_of(query)
    if engine is not None:
        clean = _ask_to_end(engine, deadline, clock)
    if clean:
        while clock() < deadline and engine is not None and engine.queryExecutionThread().isAlive():
            if place_of(_stack(engine)) is Place.BETWEEN_TRIGGERS:
                break  # asleep until the next trigger, which will do nothing: no use in waiting for it
            time.sleep(_LOOK_SECONDS)
        else:
            clean = engine is not None and not engine.queryExecutionThread().isAlive()
    query.stop()
    return clean


def engine_of(query: Any) -> Any | None:
    """Return the JVM's MicroBatchExecution behind a PySpark query, or None for an engine of another kind."""
    wrapper = query._jsq
    engine = wrapper.streamingQuery() if hasattr(wrapper, "streamingQuery") else wrapper
    return engine if engine.getClass().getSimpleName() == "MicroBatchExecution" else None


def _stack(engine: Any) -> list[str]:
    return [
        f"{frame.getClassName()}.{frame.getMethodName()}" for frame in engine.queryExecutionThread().getStackTrace()
    ]


def _ask_to_end(engine: Any, deadline: float, clock: Callable[[], float]) -> bool:
    state = engine.state()
    lock = engine.awaitProgressLock()
    while clock() < deadline:
        active = state.get()
        if active.toString() == "TERMINATED":
            return False  # someone else stops it, or it has ended by itself
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
    """With the lock held: set TERMINATED if that can only end the query at a boundary."""
    place = place_of(_stack(engine))
    if place is Place.ADDING_BATCH:
        return bool(state.compareAndSet(active, terminated))
    if place is not Place.BETWEEN_TRIGGERS or not state.compareAndSet(active, terminated):
        return False
    while True:
        place = place_of(_stack(engine))
        if place is Place.CONSTRUCTING:  # its check of the state was a moment before ours
            state.compareAndSet(terminated, active)
            return False
        if place is Place.BETWEEN_TRIGGERS or not engine.queryExecutionThread().isAlive():
            return True


def _terminated(engine: Any, active: Any) -> Any:
    """Return the engine's TERMINATED state: the sibling of ACTIVE, wherever this version of Spark keeps them."""
    loader = engine.getClass().getClassLoader()
    name = active.getClass().getName().replace("ACTIVE", "TERMINATED")
    return loader.loadClass(name).getField("MODULE$").get(None)
