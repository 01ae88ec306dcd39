"""How a job's state and the missing parts follow from the sources' answers."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from services.collector.offsets import TopicOffsets
from services.collector.pauses import Pause, paused
from services.collector.snapshots import SourceAnswers, other_topics, snapshot, untold_topics
from services.collector.sources import KafkaAnswer
from services.collector.view import App, ClusterView
from services.collector.waiting import Waited, waited
from tests.support.events import job, with_application
from tidegate.events.job import JobSpec
from tidegate.events.snapshot import (
    ClusterState,
    MetricSnapshot,
    MicroBatch,
    Part,
    RunningBatch,
    SnapshotWarning,
    WarningCode,
)
from tidegate.sparklog.application_run import Reading
from tidegate.sparklog.events import PartitionOffsets
from tidegate.sparklog.log_directory import JobReading

T = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
SEQUENCE = int(T.timestamp())
SILENCE = 60.0
ENDS = {"in": (10, 20)}
BATCH = MicroBatch(batch_id=1, started_at=T, duration_seconds=1.0, input_records=5)
IN_PROGRESS = RunningBatch(
    batch_id=2,
    started_at=T,
    tasks=6,
    tasks_finished=1,
    busy_seconds=18.0,
    read_tasks=6,
    read_tasks_finished=1,
    records_read=3000,
    read_seconds=18.0,
    slowest_read_seconds=18.0,
)
WORKING = Reading(
    app_id="app-1",
    started_at=T - timedelta(hours=1),
    ended=False,
    failure=None,
    query_seen=True,
    query_active=True,
    query_id="q",
    committed={"in": {0: 5, 1: 20}},
    batches=(BATCH,),
    batches_left_out=0,
    current_batch_started_at=T,
    running=(IN_PROGRESS,),
    stages=(),
    gc_ratio=0.1,
    operators=(),
    local_cores=None,
)
IDLE = replace(WORKING, batches=(), current_batch_started_at=None, running=())
ENDED = replace(IDLE, query_active=False, ends=1)
WARM = replace(IDLE, app_id="app-2", started_at=T, query_seen=False, query_active=False, query_id=None, committed={})


def spec(*, master: bool = True) -> JobSpec:
    """Return a job with or without a master."""
    return with_application(job(), master_ui_url="http://m:8080" if master else None)


def app(
    app_id: str = "app-1", *, name: str = "rates", state: str = "RUNNING", cores: int | None = 4, at: datetime = T
) -> App:
    """Return an application at the master."""
    millis = int(at.timestamp() * 1000)
    return App.model_validate({"id": app_id, "name": name, "cores": cores, "state": state, "starttime": millis})


def master(*active: App, completed: tuple[App, ...] = ()) -> ClusterView:
    """Return a cluster of 12 slots."""
    return ClusterView(
        slots_total=12,
        slots_used=sum(each.cores or 0 for each in active),
        workers_alive=2,
        active={each.id: each for each in active},
        completed={each.id: each for each in completed},
        active_by_name={each.name: each for each in active},
    )


def logs(*runs: Reading, complete: bool = True, silent_seconds: float = 1.0) -> JobReading:
    """Return the reading of the logs."""
    return JobReading(runs, complete, T - timedelta(seconds=silent_seconds) if runs else None)


def made(
    *,
    of: JobSpec | None = None,
    ends: TopicOffsets | None = ENDS,
    firsts: TopicOffsets | None = None,
    reading: JobReading | None = None,
    view: ClusterView | None = None,
    last_app_id: str | None = None,
    checkpoint: PartitionOffsets | None = None,
    others: frozenset[str] = frozenset(),
    before: Waited | None = None,
    pause: Pause | None = None,
) -> MetricSnapshot:
    """Return the snapshot of some answers."""
    seen = SourceAnswers(
        sequence=SEQUENCE,
        kafka=KafkaAnswer(ends, T, firsts or {}),
        logs=reading,
        cluster=view,
        last_app_id=last_app_id,
        checkpoint=checkpoint,
        others=others,
        waited=before,
        pause_before=pause,
    )
    return snapshot(of or spec(), seen, SILENCE)


def test_a_working_job_has_all_its_figures() -> None:
    """If all sources answer, nothing is missing and each figure is in its place."""
    result = made(reading=logs(WORKING), view=master(app()))
    assert (result.state, result.incarnation, result.slots_granted) == (ClusterState.RUNNING, "app-1", 4)
    assert result.missing == ()
    assert result.sources[0].end_offsets == (10, 20)
    assert result.sources[0].committed_offsets == (5, 20)
    assert result.batches == (BATCH,)
    assert result.current_batch_started_at == T
    assert result.running == (IN_PROGRESS,)
    assert result.pool is not None
    assert (result.pool.slots_total, result.pool.slots_used, result.pool.workers_alive) == (12, 4, 2)


@pytest.mark.parametrize(
    ("ends", "committed", "missing"),
    [
        (ENDS, {"in": {0: 5, 1: 20}}, {Part.END_OFFSETS, Part.COMMITTED_OFFSETS}),
        (ENDS | {"second": (30,)}, {"in": {0: 5, 1: 20}}, {Part.COMMITTED_OFFSETS}),
        (ENDS, {"in": {0: 5, 1: 20}, "second": {0: 7}}, {Part.END_OFFSETS}),
    ],
)
def test_offsets_of_one_topic_are_missing_although_those_of_another_are_there(
    ends: TopicOffsets, committed: PartitionOffsets, missing: set[Part]
) -> None:
    """The lag of a job is that of all its topics: what is known of one of them is not the job's (I12)."""
    of = spec().model_copy(update={"sources": ("in", "second")})
    result = made(of=of, ends=ends, reading=logs(replace(WORKING, committed=committed)), view=master(app()))
    assert set(result.missing) == missing


