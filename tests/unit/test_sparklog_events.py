"""Spark's events, one line at a time: known events are read, unknown ones skipped, broken ones reported."""

from __future__ import annotations

import json
import tracemalloc
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.support.eventlogs import recorded
from tidegate.sparklog.events import (
    ApplicationEnded,
    ApplicationProperties,
    ApplicationStarted,
    JobStarted,
    LocalCores,
    OperatorState,
    QueryIdle,
    QueryProgress,
    QueryStarted,
    QueryTerminated,
    SparkEvent,
    StageEnded,
    StageStarted,
    TaskEnded,
)
from tidegate.sparklog.parse import BrokenLine, parse


def events(name: str) -> list[SparkEvent]:
    """Return all events of a recording that the collector uses."""
    return [event for line in recorded(name) if (event := parse(line)) is not None]


def progress_line(**changes: Any) -> bytes:
    """Return a recorded progress event with some fields of its progress changed."""
    line = next(line for line in recorded() if b"QueryProgressEvent" in line)
    event = json.loads(line)
    event["progress"].update(changes)
    return json.dumps(event, separators=(",", ":")).encode()


def test_a_recorded_log_is_read_whole() -> None:
    """Every event of a real log is either read or known to be unused; none is broken."""
    counts = Counter(type(event).__name__ for event in events("standalone"))
    assert counts == {
        "ApplicationProperties": 1,
        "ApplicationStarted": 1,
        "ExecutorAdded": 2,
        "QueryStarted": 1,
        "JobStarted": 15,
        "StageStarted": 10,
        "TaskEnded": 30,
        "StageEnded": 10,
        "QueryProgress": 5,
        "QueryTerminated": 1,
        "ApplicationEnded": 1,
    }


def test_a_progress_event_is_read_unchanged() -> None:
    """Batch, durations, input per source, offsets and state are those of the recorded event."""
    progress = next(event for event in events("standalone") if isinstance(event, QueryProgress))
    assert (progress.batch_id, progress.input_records, progress.output_records) == (0, 2998, 4)
    assert (progress.duration_seconds, progress.add_batch_seconds) == (24.148, 21.541)
    assert progress.started_at == datetime(2026, 11, 21, 14, 34, 5, 982_000, UTC)
    assert progress.committed == {"rec": {0: 750, 1: 750, 2: 749, 3: 749}}
    assert [(o.name, o.rows, o.partitions) for o in progress.operators] == [("stateStoreSave", 4, 2)]


def test_assigned_partitions_are_told() -> None:
    """Of a topic that is read with `assign` other partitions are not read, unless another source reads all of it."""
    by_assign = {
        "description": "KafkaV2[Assign[a-0, b-1]]",
        "numInputRows": 1,
        "endOffset": {"a": {"0": 3}, "b": {"1": 4}},
    }
    whole = {"description": "KafkaV2[Subscribe[b]]", "numInputRows": 1, "endOffset": {"b": {"0": 3, "1": 4}}}
    both = parse(progress_line(sources=[by_assign, whole]))
    assert isinstance(both, QueryProgress)
    assert both.assigned == {"a"}


@pytest.mark.parametrize(
    ("figures", "rows"),
    [
        ({"numRowsUpdated": 50, "numRowsRemoved": 0}, None),  # as with trackTotalNumberOfRows=false
        ({"numRowsUpdated": 50, "numRowsRemoved": 50}, 0),
        ({"numRowsUpdated": 0, "numRowsRemoved": 0}, 0),
        ({"numRowsUpdated": 50, "numRowsTotal": 70}, 70),
        ({"numRowsUpdated": 50, "customMetrics": {"loadedMapCacheHitCount": 2}}, 0),  # the store on HDFS always counts
    ],
)
def test_rows_that_rocksdb_does_not_count_are_unknown(figures: dict[str, Any], rows: int | None) -> None:
    """A state into which a batch has put more rows than it has removed is not empty, whatever the total says."""
    operator = {
        "operatorName": "stateStoreSave",
        "numRowsTotal": 0,
        "memoryUsedBytes": 8360,
        "numShufflePartitions": 2,
        "customMetrics": {"rocksdbPutCount": 50, "rocksdbSstFileSize": 3211},
    }
    progress = parse(progress_line(stateOperators=[operator | figures]))
    assert isinstance(progress, QueryProgress)
    assert progress.operators == (OperatorState("stateStoreSave", rows, 8360, 2),)


