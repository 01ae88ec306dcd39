"""The three ways in which a twin job changes its size: phases, figures, and what goes wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.actuator.machine import MOVES
from tests.support.twins import phases_of, twin_command, twin_model, twin_snapshot, twin_world
from tidegate.events.command import CommandKind
from tidegate.events.result import ActionResult, Phase
from tidegate.events.way import Way
from tidegate.twin.load import Load
from tidegate.twin.model import Faults, InPlaceCosts, JobModel, StageModel, State
from tidegate.twin.pool import SlotPool
from tidegate.twin.topic import TwinTopic, even
from tidegate.twin.world import EPOCH, World

GROWING = InPlaceCosts(register_seconds=8.0, working_seconds=1.0, first_batch_seconds=4.0)


def _resize(world: World, size: int, way: Way, *, until: float = 400.0) -> list[ActionResult]:
    """Order a size after 100 s; return the results."""
    world.advance(EPOCH + 100)
    world.order(twin_command(100, size, way=way))
    return world.advance(EPOCH + until)


def _committed(world: World) -> int:
    return sum(map(sum, world.job("job").committed))


def _durations_of_growth(world: World) -> list[float]:
    """Order 8 slots in place after 100 s; return how long batches took, from then on, without repetitions."""
    world.advance(EPOCH + 100)
    twin_snapshot(world, EPOCH + 100)
    world.order(twin_command(100, 8, way=Way.IN_PLACE))
    world.advance(EPOCH + 140)
    found = world.snapshot("job", EPOCH + 140, 40)
    assert found is not None
    durations = [round(batch.duration_seconds, 3) for batch in found.batches]
    return [each for each, after in zip(durations, [0.0, *durations], strict=False) if each != after]


def test_in_place_a_size_grows_without_a_gap() -> None:
    """Executors are added under the running query: same run, no outage, and the delay until they work."""
    world = twin_world(twin_model(in_place=GROWING))
    results = _resize(world, 8, Way.IN_PLACE)
    assert phases_of(results) == ["accepted", "resizing", "verified"]
    end = results[-1]
    assert (end.way, end.outage_seconds, end.downtime_seconds) == (Way.IN_PLACE, 0.0, 0.0)
    assert end.delay_seconds is not None
    assert 9.0 <= end.delay_seconds < 9.0 + 2 * 8.0  # registered, offered tasks, at most two batches
    assert end.details["registered_seconds"] == 8.0
    assert end.incarnation == "app-job-0001"
    assert world.job("job").slots == 8


def test_the_first_batch_with_new_executors_takes_longer_once() -> None:
    """The batch with cold executors takes 4 s more; those after it are faster than before the growth."""
    world = twin_world(twin_model(in_place=GROWING), rate=10_000)
    # 5,000 records: 0.5 s + 2 waves of 1.25 s on 4 slots, 1 wave on 8.
    assert _durations_of_growth(world) == [3.0, 5.75, 1.75]


@pytest.mark.parametrize(
    ("rate", "trigger", "expected"),
    [
        # At 110 s, half a second into the tasks, the new executors take 4 of 8 tasks: 1 + 4 + 1.25 s after the begin.
        (10_000, 0.0, [3.0, 6.25, 1.75]),
        # At 110 s nothing runs. In the next batch they take 4 of the 8 tasks: 0.5 + 4 + 1.25 s.
        (500, 10.0, [3.0, 5.75, 1.75]),
    ],
)
def test_cold_executors_that_take_tasks_hold_their_batch_up(rate: float, trigger: float, expected: list[float]) -> None:
    """As on real Spark, a new executor gets tasks at once, and the batch waits for the cold ones; once."""
    costs = replace(GROWING, register_seconds=9.0, cold_takes_tasks=True)
    world = twin_world(twin_model(in_place=costs, trigger_interval_seconds=trigger), rate=rate)
    assert _durations_of_growth(world) == expected


def test_a_size_shrinks_in_place_at_a_batch_boundary() -> None:
    """Executors leave when the running batch has committed, and take no task of the next one."""
    world = twin_world(twin_model(), rate=10_000)
    results = _resize(world, 2, Way.IN_PLACE, until=110.0)
    assert phases_of(results) == ["accepted", "resizing", "verified"]
    assert results[-1].outage_seconds == 0.0
    assert 1.2 <= (results[-1].delay_seconds or 0.0) <= 3.0 + 1.2 + 0.001
    world.advance(EPOCH + 110)
    durations = [round(batch.duration_seconds, 3) for batch in twin_snapshot(world, EPOCH + 110).batches]
    assert durations == [3.0, 5.5]
    assert world.truth("job").slots == 2


def test_executors_leave_in_the_middle_of_a_batch_that_lasts() -> None:
    """If no boundary comes in time, executors leave after their tasks, and the batch goes on with the others."""
    model = twin_model(in_place=InPlaceCosts(boundary_seconds=10.0), max_records_per_trigger=None)
    world = twin_world(model, rate=0.0)
    world.job("job").sources[0].written = 80_000  # 8 tasks of 20 s, on 4 slots
    world.advance(EPOCH + 5)
    world.order(twin_command(5, 1, way=Way.IN_PLACE))
    assert world.advance(EPOCH + 30)[-1].phase is Phase.VERIFIED
    assert world.advance(EPOCH + 99) == []
    assert _committed(world) == 0
    world.advance(EPOCH + 102)  # after the first wave, 4 tasks one after another: 20 + 80 s
    assert _committed(world) == 80_000


def test_a_batch_of_six_tasks_on_one_slot_gets_faster_when_executors_come() -> None:
    """A batch of 110 s is not broken: new executors take its waiting tasks, and it ends after 62 s."""
    model = JobModel(
        "job",
        ("in",),
        (StageModel("map", 1 / 60),),
        overhead_seconds=0.0,
        noise_share=0.0,
        max_records_per_trigger=6_600,
        in_place=GROWING,
    )
    topic = TwinTopic("in", even(6), Load([250.0]))
    topic.written = 20_000
    world = World([model], [topic], [SlotPool("default", 8)], sizes={"job": 1})
    world.advance(EPOCH + 30)
    world.order(twin_command(30, 6, before=1, way=Way.IN_PLACE))
    results = world.advance(EPOCH + 100)
    assert phases_of(results) == ["accepted", "resizing", "verified"]
    assert results[-1].delay_seconds == pytest.approx(43 + 110 / 6 - 30, abs=0.01)
    found = world.snapshot("job", EPOCH + 100, 100)
    assert found is not None
    # Tasks of 18.33 s: two have ended and one runs when five executors come at 39 s, warm at 43 s.
    first, second = found.batches[:2]
    assert first.duration_seconds == pytest.approx(43 + 110 / 6, abs=0.01)
    assert second.duration_seconds == pytest.approx(110 / 6, abs=0.01)
    assert (first.batch_id, second.batch_id) == (0, 1)


def test_a_pool_that_grants_fewer_is_told_with_both_numbers() -> None:
    """The growth is verified at what was granted, and asks for no more later."""
    world = twin_world(twin_model(), slots=6)
    end = _resize(world, 10, Way.IN_PLACE)[-1]
    assert (end.phase, end.code, end.parallelism) == (Phase.VERIFIED, "GRANTED_FEWER", 6)
    assert end.sentence == "the cluster granted 6 of 10 slots"
    world.job("job").pool.slots = 16
    world.advance(EPOCH + 500)
    assert world.truth("job").slots == 6


def test_executors_that_die_as_they_come_are_given_up() -> None:
    """The job goes back to its last size, still running, and says why."""
    world = twin_world(twin_model(faults=Faults(failed_growths=frozenset({1}))))
    results = _resize(world, 8, Way.IN_PLACE)
    assert phases_of(results) == ["accepted", "resizing", "resizing", "rolled_back"]
    assert (results[-1].attempt, results[-1].parallelism, results[-1].code) == (2, 4, "EXECUTORS_DIED")
    assert world.job("job").slots == 4
    world.order(twin_command(400, 8, way=Way.IN_PLACE, name="again"))
    assert world.advance(EPOCH + 500)[-1].phase is Phase.VERIFIED


def test_an_idle_job_grows_in_place() -> None:
    """Without records no batch can show that new slots work: their registration is enough."""
    world = twin_world(twin_model(), rate=0.0)
    end = _resize(world, 8, Way.IN_PLACE)[-1]
    assert (end.phase, end.parallelism) == (Phase.VERIFIED, 8)


def test_a_handover_leaves_a_gap_of_about_a_second() -> None:
    """The second driver warms up while the first goes on; only the switch passes without a batch."""
    world = twin_world(twin_model(), rate=10_000)
    world.advance(EPOCH + 100)
    world.order(twin_command(100, 8, way=Way.HANDOVER))
    world.advance(EPOCH + 125)
    pool = world.job("job").pool
    assert (pool.granted("job"), twin_snapshot(world, EPOCH + 125).slots_granted) == (12, 4)
    before = _committed(world)
    results = world.advance(EPOCH + 200)
    assert phases_of(results) == ["switching", "running", "retiring", "verified"]
    end = results[-1]
    assert end.way is Way.HANDOVER
    assert end.outage_seconds == pytest.approx(1.0, abs=0.01)
    # The switch, and the first batch: 0.5 s of overhead, one wave of 1.25 s, 0.5 s because it is cold.
    assert end.downtime_seconds == pytest.approx(1.0 + 0.5 + 1.25 + 0.5, abs=0.01)
    assert end.delay_seconds is not None
    # Warm-up 30 s, at most one batch, switch 1 s, and the first batch.
    assert 31.0 + 2.25 <= end.delay_seconds <= 31.0 + 3.0 + 2.25
    assert end.incarnation == "app-job-0002"
    assert pool.granted("job") == 8
    assert _committed(world) > before


def test_a_trigger_can_hide_the_switch() -> None:
    """A job that waits 4 s between batches loses nothing in a switch of 1 s."""
    world = twin_world(twin_model(trigger_interval_seconds=5.0), rate=100.0)
    assert _resize(world, 8, Way.HANDOVER)[-1].outage_seconds == 0.0


def test_state_lengthens_the_gap_of_a_handover() -> None:
    """The second driver reads the state back after the first has paused: 1 GB at 200 MB/s is 5 s."""
    state = State(partitions=8, bytes_per_record=0.0, initial_bytes=1e9)
    world = twin_world(twin_model(state=state), rate=10_000)
    assert _resize(world, 8, Way.HANDOVER)[-1].outage_seconds == pytest.approx(6.0, abs=0.01)


def test_a_second_driver_that_never_commits_hands_back() -> None:
    """The first driver goes on with its own size; nothing is lost, and the next command finds it in order."""
    model = twin_model(faults=Faults(failed_starts=frozenset({2})), start_deadline_seconds=60.0)
    world = twin_world(model, rate=10_000)
    results = _resize(world, 8, Way.HANDOVER)
    assert phases_of(results) == ["accepted", "warming", "switching", "running", "resuming", "rolled_back"]
    end = results[-1]
    assert (end.attempt, end.parallelism, end.code) == (2, 4, "START_DEADLINE")
    assert end.outage_seconds == pytest.approx(1.0 + 60.0 + 1.0, abs=0.1)
    assert end.incarnation == "app-job-0001"
    assert world.job("job").pool.granted("job") == 4
    world.order(twin_command(400, 8, way=Way.HANDOVER, name="again"))
    assert world.advance(EPOCH + 500)[-1].incarnation == "app-job-0003"


def test_a_first_driver_that_finds_nothing_to_do_goes_on_as_well() -> None:
    """The handover has ended although no batch shows it: later commands do not wait for it for ever."""
    model = twin_model(ways=(Way.HANDOVER,), faults=Faults(failed_starts=frozenset({2})))
    topic = TwinTopic("in", even(8), Load([1000.0] * 10 + [0.0]))
    world = World([model], [topic], [SlotPool("default", 16)], sizes={"job": 4})
    world.advance(EPOCH + 100)
    world.order(twin_command(100, 8, way=Way.HANDOVER))
    results = world.advance(EPOCH + 1000)
    assert phases_of(results) == ["accepted", "warming", "switching", "running", "resuming", "rolled_back"]
    assert not world.changing("job")


def test_a_second_driver_that_does_not_warm_up_disturbs_nothing() -> None:
    """The first driver is not touched, and the second one's slots are free again."""
    world = twin_world(twin_model(faults=Faults(failed_warm_ups=frozenset({2}))))
    results = _resize(world, 8, Way.HANDOVER)
    assert phases_of(results) == ["accepted", "warming", "rolled_back"]
    assert (results[-1].code, results[-1].parallelism, results[-1].outage_seconds) == ("NOT_WARM", 4, None)
    assert world.job("job").pool.granted("job") == 4