def test_idle_differs_from_dead() -> None:
    """An idle query counts as running with nothing missing; a dead one is stopped and holds no slots (F41)."""
    idle = made(reading=logs(IDLE), view=master(app()))
    dead = made(reading=logs(IDLE), view=master())
    assert (idle.state, idle.batches, idle.missing, idle.slots_granted) == (ClusterState.RUNNING, (), (), 4)
    assert (dead.state, dead.batches, dead.missing, dead.slots_granted) == (ClusterState.STOPPED, (), (), 0)
    assert idle.incarnation == dead.incarnation == "app-1"
    assert idle.sources == dead.sources


STATES = {
    "never started": (logs(), master(), ClusterState.STOPPED),
    "started, no log yet": (logs(), master(app("app-9")), ClusterState.STARTING),
    "alive, no query yet": (logs(WARM), master(app("app-2")), ClusterState.STARTING),
    "alive, waiting for cores": (logs(WARM), master(app("app-2", state="WAITING", cores=0)), ClusterState.STARTING),
    "alive, its query has just ended": (logs(ENDED), master(app()), ClusterState.STARTING),
    "log ended": (logs(replace(IDLE, ended=True, query_active=False)), master(), ClusterState.STOPPED),
    "log ended, failed": (logs(replace(IDLE, ended=True, failure="E")), master(), ClusterState.FAILED),
    "log ended, master silent": (logs(replace(IDLE, ended=True)), None, ClusterState.STOPPED),
    "gone, query failed": (logs(replace(IDLE, failure="E", query_active=False)), master(), ClusterState.FAILED),
    "gone, failed": (logs(IDLE), master(completed=(app(state="FAILED"),)), ClusterState.FAILED),
    "gone, killed": (logs(IDLE), master(completed=(app(state="KILLED"),)), ClusterState.STOPPED),
    "master silent": (logs(WORKING), None, ClusterState.UNKNOWN),
    "all silent": (None, None, ClusterState.UNKNOWN),
    "logs silent, nothing known": (None, master(), ClusterState.UNKNOWN),
    "logs silent, name alive": (None, master(app()), ClusterState.RUNNING),
    "restarted, new log not seen": (logs(IDLE), master(app("app-9")), ClusterState.STARTING),
}


@pytest.mark.parametrize("case", STATES)
def test_the_state_follows_from_master_and_log(case: str) -> None:
    """Each row of the module's table: without proof of a state, the state is unknown."""
    reading, view, expected = STATES[case]
    result = made(reading=reading, view=view)
    assert result.state is expected
    assert (Part.JOB_STATE in result.missing) == (expected is ClusterState.UNKNOWN)
    assert (Part.CAPACITY in result.missing) == (view is None or result.slots_granted is None)
    if expected in (ClusterState.STOPPED, ClusterState.FAILED):
        assert result.current_batch_started_at is None
        assert result.running is None


