"""The decider's lanes with any order of records, any handling time and a revocation at any time."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from services.decider.lanes import Lanes

PARTITIONS = st.integers(0, 2)
TURNS = st.integers(0, 4)
"""Turns of the event loop per record."""


@dataclass(frozen=True)
class TimedEvent:
    """A record of a partition that takes a number of turns; `acked` collects acknowledgements."""

    partition: int
    offset: int
    turns: int
    acked: dict[int, list[int]]

    def ack(self) -> bool:
        """Record it."""
        self.acked[self.partition].append(self.offset)
        return True


class LanesRun:
    """What happened to the records of one example."""

    def __init__(self) -> None:
        self.acked: dict[int, list[int]] = defaultdict(list)
        self.started: dict[int, list[int]] = defaultdict(list)
        self.given: dict[int, int] = defaultdict(int)
        self.in_work: dict[int, int] = defaultdict(int)
        self.revoked = False

    async def handle(self, event: TimedEvent) -> None:
        """Take some turns, as the only record of the partition."""
        assert not self.revoked
        self.started[event.partition].append(event.offset)
        self.in_work[event.partition] += 1
        assert self.in_work[event.partition] == 1
        for _ in range(event.turns):
            await asyncio.sleep(0)
        self.in_work[event.partition] -= 1

    async def play(self, records: list[tuple[int, int]], revoked_after: int, stopped_after: int) -> None:
        """Put the records into lanes, revoke after some of them, and cancel everything some turns after the last."""
        async with asyncio.TaskGroup() as tasks:
            lanes: Lanes[TimedEvent] = Lanes(
                tasks, self.handle, may_start=lambda _: not self.revoked, drop=lambda _: None
            )
            for number, (partition, turns) in enumerate(records):
                self.revoked = number >= revoked_after
                offset = self.given[partition]
                self.given[partition] += 1
                await lanes.put(partition, TimedEvent(partition, offset, turns, self.acked))
            for _ in range(stopped_after):
                await asyncio.sleep(0)
            raise asyncio.CancelledError


@given(st.lists(st.tuples(PARTITIONS, TURNS), max_size=40), st.integers(0, 60), st.integers(0, 60))
def test_what_is_acknowledged_has_no_hole(records: list[tuple[int, int]], revoked_after: int, stopped: int) -> None:
    """I1: in each partition exactly the first records are acknowledged, each after it was handled alone."""

    async def run() -> LanesRun:
        made = LanesRun()
        try:
            await made.play(records, revoked_after, stopped)
        except asyncio.CancelledError:
            return made
        raise AssertionError("it was not stopped")

    made = asyncio.run(run())
    for partition, started in made.started.items():
        acked = made.acked[partition]
        assert started == list(range(len(started)))
        assert acked == list(range(len(acked)))
        assert len(started) - len(acked) == made.in_work[partition] <= 1
