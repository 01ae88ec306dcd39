"""Turns one line of an event log into one event, or None.

The log has some thirty kinds of events, and query plans fill most of its bytes. Lines of other kinds are recognized by
their first bytes and skipped without parsing. A line of a known kind without its fields raises `BrokenLine` and is
skipped as well. Field names: Spark 4.2, JsonProtocol.scala and StreamingQueryProgress.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from typing import Any

from pydantic_core import from_json

from tidegate.sparklog import events

MAX_JSON = 4 * 1024 * 1024
"""What is parsed of a longer line is no event: as objects it would take twenty times the memory. A batch that reads
10,000 partitions has a megabyte."""


class BrokenLine(ValueError):
    """A line that is truncated, is not JSON, or lacks a required field."""


_KIND = re.compile(rb'\{"Event":"(?:org\.apache\.spark\.sql\.streaming\.StreamingQueryListener\$)?([\w.$]+)"')

_SCAN = '"MicroBatchScan"'
"""In the scope of an RDD: the operator that reads a streaming source."""
_REAL_TIME_SCAN = '"RealTimeStreamScan"'
"""The same with a real-time trigger."""

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")

_PYTHON_SOURCE = ".python.PythonMicroBatchStream"
"""In the description of a data source in Python, whose offsets may look like those of any other."""

_BATCH = re.compile(r"\nid = ([0-9a-f-]{36})\nrunId = [0-9a-f-]{36}\nbatch = (\d+)$")
"""The end of the description that Spark gives a micro-batch."""

_UNREAD = {
    b"org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionStart": ((b',"details":"', b"", b',"time":'),),
    b"SparkListenerTaskEnd": (  # hundreds of accumulables, and what the executor measured
        (b',"Launch Time":', b"}", b',"Task Metrics":{'),
        (b',"Shuffle Read Metrics":{', b"", b',"Input Metrics":{'),
    ),
    b"SparkListenerJobStart": ((b',"Stage Infos":[', b"", b',"Stage IDs":['),),
    b"SparkListenerStageSubmitted": ((b',"Details":"', b"", b'},"Properties":{'),),
    b"SparkListenerStageCompleted": (
        (b',"Details":"', b"", b',"Submission Time":'),
        (b',"Accumulables":[', b"", b',"Resource Profile Id":'),
    ),
}
"""Where an unused middle of a line starts, what stands in for it, and what comes after it."""


def parse(line: bytes, only: Collection[bytes] | None = None) -> events.SparkEvent | None:
    """Return the event in a line, or None if it is of a kind that is not used; raise `BrokenLine`.

    `only` names the kinds to read, as in `_READERS`; None: all of them.
    """
    kind = _KIND.match(line)
    if kind is None:
        _check_is_event(line)
        return None
    reader = _READERS.get(kind.group(1))
    if reader is None or (only is not None and kind.group(1) not in only):
        return None
    try:
        return reader(_from_json(_shortened(kind.group(1), line)))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, OSError) as error:  # the last: of a time
        what = f"no field {error}" if isinstance(error, KeyError) else str(error)
        raise BrokenLine(f"{kind.group(1).decode()}: {what[:200]}") from None


def _shortened(kind: bytes, line: bytes) -> bytes:
    """Return a line without the large, unused values in its middle, which would take most of the parsing time."""
    for first, instead, last in _UNREAD.get(kind, ()):
        start, end = line.find(first), line.rfind(last)
        if 0 < start < end:
            line = line[:start] + instead + line[end:]
    return line


def _from_json(line: bytes) -> Any:
    if len(line) > MAX_JSON:
        raise ValueError(f"{len(line)} bytes, at most {MAX_JSON}")
    return from_json(line)


def _check_is_event(line: bytes) -> None:
    if not line.strip():
        return
    try:
        known = "Event" in _from_json(line)
    except (ValueError, TypeError):
        known = False
    if not known:
        raise BrokenLine(f"not an event, but {len(line)} bytes")  # not quoted: a link may lead to a file with passwords


def _millis(value: object) -> datetime:
    if not isinstance(value, int | float):
        raise TypeError(f"{value!r} is not a time in milliseconds")
    return datetime.fromtimestamp(value / 1000, UTC)


def _instant(value: str) -> datetime:
    return datetime.fromisoformat(value).astimezone(UTC)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.80} is not text")
    return value


def _text_or_none(value: object) -> str | None:
    return None if value is None else _text(value)


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise ValueError(f"{value!r:.80} is not a count")
    return value


def _executor_added(event: Any) -> events.SparkEvent:
    cores = _count(event["Executor Info"]["Total Cores"])
    executor = _text(event["Executor ID"])
    if executor == "driver":
        return events.LocalCores(cores)
    return events.ExecutorAdded(executor, cores, _millis(event["Timestamp"]))


def _properties(event: Any) -> events.SparkEvent:
    spark = {_text(name): _text(value) for name, value in event["Spark Properties"].items()}
    command = event.get("System Properties", {}).get("sun.java.command")
    return events.ApplicationProperties(
        spark.get("spark.tidegate.job_id"),
        spark.get("spark.app.name"),
        spark,
        _text_or_none(command),
    )


def _progress(event: Any) -> events.SparkEvent:
    progress = event["progress"]
    durations = progress["durationMs"]
    add_batch = durations.get("addBatch")
    sources = progress["sources"]
    written = progress.get("sink", {}).get("numOutputRows", -1)
    made = events.QueryProgress(
        query_id=_text(progress["id"]),
        batch_id=_count(progress["batchId"]),
        started_at=_instant(progress["timestamp"]),
        duration_seconds=_count(durations["triggerExecution"]) / 1000,
        add_batch_seconds=None if add_batch is None else _count(add_batch) / 1000,
        input_records=_records(sources),
        output_records=None if written < 0 else _count(written),  # -1: the sink does not count records
        committed=offsets_of(sources, "endOffset"),
        operators=tuple(
            events.OperatorState(
                _text(operator["operatorName"]),
                _rows(operator),
                _count(operator["memoryUsedBytes"]),
                _count(operator["numShufflePartitions"]),
            )
            for operator in progress.get("stateOperators", ())
        ),
        start=offsets_of(sources, "startOffset"),
        latest=offsets_of(sources, "latestOffset"),
        sources=tuple(str(source.get("description")) for source in sources),
        assigned=_assigned(sources),
        limited=_limited(sources),
        real_time=any(_reads_on(source) for source in sources),
        run_id=_text(progress.get("runId", "")),
    )
    _ = made.finished_at  # a batch that ends after the year 9999 is a broken line
    return made


def _records(sources: Any) -> int:
    """Return the records that a batch took from Kafka, or from all sources if none is Kafka: lag has no others.

    Spark counts a record each time it is read: twice in a self-join, or with two actions in `foreachBatch`. The offsets
    tell how many there are at most.
    """
    rows = [_count(source["numInputRows"]) for source in sources]
    of_kafka = [place for place, source in enumerate(sources) if _of_source(source, source.get("endOffset"))]
    if not of_kafka:
        return sum(rows)
    most: dict[tuple[str, str], int] = {}
    for place in of_kafka:
        source = sources[place]
        starts = _of_source(source, source.get("startOffset"))
        if not starts:  # the query's first batch
            return sum(rows[place] for place in of_kafka)
        for topic, ends in _of_source(source, source.get("endOffset")).items():
            for partition, end in ends.items():
                taken = max(0, _count(end) - _count(starts.get(topic, {}).get(partition, 0)))
                most[topic, partition] = max(taken, most.get((topic, partition), 0))
    return min(sum(rows[place] for place in of_kafka), sum(most.values()))


def _rows(operator: Any) -> int | None:
    """Return the rows of an operator's state; None if RocksDB does not count them (`trackTotalNumberOfRows`).

    Spark calls them 0 then. They cannot be if the batch has put more rows into the state than it has removed.
    """
    rows = _count(operator["numRowsTotal"])
    in_rocksdb = any(name.startswith("rocksdb") for name in operator.get("customMetrics", ()))
    grew = operator.get("numRowsUpdated", 0) > operator.get("numRowsRemoved", 0)
    return None if rows == 0 and in_rocksdb and grew else rows


def offsets_of(sources: Any, which: str) -> events.PartitionOffsets:
    """Return offsets of all Kafka sources; those of other sources (a file log, a rate, shards) look different.

    If two sources of a query read the same partition, the lower offset counts: only up to there is everything done.
    """
    found: dict[str, dict[int, int]] = {}
    for source in sources:
        for topic, partitions in _of_source(source, source.get(which)).items():
            of_topic = found.setdefault(topic, {})
            for partition, offset in partitions.items():
                number, done = int(partition), _count(offset)
                of_topic[number] = min(done, of_topic.get(number, done))
    return found


def _reads_on(source: Any) -> bool:
    """Whether a batch ended beyond what had arrived when it was planned; a micro-batch never does."""
    latest = _of_source(source, source.get("latestOffset"))
    ends = _of_source(source, source.get("endOffset"))
    return any(
        end > latest[topic][partition]
        for topic, partitions in ends.items()
        for partition, end in partitions.items()
        if partition in latest.get(topic, ())
    )


def _limited(sources: Any) -> frozenset[str]:
    """Return the topics of which a batch took some records and left others, if another source had no more.

    If all sources leave records, batches are meant to be as small as they are.
    """
    left: set[str] = set()
    one_had_no_more = False
    for source in sources:
        starts, ends, latest = (
            _of_source(source, source.get(f"{which}Offset")) for which in ("start", "end", "latest")
        )
        behind = {
            t for t, partitions in ends.items() for p, end in partitions.items() if end < latest.get(t, {}).get(p, 0)
        }
        if not behind:
            one_had_no_more = one_had_no_more or bool(latest)
        elif starts != ends:
            left |= behind
    return frozenset(left) if one_had_no_more else frozenset()


def _assigned(sources: Any) -> frozenset[str]:
    """Return the topics that only sources with `assign` read: of them only the partitions of the offsets are read."""
    by_kind: dict[bool, set[str]] = {True: set(), False: set()}
    for source in sources:
        topics = _of_source(source, source.get("endOffset"))
        by_kind["[Assign[" in str(source.get("description"))].update(topics)
    return frozenset(by_kind[True] - by_kind[False])


def _of_source(source: Any, offsets: Any) -> Mapping[str, Mapping[str, Any]]:
    """Return the offsets of one source by topic and partition; nothing if they are not those of Kafka."""
    description = str(source.get("description", "Kafka"))
    if _PYTHON_SOURCE in description:
        return {}
    is_kafka = description.startswith("Kafka")
    if isinstance(offsets, str):
        try:
            offsets = from_json(offsets)
        except ValueError:
            if is_kafka:
                raise
            return {}  # any text may be the offset of another source
    if not isinstance(offsets, dict):
        return {}
    topics = {topic: partitions for topic, partitions in offsets.items() if isinstance(partitions, dict)}
    strange = next((topic for topic in topics if not _TOPIC.fullmatch(topic)), None)
    if is_kafka and strange is not None:  # asked for an empty one, Kafka's client tells nothing of the others
        raise ValueError(f"{strange!r:.80} is not a topic")
    looks_so = strange is None and all(map(_looks_like_kafkas, topics.values()))
    return topics if is_kafka or looks_so else {}


def _looks_like_kafkas(partitions: Mapping[str, Any]) -> bool:
    return bool(partitions) and all(
        name.isdecimal() and isinstance(at, int) and not isinstance(at, bool) and 0 <= at < 1 << 63
        for name, at in partitions.items()
    )


def _job_started(event: Any) -> events.SparkEvent | None:
    properties = event.get("Properties") or {}
    batch, query = properties.get("streaming.sql.batchId"), properties.get("sql.streaming.queryId")
    if query is not None and properties.get("__is_continuous_processing") == "true":
        return events.JobStarted(_text(query), 0, _millis(event["Submission Time"]), continuous=True)
    if batch is None or query is None:  # a job outside a micro-batch
        return None
    return events.JobStarted(_text(query), int(batch), _millis(event["Submission Time"]))


def _execution_started(event: Any) -> events.SparkEvent | None:
    """Return that a micro-batch began. Jobs that a thread of its `foreachBatch` starts do not name it."""
    batch = _BATCH.search(f"\n{event.get('description')}")
    return batch and events.JobStarted(batch[1], int(batch[2]), _millis(event["time"]))


def _stage_started(event: Any) -> events.SparkEvent | None:
    properties, info = event.get("Properties") or {}, event["Stage Info"]
    batch, query = properties.get("streaming.sql.batchId"), properties.get("sql.streaming.queryId")
    if batch is None or query is None:  # a stage outside a micro-batch
        return None
    return events.StageStarted(
        _text(query),
        int(batch),
        _stage(info),
        _count(info["Number of Tasks"]),
        frozenset(rdd["RDD ID"] for rdd in info.get("RDD Info", ()) if _SCAN in rdd.get("Scope", "")),
        any(_REAL_TIME_SCAN in rdd.get("Scope", "") for rdd in info.get("RDD Info", ())),
    )


def _task_ended(event: Any) -> events.SparkEvent | None:
    if event["Task End Reason"]["Reason"] != "Success":
        return None
    info, metrics = event["Task Info"], event["Task Metrics"]
    return events.TaskEnded(
        _stage(event),
        _count(info["Task ID"]),
        int(info["Partition ID"]),
        _count(metrics["Executor Run Time"]) / 1000,
        _count(metrics["JVM GC Time"]) / 1000,
        _count(metrics.get("Input Metrics", {}).get("Records Read", 0)),
    )


def _stage_ended(event: Any) -> events.SparkEvent:
    info = event["Stage Info"]
    return events.StageEnded(
        _stage(info),
        _stage_name(info),
        _count(info["Number of Tasks"]),
        _millis(info["Completion Time"]),
        bool(info.get("Failure Reason")),
    )


def _stage(info: Any) -> tuple[int, int]:
    return _count(info["Stage ID"]), _count(info["Stage Attempt ID"])


def _stage_name(info: Any) -> str:
    """Return the operators of a stage, in order. Spark's own name is the same line of code for every stage."""
    operators: list[str] = []
    for rdd in sorted(info.get("RDD Info", ()), key=lambda rdd: int(rdd["RDD ID"])):
        operator = from_json(rdd["Scope"])["name"] if rdd.get("Scope") else ""
        if operator and not operator.startswith("WholeStageCodegen") and operator not in operators:
            operators.append(operator)
    return " > ".join(operators)[:300] or str(info["Stage Name"])[:300]


