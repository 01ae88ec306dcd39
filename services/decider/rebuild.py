"""Rebuilding the reservations from the topics after Redis lost them.

Commands are few (that is what cooldowns are for), so their topic is read in full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from datetime import UTC, datetime
from typing import TypeVar

from services.decider.ports import Specs
from tidegate.engine.reservations import Hold, holds_in_force
from tidegate.events.command import ScalingCommand
from tidegate.events.envelope import Unreadable, decode
from tidegate.events.result import ActionResult
from tidegate.events.topics import COMMANDS, RESULTS
from tidegate.runtime.consumer import TopicReader, headers_of
from tidegate.runtime.settings import ServiceSettings

E = TypeVar("E", ScalingCommand, ActionResult)


def read_holds(settings: ServiceSettings, specs: Specs, now: datetime, beat: Callable[[], None]) -> list[Hold]:
    """Read the topics and return what is held; unreadable records hold nothing. Blocks, and calls `beat` all the time.

    There may be a month of commands and results.
    """
    commands = list(_read(settings, COMMANDS.named(settings.topic_prefix), ScalingCommand, None, beat))
    if not commands:
        return []
    # A command comes before its results; the minute allows for clocks that differ.
    since = max(0.0, min(command.issued_at.timestamp() for command in commands) - 60.0)
    from_then_on = datetime.fromtimestamp(since, UTC)
    results = _read(settings, RESULTS.named(settings.topic_prefix), ActionResult, from_then_on, beat)
    return holds_in_force(commands, results, specs.get, now)


def _read(
    settings: ServiceSettings, topic: str, model: type[E], since: datetime | None, beat: Callable[[], None]
) -> Iterable[E]:
    def waits() -> bool:
        beat()
        return False

    with closing(TopicReader(settings, [topic], since=since)) as reader:
        for message in reader.read_to_end(stop=waits):
            with suppress(Unreadable):
                yield decode(model, message.value(), headers_of(message), message.key())
