"""The twin's jobs: batches, commits, restarts, pools, links and faults, as seen in snapshots and results."""

from __future__ import annotations

from itertools import groupby, pairwise

import pytest

from tests.support.twins import phases_of, twin_command, twin_model, twin_snapshot, twin_world
from tidegate.events.command import CommandKind
from tidegate.events.result import Phase
from tidegate.events.snapshot import ClusterState, MicroBatch, Part
from tidegate.twin.load import Load
from tidegate.twin.model import Faults, JobModel, Measurement, StageModel, State
from tidegate.twin.pool import SlotPool
from tidegate.twin.topic import TwinTopic, even
from tidegate.twin.world import EPOCH, World


def test_snapshots_account_for_every_record() -> None:
    """Committed offsets grow by exactly the records of the batches shown, and never pass the end offsets."""
    world = twin_world(twin_model())
    committed = 0
    for sequence in range(EPOCH + 10, EPOCH + 610, 10):
        world.advance(sequence)
        snapshot = twin_snapshot(world, sequence)
        committed += sum(batch.input_records for batch in snapshot.batches)
        source = snapshot.sources[0]
        assert sum(offset or 0 for offset in source.committed_offsets) == committed
        assert all(
            (done or 0) <= (end or 0) for done, end in zip(source.committed_offsets, source.end_offsets, strict=True)
        )
    assert committed > 500_000


def test_batches_follow_each_other_without_overlap() -> None:
    """Batch ids rise by one; each batch starts no earlier than the previous one ended, and ends in its interval."""
    world = twin_world(twin_model(noise_share=0.1))
    batches = []
    for sequence in range(EPOCH + 10, EPOCH + 310, 10):
        world.advance(sequence)
        for batch in twin_snapshot(world, sequence).batches:
            end = batch.started_at.timestamp() + batch.duration_seconds
            assert sequence - 10 - 1e-5 < end <= sequence + 1e-5
            batches.append((batch.batch_id, batch.started_at.timestamp(), end))
    for (before, _, ended), (after, started, _) in pairwise(batches):
        assert after == before + 1
        assert started >= ended - 1e-5


def test_a_batch_costs_overhead_plus_records_over_slots() -> None:
    """5,000 records at 2 ms on 4 slots of 8 even partitions: 0.5 s + 2 * 625 * 2 ms = 3 s."""
    world = twin_world(twin_model(), rate=10_000)
    world.advance(EPOCH + 20)
    full = [batch for batch in twin_snapshot(world, EPOCH + 20).batches if batch.input_records == 5_000]
    assert full
    assert all(batch.duration_seconds == pytest.approx(3.0, abs=1e-5) for batch in full)


def test_a_trigger_interval_is_kept_while_batches_are_shorter() -> None:
    """Batches start on whole multiples of the interval, or back to back if they last longer."""
    world = twin_world(twin_model(trigger_interval_seconds=5.0), rate=100.0)
    world.advance(EPOCH + 60)
    starts = [batch.started_at.timestamp() - EPOCH for batch in _all_batches(world)]
    assert len(starts) == 11
    assert starts == [pytest.approx(5.0 * k) for k in range(1, 12)]


def _all_batches(world: World) -> list[MicroBatch]:
    """Return all batches of the last hour, read as one long interval."""
    snapshot = world.snapshot("job", int(world.now) + EPOCH, 3600)
    assert snapshot is not None
    return list(snapshot.batches)


def test_a_restart_walks_its_phases_and_measures_its_downtime() -> None:
    """accepted, stopping, stopped, starting, running, verified; downtime is last commit to first commit."""
    world = twin_world(twin_model())
    world.advance(EPOCH + 100)
    world.order(twin_command(100, 8))
    results = world.advance(EPOCH + 200)
    assert phases_of(results) == ["accepted", "stopping", "stopped", "starting", "running", "verified"]
    times = [result.at for result in results]
    assert times == sorted(times)
    # exit 2 s + start 20 s + the first batch, which is 3 s slower
    assert results[-1].downtime_seconds == pytest.approx(22 + 3 + 0.5 + 5000 * 0.002 / 8, abs=0.1)
    assert results[-1].incarnation == "app-job-0002"
    assert world.truth("job").slots == 8


def test_while_it_restarts_the_snapshots_say_so() -> None:
    """A job that is down shows as stopped with its last run, then starts and runs as another incarnation."""
    world = twin_world(twin_model())
    world.advance(EPOCH + 100)
    before = twin_snapshot(world, EPOCH + 100)
    world.order(twin_command(100, 8))
    found = []
    for sequence in range(EPOCH + 101, EPOCH + 141):
        world.advance(sequence)
        snapshot = world.snapshot("job", sequence, 1)
        assert snapshot is not None
        found.append(snapshot)
    states = [state for state, _ in groupby(snapshot.state for snapshot in found)]
    assert states == [ClusterState.STOPPED, ClusterState.STARTING, ClusterState.RUNNING]
    stopped = {snapshot.incarnation for snapshot in found if snapshot.state is ClusterState.STOPPED}
    assert stopped == {before.incarnation}
    assert found[-1].incarnation != before.incarnation