_READERS: Mapping[bytes, Callable[[Any], events.SparkEvent | None]] = {
    b"SparkListenerEnvironmentUpdate": _properties,
    b"SparkListenerApplicationStart": lambda event: events.ApplicationStarted(
        _text(event["App ID"]), _text(event["App Name"]), _millis(event["Timestamp"])
    ),
    b"SparkListenerApplicationEnd": lambda event: events.ApplicationEnded(
        _millis(event["Timestamp"]), bool(event.get("ExitCode"))
    ),
    b"SparkListenerExecutorAdded": _executor_added,
    b"SparkListenerExecutorRemoved": lambda event: events.ExecutorRemoved(
        _text(event["Executor ID"]), _millis(event["Timestamp"])
    ),
    b"SparkListenerJobStart": _job_started,
    b"org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionStart": _execution_started,
    b"SparkListenerStageSubmitted": _stage_started,
    b"SparkListenerStageCompleted": _stage_ended,
    b"SparkListenerTaskEnd": _task_ended,
    b"QueryStartedEvent": lambda event: events.QueryStarted(
        _text(event["id"]), _instant(event["timestamp"]), _text_or_none(event.get("name"))
    ),
    b"QueryIdleEvent": lambda event: events.QueryIdle(_text(event["id"]), _instant(event["timestamp"])),
    b"QueryTerminatedEvent": lambda event: events.QueryTerminated(
        _text(event["id"]), _text_or_none(event.get("exception"))
    ),
    b"QueryProgressEvent": _progress,
}
