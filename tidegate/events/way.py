"""The ways to change a job's size, the one that disturbs least first."""

from __future__ import annotations

from enum import StrEnum


class Way(StrEnum):
    """How a running job gets another size."""

    IN_PLACE = "in_place"
    """Executors are added to or removed from the running application. Nothing stops."""
    HANDOVER = "handover"
    """A second driver warms up; then the first one stops at a batch boundary, and the second goes on."""
    RESTART = "restart"
    """The driver stops, and a new one starts from the checkpoint."""


ALL_WAYS = tuple(Way)
WITHOUT_HANDOVER = (Way.IN_PLACE, Way.RESTART)
"""Those of a job with a main class, whose queries nobody can start again behind the program's own handles."""