def test_state_makes_a_restart_longer_in_proportion() -> None:
    """10 GB at 200 MB/s add 50 s to a start."""
    state = State(partitions=8, bytes_per_record=0.0, initial_bytes=10e9)
    downtimes = []
    for model in (twin_model(), twin_model(state=state)):
        world = twin_world(model)
        world.advance(EPOCH + 100)
        world.order(twin_command(100, 8))
        downtimes.append(world.advance(EPOCH + 400)[-1].downtime_seconds or 0.0)
    assert downtimes[1] - downtimes[0] == pytest.approx(50.0, abs=0.5)


def test_state_grows_with_records_and_is_dropped_by_its_watermark() -> None:
    """Without a watermark, state is bytes times records; with one, it levels off at rate times age."""
    growing = twin_world(twin_model(state=State(8, bytes_per_record=100.0)))
    level = twin_world(twin_model(state=State(8, bytes_per_record=100.0, ttl_seconds=60.0)))
    for world in (growing, level):
        world.advance(EPOCH + 1200)
    done = growing.job("job").committed
    assert growing.truth("job").state_bytes == pytest.approx(100.0 * sum(map(sum, done)))
    assert level.truth("job").state_bytes == pytest.approx(1000 * 60 * 100.0, rel=0.1)
    assert twin_snapshot(level, EPOCH + 1200).state_operators[0].partitions == 8


def test_a_stop_past_its_deadline_leaves_the_batch_to_run_again() -> None:
    """A batch that exceeds the deadline is killed before its commit; its records are read again after the restart."""
    world = twin_world(twin_model(max_records_per_trigger=None, stop_deadline_seconds=5.0), rate=3000.0, size=1)
    world.advance(EPOCH + 100)
    done = sum(map(sum, world.job("job").committed))
    world.order(twin_command(100, 8, before=1))
    results = world.advance(EPOCH + 110)
    stopped = next(result for result in results if result.phase is Phase.STOPPED)
    assert stopped.at.timestamp() == pytest.approx(EPOCH + 107, abs=0.1)  # deadline 5 s, exit 2 s
    assert sum(map(sum, world.job("job").committed)) == done
    world.advance(EPOCH + 400)
    assert sum(map(sum, world.job("job").committed)) > done


def test_a_start_that_never_commits_is_rolled_back_to_the_last_good_size() -> None:
    """After the start deadline the job restarts once at its previous size, and the result says so."""
    world = twin_world(twin_model(faults=Faults(failed_starts=frozenset({2})), start_deadline_seconds=60.0))
    world.advance(EPOCH + 100)
    world.order(twin_command(100, 8))
    results = world.advance(EPOCH + 400)
    assert results[-1].phase is Phase.ROLLED_BACK
    assert (results[-1].attempt, results[-1].parallelism, results[-1].code) == (2, 4, "START_DEADLINE")
    assert world.truth("job").slots == 4


def test_a_start_that_fails_twice_is_failed() -> None:
    """If the roll-back does not commit either, the command fails and the job is down."""
    world = twin_world(twin_model(faults=Faults(failed_starts=frozenset({2, 3})), start_deadline_seconds=60.0))
    world.advance(EPOCH + 100)
    world.order(twin_command(100, 8))
    results = world.advance(EPOCH + 600)
    assert results[-1].phase is Phase.FAILED
    assert world.truth("job").slots == 0


def test_a_job_that_dies_gives_its_slots_back_and_can_be_started_again() -> None:
    """A dead job shows as failed; a start command resumes it at its committed offsets."""
    world = twin_world(twin_model(faults=Faults(deaths=(50.0,))))
    world.advance(EPOCH + 60)
    snapshot = twin_snapshot(world, EPOCH + 60)
    assert snapshot.state is ClusterState.FAILED
    assert snapshot.slots_granted == 0
    done = sum(map(sum, world.job("job").committed))
    world.order(twin_command(60, 6, kind=CommandKind.START, before=0))
    results = world.advance(EPOCH + 200)
    assert phases_of(results) == ["accepted", "starting", "running", "verified"]
    assert sum(map(sum, world.job("job").committed)) > done


@pytest.mark.parametrize("ttl", [30.0, 200.0])
def test_a_command_is_done_once_and_not_after_its_time(ttl: float) -> None:
    """The same command id twice has one effect; a command is rejected from the moment it expires, with its reason."""
    world = twin_world(twin_model())
    world.advance(EPOCH + 100)
    world.order(twin_command(100, 8))
    world.order(twin_command(100, 8))
    assert phases_of(world.advance(EPOCH + 200)).count("accepted") == 1
    world.order(twin_command(0, 12, name="late", ttl=ttl))
    results = world.advance(EPOCH + 300)
    assert [(result.phase, result.code) for result in results] == [(Phase.REJECTED, "EXPIRED")]


