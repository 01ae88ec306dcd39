"""Lanes handle one record at a time per partition number, in order, and acknowledge it afterwards.

The decider's topics are keyed by pipeline and have the same number of partitions. So `snapshots/3` and `results/3`
hold the same pipelines and share lane 3: a pipeline's events keep one order, and one handler at a time changes its
state. A lane acknowledges records in the order in which it got them, so never an offset before a smaller one of the
same partition. Faust relies on that: its commit skips a hole of one record (measured).

Before it gives up partitions, and before it stops, Faust holds back further records, waits until all records it has
handed out are acknowledged, and commits. The record that a lane works on is therefore finished. Queued records are
dropped without acknowledgement, and the next owner of the partition reads them from the committed offset.

One case remains: a process that was paused for longer than its session continues with records that now belong to
another process, until its next heartbeat is refused. Its decisions have the same ids as the new owner's, so readers
drop them; Redis grants their cooldown and slots to the same id or refuses; the actuator ignores commands older than
one it knows. Its state may land in the changelog after a newer state of the new owner. The new owner continues from
memory and writes the state again with the job's next snapshot. Only if it dies before that does the job continue from
the older state, as if it had missed the snapshots in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

QUEUED = 4
"""Queued records per lane: enough to continue without a pause, few enough to drop."""


class Acknowledged(Protocol):
    """What a lane needs to know about an event."""

    def ack(self) -> bool:
        """Allow its offset to be committed."""
        ...


E = TypeVar("E", bound=Acknowledged)


class Lanes(Generic[E]):
    """A task and a short queue per partition number. The task group ends them; an error in one ends the group.

    `may_start` says whether work on an event may still start; otherwise the event goes to `drop` instead of `handle`.
    """

    def __init__(
        self,
        tasks: asyncio.TaskGroup,
        handle: Callable[[E], Awaitable[None]],
        *,
        may_start: Callable[[E], bool],
        drop: Callable[[E], None],
    ) -> None:
        self._tasks = tasks
        self._handle = handle
        self._may_start = may_start
        self._drop = drop
        self._lanes: dict[int, asyncio.Queue[E]] = {}

    async def put(self, partition: int, event: E) -> None:
        """Queue an event in the lane of its partition number; wait while the queue is full."""
        lane = self._lanes.get(partition)
        if lane is None:
            lane = self._lanes[partition] = asyncio.Queue(QUEUED)
            self._tasks.create_task(self._run(lane), name=f"lane {partition}")
        await lane.put(event)

    async def _run(self, lane: asyncio.Queue[E]) -> None:
        while True:
            event = await lane.get()
            if self._may_start(event):
                await self._handle(event)
                event.ack()
            else:
                self._drop(event)
