"""One run, aggregated from its events and cut into intervals."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.eventlogs import recorded, run_of, up_to
from tidegate.sparklog.application_run import LATE, MAX_BATCHES, MAX_ENDED, ApplicationRun, Interval, Reading
from tidegate.sparklog.events import (
    JobStarted,
    OperatorState,
    QueryIdle,
    QueryProgress,
    QueryStarted,
    QueryTerminated,
    SparkEvent,
    StageEnded,
    TaskEnded,
)
from tidegate.sparklog.parse import parse
from tidegate.sparklog.rounds import growth

T = datetime(2026, 11, 21, 14, 34, 0, tzinfo=UTC)


def fresh() -> ApplicationRun:
    """Return the run of an application that has just started."""
    return run_of(up_to(recorded(), "SparkListenerApplicationStart"))


def between(start: float, end: float, *, first: bool = False) -> Interval:
    """Return the interval from `start` to `end` seconds after T."""
    return Interval(T + timedelta(seconds=start), T + timedelta(seconds=end), first=first)


def progress(batch_id: int, at: float, *, query: str = "q", seconds: float = 1.0, offset: int = 10) -> QueryProgress:
    """Return the progress of a batch that started `at` seconds after T."""
    return QueryProgress(
        query, batch_id, T + timedelta(seconds=at), seconds, seconds / 2, 100, None, {"rec": {0: offset}}, ()
    )


def ids(reading: Reading) -> list[int]:
    """Return the batch ids of a reading."""
    return [batch.batch_id for batch in reading.batches]


def test_every_batch_is_in_exactly_one_interval() -> None:
    """A recorded run, cut into intervals of 10 s, gives each batch once, in the interval in which it ended."""
    run = run_of(recorded())
    cuts = {start: ids(run.cut(between(start, start + 10))) for start in range(0, 70, 10)}
    # ends: 34:30.13, 34:36.29, 34:41.98, 34:47.27, 34:52.82
    assert cuts == {0: [], 10: [], 20: [], 30: [0, 1], 40: [2, 3], 50: [4], 60: []}


@pytest.mark.parametrize(("failure", "committed"), [(None, 900), ("boom", 500)])
def test_a_query_that_is_done_does_not_hold_the_offsets_back(failure: str | None, committed: int) -> None:
    """After a backfill of the same topic has ended, the other query's offsets count; a failed query still counts."""
    run = fresh()
    run.apply(QueryStarted("backfill", T, "backfill"))
    run.apply(progress(0, 1, query="backfill", offset=500))
    run.apply(QueryTerminated("backfill", failure))
    assert run.committed == {"rec": {0: 500}}, "nobody else reads it"
    run.apply(QueryStarted("q", T))
    run.apply(progress(0, 10, offset=900))
    assert run.committed == {"rec": {0: committed}}


def test_a_query_that_is_done_does_not_say_which_partitions_are_read() -> None:
    """It has read all of a topic, and now another one reads only some partitions: those of nobody have no lag."""
    run = fresh()
    run.apply(replace(progress(0, 1, query="backfill"), committed={"rec": {0: 500, 1: 500}}))
    run.apply(QueryTerminated("backfill", None))
    run.apply(replace(progress(0, 10), committed={"rec": {0: 900}}, assigned=frozenset({"rec"})))
    assert run.committed == {"rec": {0: 900}}
    assert run.assigned == {"rec"}


def test_of_a_topic_without_a_commit_the_run_before_tells_which_partitions_are_read() -> None:
    """It tells their offsets, too: a first commit of a query that reads another topic changes neither."""
    run = fresh()
    run.inherited, run.inherited_assigned = {"rec": {1: 500}}, frozenset({"rec"})
    run.apply(replace(progress(0, 1, query="other"), committed={"more": {0: 7}}))
    reading = run.reading(between(0, 10))
    assert reading.committed == {"rec": {1: 500}, "more": {0: 7}}
    assert reading.assigned == {"rec"}
    run.apply(replace(progress(0, 2), committed={"rec": {0: 0, 1: 600}}))
    assert run.reading(between(0, 10)).assigned == frozenset()


