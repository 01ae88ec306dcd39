"""Rebuilding the reservations from the topics after Redis lost them.

A cooldown runs from its command's time in the log. A command holds its slots until its last result, or until they
expire. Commands are few (that is what cooldowns are for), so their topic is read in full.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TypeVar

from services.decider.handler import DOWN
from services.decider.ports import Specs
from tidegate.engine.reservations import Hold, hold_for
from tidegate.events.command import ScalingCommand
from tidegate.events.envelope import Unreadable, decode
from tidegate.events.result import ActionResult
from tidegate.events.topics import COMMANDS, RESULTS
from tidegate.runtime.kafka import TopicReader, headers_of
from tidegate.runtime.settings import ServiceSettings

E = TypeVar("E", ScalingCommand, ActionResult)


def holds_in_force(
    commands: Iterable[ScalingCommand], results: Iterable[ActionResult], specs: Specs, now: datetime
) -> list[Hold]:
    """Return the newest hold of each job that still holds something at `now`, ordered by job id."""
    newest: dict[str, ActionResult] = {}
    ended: set[str] = set()
    for result in results:
        newest[result.command_id] = result
        if result.phase.terminal:
            ended.add(result.command_id)
    at = now.timestamp()
    holds: dict[str, Hold] = {}
    for command in commands:
        spec = specs.get(command.job_id)
        if spec is None:
            continue
        hold = hold_for(spec, command, command.from_parallelism)
        if command.command_id in ended:
            hold = replace(hold, slots=0, slots_until=0.0)
        elif (last := newest.get(command.command_id)) is not None and last.phase in DOWN:
            hold = replace(hold, slots=last.parallelism)
        holds[command.job_id] = _merged(holds.get(command.job_id), hold)
    return [
        holds[job_id] for job_id in sorted(holds) if max(holds[job_id].slots_until, holds[job_id].cooldown_until) > at
    ]


def _merged(before: Hold | None, hold: Hold) -> Hold:
    """Return the newer hold, with the older cooldown if that lasts longer (a stop or start has no cooldown)."""
    if before is None or before.cooldown_until <= hold.cooldown_until:
        return hold
    return replace(hold, cooldown_until=before.cooldown_until)


def read_holds(settings: ServiceSettings, specs: Specs, now: datetime) -> list[Hold]:
    """Read the topics and return what is held; unreadable records hold nothing. Blocks."""
    commands = list(_read(settings, COMMANDS.named(settings.topic_prefix), ScalingCommand, None))
    if not commands:
        return []
    # A command comes before its results; the minute allows for clocks that differ.
    since = min(command.issued_at for command in commands) - timedelta(minutes=1)
    return holds_in_force(
        commands, _read(settings, RESULTS.named(settings.topic_prefix), ActionResult, since), specs, now
    )


def _read(settings: ServiceSettings, topic: str, model: type[E], since: datetime | None) -> Iterable[E]:
    reader = TopicReader(settings, [topic], since=since)
    try:
        for message in reader.read_to_end():
            try:
                yield decode(model, message.value(), headers_of(message), message.key())
            except Unreadable:
                continue
    finally:
        reader.close()