def test_a_handover_does_not_break_a_long_batch() -> None:
    """Without a batch boundary before the deadline, the first driver goes on with its batch."""
    model = twin_model(max_records_per_trigger=None, stop_deadline_seconds=5.0)
    world = twin_world(model, rate=0.0)
    world.job("job").sources[0].written = 80_000  # 8 tasks of 20 s, on 4 slots
    world.advance(EPOCH + 1)
    world.order(twin_command(1, 8, way=Way.HANDOVER))
    results = world.advance(EPOCH + 40)
    assert phases_of(results) == ["accepted", "warming", "switching", "resuming", "rolled_back"]
    assert results[-1].code == "NO_BOUNDARY"
    assert world.truth("job").slots == world.job("job").pool.granted("job") == 4
    world.advance(EPOCH + 41)
    assert _committed(world) == 80_000


def test_a_job_that_can_only_be_handed_over_waits_for_its_batch() -> None:
    """The same batch, where a handover that fails could only be tried again."""
    model = twin_model(max_records_per_trigger=None, stop_deadline_seconds=5.0, ways=(Way.HANDOVER,))
    world = twin_world(model, rate=0.0)
    world.job("job").sources[0].written = 80_000
    world.advance(EPOCH + 1)
    world.order(twin_command(1, 8, way=Way.HANDOVER))
    results = world.advance(EPOCH + 90)
    assert phases_of(results) == ["accepted", "warming", "switching", "running", "retiring", "verified"]
    assert world.truth("job").slots == 8