@pytest.mark.parametrize("name", [None, "copy"])
def test_a_failed_query_counts_until_it_is_started_again_without_its_checkpoint(name: str | None) -> None:
    """A script may do so in a loop: each time with another id, and from the offsets that its options say."""
    run = fresh()
    run.apply(QueryStarted("first", T, name))
    run.apply(progress(0, 1, query="first", offset=500))
    run.apply(QueryTerminated("first", "boom"))
    run.apply(QueryStarted("second", T, name))
    assert run.committed == {"rec": {0: 500}}, "the second one has read nothing yet"
    for batch, offset in enumerate((900, 950)):
        run.apply(progress(batch, 5 + batch, query="second", offset=offset))
    reading = run.cut(between(0, 10))
    assert reading.committed == {"rec": {0: 950}}
    assert [batch.started_at for batch in reading.batches] == [T + timedelta(seconds=at) for at in (1, 5, 6)]
    run.apply(QueryTerminated("second", None))
    assert run.reading(between(10, 20)).failure is None


def test_a_query_that_failed_next_to_another_one_still_counts() -> None:
    """One that ran already when it failed does not take its work over, nor does one of other topics."""
    run = fresh()
    for query in ("main", "failed"):
        run.apply(QueryStarted(query, T))
        run.apply(progress(0, 1, query=query, offset=300))
    run.apply(QueryTerminated("failed", "boom"))
    run.apply(progress(1, 2, query="main", offset=900))
    run.apply(QueryStarted("third", T))
    run.apply(replace(progress(0, 3, query="third"), committed={"other": {0: 1}}))
    assert run.committed == {"rec": {0: 300}, "other": {0: 1}}


def test_a_query_that_failed_while_others_go_on_is_told() -> None:
    """Its topic is read by nobody. Once the script has started it again, or has ended, that is over."""
    run = fresh()
    for query, topic in (("main", "rec"), ("failed", "other")):
        run.apply(QueryStarted(query, T, query))
        run.apply(replace(progress(0, 1, query=query), committed={topic: {0: 300}}))
    assert run.reading(between(0, 10)).failed is None
    run.apply(QueryTerminated("failed", "boom"))
    assert run.reading(between(0, 10)).failed == frozenset({"other"})
    run.apply(QueryStarted("again", T, "failed"))
    assert run.reading(between(0, 10)).failed is None, "nobody knows yet what it reads"
    run.apply(replace(progress(0, 3, query="again"), committed={"other": {0: 400}}))
    assert run.reading(between(0, 10)).failed is None
    run.apply(QueryTerminated("again", "boom"))
    assert run.reading(between(0, 10)).failed == frozenset({"other"})
    run.apply(QueryTerminated("main", None))
    assert run.reading(between(0, 10)).failed is None


@pytest.mark.parametrize("name", [None, "copy"])
def test_a_query_that_failed_in_its_first_batch_is_told_until_it_is_started_again(name: str | None) -> None:
    """It has told nothing, so nobody knows what it read; once another one of its name works, it has not failed."""
    run = fresh()
    run.apply(QueryStarted("main", T, "main"))
    run.apply(progress(0, 1, query="main"))
    run.apply(QueryStarted("failed", T, name))
    run.apply(QueryTerminated("failed", "boom"))
    reading = run.reading(between(0, 10))
    assert (reading.failed, reading.all_told) == (frozenset(), False)
    run.apply(QueryStarted("again", T, name))
    run.apply(replace(progress(0, 3, query="again"), committed={"other": {0: 400}}))
    reading = run.reading(between(0, 10))
    assert (reading.failed, reading.failure, reading.all_told) == (None, None, True)


