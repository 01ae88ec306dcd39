"""A clock that stands still."""

from __future__ import annotations

from datetime import datetime

from tests.support.events import START


class SetClock:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.at = START

    def now(self) -> datetime:
        """Return the instant it was set to."""
        return self.at

    def monotonic(self) -> float:
        """Return the same as seconds."""
        return self.at.timestamp()
