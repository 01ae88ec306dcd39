"""Builds the actuator's log from results, as reading the results topic does."""

from __future__ import annotations

from collections.abc import Iterable

from services.actuator.command_log import CommandLog
from tidegate.events.result import ActionResult


def command_log(results: Iterable[ActionResult] = ()) -> CommandLog:
    """Return a log with these results."""
    log = CommandLog()
    for result in results:
        log.add(result)
    return log
