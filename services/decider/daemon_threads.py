"""Blocking calls in daemon threads: one of `asyncio.to_thread` that hangs would keep the process alive.

To read a topic may take minutes, and as long as its broker is away. A stop must not wait for that.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def in_daemon_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what `function` returns, or raise what it raises; if the caller is cancelled, nobody hears of it."""
    result: Future[T] = Future()
    result.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result.set_result(function(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - every error belongs to the caller
            result.set_exception(error)

    threading.Thread(target=run, name="reads topics", daemon=True).start()
    return await asyncio.wrap_future(result)