def test_jobs_share_a_pool_and_wait_for_what_is_given_back() -> None:
    """Slots are granted in the order of requests, within the pool; a stop frees slots for those who wait."""
    pool = SlotPool("default", 10)
    pool.ask("a", 6, 0.0)
    pool.ask("b", 8, 0.0)
    assert (pool.granted("a"), pool.granted("b"), pool.used) == (6, 4, 10)
    pool.ask("a", 0, 10.0)
    assert pool.granted("b") == 8
    assert pool.core_seconds("a", 20.0) == pytest.approx(60.0)
    assert pool.core_seconds("b", 20.0) == pytest.approx(120.0)


def test_a_full_topic_holds_its_writer_back() -> None:
    """With a slow reader behind a small topic, the writer commits no faster than the reader reads."""
    first = JobModel("up", ("in",), (StageModel("map", 0.0001),), sink="mid", noise_share=0.0)
    second = JobModel("down", ("mid",), (StageModel("map", 0.01),), noise_share=0.0)
    topics = [TwinTopic("in", even(4), Load([1000.0])), TwinTopic("mid", even(4), capacity_records=5_000)]
    world = World([first, second], topics, [SlotPool("default", 8)], sizes={"up": 4, "down": 1})
    world.advance(EPOCH + 1800)
    assert world.truth("down").lag_records <= 5_000
    done = sum(map(sum, world.job("up").committed))
    assert done < 110 * 1800  # the reader does 100/s
    assert done > 50 * 1800


def test_an_idle_job_is_silent_and_alive() -> None:
    """With nothing to read there are no batches, but the job is running."""
    world = twin_world(twin_model(), rate=0.0)
    world.advance(EPOCH + 600)
    snapshot = twin_snapshot(world, EPOCH + 600)
    assert snapshot.batches == ()
    assert snapshot.current_batch_started_at is None
    assert snapshot.state is ClusterState.RUNNING
    assert snapshot.missing == ()


def test_missing_parts_are_named_and_never_zero() -> None:
    """Each part is missing at times; its figures are then null or absent, never 0."""
    world = twin_world(twin_model(measurement=Measurement(missing_share=0.5, lost_share=0.1)))
    seen, lost = set(), 0
    for sequence in range(EPOCH + 10, EPOCH + 3010, 10):
        world.advance(sequence)
        snapshot = world.snapshot("job", sequence)
        if snapshot is None:
            lost += 1
            continue
        for part in snapshot.missing:
            seen.add(part)
            source = snapshot.sources[0]
            if part is Part.END_OFFSETS:
                assert set(source.end_offsets) == {None}
            if part is Part.COMMITTED_OFFSETS:
                assert set(source.committed_offsets) == {None}
            if part is Part.CAPACITY:
                assert snapshot.slots_granted is None
                assert snapshot.pool is None
            if part is Part.JOB_STATE:
                assert snapshot.state is ClusterState.UNKNOWN
    assert seen == set(Part)
    assert 10 < lost < 60


def test_stage_figures_show_skew() -> None:
    """A hot partition makes the slowest task longer than the median task in proportion to its records."""
    topic = TwinTopic("in", (1.0, 1.0, 3.0, *([1.0] * 5)), Load([1000.0]))
    world = World([twin_model()], [topic], [SlotPool("default", 8)], sizes={"job": 8})
    world.advance(EPOCH + 60)
    stage = twin_snapshot(world, EPOCH + 60).stages[0]
    assert stage.slowest_task_place == 2
    assert stage.slowest_task_seconds / stage.median_task_seconds == pytest.approx(3.0, rel=0.05)
    assert stage.tasks == 8


def test_a_stuck_partition_stands_still_while_the_others_go_on() -> None:
    """From the fault on, one partition's committed offset stays below its end offset; the others keep up."""
    world = twin_world(twin_model(faults=Faults(stuck_at=100.0)))
    world.advance(EPOCH + 110)
    before = twin_snapshot(world, EPOCH + 110).sources[0].committed_offsets
    world.advance(EPOCH + 600)
    source = twin_snapshot(world, EPOCH + 600).sources[0]
    assert source.committed_offsets[0] == before[0]
    assert (source.end_offsets[0] or 0) - (before[0] or 0) > 50_000
    for end, done in zip(source.end_offsets[1:], source.committed_offsets[1:], strict=True):
        assert (end or 0) - (done or 0) < 2_000


def test_a_world_without_what_a_model_names_is_refused() -> None:
    """An unknown topic or pool is named."""
    with pytest.raises(ValueError, match="topic 'in' is not in the world"):
        World([twin_model()], [], [SlotPool("default", 1)], sizes={})
    with pytest.raises(ValueError, match="pool 'default' is not in the world"):
        World([twin_model()], [TwinTopic("in", even(1))], [], sizes={})
