"""Keeps a script from noticing that its queries are held: they look active, and waiting for their end goes on.

During a stop, the queries end one by one, each after its batch. A script that ends the others or its session as soon as
one has ended would cut off their batches. So its own `stop` waits until all have ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from pyspark import SparkContext
from pyspark.sql.streaming.query import StreamingQuery, StreamingQueryManager

from tidegate.launcher.handover.second_driver import SecondDriver
from tidegate.launcher.handover.turn import Turn


def patch_waits(turn: Turn, second: SecondDriver, wait_for_stop: Callable[[], None]) -> None:
    """Wrap what a script can learn about the end of its queries, and what ends them."""
    _patch_query(turn, wait_for_stop)
    _patch_manager(turn, second)
    stop = SparkContext.stop

    def stop_context(context: Any) -> None:
        wait_for_stop()
        stop(context)

    SparkContext.stop = stop_context


def _patch_query(turn: Turn, wait_for_stop: Callable[[], None]) -> None:
    wait, stop, is_active = StreamingQuery.awaitTermination, StreamingQuery.stop, StreamingQuery.isActive.fget

    def await_termination(query: Any, timeout: float | None = None) -> Any:
        deadline = _deadline(timeout)
        while True:
            ended = wait(query, _seconds_to(deadline))
            if ended is False or (not turn.holds(query) and not turn.renew(query)):
                return ended
            if not turn.wait_until_released(deadline):
                return False
            if turn.over:
                return ended

    def stop_query(query: Any) -> None:
        wait_for_stop()
        turn.drop(query)
        stop(query)

    StreamingQuery.awaitTermination = await_termination
    StreamingQuery.stop = stop_query
    StreamingQuery.isActive = property(lambda query: turn.holds(query) or is_active(query))


def _patch_manager(turn: Turn, second: SecondDriver) -> None:
    wait, active = StreamingQueryManager.awaitAnyTermination, StreamingQueryManager.active.fget
    get = StreamingQueryManager.get

    def await_any_termination(manager: Any, timeout: float | None = None) -> Any:
        second.wait()
        deadline = _deadline(timeout)
        while True:
            resumed = turn.resumed
            ended = wait(manager, _seconds_to(deadline))
            if ended is False or (not turn.holding and turn.resumed == resumed):
                return ended
            if not turn.wait_until_released(deadline):
                return False
            if turn.over:
                return ended

    def active_queries(manager: Any) -> list[Any]:
        second.wait_for_taken()
        return [*active(manager), *turn.held()]

    def get_query(manager: Any, id: str) -> Any:  # noqa: A002 - PySpark's name
        return next((query for query in turn.held() if query.id == id), None) or get(manager, id)

    StreamingQueryManager.awaitAnyTermination = await_any_termination
    StreamingQueryManager.get = get_query
    StreamingQueryManager.active = property(active_queries)


def _deadline(timeout: float | None) -> float | None:
    return None if timeout is None else time.monotonic() + timeout


def _seconds_to(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.001, deadline - time.monotonic())
