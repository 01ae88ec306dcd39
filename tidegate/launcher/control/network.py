"""What the two stores that are reached over a network share: how old a view may be, and waiting for an answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

VIEW_SECONDS = 0.4
"""How old a view may be where looks are free. It adds to the time without commits of a handover."""
AGAIN_SECONDS = 1.0

T = TypeVar("T")


def patiently(action: Callable[[], T], seconds: float, unanswered: Callable[[OSError], bool]) -> T:
    """Do something; for `seconds`, do it again while its error says that nobody has answered."""
    until = time.monotonic() + seconds
    while True:
        try:
            return action()
        except OSError as error:
            if not unanswered(error) or time.monotonic() >= until:
                raise
        time.sleep(AGAIN_SECONDS)