@pytest.mark.parametrize("master_knows", [True, False])
@pytest.mark.parametrize(("failure", "dead"), [(None, ClusterState.STOPPED), ("E", ClusterState.FAILED)])
def test_a_program_may_start_its_query_again(*, failure: str | None, dead: ClusterState, master_knows: bool) -> None:
    """While it may be about to, no start is due: the driver lives. After a longer pause its queries have ended."""
    run = replace(ENDED, failure=failure, local_cores=None if master_knows else 2)

    def state(pause: Pause | None) -> ClusterState:
        view = master(app()) if master_knows else None
        return made(of=spec(master=master_knows), reading=logs(run), view=view, pause=pause).state

    def since(seconds: float) -> Pause:
        return Pause(run.app_id, run.ends, T - timedelta(seconds=seconds))

    assert state(None) is ClusterState.STARTING
    assert state(since(SILENCE)) is ClusterState.STARTING
    assert state(since(SILENCE + 1)) is dead
    assert state(replace(since(SILENCE + 1), ends=0)) is ClusterState.STARTING, "one has run since"
    assert state(replace(since(SILENCE + 1), app_id="app-0")) is ClusterState.STARTING, "of another run"


def test_a_pause_lasts_until_a_query_has_run() -> None:
    """Also one that runs between two snapshots ends it; a log that does not answer says nothing."""
    first, later = paused(None, T, ENDED), T + timedelta(seconds=10)
    assert first == Pause("app-1", 1, T)
    assert paused(first, later, ENDED) is first
    assert paused(first, later, None) is first
    assert paused(first, later, replace(ENDED, ends=2)) == Pause("app-1", 2, later)
    assert [paused(first, later, run) for run in (IDLE, WARM, replace(ENDED, ended=True))] == [None] * 3


def test_a_job_never_started_has_no_incarnation() -> None:
    """Without a run there is no incarnation; lag is unknown, and the snapshot says so."""
    result = made(reading=logs(), view=master(app("other", name="other-job")))
    assert (result.state, result.incarnation, result.slots_granted) == (ClusterState.STOPPED, None, 0)
    assert result.sources[0].committed_offsets == (None, None)
    assert result.missing == (Part.COMMITTED_OFFSETS,)


def test_the_first_batch_has_a_lag() -> None:
    """Until a run commits, it stands where the checkpoint says that its first batch began."""
    working = logs(replace(IDLE, committed={}))
    assert working.works_untold
    assert untold_topics(job(), working) == {"in"}
    first: PartitionOffsets = {"in": {0: 3, 1: 7}}
    assert made(reading=working, view=master(app()), checkpoint=first).sources[0].committed_offsets == (3, 7)
    assert made(reading=logs(IDLE), view=master(app()), checkpoint=first).sources[0].committed_offsets == (5, 20)


def test_a_quiet_topic_of_one_query_has_a_lag_although_another_query_commits() -> None:
    """If driver and collector were restarted, a query tells nothing before its next record, perhaps next week."""
    two = job().model_copy(update={"sources": ("in", "quiet")})
    commits = replace(IDLE, topics=frozenset({"in"}), all_told=False)
    assert untold_topics(two, logs(commits)) == {"quiet"}
    assert untold_topics(two, logs(replace(commits, all_told=True))) == set(), "nobody reads it"


def test_a_new_run_first_appears_at_the_master() -> None:
    """After a restart the master shows the new run before its log exists: starting, with its id, no old figures."""
    result = made(reading=logs(WORKING), view=master(app("app-9", cores=3)))
    assert (result.state, result.incarnation, result.slots_granted) == (ClusterState.STARTING, "app-9", 3)
    assert result.batches == ()
    assert result.query_id is None
    assert result.sources[0].committed_offsets == (5, 20)
    assert result.incarnation_started_at == T


def test_a_new_run_at_the_master_is_seen_whatever_the_clock_of_the_old_driver_said() -> None:
    """The old driver's clock was five minutes ahead of the master's: by the master's times the new run is the newer."""
    before = replace(WORKING, started_at=T + timedelta(minutes=5), ended=True, query_active=False)
    over = app("app-1", state="FINISHED", at=T - timedelta(minutes=1))
    result = made(reading=logs(before), view=master(app("app-9", at=T), completed=(over,)))
    assert (result.state, result.incarnation) == (ClusterState.STARTING, "app-9")


