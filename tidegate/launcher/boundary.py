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

`between_batches` uses the same lock to do something while no query runs a batch, and ends none. A query that is about
to construct its next batch waits for the lock, so it stays between two batches. One that has just constructed it and
given the lock away does not wait: it runs the batch. One that is about to commit its batch waits too: it is let go, and
since the lock is fair, the lock comes back just after the commit. Several queries are held one by one, each at its own
boundary.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Any

_LOOK_SECONDS = 0.005
_HOLD_SECONDS = 1.0
"""How long a query is kept from its next batch at first while others still run theirs; each further try doubles it."""
_LOCK_MILLISECONDS = 500
"""How long to wait for a query that holds its lock itself: it asks its sources for new records, or commits."""


_TRIGGER = ("MicroBatchExecution.executeOneBatch", "MicroBatchExecution.$anonfun$runActivatedStream$")
"""What a query does at each trigger. Spark 3.5 does all of it in functions without a name of their own."""


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
    if any(map(any_frame, _TRIGGER)) and not _sleeps(frames):
        return Place.ELSEWHERE
    # before the loop, while it creates sources and reads the logs, the stack has no TriggerExecutor
    return Place.BETWEEN_TRIGGERS if _loops(frames) else Place.ELSEWHERE


def _loops(frames: list[str]) -> bool:
    """Whether a query is in its loop: it has not ended, and no longer creates its sources and reads its logs."""
    return any("Executor.execute" in frame for frame in frames)


def _sleeps(frames: list[str]) -> bool:
    """Whether a query has found no new data: then it sleeps for a moment, and looks at its state."""
    callers = [frame for frame in frames if "java.lang.Thread.sleep" not in frame]
    return len(callers) < len(frames) and "MicroBatchExecution." in callers[0]


def stop_at_boundary(query: Any, deadline: float, extension: Callable[[], float] = lambda: 0.0) -> bool:
    """End `query` between two batches; fall back to a plain `stop()` when `time.monotonic()` passes `deadline`.

    If a batch runs at the deadline, `extension` is asked once how many more seconds it may have. Returns True when the
    query ended at a boundary. Raises what the query itself failed with, if it did.
    """
    clean = False
    engine = execution_of(query)
    if _runs_micro_batches(engine) and _ask_to_end(engine, deadline):
        clean = _ends(engine, deadline) or _ends(engine, deadline + extension())
    query.stop()
    return clean


def end_at_boundary(query: Any, deadline: float) -> bool:
    """End `query` between two batches, or leave it running if none ends before the deadline; return whether it ended.

    A query that has ended by itself counts as ended.
    """
    engine = execution_of(query)
    if not _runs_micro_batches(engine):
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
        adding = place_of(_stack(engine)) is Place.ADDING_BATCH
        return adding and bool(state.compareAndSet(asked, _state(engine, asked, "ACTIVE")))
    finally:
        lock.unlock()


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
    if not all(_runs_micro_batches(engine) for engine in engines):
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
        self._thread = engine.queryExecutionThread()
        self._milliseconds = _static(engine, "java.util.concurrent.TimeUnit", "MILLISECONDS")
        self._describe = _describer(engine)
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
            stack = _frames(self._thread, self._describe)
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


def execution_of(query: Any) -> Any:
    """Return the JVM's StreamExecution behind a PySpark query."""
    wrapper = query._jsq
    return wrapper.streamingQuery() if hasattr(wrapper, "streamingQuery") else wrapper


def last_batch(query: Any) -> int | None:
    """Return the id of the newest batch that a query has ended; None before the first."""
    progress = query.lastProgress
    return None if progress is None else int(progress["batchId"])


def _runs_micro_batches(engine: Any) -> bool:
    return bool(engine.getClass().getSimpleName() == "MicroBatchExecution")


def _ends(engine: Any, deadline: float) -> bool:
    """Wait until a query that was asked to end does so; return whether it did before the deadline."""
    while engine.queryExecutionThread().isAlive():
        if place_of(_stack(engine)) is Place.BETWEEN_TRIGGERS:
            return True  # it sleeps until the next trigger, which will do nothing
        if time.monotonic() >= deadline:
            return False
        time.sleep(_LOOK_SECONDS)
    return True


def _stack(engine: Any) -> list[str]:
    return _frames(engine.queryExecutionThread(), _describer(engine))


def _frames(thread: Any, describe: Callable[[Any], Any]) -> list[str]:
    # as one text: a call for each frame would take longer than a query stays where it is
    return str(describe(thread.getStackTrace())).split(", ")


def _describer(engine: Any) -> Callable[[Any], Any]:
    """Return the function of Scala that describes an array."""
    describe: Callable[[Any], Any] = _static(engine, "scala.runtime.ScalaRunTime$", "MODULE$").stringOf
    return describe


def _static(engine: Any, class_name: str, field: str) -> Any:
    """Return a static field of a class in the engine's JVM."""
    return engine.getClass().getClassLoader().loadClass(class_name).getField(field).get(None)


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
    place = place_of(_stack(engine))
    if place is Place.ADDING_BATCH:
        return bool(state.compareAndSet(active, terminated))
    if place is not Place.BETWEEN_TRIGGERS or not state.compareAndSet(active, terminated):
        return False
    while True:
        stack = _stack(engine)
        place = place_of(stack)
        if place is Place.CONSTRUCTING:  # it checked the state just before we set it
            state.compareAndSet(terminated, active)
            return False
        # one that has left its loop needs the lock to end
        if place is Place.BETWEEN_TRIGGERS or not _loops(stack):
            return True


def _state(engine: Any, known: Any, wanted: str) -> Any:
    """Return one of the engine's states; this version of Spark keeps them next to each other."""
    return _static(engine, known.getClass().getName().replace(known.toString(), wanted), "MODULE$")