def test_a_handover_without_room_for_both_sizes_becomes_the_next_way() -> None:
    """The pool must hold both drivers: if it cannot, the job goes its first other way, or rejects the command."""
    full = twin_world(twin_model(), slots=10)
    assert _resize(full, 8, Way.HANDOVER)[-1].way is Way.IN_PLACE
    world = twin_world(twin_model(ways=(Way.HANDOVER, Way.RESTART)), slots=10)
    assert _resize(world, 8, Way.HANDOVER)[-1].way is Way.RESTART
    stuck = twin_world(twin_model(ways=(Way.HANDOVER,)), slots=10)
    assert [(r.phase, r.code) for r in _resize(stuck, 8, Way.HANDOVER)][1:] == [(Phase.REJECTED, "NO_WAY")]


def test_a_way_that_the_job_cannot_go_becomes_its_preferred_one() -> None:
    """A command in place for a job that can only restart restarts it."""
    results = _resize(twin_world(twin_model(ways=(Way.RESTART,))), 8, Way.IN_PLACE)
    assert phases_of(results) == ["accepted", "stopping", "stopped", "starting", "running", "verified"]
    assert [result.way for result in results] == [None, *[Way.RESTART] * 5]


def test_a_restart_tells_its_outage_apart_from_its_first_batch() -> None:
    """The outage is exit and start; the downtime also holds the first batch, 3 s slower than others."""
    end = _resize(twin_world(twin_model(), rate=10_000), 8, Way.RESTART)[-1]
    assert end.outage_seconds == pytest.approx(22.0, abs=0.01)
    assert end.downtime_seconds == pytest.approx(22 + 3 + 0.5 + 1.25, abs=0.01)
    assert end.delay_seconds is not None
    assert end.downtime_seconds is not None
    assert end.downtime_seconds <= end.delay_seconds <= end.downtime_seconds + 3.0  # at most one batch before the stop


