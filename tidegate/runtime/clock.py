"""The only access to the wall clock: all pure code gets its time as an argument."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Tells a service the time."""

    def now(self) -> datetime:
        """Return the current instant in UTC."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never jump, for measuring durations."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        """Return the current instant in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return seconds that never jump, for measuring durations."""
        return time.monotonic()
