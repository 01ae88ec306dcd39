"""Lanes: one record in work per partition number, begun in order and acknowledged when it has been handled.

The topics the decider reads are keyed by pipeline and have equally many partitions, so `snapshots/3` and `results/3`
hold the same pipelines and share lane 3: a pipeline's events keep one order, and its state is touched by one handler
at a time. A lane acknowledges what it was given in the order it was given it, so never an offset before a smaller one
of its partition. Faust relies on that: its commit steps over a hole of one record (measured).

When partitions are taken away, and at a stop, Faust lets no more records through, waits until all it has handed out
are acknowledged, and commits. What is in work here is therefore finished, within the bounds of what the handler waits
for; what is queued is dropped unacknowledged, and whoever has the partition next reads it from the committed offset.

What remains: a process paused for longer than its session goes on, until its next heartbeat is refused, with records
that are another's by now. Their decisions have the ids the new owner gave them, so they are dropped wherever they are
read; cooldown and slots are reserved for such an id or refused, and the actuator takes no command that is older than
one it knows. A state may so lie in the changelog behind a newer one of the new owner, who goes on with what it has in
memory and writes again with the job's next snapshot; only if it dies before that is the job's state as old as that, as
if the snapshots since had not come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

QUEUED = 4
"""Records a lane holds beside the one in work: enough to go on at once, few to drop."""


class Acknowledged(Protocol):
    """What a lane has to know of an event."""

    def ack(self) -> bool:
        """Let its offset be committed."""
        ...


E = TypeVar("E", bound=Acknowledged)


class Lanes(Generic[E]):
    """A task and a short queue for each partition number seen. The task group ends them, and is ended by an error.

    `ours` tells of an event whether it may still be begun; one that may not is handed to `drop` instead of `handle`.
    """

    def __init__(
        self,
        tasks: asyncio.TaskGroup,
        handle: Callable[[E], Awaitable[None]],
        *,
        ours: Callable[[E], bool],
        drop: Callable[[E], None],
    ) -> None:
        self._tasks = tasks
        self._handle = handle
        self._ours = ours
        self._drop = drop
        self._lanes: dict[int, asyncio.Queue[E]] = {}

    async def put(self, partition: int, event: E) -> None:
        """Queue an event in the lane of its partition number; wait while that is full."""
        lane = self._lanes.get(partition)
        if lane is None:
            lane = self._lanes[partition] = asyncio.Queue(QUEUED)
            self._tasks.create_task(self._run(lane), name=f"lane {partition}")
        await lane.put(event)

    async def _run(self, lane: asyncio.Queue[E]) -> None:
        while True:
            event = await lane.get()
            if self._ours(event):
                await self._handle(event)
                event.ack()
            else:
                self._drop(event)
