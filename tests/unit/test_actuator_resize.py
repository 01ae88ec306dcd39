"""Sizes changed in place: the real launcher's part against simulated executors, clock and cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from services.actuator.backends import DriverState
from services.actuator.fence import JobFence, Outfenced
from services.actuator.task import Abandoned
from tests.support.events import command
from tests.support.fake_executors import FakeSpark
from tests.support.fake_world import Died, FakeWorld, Waiting
from tidegate.events.command import CommandKind
from tidegate.events.result import ActionResult, Phase
from tidegate.events.way import Way
from tidegate.launcher.control.claims import Claims
from tidegate.launcher.control.files import SizeOrder, Token

IN_PLACE_ONLY = (Way.IN_PLACE,)


@pytest.fixture
def world(tmp_path: Path) -> FakeWorld:
    """A job of size 2 whose executors can be changed."""
    world = FakeWorld(tmp_path, resizable=True)
    world.start()
    return world


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_a_rescale_changes_the_running_driver(world: FakeWorld, size: int) -> None:
    """Nothing stops: the same driver gets the ordered size, up, down or as it is, and the result says how."""
    assert world.carry(command(to=size)) is Phase.VERIFIED
    assert world.phases() == ["accepted", "resizing", "verified"]
    assert world.cluster.granted == size
    end = world.topic[-1]
    assert (end.parallelism, end.code, end.way) == (size, "OK", Way.IN_PLACE)
    assert (end.incarnation, end.submission_id) == ("app-driver-1-0", "driver-1-0")
    assert end.outage_seconds == 0
    assert end.delay_seconds is not None
    assert end.delay_seconds == end.details["working_seconds"]
    assert float(end.details["registered_seconds"]) <= end.delay_seconds
    assert end.details["executors_lost"] == 0
    assert len(world.drivers) == 1


def test_sizes_change_one_after_the_other_and_then_the_job_stops(world: FakeWorld) -> None:
    """Each order is newer than the one before, and a stop finds the driver that was resized."""
    for epoch, size in enumerate([4, 1, 6, 3], start=7):
        assert world.carry(command(to=size, epoch=epoch, command_id=f"c{epoch}")) is Phase.VERIFIED
        assert world.cluster.granted == size
    order = world.control.size_order()
    assert order is not None
    assert (order.token, order.for_run) == (Token(10, 1), Token(1, 1))
    assert world.carry(command(CommandKind.STOP, to=0, epoch=11, command_id="stop")) is Phase.VERIFIED
    assert not world.alive()


def test_a_restart_after_a_change_in_place_leaves_the_order_behind(world: FakeWorld) -> None:
    """The order was for the old run: the new one starts at its own size and keeps it."""
    world.carry(command(to=4))
    world.rescale = (Way.RESTART,)
    assert world.carry(command(to=3, epoch=8, command_id="d")) is Phase.VERIFIED
    assert world.phases("d") == ["accepted", "stopping", "stopped", "starting", "running", "verified"]
    assert world.topic[-1].way is Way.RESTART
    for _ in range(20):
        world.tick()
    assert world.cluster.granted == 3


def test_the_way_of_the_command_comes_first(world: FakeWorld) -> None:
    """The decision assumed one way; it is taken if the spec allows it."""
    assert world.carry(command(way=Way.RESTART)) is Phase.VERIFIED
    world.rescale = IN_PLACE_ONLY
    assert world.carry(command(to=3, epoch=8, command_id="d", way=Way.RESTART)) is Phase.VERIFIED
    assert [r.way for r in world.topic if r.phase is Phase.VERIFIED] == [None, Way.RESTART, Way.IN_PLACE]


def test_a_size_above_the_limit_of_the_application_needs_a_restart(world: FakeWorld) -> None:
    """The spec's maximum was raised since the run started; the sentence says so."""
    assert world.carry(command(to=12)) is Phase.VERIFIED
    assert world.phases()[:2] == ["accepted", "stopping"]
    stopping = next(r for r in world.topic if r.phase is Phase.STOPPING)
    assert "at most 8 slots, and 12 are ordered" in stopping.sentence


@pytest.mark.parametrize(
    ("differs", "why"),
    [
        ({"application": "another digest"}, "the spec names another application than the one that runs"),
        ({"executor_cores": 2}, "its executors have 2 cores, and the spec says 1"),
    ],
    ids=["application", "cores"],
)
def test_a_run_of_another_application_is_replaced(world: FakeWorld, differs: dict[str, Any], why: str) -> None:
    """The spec was changed as well as the size: with more executors, the old version would go on."""
    facts = world.control.running(Token(1, 1))
    assert facts is not None
    world.control.write_running(Token(1, 1), facts | {"application": world.spec.application.digest} | differs)
    assert world.carry(command()) is Phase.VERIFIED
    assert world.topic[-1].way is Way.RESTART
    assert why in next(r for r in world.topic if r.phase is Phase.STOPPING).sentence


