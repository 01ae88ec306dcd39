"""What a command reserves before it goes out: its job's cooldown and slots of a pool.

Slots that a command takes show up at the Spark master only once the new run has started. Until then they are promised
here, so that two jobs never count on the same free slots. A hold is owned by the id of the decision that asked for it:
the same decision asked again, after a crash, gets the same yes.

Redis keeps the holds for all deciders (`services.decider`); the lab and the tests keep them in memory
(`tidegate.lab.reservations`). Instants are epoch seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum

from tidegate.engine.guards.timing import Cooldown
from tidegate.engine.plan import guard_of
from tidegate.engine.ways import longest_change_seconds
from tidegate.events.command import CommandKind, ScalingCommand
from tidegate.events.decision import RedisView
from tidegate.events.job import JobSpec
from tidegate.events.result import ActionResult, Phase
from tidegate.events.way import Way

LATEST = datetime(9999, 12, 31, tzinfo=UTC).timestamp()
"""A cooldown that would end later than any clock can say ends here."""

DOWN = frozenset({Phase.STOPPED, Phase.STARTING})
"""Phases in which the master shows none of the job's slots as used, although the job will need all of them."""


@dataclass(frozen=True, slots=True)
class ReservationView:
    """What could be seen of the reservations for one job."""

    redis: RedisView
    cooldown_until: datetime | None = None
    cooldown_owner: str | None = None
    pool_reserved: int = 0
    """Slots of the pool held by other jobs."""


@dataclass(frozen=True, slots=True)
class Hold:
    """What one command reserves."""

    job_id: str
    pool_id: str
    decision_id: str
    slots: int
    """Slots promised and not yet visible at the master."""
    slots_until: float
    """When the promise lapses if no result ever ends it; 0 for a command that needs no slots."""
    cooldown_until: float
    """0 for a command that holds no cooldown."""


class Answer(StrEnum):
    """What became of a reservation."""

    TAKEN = "taken"
    COOLDOWN = "cooldown"
    """Another decision holds the job's cooldown."""
    POOL = "pool"
    """The pool has too few free slots left."""
    NOT_NOW = "not_now"
    """Redis is unreachable or being rebuilt."""


def hold_for(spec: JobSpec, command: ScalingCommand, granted: int) -> Hold:
    """Return what a command reserves for a job that has `granted` slots.

    The slots lapse when the command can no longer be under way: it starts before it expires. A start or a stop is not a
    change of size and holds no cooldown. A handover needs all slots of the new size next to those of the old one;
    otherwise, a change to no more slots needs none, even if the job was granted fewer than it has.
    """
    cooldown = 0.0
    if command.kind is CommandKind.RESCALE:
        cooldown = guard_of(Cooldown, spec).hold_seconds(command.way)
    kept = 0 if command.way is Way.HANDOVER else granted
    grows = command.way is Way.HANDOVER or command.to_parallelism > command.from_parallelism
    longest = longest_change_seconds(spec.application)
    return Hold(
        job_id=spec.job_id,
        pool_id=spec.pool_id,
        decision_id=command.command_id,
        slots=max(0, command.to_parallelism - kept) if grows else 0,
        slots_until=0.0 if command.kind is CommandKind.STOP else command.expires_at.timestamp() + longest,
        cooldown_until=min(LATEST, command.issued_at.timestamp() + cooldown) if cooldown > 0 else 0.0,
    )


def holds_in_force(
    commands: Iterable[ScalingCommand],
    results: Iterable[ActionResult],
    spec_of: Callable[[str], JobSpec | None],
    now: datetime,
) -> list[Hold]:
    """Return the newest hold of each job that still holds something at `now`, ordered by job id.

    A cooldown runs from its command's time in the log. A command holds its slots until its last result, or until they
    lapse. Since the job was down, they are all its slots, also while its new run starts. `spec_of` returns a job's
    current spec, or None for a job that Tidegate does not know.
    """
    down: dict[str, int] = {}
    ended: set[str] = set()
    for result in results:
        if result.phase.terminal:
            ended.add(result.command_id)
        elif result.phase in DOWN:
            down[result.command_id] = result.parallelism
    at = now.timestamp()
    holds: dict[str, Hold] = {}
    for command in commands:
        spec = spec_of(command.job_id)
        if spec is None:
            continue
        hold = hold_for(spec, command, command.from_parallelism)
        if command.command_id in ended:
            hold = replace(hold, slots=0, slots_until=0.0)
        else:
            hold = replace(hold, slots=down.get(command.command_id, hold.slots))
        holds[command.job_id] = _merged(holds.get(command.job_id), hold)
    return [
        holds[job_id] for job_id in sorted(holds) if max(holds[job_id].slots_until, holds[job_id].cooldown_until) > at
    ]


def _merged(before: Hold | None, hold: Hold) -> Hold:
    """Return the newer hold, with the older cooldown if that lasts longer (a stop or start has no cooldown)."""
    if before is None or before.cooldown_until <= hold.cooldown_until:
        return hold
    return replace(hold, cooldown_until=before.cooldown_until)