@pytest.mark.parametrize("way", list(Way))
@pytest.mark.parametrize(
    "faults",
    [
        Faults(),
        Faults(failed_starts=frozenset({2})),
        Faults(failed_starts=frozenset({2, 3})),
        Faults(failed_warm_ups=frozenset({2})),
        Faults(failed_growths=frozenset({1})),
        Faults(deaths=(105.0,)),
    ],
)
def test_every_way_walks_like_the_actuator(way: Way, faults: Faults) -> None:
    """Each phase follows the one before as the actuator's machine allows, to one end."""
    world = twin_world(twin_model(faults=faults))
    results = _resize(world, 8, way, until=900.0)
    before: Phase | None = None
    for result in results:
        after = set(MOVES[before].values()) | ({Phase.RETIRING, Phase.RESUMING} if before is Phase.RUNNING else set())
        if result.code == "JOB_DIED":
            after.add(Phase.FAILED)
        if result.attempt == 2 and Phase.VERIFIED in after:
            after.add(Phase.ROLLED_BACK)
        assert result.phase in after
        before = result.phase
    assert [result.phase.terminal for result in results] == [False] * (len(results) - 1) + [True]
    assert world.job("job").pool.granted("job") == world.truth("job").slots


def test_starts_and_stops_have_no_way() -> None:
    """Only a change of size has a way."""
    world = twin_world(twin_model())
    world.order(twin_command(0, 0, kind=CommandKind.STOP))
    world.advance(EPOCH + 50)
    world.order(twin_command(50, 4, kind=CommandKind.START, before=0, name="c2"))
    results = world.advance(EPOCH + 200)
    assert results[-1].phase is Phase.VERIFIED
    assert all(result.way is None and result.outage_seconds is None for result in results)


