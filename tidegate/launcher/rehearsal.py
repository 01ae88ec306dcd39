"""Warms a driver up for a query that it will take over, without touching the query's sink, checkpoint or state.

A query's first batch in a new driver is slow: classes are loaded, code is generated and compiled, Kafka clients and
Python workers start. So the same streaming DataFrame is *rehearsed*: it runs as a query of its own, with the sink
`noop`, from a throw-away checkpoint. If the real checkpoint shows that all its sources are Kafka topics, the throw-away
one is written so that its batches read again what the newest committed batch read, at most `RECORDS` of each
partition. They are small then, however much the topic holds. Between them the query is started again, so each one reads
the state of those before. Any other source starts from its beginning, and the rehearsal is cut off after some
seconds.

After the rehearsals, each slot loads the newest state of two partitions from the real checkpoint, and forgets it: the
first loads of an executor are far slower than those after them.

A rehearsal cannot warm the sink, nor what a `foreachBatch` function does. The functions inside the plan, such as UDFs,
do see records that were processed before, and the script's listeners see the rehearsal start and end.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tidegate.launcher.checkpoints import SETTING, private_field
from tidegate.launcher.control import REHEARSAL
from tidegate.launcher.hadoop import HadoopPath, names, place_of, remove, write
from tidegate.launcher.starts import QueryStart

RECORDS = 200
"""The most records that a rehearsal reads from one partition of a Kafka topic."""
TIMES = 4
"""How often a known batch is rehearsed: the first loads what it runs, the others let the JVM compile that well."""
BLIND_TIMES = 2
"""How often a batch is rehearsed that can be of any size."""

STATE_LOADS = 2
"""How many partitions of its state a slot loads: the JVM compiles after the first what copies the files."""

REPEAT_SECONDS = 600.0
"""How long a rehearsal of a known batch may take; whoever waits for the driver gives up earlier if no task finishes."""
BLIND_SECONDS = 10.0
"""How long a rehearsal may take whose batch can be of any size, or may not come at all."""

NEXT_SECONDS = 2.0
"""How long a rehearsal that has committed may go on until it has asked its sources for the next batch."""

STATE_SECONDS = 60.0
"""How long the state of one query may be loaded."""

_NEVER = "1 day"
_READS_STATE = 4
"""Major version of Spark."""
_Offsets = dict[str, dict[str, int]]
"""Of a source, by topic and partition."""
_LOOK_SECONDS = 0.05
_OLDER_BATCHES = 20
"""How far back to look for a batch that read something."""


def rehearse(how: QueryStart, folder: Path | HadoopPath, still: Callable[[], bool]) -> int:
    """Rehearse a query while `still()` is true; return how many batches it took. `folder` is for its checkpoints."""
    done = 0
    location = _checkpoint_location(how)
    try:
        batches = [] if location is None else repeat_newest_batch(location, folder)
        for number in range(len(batches) or BLIND_TIMES):
            place = folder if batches else folder / str(number)
            if batches:
                write(place / "offsets" / str(number), batches[number].encode())
            query = _start(how, place, one_batch=number + 1 < len(batches))
            batch = number if batches else 0
            done += _wait_for(query, place, batch, REPEAT_SECONDS if batches else BLIND_SECONDS, still)
    finally:
        remove(folder)
        # a query that has ended would end the script's wait for any query
        how.writer._spark.streams.resetTerminated()
    return done


def _start(how: QueryStart, place: Path | HadoopPath, *, one_batch: bool) -> Any:
    """Start a copy of a query that writes nothing but its checkpoint."""
    writer = how.writer
    mode = how.asked.get("outputMode") or private_field(writer, "outputMode").toString()
    copy = writer._df.writeStream.format("noop").queryName(f"{REHEARSAL}-{uuid.uuid4().hex[:8]}").outputMode(mode)
    copy = copy.option("checkpointLocation", str(place))
    if one_batch:  # the next batch would be of any size, and is logged by the next rehearsal
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


def load_state(how: QueryStart, slots: int) -> int:
    """Load `STATE_LOADS` state partitions per slot from the real checkpoint, and read a row of each; return how many.

    Only Spark 4 and later can read a query's state. Spark's error is raised if that fails, or takes `STATE_SECONDS`.
    """
    location, session = _checkpoint_location(how), how.writer._spark
    if location is None or int(session.version.partition(".")[0]) < _READS_STATE:
        return 0
    loaded = 0
    with _cancelled_after(session.sparkContext, STATE_SECONDS):
        for store in session.read.format("state-metadata").load(location).collect():
            state = session.read.format("statestore").option("operatorId", store["operatorId"])
            rows = state.option("storeName", store["stateStoreName"]).load(location).rdd
            partitions = range(min(slots * STATE_LOADS, store["numPartitions"]))
            # `zip` ends after the first row; a function of this module would not be known to the executors
            session.sparkContext.runJob(rows, partial(zip, (0,)), partitions)
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


def has_committed(how: QueryStart) -> bool:
    """Return whether the checkpoint of a query has a committed batch; False if that cannot be seen."""
    location = _checkpoint_location(how)
    return location is not None and _newest_batch(place_of(location) / "commits") is not None


def repeat_newest_batch(location: str, place: Path | HadoopPath) -> list[str]:
    """Begin a checkpoint at `place` which repeats the end of the newest logged batch, in `TIMES` batches.

    Returns what to log as the offsets of each of them; nothing if the batch cannot be repeated.
    """
    offsets = place_of(location) / "offsets"
    newest = _newest_batch(offsets)
    ends = None if newest is None else _kafka_offsets(offsets / str(newest))
    if newest is None or ends is None:
        return []
    starts = ends
    for batch in range(newest - 1, max(-1, newest - _OLDER_BATCHES) - 1, -1):
        older = _kafka_offsets(offsets / str(batch)) if batch >= 0 else [{} for _ in ends]
        if older is None or len(older) != len(ends):
            return []
        starts = [_within_reach(first, last) for first, last in zip(older, ends, strict=True)]
        if starts != ends:
            break
    for number, source in enumerate(starts):
        # as KafkaSourceInitialOffsetWriter does
        write(place / "sources" / str(number) / "0", b"\0v1\n" + json.dumps(source).encode())
    write(place / "metadata", json.dumps({"id": str(uuid.uuid4())}).encode())
    settings = json.loads((offsets / str(newest)).read_text(encoding="utf-8").splitlines()[1])
    head = ["v1", json.dumps(settings | {"batchWatermarkMs": 0})]
    return ["\n".join([*head, *_part(starts, ends, number / TIMES)]) for number in range(1, TIMES + 1)]


def _part(starts: list[_Offsets], ends: list[_Offsets], share: float) -> list[str]:
    """Return the offsets of each source after this share of the records from `starts` to `ends`."""
    return [
        json.dumps(
            {t: {p: start + int((last[t][p] - start) * share) for p, start in of.items()} for t, of in first.items()}
        )
        for first, last in zip(starts, ends, strict=True)
    ]


def _within_reach(first: _Offsets, last: _Offsets) -> _Offsets:
    return {
        topic: {p: max(first.get(topic, {}).get(p, 0), end - RECORDS) for p, end in ends.items()}
        for topic, ends in last.items()
    }


def beside_checkpoints(location: str) -> Path | HadoopPath:
    """Return a folder of Tidegate's in a job's checkpoint location."""
    return place_of(location) / ".tidegate"


def _newest_batch(log: Path | HadoopPath) -> int | None:
    try:
        return max((int(name) for name in names(log) if name.isdigit()), default=None)
    except OSError:
        return None


def _kafka_offsets(file: Path | HadoopPath) -> list[_Offsets] | None:
    """Return the offsets of each source of a batch, by topic and partition; None if one of them is not Kafka's."""
    try:
        version, _, *sources = file.read_text(encoding="utf-8").splitlines()
        found = [json.loads(source) for source in sources]
    except (OSError, ValueError):
        return None
    of_kafka = version == "v1" and all(
        isinstance(topics, dict)
        and all(isinstance(ends, dict) and all(isinstance(n, int) for n in ends.values()) for ends in topics.values())
        for topics in found
    )
    return found if of_kafka and found else None


def _checkpoint_location(how: QueryStart) -> str | None:
    """Return where the query will keep its checkpoint, as Spark's StreamingQueryManager finds it; None if unknown."""
    options, given = private_field(how.writer, "extraOptions"), how.asked

    def option(name: str) -> str | None:
        found = options.get(name)
        return given.get(name) or (found.get() if found.isDefined() else None)

    default, name = how.writer._spark.conf.get(SETTING, None), option("queryName")
    return option("checkpointLocation") or (f"{default}/{name}" if default and name else None)
