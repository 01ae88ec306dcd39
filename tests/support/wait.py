"""Waits in tests, on the machine's clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tidegate.runtime.clock import SystemClock
from tidegate.runtime.poll import poll_until

T = TypeVar("T")


def wait_until(condition: Callable[[], T], seconds: float, every: float = 0.1) -> T:
    """Wait until `condition` is true; return its last value, which is false after `seconds`."""
    clock = SystemClock()
    return poll_until(condition, clock.monotonic() + seconds, every, clock)
