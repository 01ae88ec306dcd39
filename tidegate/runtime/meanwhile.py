"""Work in a thread for which no end of the program waits: to read a topic whose broker is away takes minutes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def meanwhile(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """Do some work in a daemon thread of its own; who waits for the result gets it, or the error."""
    result: Future[T] = Future()
    result.set_running_or_notify_cancel()  # from now on nobody can cancel it

    def run() -> None:
        try:
            result.set_result(work(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - every error belongs to who waits
            result.set_exception(error)

    threading.Thread(target=run, name="meanwhile", daemon=True).start()
    return result
