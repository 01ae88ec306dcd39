"""A look into Spark's engine of one streaming query: where it is in its loop, as the stack of its thread shows."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

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
    return Place.BETWEEN_TRIGGERS if loops(frames) else Place.ELSEWHERE


def loops(frames: list[str]) -> bool:
    """Whether a query is in its loop: it has not ended, and no longer creates its sources and reads its logs."""
    return any("Executor.execute" in frame for frame in frames)


def _sleeps(frames: list[str]) -> bool:
    """Whether a query has found no new data: then it sleeps for a moment, and looks at its state."""
    callers = [frame for frame in frames if "java.lang.Thread.sleep" not in frame]
    return len(callers) < len(frames) and "MicroBatchExecution." in callers[0]


def execution_of(query: Any) -> Any:
    """Return the JVM's StreamExecution behind a PySpark query."""
    wrapper = query._jsq
    return wrapper.streamingQuery() if hasattr(wrapper, "streamingQuery") else wrapper


def runs_micro_batches(engine: Any) -> bool:
    """Whether a query runs one batch after the other; one with a continuous trigger does not.

    One that tracks its progress asynchronously has an engine of its own, which inherits all that this package looks at.
    """
    return bool(engine.getClass().getSimpleName().endswith("MicroBatchExecution"))


class EngineThread:
    """The thread of a query."""

    def __init__(self, engine: Any) -> None:
        self._thread = engine.queryExecutionThread()
        self._describe = _describer(engine)

    def frames(self) -> list[str]:
        """Return the frames of its stack, innermost first."""
        # as one text: a call for each frame would take longer than a query stays where it is
        return str(self._describe(self._thread.getStackTrace())).split(", ")


def frames_of(engine: Any) -> list[str]:
    """Return the frames of a query's thread, innermost first."""
    return EngineThread(engine).frames()


def static_field(engine: Any, class_name: str, field: str) -> Any:
    """Return a static field of a class in the engine's JVM."""
    return engine.getClass().getClassLoader().loadClass(class_name).getField(field).get(None)


def _describer(engine: Any) -> Callable[[Any], Any]:
    """Return the function of Scala that describes an array."""
    describe: Callable[[Any], Any] = static_field(engine, "scala.runtime.ScalaRunTime$", "MODULE$").stringOf
    return describe