def test_a_handover_reports_the_working_run() -> None:
    """While the new driver warms up, the figures are those of the old one; after its end, of the new one."""
    both = logs(WORKING, WARM)
    handing = made(reading=both, view=master(app("app-1"), app("app-2")))
    assert (handing.incarnation, handing.state, handing.batches) == ("app-1", ClusterState.RUNNING, (BATCH,))
    after = made(reading=both, view=master(app("app-2")))
    assert (after.incarnation, after.state, after.batches) == ("app-2", ClusterState.STARTING, ())
    assert after.sources[0].committed_offsets == (5, 20)


def test_after_the_switch_the_second_run_is_measured_though_the_first_one_is_still_there() -> None:
    """The first driver waits until the second one has committed; its query has ended."""
    paused, took_over = replace(WORKING, query_active=False), replace(WORKING, app_id="app-2")
    handed = made(reading=logs(paused, took_over), view=master(app("app-1"), app("app-2")))
    assert (handed.incarnation, handed.state) == ("app-2", ClusterState.RUNNING)


def test_a_silent_kafka_leaves_the_offsets_unknown() -> None:
    """Missing end offsets are null and named, never zero."""
    result = made(ends=None, reading=logs(WORKING), view=master(app()))
    assert result.sources[0].end_offsets == (None, None)
    assert result.sources[0].committed_offsets == (5, 20)
    assert result.missing == (Part.END_OFFSETS,)


def test_silent_logs_leave_progress_unknown() -> None:
    """Without the log, the snapshot names the last known run and its slots, and names the figures as missing."""
    result = made(view=master(app()), last_app_id="app-1")
    assert (result.state, result.incarnation, result.slots_granted) == (ClusterState.RUNNING, "app-1", 4)
    assert result.missing == (Part.COMMITTED_OFFSETS, Part.PROGRESS, Part.TASKS)
    assert result.sources[0].committed_offsets == (None, None)
    gone = made(view=master(), last_app_id="app-1")
    assert gone.state is ClusterState.STOPPED


def test_an_incomplete_log_is_not_idleness() -> None:
    """Batches that were read are reported, but there may be more."""
    result = made(reading=logs(WORKING, complete=False), view=master(app()))
    assert result.missing == (Part.PROGRESS, Part.TASKS)
    assert result.batches == (BATCH,)


@pytest.mark.parametrize(
    ("ends", "end_row", "committed_row", "missing"),
    [
        ({"in": (10, 20, 0)}, (10, 20, 0), (5, 20, None), (Part.COMMITTED_OFFSETS,)),
        ({"in": (3,)}, (3, None), (5, 20), (Part.END_OFFSETS,)),
        ({"in": (3, 1)}, (3, 1), (5, 20), ()),
        ({"in": (10, None)}, (10, None), (5, 20), (Part.END_OFFSETS,)),
        ({}, (None, None), (5, 20), (Part.END_OFFSETS,)),
    ],
    ids=["partition added", "made recreated, narrower", "made recreated, offsets fell", "no leader", "deleted"],
)
def test_changes_of_a_topic_are_reported_unchanged(
    ends: TopicOffsets,
    end_row: tuple[int | None, ...],
    committed_row: tuple[int | None, ...],
    missing: tuple[Part, ...],
) -> None:
    """Added partitions, lower offsets and missing leaders reach the engine unchanged; gaps are null (F40)."""
    result = made(ends=ends, reading=logs(WORKING), view=master(app()))
    assert result.sources[0].end_offsets == end_row
    assert result.sources[0].committed_offsets == committed_row
    assert result.missing == missing