@pytest.mark.parametrize(
    ("slow", "fast", "limited"),
    [
        ((10, 30, 90), (10, 80, 80), {"slow"}),  # its limit is smaller than what arrives
        ((10, 30, 90), (10, 60, 80), set()),  # both leave records: batches are meant to be small
        ((10, 90, 90), (10, 80, 80), set()),
        ((10, 10, 90), (10, 80, 80), set()),  # it waits for more
        ((10, 30, None), (10, 80, 80), set()),
        ((10, 30, 90), (10, 80, None), set()),
    ],
)
def test_a_source_that_alone_leaves_records_is_limited(slow: Any, fast: Any, limited: set[str]) -> None:
    """Nothing but a limit of its own keeps it from the records that a batch left, while the other source had none."""

    def source(topic: str, figures: tuple[int, int, int | None]) -> dict[str, Any]:
        places = zip(("startOffset", "endOffset", "latestOffset"), figures, strict=True)
        offsets = {name: None if end is None else json.dumps({topic: {"0": end, "1": 5}}) for name, end in places}
        return {"description": f"KafkaV2[Subscribe[{topic}]]", "numInputRows": 20, **offsets}

    progress = parse(progress_line(sources=[source("slow", slow), source("fast", fast)]))
    assert isinstance(progress, QueryProgress)
    assert progress.limited == limited


def test_a_batch_that_reads_on_has_a_real_time_trigger() -> None:
    """It ends beyond what was there when it was planned. The offsets are those of a real one of Spark 4.2."""
    rows = {"description": "KafkaV2[Subscribe[rt]]", "numInputRows": 350}
    ends = {"startOffset": '{"rt":{"0":225,"1":225}}', "endOffset": '{"rt":{"0":400,"1":400}}'}
    for latest, real_time in (('{"rt":{"0":250,"1":250}}', True), ('{"rt":{"0":400,"1":500}}', False), (None, False)):
        progress = parse(progress_line(sources=[rows | ends | {"latestOffset": latest}]))
        assert isinstance(progress, QueryProgress)
        assert progress.real_time is real_time
    assert not any(event.real_time for event in events("standalone") if isinstance(event, QueryProgress))


def test_a_stage_that_reads_on_is_told() -> None:
    """The operator is the one that Spark 4.2 names in the scope of a real-time query's RDDs."""
    line = next(line for line in recorded() if b"SparkListenerStageSubmitted" in line and b"MicroBatchScan" in line)
    for changed, real_time in ((line, False), (line.replace(b"MicroBatchScan", b"RealTimeStreamScan"), True)):
        stage = parse(changed)
        assert isinstance(stage, StageStarted)
        assert (bool(stage.scans), stage.real_time) == (not real_time, real_time)


def test_job_and_application_are_identified() -> None:
    """`spark.tidegate.job_id` names the job, the application id names the run."""
    found = events("standalone")
    properties = next(event for event in found if isinstance(event, ApplicationProperties))
    assert (properties.job_id, properties.app_name) == ("recorded", "recorded")
    assert properties.spark["spark.cores.max"] == "2"
    started = next(event for event in found if isinstance(event, ApplicationStarted))
    assert (started.app_id, started.app_name) == ("app-20261121143331-0000", "recorded")
    assert isinstance(found[-1], ApplicationEnded)
    assert not found[-1].failed


