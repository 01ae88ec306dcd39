"""A worker thread owns one blocking resource; asyncio calls it with a time limit.

A consumer of librdkafka, or a directory on a hung network disk, can block for longer than an interval. After its time
limit the caller stops waiting, and the thread stays in the call. Later calls wait for it to return as long as their own
limit leaves time for an answer, and are then refused with `StillBusy`: one that begins too late would be of no use to
its caller, and make the next one too late as well. So a dead source costs one thread, never more, and never another
source's time. The threads are daemons: unlike those of `asyncio.to_thread`, a hung one does not keep the process alive.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class StillBusy(TimeoutError):
    """An earlier call has not returned yet."""


class WorkerThread:
    """The only thread that uses a resource; one call at a time."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._newest: Future[Any] | None = None
        self._lasted = 0.0
        """How many seconds the call took that ended last."""
        threading.Thread(target=self._work, name=f"collector-{name}", daemon=True).start()

    async def call(self, timeout_seconds: float, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what `function` returns; raise `StillBusy`, `TimeoutError`, or what `function` raises."""
        deadline = time.monotonic() + timeout_seconds
        while (earlier := self._newest) is not None and not earlier.done():
            needed = self._lasted if self._lasted < timeout_seconds else 0.0
            if not await _done(earlier, deadline - needed - time.monotonic()):
                raise StillBusy(f"{self.name} has been busy with earlier calls: no answer within {timeout_seconds:g} s")
        result: Future[T] = Future()

        def run() -> None:
            began = time.monotonic()
            try:
                value = function(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - every error belongs to the caller
                self._lasted = time.monotonic() - began
                result.set_exception(error)
            else:
                self._lasted = time.monotonic() - began
                result.set_result(value)

        self._newest = result
        self._calls.put(run)
        if not await _done(result, deadline - time.monotonic()):
            raise TimeoutError(f"{self.name} did not answer within {timeout_seconds:g} s")
        return result.result()

    def close(self) -> None:
        """Let the thread end after its current call."""
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


class WorkerThreads:
    """A worker thread for each place that was asked, so that one that hangs costs no other place its answer."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._workers: dict[str, WorkerThread] = {}

    async def call(
        self, place: str, timeout_seconds: float, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Return what `function` returns in the thread of a place; raise what `WorkerThread.call` raises."""
        worker = self._workers.get(place)
        if worker is None:
            worker = self._workers[place] = WorkerThread(f"{self._name} {place}".rstrip())
        return await worker.call(timeout_seconds, function, *args, **kwargs)

    def keep(self, places: Collection[str]) -> None:
        """Let the threads of all other places end after their current calls."""
        for place in self._workers.keys() - set(places):
            self._workers.pop(place).close()

    def close(self) -> None:
        """Let the threads end after their current calls."""
        self.keep(())


async def _done(future: Future[Any], timeout_seconds: float) -> bool:
    """Return whether a thread's call has ended within a time."""
    if future.done():
        return True
    waiter = asyncio.wrap_future(future)
    # If the call fails after the time, nobody awaits the waiter: asyncio would log its exception as never retrieved.
    waiter.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    await asyncio.wait([waiter], timeout=max(0.0, timeout_seconds))
    return future.done()
