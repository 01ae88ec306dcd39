"""The one port to the wall clock: everything below the shell gets its time as an argument."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Where a service gets the time from."""

    def now(self) -> datetime:
        """Return the current instant in UTC."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never step, for measuring durations."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        """Return the current instant in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return seconds that never step, for measuring durations."""
        return time.monotonic()