def test_queries_that_have_ended_do_not_add_up() -> None:
    """A script may start a new query for each hour's work; those that run, and one that failed, still count."""
    run = fresh()
    run.apply(QueryStarted("main", T))
    run.apply(progress(0, 0, query="main", offset=900))
    run.apply(QueryStarted("failed", T, "failed"))
    run.apply(progress(0, 1, query="failed", offset=300))
    run.apply(QueryTerminated("failed", "boom"))
    sizes = []
    for number in range(3 * MAX_ENDED):
        run.apply(QueryStarted(f"q-{number}", T))
        run.apply(progress(0, 2, query=f"q-{number}", offset=500))
        run.apply(QueryTerminated(f"q-{number}", None))
        run.cut(between(0, 10))
        sizes.append(len(pickle.dumps(run)))
    assert sizes[-1] < 1.05 * sizes[MAX_ENDED]
    reading = run.reading(between(0, 10))
    assert reading.query_active
    assert (reading.query_id, reading.failure, reading.committed) == ("main", "boom", {"rec": {0: 300}})


def test_a_query_that_runs_again_and_again_is_not_forgotten() -> None:
    """Its offsets count between two of its runs, however many others have ended."""
    run = fresh()
    for number in range(2 * MAX_ENDED):
        for query, offset in (("main", 10 * number), (f"q-{number}", 10_000)):
            run.apply(QueryStarted(query, T))
            run.apply(progress(number, number, query=query, offset=offset))
            run.apply(QueryTerminated(query, None))
        assert run.committed == {"rec": {0: 10 * number}}
    assert run.reading(between(0, 10)).query_id == "main"


@pytest.mark.parametrize("failure", [None, "boom"])
def test_a_run_tells_which_topics_it_reads(failure: str | None) -> None:
    """A pattern's topics come with the progress; a query that has ended without a failure reads no more."""
    run = fresh()
    run.inherited = {"before": {0: 1}}
    assert run.reading(between(0, 10)).topics == frozenset()
    run.apply(QueryStarted("q", T))
    run.apply(QueryStarted("other", T))
    run.apply(replace(progress(0, 1), committed={"rec": {0: 5}, "rec-2": {0: 1}}))
    assert not run.reading(between(0, 10)).all_told
    run.apply(replace(progress(0, 2, query="other"), committed={"once": {1: 5}}, assigned=frozenset({"once"})))
    reading = run.reading(between(0, 10))
    assert reading.topics == {"rec", "rec-2", "once"}
    assert reading.assigned == {"once"}
    assert reading.all_told
    run.apply(QueryTerminated("other", None))
    assert run.reading(between(0, 10)).topics == {"rec", "rec-2"}
    run.apply(QueryTerminated("q", failure))
    assert run.reading(between(0, 10)).topics == {"rec", "rec-2", "once"}, "what it will read again"


def test_a_clock_that_is_days_ahead_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What belongs to intervals far in the future is kept for them, but only so much of it."""
    monkeypatch.setattr("tidegate.sparklog.application_run.MAX_AHEAD", 100)
    run = fresh()
    for number in range(200):
        run.apply(progress(number, 86_400 + number))
    run.cut(between(0, 10))
    assert run.reading(between(10, 20)).batches_left_out == 100


def test_tasks_that_end_after_their_stage_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark tells the end of a speculative copy of a task when its stage may be over: no end of a stage follows."""
    monkeypatch.setattr("tidegate.sparklog.application_run.MAX_OPEN_STAGES", 10)
    run, sizes = fresh(), []
    for stages in (range(100), range(100, 1000)):
        for stage in stages:
            task = TaskEnded((stage, 0), stage, 0, 1.0, 0.1, 0)
            run.apply(task)
            run.apply(StageEnded((stage, 0), "scan", 1, T, failed=False))
            run.apply(task)
        run.cut(between(-10, 10))
        sizes.append(len(pickle.dumps(run)))
    assert sizes[1] < 1.1 * sizes[0]


