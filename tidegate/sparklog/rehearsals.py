"""The queries with which a driver warms up before a handover: they are in its log, and none of the job's."""

from __future__ import annotations

from tidegate.launcher.control.files import REHEARSAL
from tidegate.sparklog import events


class Rehearsals:
    """Those of one log, whose events must be asked about in their order."""

    def __init__(self) -> None:
        self._ids: set[str] = set()

    def has(self, event: events.SparkEvent) -> bool:
        """Whether an event is of a rehearsal."""
        if isinstance(event, events.QueryStarted) and (event.name or "").startswith(REHEARSAL):
            self._ids.add(event.query_id)
        return getattr(event, "query_id", None) in self._ids
