"""Warms a driver up for a query that it will take over, without touching the query's sink, checkpoint or state.

A query's first batch in a new driver is slow: classes are loaded, code is generated and compiled, Kafka clients and
Python workers start. So the same streaming DataFrame is *rehearsed*: it runs as a query of its own, with the sink
`noop`, from a throw-away checkpoint. If the real checkpoint shows that all its sources are Kafka topics, the throw-away
one repeats the newest batch in small ones (`repeat.py`). Between them the query is started again, so each one reads
the state of those before. Any other source starts from its beginning, and the rehearsal is cut off after some
seconds, or after its first batch: a source that is asked for the next one learns that the first is committed, and a
file source with `cleanSource` would then delete files that the real query has not read.

A rehearsal runs in a copy of the session that the query was started in: its settings hold whatever the script does with
its own, and the script sees none of it in `spark.streams`, nor do its listeners.

A rehearsal cannot warm the sink, nor what a `foreachBatch` function does. The functions inside the plan, such as UDFs,
do see records that were processed before.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from tidegate.launcher.control.files import REHEARSAL
from tidegate.launcher.handover.repeat import repeat_newest_batch
from tidegate.launcher.queries.checkpoints import checkpoint_of, private_field
from tidegate.launcher.queries.query_start import QueryStart
from tidegate.launcher.spark.hadoop import HadoopPath, remove, write

BLIND_TIMES = 2
"""How often a batch is rehearsed that can be of any size."""

REPEAT_SECONDS = 600.0
"""How long a rehearsal of a known batch may take; whoever waits for the driver gives up earlier if no task finishes."""
BLIND_SECONDS = 10.0
"""How long a rehearsal may take whose batch can be of any size, or may not come at all."""

NEXT_SECONDS = 2.0
"""How long a rehearsal that has committed may go on until it has asked its sources for the next batch."""

_NEVER = "10000 days"
"""Triggers are at multiples of their interval since 1970, and a shorter one may be over soon."""
_LOOK_SECONDS = 0.05


def rehearse(how: QueryStart, folder: Path | HadoopPath, still: Callable[[], bool]) -> int:
    """Rehearse a query while `still()` is true; return how many batches it took. `folder` is for its checkpoints."""
    done = 0
    location = checkpoint_of(how)
    frame = _frame(how)
    try:
        batches = [] if location is None else repeat_newest_batch(location, folder)
        for number in range(len(batches) or BLIND_TIMES):
            place = folder if batches else folder / str(number)
            if batches:
                write(place / "offsets" / str(number), batches[number].encode())
            query = _start(frame, how, place, one_batch=not batches or number + 1 < len(batches))
            batch = number if batches else 0
            done += _wait_for(query, place, batch, REPEAT_SECONDS if batches else BLIND_SECONDS, still)
    finally:
        remove(folder)
    return done


def _frame(how: QueryStart) -> DataFrame:
    """Return a query's streaming DataFrame in the session with the settings of its start.

    The handle is of the script's session in Python: a second one would become the session of `RDD.toDF`.
    """
    frame = how.writer._df
    plan = frame._jdf.queryExecution().analyzed()  # which Spark runs
    return DataFrame(frame._jdf.ofRows(how.session(), plan), frame.sparkSession)


def _start(frame: DataFrame, how: QueryStart, place: Path | HadoopPath, *, one_batch: bool) -> Any:
    """Start a copy of a query that writes nothing but its checkpoint."""
    mode = how.asked.get("outputMode") or private_field(how.writer, "outputMode").toString()
    copy = frame.writeStream.format("noop").queryName(f"{REHEARSAL}-{uuid.uuid4().hex[:8]}").outputMode(mode)
    copy = copy.option("checkpointLocation", str(place))
    if one_batch:  # the next batch would be of any size, or is logged by the next rehearsal
        copy = copy.trigger(processingTime=_NEVER)
    # `start` would wait for this driver's turn
    return copy._sq(copy._jwrite.start())


def _wait_for(query: Any, place: Path | HadoopPath, batch: int, seconds: float, still: Callable[[], bool]) -> int:
    """Let a query commit a batch within `seconds`, and end it; return how many it has committed."""
    committed = place / "commits" / str(batch)

    def wait(file: Path | HadoopPath, seconds: float) -> None:
        until = time.monotonic() + seconds
        while query._jsq.isActive() and not file.exists() and still() and time.monotonic() < until:
            time.sleep(_LOOK_SECONDS)

    try:
        wait(committed, seconds)
        wait(place / "offsets" / str(batch + 1), NEXT_SECONDS)
    finally:
        query._jsq.stop()
    failure = query.exception()
    if failure is not None and not committed.exists():
        raise RuntimeError(str(failure)[:500])
    return int(committed.exists())
