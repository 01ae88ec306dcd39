"""What the launcher says in the driver's log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class DriverLog:
    """Says what the launcher does, and what fails that the program does not depend on."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self._complaint = ""

    def complain(self, text: str) -> None:
        """Say a problem, but not the same one twice in a row."""
        if text != self._complaint:
            self.say(text)
        self._complaint = text

    def attempt(self, what: str, action: Callable[..., Any], *args: Any) -> Any:
        """Do something that the program does not depend on, and return its result; None, and say so, if it fails."""
        try:
            return action(*args)
        except Exception as error:  # noqa: BLE001 - whatever it is, the program must not notice
            self.complain(f"cannot {what}: {error}")
            return None
