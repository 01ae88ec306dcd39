"""A blocking resource owned by one thread, called from asyncio with a limit of time.

A consumer of librdkafka or a directory on a hung network disk can block for longer than an interval. The call is
given up after its time, and its thread stays with it; later calls wait their own time for it to come back and are
then refused with `StillBusy`: a dead source costs one thread, never a growing number, and never another source's
time. The threads are daemons, so that a hung one cannot keep the process from ending; the pool behind
`asyncio.to_thread` would.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class StillBusy(TimeoutError):
    """An earlier call has not come back yet."""


class OwnerThread:
    """The one thread that touches a resource; one call at a time."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._unfinished: Future[object] | None = None
        self._thread = threading.Thread(target=self._work, name=f"collector-{name}", daemon=True)
        self._thread.start()

    async def call(self, timeout_seconds: float, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what `function` returns; raise `StillBusy`, `TimeoutError`, or what it raises."""
        earlier = self._unfinished
        if earlier is not None and not earlier.done():
            begun = time.monotonic()
            waiter = asyncio.wrap_future(earlier)
            waiter.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # its caller has the error
            await asyncio.wait([waiter], timeout=timeout_seconds)
            if not earlier.done():
                raise StillBusy(f"{self.name} has been busy with an earlier call for over {timeout_seconds:g} s")
            timeout_seconds = max(0.0, timeout_seconds - (time.monotonic() - begun))
        result: Future[T] = Future()

        def run() -> None:
            result.set_running_or_notify_cancel()
            try:
                value = function(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - whatever it is belongs to the caller
                result.set_exception(error)
            else:
                result.set_result(value)

        self._unfinished = result  # type: ignore[assignment]  # only asked whether it is done
        self._calls.put(run)
        try:
            # shielded: giving up the wait must not mark a call as over that its thread is still in
            return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(result)), timeout_seconds)
        except TimeoutError:
            if result.done():  # the function's own TimeoutError
                raise
            raise TimeoutError(f"{self.name} did not answer within {timeout_seconds:g} s") from None

    def close(self) -> None:
        """Let the thread end after its present call."""
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