def test_tasks_and_stages_carry_times_and_operators() -> None:
    """Stages are named by their operators, because Spark's own name is the same for all of them."""
    found = events("standalone")
    stages = {(event.name, event.tasks) for event in found if isinstance(event, StageEnded)}
    assert stages == {
        ("MicroBatchScan > BatchEvalPython > Exchange", 4),
        ("Exchange > StateStoreRestore > StateStoreSave", 2),
    }
    assert all(e.run_seconds > 0 and e.gc_seconds >= 0 for e in found if isinstance(e, TaskEnded))


def test_tasks_carry_the_records_they_read() -> None:
    """A task that reads Kafka tells its records and its partition; a stage tells its batch and whether it reads."""
    found = events("running")
    reading = [e.stage for e in found if isinstance(e, StageStarted) and e.scans]
    assert reading == [(0, 0), (1, 0)]
    tasks = [e for e in found if isinstance(e, TaskEnded)]
    assert [(e.partition, e.records_read) for e in tasks if e.stage in reading] == [(n, 3000) for n in range(6)] * 2
    assert [(e.partition, e.records_read) for e in tasks if e.stage not in reading] == [(n, 0) for n in range(3)]
    stages = [e for e in found if isinstance(e, StageStarted)]
    assert len({e.query_id for e in stages}) == 2
    assert {(e.batch_id, e.tasks) for e in stages} == {(0, 6), (0, 3)}


def test_a_local_application_tells_its_cores_and_idleness() -> None:
    """`local[2]` has no master: cores and the idle event come from the log."""
    found = events("local")
    assert [event.cores for event in found if isinstance(event, LocalCores)] == [2]
    assert sum(isinstance(event, QueryIdle) for event in found) == 1
    assert [event.failure for event in found if isinstance(event, QueryTerminated)] == [None]
    assert sum(isinstance(event, QueryStarted) for event in found) == 1
    assert {event.batch_id for event in found if isinstance(event, JobStarted)} == {0, 1, 2}


def test_an_unknown_number_of_output_rows_is_unknown() -> None:
    """Spark's -1 means unknown and is never used as a number."""
    progress = parse(progress_line(sink={"numOutputRows": -1}))
    assert isinstance(progress, QueryProgress)
    assert progress.output_records is None


def test_sources_are_summed_and_the_lower_offset_counts() -> None:
    """Input is summed over the sources that are Kafka; if two read the same partition, the lower offset counts."""
    sources = [
        {"numInputRows": 5, "endOffset": '{"a":{"0":10,"1":7}}'},
        {"numInputRows": 7, "endOffset": '{"a":{"0":8},"b":{"0":1}}'},
        {"numInputRows": 1, "endOffset": '{"logOffset":3}'},
        {"numInputRows": 1, "endOffset": 17},
        {"numInputRows": 0, "endOffset": None},
    ]
    progress = parse(progress_line(sources=sources))
    assert isinstance(progress, QueryProgress)
    assert progress.input_records == 12
    assert progress.committed == {"a": {0: 8, 1: 7}, "b": {0: 1}}


def test_a_failed_task_is_not_counted() -> None:
    """Only successful tasks show how long the work takes."""
    line = next(line for line in recorded() if b'"SparkListenerTaskEnd"' in line)
    assert parse(line) is not None
    assert parse(line.replace(b'"Reason":"Success"', b'"Reason":"ExceptionFailure"')) is None


@pytest.mark.parametrize(
    "line",
    [b"", b"\n", b'{"Event":"SparkListenerSomethingNew","x":1}', b'{"x":1,"Event":"SparkListenerOther"}'],
)
def test_unknown_events_are_skipped(line: bytes) -> None:
    """An event of a later Spark version, or of a custom listener, is no problem."""
    assert parse(line) is None


QUERY_STARTED = (
    b'{"Event":"org.apache.spark.sql.streaming.StreamingQueryListener$QueryStartedEvent","id":"q","name":null,'
    b'"timestamp":"2026-11-21T14:34:00Z"}'
)
TASK_ENDED = (
    b'{"Event":"SparkListenerTaskEnd","Stage ID":1,"Stage Attempt ID":0,"Task End Reason":{"Reason":"Success"},'
    b'"Task Info":{"Task ID":1,"Partition ID":0},"Task Metrics":{"Executor Run Time":1,"JVM GC Time":0}}'
)