@pytest.mark.parametrize(
    ("firsts", "row"),
    [
        ({"in": (8, 3)}, (8, 3)),
        ({"in": (8,)}, (8, None)),
        ({"in": (5, 20)}, None),
        ({"in": (0, None)}, None),
        ({"in": (11, 0)}, None),
        ({}, None),
    ],
    ids=["removed", "one unknown", "none removed", "unknown", "of the topic before", "not asked yet"],
)
def test_first_offsets_tell_that_records_were_removed(firsts: TopicOffsets, row: tuple[int | None, ...] | None) -> None:
    """The first offsets are there only where retention has removed what the job has not read."""
    result = made(firsts=firsts, reading=logs(WORKING), view=master(app()))
    assert result.sources[0].committed_offsets == (5, 20)
    assert result.sources[0].first_offsets == row
    assert result.missing == ()


def test_partitions_that_are_not_assigned_do_not_count() -> None:
    """A query that reads one partition of two with `assign` has nothing missing, and only the lag of that one."""
    reading = logs(replace(WORKING, committed={"in": {1: 15}}, topics=frozenset({"in"}), assigned=frozenset({"in"})))
    result = made(reading=reading, firsts={"in": (7, 16)}, view=master(app()))
    source = result.sources[0]
    assert (source.end_offsets, source.committed_offsets, source.first_offsets) == ((0, 20), (0, 15), (None, 16))
    assert result.missing == ()
    silent = made(ends=None, reading=reading, view=master(app()))
    assert (silent.sources[0].end_offsets, silent.missing) == ((None, None), (Part.END_OFFSETS,))


READS_MORE = replace(
    WORKING,
    committed={"in": {0: 5, 1: 20}, "in-2": {0: 7}},
    topics=frozenset({"in", "in-2"}),
    all_told=True,
)
NOT_LISTED = SnapshotWarning(code=WarningCode.TOPIC_NOT_LISTED, topics=("in-2",))


def test_a_topic_that_the_spec_does_not_name_is_measured_and_told() -> None:
    """The topics of a pattern that came later have records that wait, and batches process them."""
    others = other_topics(spec(), logs(READS_MORE), frozenset())
    assert others == {"in-2"}
    result = made(reading=logs(READS_MORE), view=master(app()), ends={**ENDS, "in-2": (9,)}, others=others)
    assert [(source.topic, source.end_offsets, source.committed_offsets) for source in result.sources] == [
        ("in", (10, 20), (5, 20)),
        ("in-2", (9,), (7,)),
    ]
    assert (result.missing, result.warnings) == ((), (NOT_LISTED,))
    silent = made(reading=logs(READS_MORE), view=master(app()), ends=None, others=others)
    assert [source.topic for source in silent.sources] == ["in", "in-2"]
    assert silent.missing == (Part.END_OFFSETS,)


def test_other_topics_are_remembered_until_a_run_tells_others() -> None:
    """A new run that has not told yet, or a log that does not answer, reads what the job read before."""
    known = frozenset({"in-2"})
    assert other_topics(spec(), None, known) == known
    assert other_topics(spec(), logs(WARM), known) == known
    assert other_topics(spec(), logs(replace(READS_MORE, topics=frozenset({"in"}))), known) == frozenset()


@pytest.mark.parametrize(
    ("ends", "reading", "warned"),
    [
        ({"in": (10, 20)}, READS_MORE, ("topic_unknown", ("in-2",))),
        ({"in-2": (9,)}, READS_MORE, ("topic_unknown", ("in",))),
        ({"in": (10, 20), "in-2": (9,)}, replace(READS_MORE, topics=frozenset({"in-2"})), ("topic_not_read", ("in",))),
    ],
    ids=["another topic that may not be described", "the spec's topic is gone", "the spec's topic is not read"],
)
def test_topics_without_a_measurement_are_named(
    ends: TopicOffsets, reading: Reading, warned: tuple[str, tuple[str, ...]]
) -> None:
    """Nobody has to guess why a lag is unknown, or that there is a topic which is not measured."""
    result = made(reading=logs(reading), view=master(app()), ends=ends, others=frozenset({"in-2"}))
    first = (result.warnings or ())[0]
    assert (first.code, first.topics) == warned
    assert [source.topic for source in result.sources] == ["in", *(topic for topic in ends if topic != "in")]


def test_a_query_that_has_told_nothing_yet_is_given_time() -> None:
    """Until every query has told what it reads, no topic of the spec counts as not read."""
    early = replace(READS_MORE, topics=frozenset(), all_told=False)
    assert made(reading=logs(early), view=master(app())).warnings is None
    assert made(reading=logs(replace(early, query_active=False, all_told=True)), view=master()).warnings is None