def test_a_driver_that_has_not_started_a_query_is_given_no_order(world: FakeWorld) -> None:
    """It has no application yet whose executors could be counted."""
    facts = world.control.running(Token(1, 1))
    assert facts is not None
    world.control.write_running(Token(1, 1), {name: facts[name] for name in facts if name != "application_id"})
    world.rescale = IN_PLACE_ONLY
    assert world.carry(command()) is Phase.REJECTED
    assert "its driver has not started a query yet" in world.topic[-1].sentence
    assert world.control.size_order() is None


def test_without_a_possible_way_the_command_is_rejected(world: FakeWorld) -> None:
    """Nothing is touched, and the operator reads what stands in the way and what to do."""
    world.rescale = IN_PLACE_ONLY
    assert world.carry(command(to=12)) is Phase.REJECTED
    end = world.topic[-1]
    assert end.code == "NO_WAY"
    assert "at most 8 slots" in end.sentence
    assert "Allow a restart in application.rescale" in end.sentence
    assert world.cluster.granted == 2
    assert world.control.size_order() is None


def test_a_run_that_was_started_at_a_fixed_size_is_restarted(tmp_path: Path) -> None:
    """A driver of an older version, or of a script with its own settings, does not say that it can be resized."""
    world = FakeWorld(tmp_path)
    world.start()
    assert world.carry(command()) is Phase.VERIFIED
    assert world.topic[-1].way is Way.RESTART


def test_a_cluster_that_grants_fewer_verifies_what_it_granted(world: FakeWorld) -> None:
    """The job goes on with what it got, and executors do not come later, when the cluster has room again."""
    world.cluster.free = 3
    assert world.carry(command(to=6)) is Phase.VERIFIED
    end = world.topic[-1]
    assert (end.parallelism, end.code) == (3, "GRANTED_FEWER")
    assert "no more of the 6" in end.sentence
    world.cluster.free = 100
    for _ in range(20):
        world.tick()
    assert world.cluster.granted == 3
    assert world.carry(command(to=6, epoch=8, command_id="d")) is Phase.VERIFIED
    assert world.cluster.granted == 6


@pytest.mark.parametrize(
    ("each_node", "size", "code", "seconds"), [(40.0, 6, "OK", 150), (1000.0, 3, "GRANTED_FEWER", 120)]
)
def test_a_node_autoscaler_gets_the_time_of_a_start(
    world: FakeWorld, each_node: float, size: int, code: str, seconds: float
) -> None:
    """Executors that wait are what makes it add nodes, one by one; if none comes, the job keeps what it got."""
    spec, tick, asked_at = world.spec.model_copy(update={"pool_max_slots": 8}), world.tick, world.seconds
    world.cluster.free = 3

    def add_a_node() -> None:
        world.cluster.free = 3 + int((world.seconds - asked_at) / each_node)
        tick()

    world.tick = add_a_node  # type: ignore[method-assign]
    assert world.carry(command(to=6), spec=spec) is Phase.VERIFIED
    assert (world.topic[-1].parallelism, world.topic[-1].code) == (size, code)
    assert world.seconds - asked_at < seconds


def test_executors_that_die_as_they_come_are_given_up(world: FakeWorld) -> None:
    """The job goes back to the last good size, once, in place, and the result says what the executors died of."""
    world.cluster.dies_after = 5
    assert world.carry(command(to=4)) is Phase.ROLLED_BACK
    assert world.phases() == ["accepted", "resizing", "resizing", "rolled_back"]
    end = world.topic[-1]
    assert (end.parallelism, end.attempt, end.code) == (2, 2, "EXECUTORS_DIED")
    assert "exited with code 137" in end.sentence
    assert end.sentence.startswith("Size 4 failed: ")
    assert end.sentence.endswith("Back at the last good size: The job runs with 2 slots.")
    assert world.cluster.granted == 2
    assert len(world.drivers) == 1


def test_a_rollback_that_gets_fewer_slots_says_so(world: FakeWorld) -> None:
    """If the cluster has shrunk meanwhile, the result has the code of that, so that the decider knows the shortfall."""
    world.cluster.dies_after = 5

    def shrink(result: ActionResult) -> None:
        if (result.phase, result.attempt) == (Phase.RESIZING, 2):
            world.cluster.free = 1
            world.cluster.kill(next(iter(world.cluster.ages)))

    world.on_result = shrink
    assert world.carry(command(to=4)) is Phase.ROLLED_BACK
    end = world.topic[-1]
    assert (end.parallelism, end.code) == (1, "GRANTED_FEWER")
    assert "exited with code 137" in end.sentence
    assert "Back at the last good size: The job runs with 1 slot: the cluster granted no more of the 2" in end.sentence