@pytest.mark.parametrize(("size", "end"), [(2, Phase.ROLLED_BACK), (6, Phase.VERIFIED)])
def test_only_fewer_slots_are_taken_back_because_a_first_batch_is_long(size: int, end: Phase) -> None:
    """As for the actuator: with the last good size, growth would take even longer."""
    world = twin_world(twin_model(max_records_per_trigger=None, start_deadline_seconds=20.0), rate=3_000, partitions=64)
    world.advance(EPOCH + 100)
    world.order(twin_command(100, size, way=Way.RESTART, first_batch_seconds=1.0))
    assert world.advance(EPOCH + 2_000)[-1].phase is end


@pytest.mark.parametrize(("kind", "code"), [(CommandKind.RESCALE, "OK"), (CommandKind.START, "FIRST_BATCH")])
def test_a_first_batch_longer_than_the_deadline_is_waited_for(kind: CommandKind, code: str) -> None:
    """A batch at work is progress, as for the actuator; of a start, a finished task is enough."""
    model = twin_model(max_records_per_trigger=None, start_deadline_seconds=60.0)
    world = twin_world(model, rate=3_000, partitions=64)
    world.advance(EPOCH + 100)
    if kind is CommandKind.START:
        world.order(twin_command(100, 0, kind=CommandKind.STOP, name="stop"))
        world.advance(EPOCH + 500)
        world.order(twin_command(500, 4, kind=kind, before=0))
    else:
        world.order(twin_command(100, 8, way=Way.RESTART))
    results = world.advance(EPOCH + 2_000)
    assert (results[-1].phase, results[-1].attempt, results[-1].code) == (Phase.VERIFIED, 1, code)
    assert results[-1].at.timestamp() - results[0].at.timestamp() > (60.0 if kind is CommandKind.RESCALE else 20.0)