def test_a_real_time_query_is_known_until_a_batch_shows_otherwise() -> None:
    """A batch without records cannot tell, so what the one before told holds."""
    run, seen = fresh(), []
    for number, (real_time, records) in enumerate([(True, 5), (False, 0), (False, 5)]):
        run.apply(replace(progress(number, number), real_time=real_time, input_records=records))
        seen.append(run.reading(between(0, 10)).real_time)
    assert seen == [True, True, False]


def test_a_continuous_query_is_known_by_its_job() -> None:
    """The properties are those that Spark 4.2 gives it; nothing else in the log tells of such a query."""
    properties = {"__is_continuous_processing": "true", "sql.streaming.queryId": "q", "__continuous_start_epoch": "0"}
    job = {"Event": "SparkListenerJobStart", "Job ID": 0, "Submission Time": 0, "Properties": properties}
    started = parse(json.dumps(job, separators=(",", ":")).encode())
    assert started is not None
    run = fresh()
    run.apply(QueryStarted("q", T))
    assert not run.reading(between(0, 10)).continuous
    run.apply(started)
    assert run.reading(between(0, 10)).continuous
    run.apply(QueryTerminated("q", None))
    assert not run.reading(between(0, 10)).continuous


def test_a_real_time_query_has_read_on_unless_a_batch_has_just_ended() -> None:
    """Spark tells what such a query has processed only when a batch ends, which may take minutes."""
    run = fresh()
    run.apply(replace(progress(1, 1.0), real_time=True))
    run.apply(progress(1, 15.0, query="other"))
    assert [run.cut(between(start, start + 10)).reads_on for start in (0, 10, 20)] == [False, True, True]
    run.apply(QueryTerminated("q", None))
    assert not run.cut(between(30, 40)).reads_on


def test_a_run_is_idle_when_all_its_queries_are() -> None:
    """A query that finds nothing new says so; a batch, of it or of another one, ends that."""
    run, seen = fresh(), []
    told: list[SparkEvent] = [
        progress(0, 0),
        QueryIdle("q", T + timedelta(seconds=5)),
        progress(0, 6, query="r"),
        QueryIdle("r", T + timedelta(seconds=8)),
        JobStarted("q", 1, T + timedelta(seconds=9)),
        progress(1, 9),
    ]
    for event in told:
        run.apply(event)
        at = run.reading(between(0, 10)).idle_at
        seen.append(None if at is None else (at - T).total_seconds())
    assert seen == [None, 5, None, 5, None, None]


def test_stage_figures_are_those_of_the_tasks() -> None:
    """Busy time is the sum over tasks; median and slowest are averaged over the runs; the place is the newest run's."""
    run = fresh()
    for attempt, seconds in enumerate([(1.0, 2.0, 6.0), (1.0, 4.0, 4.0)]):
        for partition, task in enumerate(seconds):
            # Partitions are launched in another order than they are numbered in.
            run.apply(TaskEnded((attempt, 0), 10 * attempt + 3 - partition, partition, task, task / 10, 0))
        run.apply(StageEnded((attempt, 0), "scan", 3, T + timedelta(seconds=attempt), failed=False))
    reading = run.cut(between(-10, 10))
    (stage,) = reading.stages
    assert (stage.name, stage.tasks, stage.runs) == ("scan", 3, 2)
    assert stage.busy_seconds == pytest.approx(18.0)
    assert stage.median_task_seconds == pytest.approx((2.0 + 4.0) / 2)
    assert stage.slowest_task_seconds == pytest.approx((6.0 + 4.0) / 2)
    assert stage.slowest_task_place == 1
    assert reading.gc_ratio == pytest.approx(0.1)


def test_a_failed_stage_and_no_tasks_give_no_figures() -> None:
    """Without finished work, ratio and stages are absent, not zero."""
    run = fresh()
    run.apply(TaskEnded((1, 0), 7, 0, 1.0, 0.1, 0))
    run.apply(StageEnded((1, 0), "scan", 3, T, failed=True))
    run.apply(StageEnded((2, 0), "skipped", 3, T, failed=False))
    reading = run.cut(between(-10, 10))
    assert reading.stages == ()
    assert reading.gc_ratio is None