def test_executors_that_never_register_are_given_up(world: FakeWorld) -> None:
    """If nothing happens for as long as a start may take without progress, the job goes back."""
    world.cluster.dies_after = 2
    assert world.carry(command(to=4)) is Phase.ROLLED_BACK
    assert world.topic[-1].code == "NOT_WORKING"
    assert "2 slots of 4 granted, and 4 were ordered" in world.topic[-1].sentence
    assert world.cluster.granted == 2


def test_a_dead_executor_is_replaced_meanwhile(world: FakeWorld) -> None:
    """One executor that dies while others come does not matter: Spark replaces it."""
    dead: list[str] = []

    def kill_one(cluster: FakeSpark) -> None:
        if len(cluster.listed()) == 4 and not dead:
            dead.append("3")
            cluster.kill("3")

    tick = world.tick

    def tick_and_kill() -> None:
        tick()
        kill_one(world.cluster)

    world.tick = tick_and_kill  # type: ignore[method-assign]
    assert world.carry(command(to=4)) is Phase.VERIFIED
    assert world.topic[-1].details["executors_lost"] == 1
    assert dead
    assert world.cluster.granted == 4


def test_an_idle_job_is_resized_too(world: FakeWorld) -> None:
    """Without data new executors have nothing to do, and the result says so."""
    world.cluster.busy = False
    assert world.carry(command(to=4)) is Phase.VERIFIED
    assert "no data to process" in world.topic[-1].sentence


@pytest.mark.parametrize("rescale", [None, IN_PLACE_ONLY], ids=["restart allowed", "in place only"])
def test_a_driver_that_does_not_answer(world: FakeWorld, rescale: tuple[Way, ...] | None) -> None:
    """The job is restarted if its spec allows it; if not, the order is withdrawn."""
    world.deaf, world.rescale = True, rescale
    end = world.carry(command(to=4))
    if rescale is None:
        assert end is Phase.VERIFIED
        assert world.topic[-1].way is Way.RESTART
        assert list(world.sizes.values()) == [2, 4]
    else:
        assert end is Phase.FAILED
        assert world.topic[-1].code == "NO_ANSWER"
        assert "add restart to application.rescale" in world.topic[-1].sentence
        order = world.control.size_order()
        assert order is not None
        assert order.parallelism == 2
    assert world.most_alive == 1


def test_spark_that_takes_no_request_leads_to_a_restart(world: FakeWorld) -> None:
    """What the driver says about it is in the result."""
    world.cluster.takes_requests = False
    assert world.carry(command(to=4)) is Phase.VERIFIED
    stopping = next(r for r in world.topic if r.phase is Phase.STOPPING)
    assert "Spark did not take the request" in stopping.sentence
    assert list(world.sizes.values()) == [2, 4]


@pytest.mark.parametrize("after", [0.0, 1.0])
def test_a_driver_that_dies_meanwhile_is_restarted_at_the_ordered_size(world: FakeWorld, after: float) -> None:
    """The command falls back to a restart at once, and one driver runs at the end."""
    tick, dies_at = world.tick, world.seconds + after

    def die() -> None:
        tick()
        if world.phases()[-1] == "resizing" and world.seconds >= dies_at:
            world.drivers["driver-1-0"] = DriverState.ENDED

    if after:
        world.tick = die  # type: ignore[method-assign]
    else:
        world.driver_ends(at=Phase.RESIZING, driver="driver-1-0")
    assert world.carry(command(to=4)) is Phase.VERIFIED
    assert world.phases() == ["accepted", "resizing", "stopping", "stopped", "starting", "running", "verified"]
    assert next(r for r in world.topic if r.phase is Phase.STOPPING).code == "DRIVER_ENDED"
    assert list(world.sizes.values()) == [2, 4]
    assert world.most_alive == 1


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("phase", ["accepted", "resizing", "verified"])
@pytest.mark.parametrize("seconds", [0, 30], ids=["at once", "after 30 s"])
def test_a_death_of_the_actuator_is_survived(world: FakeWorld, when: str, phase: str, seconds: int) -> None:
    """Wherever the actuator dies, its successor ends the command in place, once (I2, I3)."""
    world.die_at = (when, Phase(phase))
    with pytest.raises(Died):
        world.carry(command(to=4))
    for _ in range(seconds * 2):
        Waiting(world).wait(0.5)
    end = world.carry(command(to=4), owner="b")
    assert end is (None if (when, phase) == ("after", "verified") else Phase.VERIFIED)
    assert len({r.result_id for r in world.topic}) == len(world.topic)
    assert world.cluster.granted == 4
    assert len(world.drivers) == 1