def test_the_lines_that_are_broken_below_are_whole() -> None:
    """So that each of them is broken by one field."""
    assert parse(QUERY_STARTED) is not None
    assert parse(TASK_ENDED) is not None


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b"not json", "not an event"),
        (b"\xff\xfe\x00", "not an event"),
        (b"[1,2]", "not an event"),
        (b"17", "not an event"),
        (b'{"a":1}', "not an event"),
        (b'{"Event":"SparkListenerTaskEnd","Stage ID":1', "SparkListenerTaskEnd: EOF"),
        (b'{"Event":"SparkListenerTaskEnd"}', "no field 'Task End Reason'"),
        (b'{"Event":"SparkListenerApplicationEnd","Timestamp":"now"}', "'now' is not a time"),
        (b'{"Event":"SparkListenerApplicationEnd","Timestamp":1e300}', "SparkListenerApplicationEnd"),
        (progress_line(batchId="7"), "QueryProgressEvent: '7' is not a count"),
        (progress_line(batchId=True), "True is not a count"),
        (progress_line(timestamp="yesterday"), "yesterday"),
        (progress_line(sources=[{"numInputRows": -3}]), "-3 is not a count"),
        (progress_line(sources=[{"numInputRows": float("nan")}]), "nan is not a count"),
        (progress_line(sources=[{"numInputRows": 1, "endOffset": '{"t":{"x":1}}'}]), "'x'"),
        (progress_line(sources=[{"numInputRows": 1, "endOffset": '{"":{"0":5}}'}]), "'' is not a topic"),
        (progress_line(sources=None), "QueryProgressEvent"),
        (progress_line(durationMs=[]), "QueryProgressEvent"),
        (progress_line(stateOperators=[{"operatorName": None}]), "None is not text"),
        (b'{"Event":"SparkListenerApplicationEnd","Timestamp":1180591620717411303424}', "Value too large"),
        (QUERY_STARTED.replace(b'"id":"q"', b'"id":7'), "7 is not text"),
        (QUERY_STARTED.replace(b'"name":null', b'"name":7'), "7 is not text"),
        (TASK_ENDED.replace(b'"Stage ID":1', b'"Stage ID":{}'), "{} is not a count"),
    ],
)
def test_broken_lines_are_named(line: bytes, what: str) -> None:
    """The error of a broken line names event, field and value."""
    with pytest.raises(BrokenLine, match=what):
        parse(line)


@pytest.mark.parametrize("name", ["standalone", "running"])
@pytest.mark.parametrize(
    "kind",
    ["SparkListenerTaskEnd", "SparkListenerJobStart", "SparkListenerStageSubmitted", "SparkListenerStageCompleted"],
)
def test_cutting_out_the_unused_middle_changes_nothing(kind: str, name: str) -> None:
    """A line with its fields in another order, which cannot be shortened, gives the same event."""
    line = next(line for line in recorded(name) if f'"{kind}"'.encode() in line)
    event = json.loads(line)
    if "Stage Info" in event:
        event["Stage Info"] = dict(reversed(event["Stage Info"].items()))
    reordered = {"Event": event.pop("Event")} | dict(reversed(event.items()))
    assert parse(json.dumps(reordered, separators=(",", ":")).encode()) == parse(line)
    assert parse(line) is not None