def test_a_batch_written_late_is_in_the_next_snapshot() -> None:
    """Spark writes the progress a moment after the end of the batch: it is late, not lost."""
    run = fresh()
    assert ids(run.cut(between(0, 10))) == []
    run.apply(progress(3, 8.5))  # ended at 9.5
    assert ids(run.cut(between(10, 20))) == [3]
    assert ids(run.cut(between(20, 30))) == []


def test_what_ended_after_the_interval_waits() -> None:
    """A batch that ends between the interval's end and the read belongs to the next snapshot."""
    run = fresh()
    run.apply(progress(3, 9.5))  # ended at 10.5
    assert ids(run.cut(between(0, 10))) == []
    assert ids(run.cut(between(10, 20))) == [3]


@pytest.mark.parametrize("first", [True, False])
def test_a_gap_is_not_made_up_for(first: bool) -> None:
    """Batches of a gap are left out of the next snapshot; after a start even late ones are left out."""
    run = fresh()
    run.apply(progress(1, -60.0))
    run.apply(progress(2, -2.0))  # ended 1 s before the interval
    run.apply(progress(3, 2.0))
    assert ids(run.cut(between(0, 10, first=first))) == ([3] if first else [2, 3])
    assert timedelta(seconds=1) < LATE < timedelta(seconds=60)


@pytest.mark.parametrize("ahead", [-3600.0, -30.0, 30.0, 600.0])
def test_a_driver_with_another_clock_does_not_look_idle(ahead: float) -> None:
    """Batches that end out of their interval are left out, and the snapshot says so: no batches would mean idleness."""
    run = fresh()
    for number in range(4):
        for batch in range(5):
            run.apply(progress(5 * number + batch, 10 * number + 2 * batch + ahead, seconds=2.0))
        reading = run.cut(between(10 * number, 10 * number + 10))
        assert reading.batches or reading.batches_left_out
        if not reading.batches:
            assert reading.clock_ahead_seconds == pytest.approx(ahead, abs=10)


@pytest.mark.parametrize("ahead", [-4.0, 0.0, 4.0])
def test_a_small_difference_of_clocks_leaves_nothing_out(ahead: float) -> None:
    """What is a little late, or early, is in the next snapshot."""
    run, seen = fresh(), []
    for number in range(4):
        for batch in range(5):
            run.apply(progress(5 * number + batch, 10 * number + 2 * batch + ahead, seconds=2.0))
        reading = run.cut(between(10 * number, 10 * number + 10))
        assert reading.batches_left_out == 0
        assert reading.clock_ahead_seconds is None
        seen += ids(reading)
    assert seen[:17] == list(range(17))


def test_a_repeated_batch_counts_once() -> None:
    """A compacted log repeats events; the batch id identifies them."""
    run = fresh()
    for batch in (1, 2, 1, 2, 3):
        run.apply(progress(batch, batch))
    assert ids(run.cut(between(0, 10))) == [1, 2, 3]


def test_a_batch_counts_once_although_the_start_of_its_query_is_repeated() -> None:
    """A compacted log that is read after the files it stands for repeats that as well."""
    again = [line for line in recorded() if b"Query" in line[:100]]
    run = run_of([*recorded(), *again])
    assert ids(run.cut(between(30, 60))) == [0, 1, 2, 3, 4]


def test_repeated_progress_sets_no_offsets_back() -> None:
    """A look may end within a compacted log: nothing was uncommitted, so lag must not grow for that snapshot."""
    run = fresh()
    for number, run_id in ((1, "a"), (2, "a"), (3, "b"), (4, "b")):
        run.apply(replace(progress(number, number, offset=100 * number), run_id=run_id))
    for number, run_id in ((1, "a"), (2, "a"), (3, "b")):
        run.apply(replace(progress(number, number, offset=100 * number), run_id=run_id))
        assert run.committed == {"rec": {0: 400}}
    again = [line for line in recorded() if b"QueryProgress" in line[:100]]
    assert run_of([*recorded(), *again[:2]]).committed == run_of(recorded()).committed


