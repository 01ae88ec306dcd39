"""The decider's lanes: order within a lane, independence between lanes, and what is never acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import pytest

from services.decider.lanes import QUEUED, Lanes


@dataclass(frozen=True)
class FakeEvent:
    """An event of one partition that records its acknowledgement."""

    partition: int
    offset: int
    acked: list[tuple[int, int]]

    def ack(self) -> bool:
        """Record it."""
        self.acked.append((self.partition, self.offset))
        return True


class Bed:
    """Lanes whose handler waits at a gate for each partition, and what happened to their events."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self.started: list[tuple[int, int]] = []
        self.acked: list[tuple[int, int]] = []
        self.dropped: list[tuple[int, int]] = []
        self.ours = True
        self.gates: dict[int, asyncio.Event] = {}
        self.lanes = Lanes(
            tasks,
            self._handle,
            may_start=lambda _: self.ours,
            drop=lambda event: self.dropped.append((event.partition, event.offset)),
        )

    async def _handle(self, event: FakeEvent) -> None:
        self.started.append((event.partition, event.offset))
        await self.gate(event.partition).wait()
        if event.offset < 0:
            raise ValueError(event.offset)

    def gate(self, partition: int) -> asyncio.Event:
        """Return the gate of a partition."""
        return self.gates.setdefault(partition, asyncio.Event())

    async def put(self, partition: int, *offsets: int) -> None:
        """Put events into the lane of a partition, and let every task run."""
        for offset in offsets:
            await self.lanes.put(partition, FakeEvent(partition, offset, self.acked))
        await settle()


async def settle() -> None:
    """Let every task run until it waits."""
    for _ in range(20):
        await asyncio.sleep(0)


def on_a_bed(play: Callable[[Bed], Coroutine[Any, Any, None]]) -> Bed:
    """Run a scenario on new lanes, end them like a stop, and return what happened to the events."""

    async def run() -> Bed:
        bed: Bed | None = None

        async def agent() -> None:
            nonlocal bed
            async with asyncio.TaskGroup() as tasks:
                bed = Bed(tasks)
                await play(bed)
                task = asyncio.current_task()
                assert task is not None
                task.cancel()

        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(agent())
        assert bed is not None
        return bed

    return asyncio.run(asyncio.wait_for(run(), 10))


def test_a_lane_handles_one_record_at_a_time_in_order() -> None:
    """Work on a partition's next record starts after the previous one was handled and acknowledged."""

    async def play(bed: Bed) -> None:
        await bed.put(3, 10, 11, 12)
        assert (bed.started, bed.acked) == ([(3, 10)], [])
        bed.gate(3).set()
        await settle()

    bed = on_a_bed(play)
    assert bed.started == bed.acked == [(3, 10), (3, 11), (3, 12)]


def test_lanes_do_not_wait_for_each_other() -> None:
    """A record that waits delays only its own partition."""

    async def play(bed: Bed) -> None:
        bed.gate(1).set()
        await bed.put(0, 5)
        await bed.put(1, 7, 8)
        assert bed.started == [(0, 5), (1, 7), (1, 8)]

    assert on_a_bed(play).acked == [(1, 7), (1, 8)]


def test_a_full_lane_makes_put_wait() -> None:
    """A lane queues a few records; then `put` waits, so that the queue cannot grow."""

    async def play(bed: Bed) -> None:
        await bed.put(0, *range(QUEUED + 1))
        one_more = asyncio.create_task(bed.put(0, QUEUED + 1))
        await settle()
        assert not one_more.done()
        bed.gate(0).set()
        await one_more

    assert on_a_bed(play).acked == [(0, offset) for offset in range(QUEUED + 2)]


def test_records_queued_at_a_revocation_are_dropped() -> None:
    """The current record is finished; queued ones are neither started nor acknowledged; later ones are handled."""

    async def play(bed: Bed) -> None:
        await bed.put(0, *range(QUEUED + 1))
        waiting = asyncio.create_task(bed.put(0, QUEUED + 1))
        await settle()
        bed.ours = False
        bed.gate(0).set()
        await waiting
        assert (bed.started, bed.acked) == ([(0, 0)], [(0, 0)])
        assert bed.dropped == [(0, offset) for offset in range(1, QUEUED + 2)]
        bed.ours = True
        await bed.put(0, 1)

    assert on_a_bed(play).acked == [(0, 0), (0, 1)]


def test_an_error_ends_all_lanes_without_further_acknowledgements() -> None:
    """A record that fails is not acknowledged, nor is any other unfinished one, and the agent gets the error."""
    beds: list[Bed] = []

    async def agent() -> None:
        async with asyncio.TaskGroup() as tasks:
            beds.append(bed := Bed(tasks))
            await bed.put(0, 4)
            await bed.put(1, -1, 9)
            bed.gate(1).set()
            await asyncio.sleep(60)

    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(asyncio.wait_for(agent(), 10))
    assert caught.group_contains(ValueError, match="-1")
    assert beds[0].started == [(0, 4), (1, -1)]
    assert beds[0].acked == []


def test_a_record_interrupted_by_a_stop_is_not_acknowledged() -> None:
    """A stop that does not wait leaves the current record unacknowledged: it is repeated, not lost."""

    async def play(bed: Bed) -> None:
        await bed.put(0, 4, 5)

    bed = on_a_bed(play)
    assert (bed.started, bed.acked) == ([(0, 4)], [])