def test_a_query_that_failed_while_others_go_on_is_named_by_its_topics() -> None:
    """Else a lag that grows for ever looks like a lack of slots."""
    result = made(reading=logs(replace(WORKING, failed=frozenset({"in", "a"}))), view=master(app()))
    assert result.warnings == (SnapshotWarning(code=WarningCode.QUERY_FAILED, topics=("a", "in")),)
    (other,) = made(reading=logs(replace(WORKING, failed=frozenset())), view=master(app())).warnings or ()
    assert (other.code, other.topics) == (WarningCode.QUERY_FAILED, ()), "it has read no Kafka"


def test_a_driver_with_another_clock_is_told() -> None:
    """Whoever asks why the utilization is unknown learns by how many seconds the clocks differ."""
    late = replace(WORKING, batches=(), batches_left_out=5, clock_ahead_seconds=-42.51)
    result = made(reading=logs(late), view=master(app()))
    assert result.warnings == (SnapshotWarning(code=WarningCode.CLOCK_APART, seconds=-42.5),)


def test_a_real_time_trigger_does_not_look_busy() -> None:
    """Such a query is always within a batch: that is no reason to grow, so its progress is missing, and it is told."""
    result = made(reading=logs(replace(WORKING, real_time=True)), view=master(app()))
    assert result.missing == (Part.PROGRESS,)
    assert result.warnings == (SnapshotWarning(code=WarningCode.REAL_TIME),)
    over = made(reading=logs(replace(WORKING, real_time=True, ended=True, query_active=False)), view=master())
    assert (over.state, over.missing) == (ClusterState.STOPPED, ())


def test_a_continuous_trigger_does_not_look_idle() -> None:
    """Such a query has no batches, and its checkpoint says where it is: that is no reason to shrink."""
    result = made(reading=logs(replace(IDLE, continuous=True)), view=master(app()))
    assert result.missing == (Part.PROGRESS,)


def test_what_a_real_time_query_has_processed_since_its_last_batch_is_unknown() -> None:
    """Its committed offsets stand still for minutes: taken as they are, lag and delay would grow although it works."""
    run = replace(IDLE, real_time=True, reads_on=True)
    result = made(reading=logs(run), view=master(app()))
    assert result.sources[0].committed_offsets == (None, None)
    assert result.sources[0].first_offsets is None
    assert set(result.missing) == {Part.COMMITTED_OFFSETS, Part.PROGRESS}
    gone = made(reading=logs(replace(run, query_active=False)), view=master())
    assert (gone.state, gone.sources[0].committed_offsets) == (ClusterState.STOPPED, (5, 20))


def test_a_topic_that_a_limit_holds_back_is_named() -> None:
    """Whoever asks why such a job is late learns which source takes too few records."""
    limited = replace(WORKING, limited=frozenset({"slow"}))
    told = SnapshotWarning(code=WarningCode.SOURCE_LIMITED, topics=("slow",))
    assert made(reading=logs(limited), view=master(app())).warnings == (told,)


def test_a_source_that_holds_records_back_is_told() -> None:
    """With `minOffsetsPerTrigger` a query says that it found nothing new, although records have waited for long."""
    idle = replace(WORKING, batches=(), running=(), current_batch_started_at=None, idle_at=T - timedelta(seconds=1))
    before = Waited(T - timedelta(seconds=10), made(reading=logs(idle), view=master(app())).sources)

    def warns(run: Reading, waited_before: Waited | None = before, firsts: TopicOffsets | None = None) -> bool:
        result = made(reading=logs(run), view=master(app()), before=waited_before, firsts=firsts)
        return SnapshotWarning(code=WarningCode.SOURCE_WAITS) in (result.warnings or ())

    assert warns(idle)
    assert not warns(idle, None), "nothing is known of what waited before"
    assert not warns(replace(idle, idle_at=None)), "it is in a batch, or has not looked"
    assert not warns(replace(idle, idle_at=T - timedelta(seconds=8))), "the records may have come after it looked"
    assert not warns(replace(idle, committed={"in": dict.fromkeys(range(2), 10**6)})), "it has taken them since"
    assert not warns(idle, firsts=ENDS), "Kafka has removed them"