def test_a_run_from_an_older_checkpoint_sets_the_offsets_back() -> None:
    """Somebody has put back a copy of the checkpoint: its batches have the same ids, but the run is a newer one."""
    run = fresh()
    for number in range(5):
        run.apply(replace(progress(number, number, offset=100 * number), run_id="a"))
    run.apply(QueryStarted("q", T))
    run.apply(replace(progress(2, 6, offset=100), add_batch_seconds=None, run_id="b"))
    assert run.committed == {"rec": {0: 100}}
    for number, at, run_id in ((2, 7, "b"), (3, 8, "b"), (3, 9, "c")):
        run.apply(replace(progress(number, at, offset=100 * number, seconds=0.5), run_id=run_id))
        assert run.committed == {"rec": {0: 100 * number}}
    assert ids(run.cut(between(0, 10))) == [0, 1, 2, 3, 4, 2, 3, 3]


def test_the_newest_batches_are_kept_and_the_rest_counted() -> None:
    """A snapshot has at most 200 batches and says how many were left out."""
    run = fresh()
    for batch in range(MAX_BATCHES + 5):
        run.apply(progress(batch, 0.01 * batch, seconds=0.01))
    reading = run.cut(between(0, 10))
    assert ids(reading) == list(range(5, MAX_BATCHES + 5))
    assert reading.batches_left_out == 5


def test_a_trigger_without_a_batch_is_not_a_batch() -> None:
    """Progress without `addBatch` has offsets but is not a batch."""
    run = fresh()
    idle = QueryProgress("q", 4, T, 0.1, None, 0, None, {"rec": {0: 10}}, ())
    run.apply(idle)
    reading = run.cut(between(-10, 10))
    assert reading.batches == ()
    assert reading.committed == {"rec": {0: 10}}


def test_the_running_batch_is_seen_until_it_is_done() -> None:
    """A batch's first Spark job starts it, its progress ends it; a finished batch does not come back."""
    run = fresh()
    at = T + timedelta(seconds=1)
    run.apply(JobStarted("q", 5, at))
    run.apply(JobStarted("q", 5, at + timedelta(seconds=3)))
    assert run.cut(between(0, 10)).current_batch_started_at == at
    run.apply(progress(5, 1.0))
    assert run.cut(between(0, 10)).current_batch_started_at is None
    run.apply(JobStarted("q", 5, at))
    assert run.cut(between(0, 10)).current_batch_started_at is None


def test_several_queries_are_combined() -> None:
    """With two queries on a topic, the lower offset counts, and the state of the job is that of both."""
    run = fresh()
    run.apply(QueryStarted("one", T))
    run.apply(QueryStarted("two", T))
    run.apply(progress(1, 1.0, query="one", offset=50))
    run.apply(progress(1, 2.0, query="two", offset=40))
    reading = run.cut(between(0, 10))
    assert reading.committed == {"rec": {0: 40}}
    assert reading.query_id == "one"
    run.apply(QueryTerminated("one", None))
    assert run.cut(between(10, 20)).query_active
    run.apply(QueryTerminated("two", "it broke"))
    reading = run.cut(between(20, 30))
    assert (reading.query_active, reading.failure) == (False, "it broke")


def shared(*batches: tuple[str, float, float, int]) -> tuple[int, float]:
    """Return the records and the seconds of the batches of two queries, after each has committed offset 10.

    A batch is (query, start, seconds, offset), the start in seconds after T.
    """
    run = fresh()
    for batch_id, query, offset in ((0, "one", 5), (0, "two", 5), (1, "one", 10), (1, "two", 10)):
        run.apply(progress(batch_id, -10.0 + batch_id, query=query, offset=offset))
    run.cut(between(-20, 0, first=True))
    for number, (query, at, seconds, offset) in enumerate(batches):
        run.apply(progress(2 + number, at, query=query, seconds=seconds, offset=offset))
    found = run.cut(between(0, 100)).batches
    return sum(batch.input_records for batch in found), sum(batch.duration_seconds for batch in found)


