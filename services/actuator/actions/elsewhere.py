"""Finds queries that keep their checkpoints elsewhere than the job's spec says.

Such a job runs, and the actuator can tell that it does. But a restart can be neither checked against the checkpoint nor
fenced by it, and if the folder is a temporary one, it loses data. So the job is not restarted to change its size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from services.actuator.checkpoint import holds
from services.actuator.drivers import LiveDriver
from tidegate.events.job import JobSpec


def elsewhere(spec: JobSpec, facts: dict[str, Any]) -> str | None:
    """Return a sentence about the first query of a run whose checkpoint is elsewhere; None if all are in place.

    `facts` is what the run wrote about itself.
    """
    location = spec.application.checkpoint_location
    for query in facts.get("queries", []):
        place = str(query.get("checkpoint"))
        if holds(location, place):
            continue
        temporary = ", a temporary folder" if "/temporary-" in place else ""
        return (
            f"Query {query.get('name') or query.get('id')} keeps its checkpoint at {place}{temporary}; the spec says"
            f" {location}. The size cannot be changed by a restart. Let the script take its checkpointLocation from the"
            " spec, by removing the option, or set application.checkpoint_location to this folder or the one above it."
        )
    return None


def first_elsewhere(spec: JobSpec, live: Sequence[LiveDriver]) -> str | None:
    """Return a sentence about the first live driver with a checkpoint elsewhere; None if all are in place."""
    return next(filter(None, (elsewhere(spec, driver.facts) for driver in live)), None)
