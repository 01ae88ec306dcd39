"""Whether a running program may be about to start its query again. Pure.

A program that reads what there is (`Trigger.AvailableNow`), waits and reads again has no query meanwhile, nor has one
that starts its failed query again. The event log does not say when a query ended, so the collector's clock does.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from tidegate.sparklog.application_run import Reading


@dataclass(frozen=True, slots=True)
class Pause:
    """All queries of an application have ended, and it has not."""

    app_id: str
    ends: int
    """How many runs of its queries had ended."""
    since: datetime
    """When a snapshot showed it first, by the collector's clock."""

    def seconds(self, at: datetime) -> float:
        """Return how long it has lasted."""
        return (at - self.since).total_seconds()


def paused(before: Pause | None, at: datetime, run: Reading | None) -> Pause | None:
    """Return the pause that an application makes; the one `before` if no query has run since, or nothing is known."""
    if run is None:
        return before
    if run.ended or run.query_active or not run.query_seen:
        return None
    same = before is not None and (before.app_id, before.ends) == (run.app_id, run.ends)
    is_past = before is not None and before.since <= at  # or the clock was ahead
    return before if same and is_past else Pause(run.app_id, run.ends, at)
