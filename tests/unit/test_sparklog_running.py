"""What is known of a micro-batch while it runs, from the tasks that have finished."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.eventlogs import recorded, run_of, up_to
from tidegate.events.snapshot import RunningBatch
from tidegate.sparklog.application_run import ApplicationRun, Interval
from tidegate.sparklog.events import JobStarted, QueryProgress, QueryTerminated, StageStarted, TaskEnded
from tidegate.sparklog.parse import parse

T = datetime(2026, 11, 22, 11, 17, 30, tzinfo=UTC)
INTERVAL = Interval(T, T + timedelta(seconds=10))
SCAN = frozenset({0, 1})


def with_batch(tasks: int = 6) -> ApplicationRun:
    """Return a run with a batch whose first stage, of id 0, has started."""
    run = run_of(up_to(recorded(), "SparkListenerApplicationStart"))
    run.apply(JobStarted("q", 0, T))
    run.apply(StageStarted("q", 0, (0, 0), tasks, SCAN))
    return run


def task(stage: int, partition: int, seconds: float = 2.0, records: int = 100, attempt: int = 0) -> TaskEnded:
    """Return the end of a task."""
    return TaskEnded((stage, attempt), partition, partition, seconds, 0.0, records)


def running(run: ApplicationRun) -> RunningBatch:
    """Return the only running batch."""
    (batch,) = run.cut(INTERVAL).running
    return batch


def test_a_recorded_batch_is_seen_task_by_task() -> None:
    """In a real log of two queries on one slot, each task that has ended adds its records and its time."""
    lines = up_to(recorded("running"), "SparkListenerTaskEnd", 2)
    first, second = run_of(lines).cut(INTERVAL).running
    assert (first.tasks, first.tasks_finished, first.read_tasks, first.read_tasks_finished) == (6, 2, 6, 2)
    assert (first.records_read, first.busy_seconds, first.read_seconds) == (6000, 8.18, 8.18)
    assert first.slowest_read_seconds == 4.829
    assert (second.tasks, second.tasks_finished, second.records_read) == (6, 0, 0), "it waits for the slot"
    assert first.started_at < second.started_at


def test_a_recorded_batch_goes_on_after_its_read() -> None:
    """Tasks of a stage that reads a shuffle count as work, not as reading."""
    lines = up_to(recorded("running"), "SparkListenerTaskEnd", 14)
    (batch,) = run_of(lines).cut(INTERVAL).running
    assert (batch.tasks, batch.tasks_finished) == (9, 8)
    assert (batch.read_tasks, batch.read_tasks_finished, batch.records_read) == (6, 6, 18_000)
    assert batch.busy_seconds > batch.read_seconds
    assert run_of(recorded("running")).cut(INTERVAL).running == ()


BATCH_BEGINS = (
    rb'{"Event":"org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionStart","executionId":16,"rootExecutionId":16'
    rb',"description":"\nid = 5cbeedb4-463f-4a7f-8483-8591d1fb90a2\nrunId = 017c674a-58a7-4294-b41b-adb03a1693ab'
    rb'\nbatch = 1","details":"","physicalPlanDescription":"","sparkPlanInfo":{},"time":1795980019527,"jobTags":[]'
    rb',"jobGroupId":"017c674a-58a7-4294-b41b-adb03a1693ab","queryId":"5cbeedb4-463f-4a7f-8483-8591d1fb90a2"}'
)
JOB_OF_A_THREAD = (
    rb'{"Event":"SparkListenerJobStart","Job ID":4,"Submission Time":1795980020042,"Stage Infos":[],"Stage IDs":[5]'
    rb',"Properties":{"callSite.short":"count at <string>:32","spark.rdd.scope.noOverride":"true"}}'
)
"""Both recorded from Spark 4.2 and shortened: a `foreachBatch` that writes in a `ThreadPoolExecutor`."""


def test_a_batch_is_seen_although_its_jobs_do_not_name_it() -> None:
    """Nor need it have jobs: a `foreachBatch` may wait for a service all the time."""
    run = run_of(up_to(recorded(), "SparkListenerApplicationStart"))
    for line in (BATCH_BEGINS, JOB_OF_A_THREAD):
        if (event := parse(line)) is not None:
            run.apply(event)
    at = datetime(2026, 11, 29, 19, 20, 30, tzinfo=UTC)
    reading = run.cut(Interval(at - timedelta(seconds=10), at))
    assert reading.current_batch_started_at == datetime(2026, 11, 29, 19, 20, 19, 527_000, UTC)
    assert [(batch.batch_id, batch.tasks, batch.records_read) for batch in reading.running] == [(1, 0, 0)]


def test_other_work_is_no_batch() -> None:
    """A script may run what it likes outside its queries. A line that cannot be shortened is read all the same."""
    assert parse(BATCH_BEGINS.replace(b"batch = 1", b"batch = init")) is None
    assert parse(BATCH_BEGINS.replace(b"id = 5cbeedb4", b"count")) is None
    assert parse(BATCH_BEGINS.replace(b',"details":""', b"")) == parse(BATCH_BEGINS)


def test_a_task_counts_once() -> None:
    """A second copy of a slow task, and another attempt of the stage, add nothing to what the first success told."""
    run = with_batch()
    run.apply(task(0, 0))
    run.apply(task(0, 0, seconds=9.0))
    run.apply(StageStarted("q", 0, (0, 1), 1, SCAN))
    run.apply(task(0, 0, attempt=1))
    run.apply(task(0, 5, attempt=1))
    batch = running(run)
    assert (batch.tasks, batch.tasks_finished, batch.records_read) == (6, 2, 200)
    assert (batch.busy_seconds, batch.slowest_read_seconds) == (4.0, 2.0)


def test_a_source_read_twice_counts_once() -> None:
    """The second action of a `foreachBatch` reads the same records again: more work, and not more records."""
    run = with_batch(tasks=1)
    run.apply(task(0, 0))
    run.apply(StageStarted("q", 0, (3, 0), 1, SCAN))
    run.apply(task(3, 0))
    batch = running(run)
    assert (batch.tasks, batch.tasks_finished, batch.busy_seconds) == (2, 2, 4.0)
    assert (batch.read_tasks, batch.records_read, batch.read_seconds) == (1, 100, 2.0)


@pytest.mark.parametrize("looks", [1, 6])
def test_a_look_at_a_source_is_no_reading_of_it(looks: int) -> None:
    """`isEmpty()` in a `foreachBatch` reads a record, of one partition or of each; the action after it reads all."""
    run = with_batch(tasks=looks)
    run.apply(task(0, 0, records=1))
    assert (running(run).read_tasks, running(run).records_read) == (looks, 1), "so far it is all that is known"
    run.apply(StageStarted("q", 0, (1, 0), 6, SCAN))
    run.apply(task(1, 3))
    batch = running(run)
    assert (batch.tasks, batch.tasks_finished, batch.busy_seconds) == (looks + 6, 2, 4.0)
    assert (batch.read_tasks, batch.read_tasks_finished, batch.records_read, batch.read_seconds) == (6, 1, 100, 2.0)


def test_two_sources_are_both_read() -> None:
    """A join reads two sources, each in a stage of its own."""
    run = with_batch(tasks=1)
    run.apply(StageStarted("q", 0, (1, 0), 2, frozenset({7})))
    for ended in (task(0, 0), task(1, 0), task(1, 1)):
        run.apply(ended)
    assert (running(run).read_tasks, running(run).records_read) == (3, 300)


def test_tasks_of_other_work_are_left_out() -> None:
    """Stages of another batch, of no batch, and records of a static table do not count as reading the source."""
    run = with_batch()
    run.apply(StageStarted("q", 7, (8, 0), 4, SCAN))
    run.apply(StageStarted("q", 0, (2, 0), 1, frozenset()))
    run.apply(task(8, 0))
    run.apply(task(9, 0))
    run.apply(task(2, 0, records=50))
    batch = running(run)
    assert (batch.tasks, batch.tasks_finished, batch.records_read) == (7, 1, 0)


@pytest.mark.parametrize("ended", ["progress", "terminated", "next"])
def test_a_batch_that_ended_leaves_nothing_behind(ended: str) -> None:
    """After its progress, its query's end, or the start of the next batch, a late task changes nothing."""
    run = with_batch()
    run.apply(task(0, 0))
    if ended == "progress":
        run.apply(QueryProgress("q", 0, T, 1.0, 0.5, 100, None, {"rec": {0: 1}}, ()))
    elif ended == "terminated":
        run.apply(QueryTerminated("q", None))
    else:
        run.apply(JobStarted("q", 1, T))
    run.apply(task(0, 1))
    found = run.cut(INTERVAL).running
    assert [batch.tasks for batch in found] == ([0] if ended == "next" else [])