@pytest.mark.parametrize(
    ("batches", "seconds"),
    [
        ([("one", 0, 10, 100), ("two", 0, 10, 100)], 10),
        ([("one", 0, 5, 100), ("two", 0, 10, 100)], 10),
        ([("one", 0, 5, 100), ("two", 5, 5, 100)], 10),
        ([("one", 0, 3, 100), ("two", 6, 4, 100)], 7),
        ([("one", 0, 1, 40), ("one", 2, 1, 70), ("one", 4, 1, 100), ("two", 1, 9, 100)], 10),
    ],
    ids=["side by side", "one waits for slots", "in turn", "with a rest", "many short ones and a long one"],
)
def test_a_record_that_two_queries_read_is_done_once_both_are(
    batches: list[tuple[str, float, float, int]], seconds: float
) -> None:
    """However Spark schedules them, 90 records took the time in which somebody worked; so does the next round."""
    assert shared(*batches) == (90, seconds)
    later = [(query, at + 20, lasted, offset + 90) for query, at, lasted, offset in batches]
    assert shared(*batches, *later) == (180, 2 * seconds)


def test_queries_of_different_topics_have_their_own_batches() -> None:
    """Nothing is read twice, so the records of all batches count."""
    run = fresh()
    run.apply(progress(1, 1.0, query="one"))
    run.apply(replace(progress(1, 2.0, query="two"), committed={"other": {0: 7}}))
    reading = run.cut(between(0, 10))
    assert ids(reading) == [1, 1]
    assert sum(batch.input_records for batch in reading.batches) == 200


def test_batches_without_kafka_count_only_if_no_query_reads_kafka() -> None:
    """Records of a rate or Delta source are no lag: next to those of Kafka they look like capacity for it."""
    alone, both, restarted = fresh(), fresh(), fresh()
    restarted.inherited = {"rec": {0: 3}}
    for run in (alone, both, restarted):
        run.apply(QueryStarted("rates", T))
    both.apply(QueryStarted("q", T))  # it may read Kafka, as long as it has told nothing
    for run in (alone, both, restarted):
        run.apply(replace(progress(0, 1.0, query="rates"), committed={}))
        run.apply(JobStarted("rates", 1, T + timedelta(seconds=2)))
    assert [len(run.reading(between(0, 10)).batches) for run in (alone, both, restarted)] == [1, 0, 0]
    assert [len(run.reading(between(0, 10)).running) for run in (alone, both, restarted)] == [1, 0, 0]
    both.apply(progress(5, 2.0))
    both.apply(replace(progress(1, 3.0, query="rates"), committed={}))
    assert ids(both.reading(between(0, 10))) == [5]
    assert both.counts(between(0, 10))[0] == 1


def test_a_query_that_has_ended_shares_nothing() -> None:
    """After a backfill has ended, the batches of the other query are its own again."""
    run = fresh()
    for query in ("one", "backfill"):
        run.apply(progress(1, 1.0, query=query))
    run.apply(QueryTerminated("backfill", None))
    run.cut(between(0, 3))
    run.apply(progress(2, 3.0, query="one", offset=90))
    [batch] = run.cut(between(3, 10)).batches
    assert (batch.batch_id, batch.input_records, batch.duration_seconds) == (2, 100, 1.0)


def test_a_query_started_again_is_active_again() -> None:
    """A restarted query loses its earlier failure, but keeps its committed offsets."""
    run = fresh()
    run.apply(progress(7, 1.0))
    run.apply(QueryTerminated("q", "it broke"))
    run.apply(QueryStarted("q", T))
    reading = run.cut(between(0, 10))
    assert (reading.query_active, reading.failure, reading.ends) == (True, None, 1)
    assert reading.committed == {"rec": {0: 10}}
    run.apply(QueryTerminated("q", None))
    assert run.cut(between(10, 20)).ends == 2


