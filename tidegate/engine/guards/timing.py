"""When a change may come: not while one is under way, not while the job settles, not inside the cooldown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidegate.engine.case import Case, Verdict
from tidegate.engine.options import NoOptions, option
from tidegate.engine.state import InFlight
from tidegate.events.command import CommandKind, ScalingCommand
from tidegate.events.decision import Figure
from tidegate.events.job import JobSpec


class InFlightGuard:
    """Stops a change while the one before it has not ended."""

    name: ClassVar[str] = "in_flight"
    Options: ClassVar[type] = NoOptions
    waits: ClassVar[bool] = True
    binds_manual: ClassVar[bool] = True
    covers: ClassVar[frozenset[str]] = frozenset({"start", "rescale", "stop"})

    def __init__(self, options: NoOptions) -> None:
        self.options = options

    def dispose(self, wish: int, case: Case) -> Verdict | None:
        """Ask the state for a command that has not ended."""
        command = case.state.in_flight
        if command is None:
            return None
        return Verdict(case.current, "COMMAND_IN_FLIGHT", under_way(command, case.decided_at))


def under_way(command: InFlight, now: float) -> dict[str, Figure]:
    """Return the numbers of a command that has not ended."""
    return {
        "to": command.to_parallelism,
        "age_seconds": max(0.0, now - command.issued_at),
        "phase": command.phase,
    }


@dataclass(frozen=True, slots=True)
class StabilizationOptions:
    """How long a run may settle."""

    seconds: float = option(60.0, "time after a start or restart in which nothing is changed", unit="s", ge=0)


class Stabilization:
    """Stops a change until the run has had time to settle."""

    name: ClassVar[str] = "stabilization"
    Options: ClassVar[type] = StabilizationOptions
    waits: ClassVar[bool] = True
    binds_manual: ClassVar[bool] = False
    covers: ClassVar[frozenset[str]] = frozenset({"rescale"})

    def __init__(self, options: StabilizationOptions) -> None:
        self.options = options

    def dispose(self, wish: int, case: Case) -> Verdict | None:
        """Compare the run's age with the interval."""
        if case.state.run_since is None:
            return None
        age = case.measured_at - case.state.run_since
        if age >= self.options.seconds:
            return None
        return Verdict(
            case.current, "STABILIZING", {"age_seconds": max(0.0, age), "limit_seconds": self.options.seconds}
        )


@dataclass(frozen=True, slots=True)
class CooldownOptions:
    """How far apart changes are."""

    up_seconds: float = option(60.0, "time after a change before the next growth", unit="s", ge=0)
    down_seconds: float = option(300.0, "time after a change before the next reduction", unit="s", ge=0)


class Cooldown:
    """Keeps changes of size apart.

    The time is counted from the order of the last change, not from the end of its restart. It is known to the job's
    state and to Redis, which all deciders share; the later of both counts.
    """

    name: ClassVar[str] = "cooldown"
    Options: ClassVar[type] = CooldownOptions
    waits: ClassVar[bool] = True
    binds_manual: ClassVar[bool] = True
    covers: ClassVar[frozenset[str]] = frozenset({"rescale"})

    def __init__(self, options: CooldownOptions) -> None:
        self.options = options

    def dispose(self, wish: int, case: Case) -> Verdict | None:
        """Compare the age of the last change with the cooldown of the wish's direction."""
        limit = self.options.up_seconds if wish > case.current else self.options.down_seconds
        hold = min(self.options.up_seconds, self.options.down_seconds)
        since = case.state.last_action_at
        until = case.observed.cooldown_until
        if until is not None and until.timestamp() - hold > (since or 0.0):
            since = until.timestamp() - hold
        if since is None or case.decided_at - since >= limit:
            return None
        return Verdict(
            case.current, "COOLDOWN", {"age_seconds": max(0.0, case.decided_at - since), "limit_seconds": limit}
        )


def hold_seconds(spec: JobSpec, command: ScalingCommand) -> float:
    """Return for how long Redis is to hold the job's cooldown after `command`: the shorter direction's.

    A start or a stop is not a scaling action and holds nothing.
    """
    if command.kind is not CommandKind.RESCALE:
        return 0.0
    raw = spec.scaling.guards.get(Cooldown.name, {})
    defaults = CooldownOptions()
    return min(float(raw.get("up_seconds", defaults.up_seconds)), float(raw.get("down_seconds", defaults.down_seconds)))
