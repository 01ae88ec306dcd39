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

ONLY_HANDOVER_SECONDS = 600.0
"""How long the end of a batch is waited for at least, if a job can only be handed over."""


def boundary_seconds(ways: tuple[Way, ...], stop_deadline_seconds: float) -> float:
    """Return how long a handover of one query waits for its batch to end, in seconds.

    As long as a stop, or longer if there is no other way: the batch goes on meanwhile, and a handover that fails would
    only be tried again.
    """
    return max(stop_deadline_seconds, ONLY_HANDOVER_SECONDS) if ways == (Way.HANDOVER,) else stop_deadline_seconds