def test_a_rehearsal_before_a_handover_does_not_count() -> None:
    """The query with which a driver warms up shows in no figure: neither as a query, nor as a batch or a commit."""
    run = fresh()
    before = run.cut(between(0, 10))
    run.apply(QueryStarted("warm", T, "tidegate-rehearsal-1"))
    run.apply(JobStarted("warm", 0, T))
    run.apply(progress(0, 1.0, query="warm"))
    run.apply(QueryTerminated("warm", None))
    assert run.cut(between(0, 10)) == before
    assert not run.has_committed


def test_offsets_of_the_previous_run_apply_until_the_first_commit() -> None:
    """A new run continues from the same checkpoint, so its committed offsets are known before its first batch."""
    run = fresh()
    run.inherited = {"rec": {0: 5}}
    assert run.cut(between(0, 10)).committed == {"rec": {0: 5}}
    assert not run.has_committed
    run.apply(progress(1, 1.0))
    assert run.cut(between(0, 10)).committed == {"rec": {0: 10}}


def test_a_query_that_has_not_committed_yet_keeps_the_offsets_of_the_previous_run() -> None:
    """Of two queries one commits first; those of the other's topic are still known."""
    run = fresh()
    run.inherited = {"rec": {0: 5}, "other": {0: 7, 1: 8}}
    run.apply(QueryStarted("q", T))
    run.apply(QueryStarted("slow", T))
    run.apply(progress(1, 1.0))
    assert run.committed == {"rec": {0: 10}, "other": {0: 7, 1: 8}}


def test_a_limited_topic_is_told_while_its_query_runs() -> None:
    """The newest batch of each query says whether a limit binds; a trigger without a batch says nothing."""
    run, seen = fresh(), []
    limited = replace(progress(1, 1.0), limited=frozenset({"slow"}))
    idle = replace(progress(2, 3.0), add_batch_seconds=None)
    for event in (limited, idle, progress(2, 4.0), replace(limited, batch_id=3), QueryTerminated("q", None)):
        run.apply(event)
        seen.append(run.reading(between(0, 10)).limited)
    assert seen == [{"slow"}, {"slow"}, set(), {"slow"}, set()]


def test_rows_that_were_not_counted_stay_unknown() -> None:
    """A batch that changes nothing in the state says no more about its rows than the one before."""
    run, seen = fresh(), []
    for number, rows in enumerate((0, None, 0, 7, 0)):
        run.apply(replace(progress(number, number), operators=(OperatorState("dedupe", rows, 1, 2),)))
        seen.append(run.reading(between(0, 10)).operators[0].rows)
    assert seen == [0, None, None, 7, 0]


def test_a_query_that_has_ended_holds_no_state() -> None:
    """A backfill of few partitions that is done neither counts as state nor bounds the size of what goes on."""
    run = fresh()
    for query, size, partitions in (("backfill", 10**10, 4), ("q", 10**6, 200)):
        state = (OperatorState("dedupe", 5, size, partitions),)
        run.apply(replace(progress(0, 1.0, query=query), operators=state))
    assert [o.partitions for o in run.cut(between(0, 10)).operators] == [4, 200]
    run.apply(QueryTerminated("backfill", None))
    assert [o.partitions for o in run.cut(between(10, 20)).operators] == [200]
    run.apply(QueryTerminated("q", None))
    assert [o.partitions for o in run.cut(between(20, 30)).operators] == [4, 200]


def test_a_new_partition_is_no_growth() -> None:
    """Nobody knows what was committed of it before, so it counts from the next batch on."""
    before = {"in": {0: 10, 1: 20}, "gone": {0: 5}}
    after = {"in": {0: 13, 1: 24, 2: 1000}, "new": {0: 7}}
    assert growth(before, after, frozenset({"in", "gone", "new"})) == 7
