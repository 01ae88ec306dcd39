"""The one loop that waits for something: look, and look again until it is there or the time is up."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from tidegate.runtime.clock import Clock, SystemClock

T = TypeVar("T")


def poll_until(
    condition: Callable[[], T],
    deadline: float,
    every: float,
    clock: Clock,
    *,
    wait: Callable[[float], object] = time.sleep,
    retry_on: tuple[type[Exception], ...] = (),
) -> T:
    """Evaluate `condition` every `every` seconds until it is true; return its last value.

    The value is falsy if `clock.monotonic()` passed `deadline` first. The condition is evaluated at least once. An
    exception of a type in `retry_on` counts as "not yet"; the last one is raised when the time is up. `wait` replaces
    `time.sleep`, for example to stop waiting early by raising.
    """
    while True:
        try:
            value = condition()
        except retry_on:
            if clock.monotonic() > deadline:
                raise
        else:
            if value or clock.monotonic() > deadline:
                return value
        wait(every)


def wait_until(condition: Callable[[], T], seconds: float, every: float = 0.1) -> T:
    """Wait until `condition` is true, or for `seconds` of the machine's clock; return its last value."""
    clock = SystemClock()
    return poll_until(condition, clock.monotonic() + seconds, every, clock)


def retry(action: Callable[[], T], error: type[Exception], *, timeout_seconds: float = 30.0, every: float = 0.0) -> T:
    """Return what `action` returns; repeat it while it raises `error`, and raise that after the timeout."""
    clock = SystemClock()
    return poll_until(action, clock.monotonic() + timeout_seconds, every, clock, retry_on=(error,))