def test_what_waits_is_remembered_as_long_as_it_waits() -> None:
    """So a query that looks only every 10 s is compared with records that were there before it looked."""
    sources = made(reading=logs(WORKING), view=master(app())).sources
    first = waited(None, T, sources)
    later = T + timedelta(seconds=10)
    assert waited(first, later, sources) is first
    done = tuple(source.model_copy(update={"committed_offsets": source.end_offsets}) for source in sources)
    assert waited(first, later, done) == Waited(later, done)


def test_an_unknown_topic_is_missing_on_both_sides() -> None:
    """A source that neither broker nor query knows does not look like a source without lag."""
    result = made(ends={}, reading=logs(replace(IDLE, committed={"other": {0: 1}})), view=master(app()))
    assert result.sources[0].end_offsets == ()
    assert result.missing == (Part.END_OFFSETS, Part.COMMITTED_OFFSETS)


SILENT = logs(replace(IDLE, local_cores=2), silent_seconds=SILENCE + 1)


@pytest.mark.parametrize(
    ("reading", "state", "slots", "missing"),
    [
        (logs(replace(IDLE, local_cores=2)), ClusterState.RUNNING, 2, ()),
        (logs(replace(WARM, local_cores=2)), ClusterState.STARTING, 2, (Part.COMMITTED_OFFSETS,)),
        (
            logs(replace(IDLE, local_cores=2), silent_seconds=61),
            ClusterState.UNKNOWN,
            None,
            (Part.CAPACITY, Part.JOB_STATE),
        ),
        (logs(replace(IDLE, local_cores=2, ended=True)), ClusterState.STOPPED, 0, ()),
        (logs(IDLE), ClusterState.RUNNING, None, (Part.CAPACITY,)),
        (logs(), ClusterState.STOPPED, 0, (Part.COMMITTED_OFFSETS,)),
    ],
    ids=["idle", "starting", "silent", "ended", "not local", "never started"],
)
def test_without_a_master_the_log_decides(
    reading: JobReading, state: ClusterState, slots: int | None, missing: tuple[Part, ...]
) -> None:
    """A local job counts as running while its log grows; after a longer silence its state is unknown."""
    result = made(of=spec(master=False), reading=reading)
    assert (result.state, result.slots_granted, result.missing) == (state, slots, missing)
    assert result.pool is None


def test_slots_that_the_cluster_does_not_tell_are_missing() -> None:
    """Zero slots of a running job would be a measurement."""
    result = made(reading=logs(IDLE), view=master(app(cores=None)))
    assert (result.state, result.slots_granted, result.missing) == (ClusterState.RUNNING, None, (Part.CAPACITY,))


def test_a_running_batch_is_absent_without_its_tasks() -> None:
    """A log that could not be read whole may lack tasks that have finished, so nothing is said of the running batch."""
    result = made(reading=logs(WORKING, complete=False), view=master(app()))
    assert Part.TASKS in result.missing
    assert result.running is None
    assert made(reading=logs(IDLE), view=master(app())).running is None


def test_the_checkpoint_tells_what_the_log_does_not() -> None:
    """A job that was scaled to zero keeps its committed offsets when its log is gone, or has none."""
    stopped = replace(IDLE, ended=True, committed={})
    result = made(reading=logs(stopped), view=master(), checkpoint={"in": {0: 10, 1: 20}})
    assert (result.state, result.missing) == (ClusterState.STOPPED, ())
    assert result.sources[0].committed_offsets == (10, 20)
    assert made(reading=logs(), view=master(), checkpoint={"in": {0: 9, 1: 9}}).sources[0].committed_offsets == (9, 9)
    newer = made(reading=logs(IDLE), view=master(), checkpoint={"in": {0: 1, 1: 1}})
    assert newer.sources[0].committed_offsets == (5, 20)


def test_only_jobs_that_may_sleep_ask_the_checkpoint_and_only_for_what_is_untold() -> None:
    """Any other job keeps its slot, so its log goes on."""
    sleeper = job(min_parallelism=0)
    assert untold_topics(job(), None) == set()
    assert untold_topics(sleeper, None) == untold_topics(sleeper, logs()) == {"in"}
    assert untold_topics(sleeper, logs(replace(IDLE, committed={}))) == {"in"}
    assert untold_topics(sleeper, logs(IDLE)) == set()
