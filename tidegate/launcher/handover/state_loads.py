"""Loads some of a query's newest state from its checkpoint, and forgets it.

The first loads of an executor are far slower than those after them.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from pyspark.sql import DataFrame

from tidegate.launcher.control.files import REHEARSAL
from tidegate.launcher.queries.checkpoints import checkpoint_of
from tidegate.launcher.queries.query_start import QueryStart

STATE_LOADS = 2
"""How many partitions of its state a slot loads: the JVM compiles after the first what copies the files."""
STATE_SECONDS = 60.0
"""How long the state of one query may be loaded."""
_READS_STATE = 4
"""Major version of Spark."""


def load_state(how: QueryStart, slots: int) -> int:
    """Load `STATE_LOADS` state partitions per slot from the real checkpoint, and read a row of each; return how many.

    Only Spark 4 and later can read a query's state. Spark's error is raised if that fails, or takes `STATE_SECONDS`.
    """
    location, spark = checkpoint_of(how), how.writer._spark
    if location is None or int(spark.version.partition(".")[0]) < _READS_STATE:
        return 0
    loaded, session = 0, how.session()
    with _cancelled_after(spark.sparkContext, STATE_SECONDS):
        for store in DataFrame(session.read().format("state-metadata").load(location), spark).collect():
            state = session.read().format("statestore").option("operatorId", str(store["operatorId"]))
            rows = DataFrame(state.option("storeName", store["stateStoreName"]).load(location), spark).rdd
            partitions = range(min(slots * STATE_LOADS, store["numPartitions"]))
            # `zip` ends after the first row; a function of this module would not be known to the executors
            spark.sparkContext.runJob(rows, partial(zip, (0,)), partitions)
            loaded += len(partitions)
    return loaded


@contextmanager
def _cancelled_after(context: Any, seconds: float) -> Iterator[None]:
    """Cancel the jobs that this thread starts meanwhile if they take longer than `seconds` together."""
    spark, group = context._jsc.sc(), f"{REHEARSAL}-{uuid.uuid4().hex[:8]}"
    properties = spark.getLocalProperties()
    spark.setLocalProperties(properties.clone())
    context.setJobGroup(group, "Tidegate loads some of the state", interruptOnCancel=True)
    timer = threading.Timer(seconds, context.cancelJobGroup, [group])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        spark.setLocalProperties(properties)