@pytest.mark.parametrize(
    "offset",
    [
        {"metadata": {"streamName": "s"}, "shardId-000": {"iteratorType": "AFTER", "iteratorPosition": "495"}},
        {"rows": {"0": {"position": 5}}},
        {"all rows": {"0": 5}},
        {"rows": {"0": -1}},
        {"rows": {"0": 1 << 63}},
        {"rows": {}},
        "any text",
        {"logOffset": 3},
        12,
        None,
    ],
    ids=["shards", "numbered", "named", "before the first", "huge", "empty", "text", "files", "rate", "none"],
)
def test_a_source_next_to_kafka_does_not_break_the_progress(offset: Any) -> None:
    """The offsets of a source of another kind are left out, and those of Kafka are read."""
    other = {"description": "other", "startOffset": offset, "endOffset": offset, "latestOffset": None}
    parsed = parse(progress_line(sources=[_kafka(0, 750, 750), other | {"numInputRows": 0}]))
    assert isinstance(parsed, QueryProgress)
    assert parsed.committed == {"rec": {0: 750}}


RATE = {"description": "RateStreamV2", "startOffset": 11, "endOffset": 12, "latestOffset": 12, "numInputRows": 90_000}


@pytest.mark.parametrize(
    ("sources", "records"),
    [
        (lambda: [_kafka(700, 750, 50), RATE], 50),
        (lambda: [RATE], 90_000),
        (lambda: [_kafka(700, 750, 100)], 50),
        (lambda: [_kafka(700, 750, 50), _kafka(700, 750, 50)], 50),
        (lambda: [_kafka(700, 750, 12)], 12),
        (lambda: [_kafka(None, 750, 100)], 100),
        (lambda: [_kafka(9000, 750, 0)], 0),
    ],
    ids=["rate besides", "no kafka", "read twice", "two scans", "compacted topic", "first batch", "recreated topic"],
)
def test_a_record_of_kafka_counts_once_and_no_other_counts(sources: Any, records: int) -> None:
    """Capacity is in records as lag has them: those of the topics, each once, however often a batch reads it."""
    parsed = parse(progress_line(sources=sources()))
    assert isinstance(parsed, QueryProgress)
    assert parsed.input_records == records


def test_a_source_in_python_reads_no_topics() -> None:
    """Its offsets may look like Kafka's. The description is a real one of Spark 4.2."""
    offset = json.dumps({"shards": {"0": 5, "1": 5}})
    stream = "org.apache.spark.sql.execution.datasources.v2.python.PythonMicroBatchStreamWithAdmissionControl@46ad8f7"
    other = {"description": stream, "startOffset": offset, "endOffset": offset, "latestOffset": None}
    parsed = parse(progress_line(sources=[_kafka(0, 750, 750), other | {"numInputRows": 10}]))
    assert isinstance(parsed, QueryProgress)
    assert (parsed.committed, parsed.input_records) == ({"rec": {0: 750}}, 750)


def _kafka(start: int | None, end: int, rows: int) -> dict[str, Any]:
    """Return a Kafka source of one partition."""
    first = None if start is None else {"rec": {"0": start}}
    offsets = {"startOffset": first, "endOffset": {"rec": {"0": end}}, "latestOffset": None}
    return {"description": "KafkaV2[Subscribe[rec]]", "numInputRows": rows, **offsets}


@pytest.mark.parametrize(
    "start", [b'{"Event":"SparkListenerEnvironmentUpdate","x":[', b'{"x":['], ids=["of an event", "of no event"]
)
def test_a_line_that_would_fill_the_memory_is_broken(start: bytes) -> None:
    """As objects, a line of 15 MB would take 350 MB: a job's own log must not end the collector of all jobs."""
    line = start + b"{}," * 5_000_000 + b"{}]}"
    tracemalloc.start()
    with pytest.raises(BrokenLine, match="bytes"):
        parse(line)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


def test_the_unused_middle_of_a_line_may_be_large() -> None:
    """The plan of a query may have any length: it is cut out before the rest is parsed."""
    start, end = b'{"Event":"org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionStart"', b',"time":1}'
    description = b',"description":"\\nid = ' + b"a" * 36 + b"\\nrunId = " + b"b" * 36 + b'\\nbatch = 7"'
    assert parse(start + description + b',"details":"' + b"x" * 5_000_000 + b'"' + end) == JobStarted(
        "a" * 36, 7, datetime.fromtimestamp(0.001, UTC)
    )
