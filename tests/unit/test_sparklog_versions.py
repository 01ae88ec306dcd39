"""Logs of the same jobs on every version of Spark: the same figures from each (`eventlogs/record.py` made them)."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.support.eventlogs import of_version, run_of, versions_of
from tidegate.sparklog import events
from tidegate.sparklog.application_run import ApplicationRun, Interval, Reading
from tidegate.sparklog.parse import parse

EVEN = dict.fromkeys(range(4), 100)
SKEWED = {0: 340, 1: 20, 2: 20, 3: 20}
ALL_TIME = Interval(datetime(2026, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC), first=True)

BATCHES: dict[str, tuple[list[int], dict[str, dict[int, int]]]] = {
    "stateless": ([200, 200], {"even": EVEN}),
    "rocksdb": ([200, 200], {"even": EVEN}),
    "queries": ([200, 200, 200, 200], {"even": EVEN}),
    "join": ([400, 400], {"even": EVEN, "skewed": SKEWED}),
    "skew": ([200, 200], {"skewed": SKEWED}),
    "idle": ([200, 200], {"even": EVEN}),
    "failing": ([], {}),
}
"""Of each job: the records of its batches, and how far it commits."""


def on_versions_with(job: str) -> pytest.MarkDecorator:
    """Run a test for each version on which a job was recorded."""
    return pytest.mark.parametrize("version", versions_of(job))


def _events(version: str, job: str) -> list[events.SparkEvent]:
    found = (parse(line) for line in of_version(version, job))
    return [event for event in found if event is not None]


def _reading(version: str, job: str) -> Reading:
    run = run_of(of_version(version, job))
    assert run.job_id == "recorded"
    return run.reading(ALL_TIME)


@pytest.mark.parametrize("version", ["3.5.7", "4.2.0"])
def test_the_jobs_are_recorded_on_the_oldest_and_the_newest_version(version: str) -> None:
    """No recording is lost."""
    assert {job for job in BATCHES if version in versions_of(job)} == set(BATCHES)


@pytest.mark.parametrize(("version", "job"), [(version, job) for job in BATCHES for version in versions_of(job)])
def test_batches_and_offsets_are_the_same(version: str, job: str) -> None:
    """Every version tells the records of each batch, how far the job has committed, and that the application ended."""
    batches, committed = BATCHES[job]
    reading = _reading(version, job)
    assert [batch.input_records for batch in reading.batches] == batches
    assert reading.committed == committed
    assert reading.ended
    assert reading.query_seen
    assert not reading.query_active
    for batch in reading.batches:
        assert 0 < (batch.add_batch_seconds or 0) <= batch.duration_seconds


@on_versions_with("stateless")
def test_what_a_sink_has_written(version: str) -> None:
    """The Kafka sink counts records; so does the one that writes nothing, here the keys that have changed."""
    assert [batch.output_records for batch in _reading(version, "stateless").batches] == [200, 200]
    assert [batch.output_records for batch in _reading(version, "rocksdb").batches] == [50, 50]


@pytest.mark.parametrize(
    ("version", "job", "operator", "rows"),
    [
        (version, job, operator, rows)
        for job, operator, rows in (("rocksdb", "stateStoreSave", 50), ("join", "symmetricHashJoin", 800))
        for version in versions_of(job)
    ],
)
def test_the_state_is_the_same(version: str, job: str, operator: str, rows: int) -> None:
    """Rows, partitions and memory of the state, in memory and in RocksDB."""
    (state,) = _reading(version, job).operators
    assert (state.name, state.rows, state.partitions) == (operator, rows, 2)
    assert state.memory_bytes > 0


@on_versions_with("skew")
def test_skew_shows_in_the_tasks(version: str) -> None:
    """One of four tasks has 17 times the work of the others. Spark 4 orders the partitions in another way than 3.5."""
    (stage,) = [stage for stage in _reading(version, "skew").stages if stage.tasks == 4]
    assert "MicroBatchScan" in stage.name
    assert stage.runs == 2
    # 170 and 10 records of 5 ms; the rest, such as the start of Python, all tasks have
    assert stage.slowest_task_seconds - stage.median_task_seconds > 0.8
    assert stage.slowest_task_place == {"3.5.7": 0, "4.2.0": 3}[version]


@on_versions_with("failing")
def test_a_failure_has_its_text(version: str) -> None:
    """The error of the user's function is in the reading."""
    failure = _reading(version, "failing").failure
    assert failure is not None
    assert "is bad" in failure


@on_versions_with("idle")
def test_an_idle_query_says_so(version: str) -> None:
    """A query without new records says that it is idle, and which one it is."""
    found = _events(version, "idle")
    (started,) = [event for event in found if isinstance(event, events.QueryStarted)]
    idle = [event for event in found if isinstance(event, events.QueryIdle)]
    assert idle
    assert {event.query_id for event in idle} == {started.query_id}


@on_versions_with("stateless")
def test_a_cluster_has_executors_and_a_local_run_has_cores(version: str) -> None:
    """A standalone cluster added two executors of one core; `local[2]` is its own executor."""
    added = [event for event in _events(version, "stateless") if isinstance(event, events.ExecutorAdded)]
    assert [event.cores for event in added] == [1, 1]
    assert _reading(version, "stateless").local_cores is None
    assert _reading(version, "rocksdb").local_cores == 2


@on_versions_with("stateless")
def test_tasks_tell_what_a_running_batch_has_read(version: str) -> None:
    """Just before the last task of a batch ends, the others' records are read; the stage's reads are recognized."""
    run, most = ApplicationRun(), []
    for event in _events(version, "stateless"):
        run.apply(event)
        if isinstance(event, events.TaskEnded) and run.started is not None:
            most += [(batch.read_tasks, batch.records_read) for batch in run.reading(ALL_TIME).running]
    assert {tasks for tasks, _ in most} == {4}
    assert max(records for _, records in most) == 200