def test_a_death_during_a_grant_of_fewer_is_survived(world: FakeWorld) -> None:
    """A successor orders the whole size again, and ends with what is granted."""
    world.cluster.free = 3
    world.die_at = ("before", Phase.VERIFIED)
    with pytest.raises(Died):
        world.carry(command(to=6))
    assert world.carry(command(to=6), owner="b") is Phase.VERIFIED
    assert (world.topic[-1].parallelism, world.topic[-1].code) == (3, "GRANTED_FEWER")


def test_an_overtaken_actuator_cannot_undo_a_newer_order(world: FakeWorld) -> None:
    """When another actuator orders a size, the one before it leaves without a result (F6, I5)."""
    world.deaf = True
    tick = world.tick

    def overtake() -> None:
        tick()
        if world.control.size_order() is not None:
            Claims(world.control).order_size(SizeOrder(Token(7, 5), "b", Token(1, 1), 4), "c")

    world.tick = overtake  # type: ignore[method-assign]
    with pytest.raises(Abandoned, match="overtaken"):
        world.carry(command(to=4))
    assert world.phases()[-1] == "resizing"
    order = world.control.size_order()
    assert order is not None
    assert order.owner == "b"


@pytest.mark.parametrize("rescale", [None, (Way.RESTART,)], ids=["in place", "restart"])
def test_an_order_of_a_newer_command_fences_an_older_one(world: FakeWorld, rescale: tuple[Way, ...] | None) -> None:
    """A command older than the newest order is rejected before anything changes, whatever its way (I5)."""
    Claims(world.control).order_size(SizeOrder(Token(9, 1), "b", Token(1, 1), 3), "newer")
    world.rescale = rescale
    assert world.carry(command()) is Phase.REJECTED
    assert world.topic[-1].code == "OUTFENCED"
    assert len(world.drivers) == 1


def test_an_order_does_not_fence_the_running_driver(world: FakeWorld) -> None:
    """The run that an order is meant for may start further queries."""
    world.carry(command(to=4))
    fence = world.control.fence()
    assert fence is not None
    assert fence[0] == Token(1, 1)


def test_an_order_is_not_the_fence(world: FakeWorld) -> None:
    """An actuator that has ordered a size must still take the fence before it starts a run."""
    fence = JobFence(world, world.control, "rates", 7, "a")
    assert fence.order(Token(1, 1), 4, "c") == Token(7, 1)
    assert not fence.lost()
    assert fence.hold() == Token(7, 2)
    assert fence.hold() == Token(7, 2)
    assert world.control.fence() == (Token(7, 2), "a")
    assert not fence.lost()
    assert not Claims(world.control).order_size(SizeOrder(Token(7, 1), "a", Token(1, 1), 4), "c")
    assert not Claims(world.control).raise_fence(Token(7, 1), "a")


def test_an_actuator_that_was_overtaken_knows_it(world: FakeWorld) -> None:
    """It has lost the job, even if the claims are gone altogether, and what it had taken is no longer its own."""
    first, second, newer = (
        JobFence(world, world.control, "rates", epoch, owner) for epoch, owner in ((7, "a"), (7, "b"), (8, "c"))
    )
    assert first.hold() == Token(7, 1)
    assert second.take() == Token(7, 2)
    assert (first.lost(), second.lost()) == (True, False)
    assert first.hold() == Token(7, 3)
    assert (first.lost(), second.lost()) == (False, True)
    first.check_epoch()
    assert newer.take() == Token(8, 1)
    newer.check_epoch()
    with pytest.raises(Outfenced):
        first.check_epoch()
    with pytest.raises(Outfenced):
        JobFence(world, world.control, "rates", 7, "d").lost()
    next((world.folder / "control").rglob("fence*")).unlink()
    assert newer.lost()


def test_a_cluster_that_does_not_answer_leads_to_no_order(world: FakeWorld) -> None:
    """While nobody can tell what runs, no size is ordered, and the driver is not stopped: it may do well."""
    world.on_result = lambda result: (
        setattr(world, "down_until", float("inf")) if result.phase is Phase.RESIZING else None
    )
    assert world.carry(command(to=4)) is Phase.FAILED
    assert world.topic[-1].code == "NO_ANSWER"
    assert world.control.size_order() is None
    assert list(world.drivers.values()) == [DriverState.RUNNING]