def test_a_first_batch_counts_each_record_once() -> None:
    """Its offsets do not tell where it began, so the tasks of one reading tell how many records there were."""
    run = with_batch(2)
    run.apply(StageStarted("q", 0, (1, 0), 2, SCAN))
    for stage in (0, 1):
        for partition in range(2):
            run.apply(task(stage, partition))
    told = QueryProgress("q", 0, T, 1.0, 0.5, 400, None, {"rec": {0: 100, 1: 100}}, ())
    run.apply(told)
    later = replace(told, batch_id=1, input_records=7, start={"rec": {0: 100, 1: 100}})
    run.apply(later)
    assert [batch.input_records for batch in run.cut(INTERVAL).batches] == [200, 7]


def test_without_its_tasks_a_first_batch_counts_as_spark_does() -> None:
    """A log that is read from its newest file on has told nothing of them."""
    run = run_of(up_to(recorded(), "SparkListenerApplicationStart"))
    run.apply(QueryProgress("q", 0, T, 1.0, 0.5, 400, None, {"rec": {0: 100}}, ()))
    assert [batch.input_records for batch in run.cut(INTERVAL).batches] == [400]


def test_a_real_time_trigger_is_known_from_its_first_stage() -> None:
    """Its first batch may take minutes, and looks like one that is far too long."""
    run = with_batch(2)
    assert not run.reading(INTERVAL).real_time
    run.apply(StageStarted("q", 0, (1, 0), 2, frozenset(), real_time=True))
    assert run.reading(INTERVAL).real_time
