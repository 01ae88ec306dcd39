"""A change of size in place under random faults: executors die, the cluster fills up, the actuator dies."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from services.actuator.backends import DriverState
from tests.support.events import command
from tests.support.fake_world import Died, FakeWorld
from tidegate.events.result import Phase
from tidegate.events.way import Way

SIZES = st.integers(1, 8)
FAULTS = st.lists(
    st.one_of(
        st.tuples(st.just("kill executor"), st.integers(0, 9)),
        st.tuples(st.just("free"), st.integers(1, 10)),
        st.tuples(st.just("new ones die"), st.sampled_from([0, 2, 5])),
        st.tuples(st.just("master away"), st.integers(1, 40)),
        st.tuples(st.just("kill driver"), st.just(0)),
        st.tuples(st.just("nothing"), st.integers(1, 30)),
    ),
    max_size=12,
)
DEATHS = st.lists(
    st.tuples(st.sampled_from(["before", "after"]), st.sampled_from([Phase.ACCEPTED, Phase.RESIZING, Phase.VERIFIED])),
    max_size=3,
)


class Faults:
    """Lets one fault happen after the other, a few ticks apart."""

    def __init__(self, world: FakeWorld, faults: list[tuple[str, int]]) -> None:
        self._world = world
        self._faults = list(faults)
        self._tick = world.tick
        self._wait = 3
        world.tick = self.tick  # type: ignore[method-assign]

    def tick(self) -> None:
        """Let the world move on; now and then, something breaks."""
        self._tick()
        self._wait -= 1
        if self._wait > 0 or not self._faults:
            return
        what, number = self._faults.pop(0)
        self._wait = number if what == "nothing" else 2
        cluster = self._world.cluster
        if what == "kill executor":
            alive = [one.id for one in cluster.listed() if one.alive]
            if alive:
                cluster.kill(alive[number % len(alive)])
        elif what == "free":
            cluster.free = max(number, len(cluster.ages))
        elif what == "new ones die":
            cluster.dies_after = number or None
        elif what == "master away":
            self._world.down_until = self._world.seconds + number
        elif what == "kill driver":
            for driver in self._world.alive():
                self._world.drivers[driver] = DriverState.ENDED


@settings(max_examples=60)
@example(
    size=3,
    free=2,
    faults=[("new ones die", 2), ("master away", 2), ("free", 3), ("master away", 12)],
    deaths=[],
    restart=False,
)
@given(SIZES, st.sampled_from([2, 3, 5, 100]), FAULTS, DEATHS, st.booleans())
def test_any_change_in_place_ends_once_and_says_what_is_there(
    size: int, free: int, faults: list[tuple[str, int]], deaths: list[tuple[str, Phase]], restart: bool
) -> None:
    """One end, one writer; and if the command says that a size works, the job has that size and keeps it (I2, I4)."""
    with tempfile.TemporaryDirectory() as folder:
        world = FakeWorld(Path(folder), resizable=True)
        world.start()
        world.rescale = (Way.IN_PLACE, Way.RESTART) if restart else (Way.IN_PLACE,)
        world.cluster.free = free
        Faults(world, faults)
        for number, death in enumerate(deaths):
            world.die_at = death
            with contextlib.suppress(Died):
                world.carry(command(to=size), owner=f"actuator-{number}")
        world.die_at = None
        world.carry(command(to=size), owner="last")
        told = [result for result in world.topic if result.command_id == "c"]
        ends = [result for result in told if result.phase.terminal]
        assert len(ends) == 1
        assert len({result.result_id for result in told}) == len(told)
        assert world.most_alive == 1
        if ends[0].phase in (Phase.VERIFIED, Phase.ROLLED_BACK) and world.alive():
            world.cluster.free, world.cluster.dies_after = 100, None
            world.cluster.doomed.clear()
            for _ in range(20):
                world.seconds += 1.0  # of a size that works, the launcher looks every 5 s only
                world.tick()
            if world.alive():
                assert world.cluster.granted == ends[0].parallelism
