"""When a change may come: not while one is under way, not while the job settles, not within the cooldown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from tidegate.engine.case import Case
from tidegate.engine.guard import ALL_CHANGES, Guard, Verdict
from tidegate.engine.options import option
from tidegate.engine.reasons import Reason
from tidegate.engine.state import InFlight
from tidegate.events.decision import Figure


@dataclass(frozen=True, slots=True)
class CommandUnderWay(Guard):
    """Stops a change until the one before it has ended."""

    name: ClassVar = "in_flight"
    covers: ClassVar = ALL_CHANGES
    waits: ClassVar = True
    binds_manual: ClassVar = True
    reasons: ClassVar[Mapping[str, Reason]] = {
        "COMMAND_IN_FLIGHT": Reason(
            "the change to {to} slots, ordered {age_seconds:.0f} s ago, is still under way ({phase})"
        ),
    }

    def dispose(self, size: int, case: Case) -> Verdict | None:
        """Check the state for a command that has not ended."""
        command = case.state.in_flight
        if command is None:
            return None
        return Verdict(case.current, "COMMAND_IN_FLIGHT", under_way(command, case.decided_at))


def under_way(command: InFlight, now: float) -> dict[str, Figure]:
    """Return the values that explain a command which has not ended."""
    return {
        "to": command.to_parallelism,
        "age_seconds": max(0.0, now - command.issued_at),
        "phase": command.phase,
    }


@dataclass(frozen=True, slots=True)
class Stabilization(Guard):
    """Stops a change until the run has had time to settle."""

    name: ClassVar = "stabilization"
    waits: ClassVar = True
    reasons: ClassVar[Mapping[str, Reason]] = {
        "STABILIZING": Reason("the job started {age_seconds:.0f} s ago and gets {limit_seconds:.0f} s to settle"),
    }

    seconds: float = option(60.0, "time after a start or restart in which nothing changes", unit="s", ge=0)

    def dispose(self, size: int, case: Case) -> Verdict | None:
        """Compare the run's age with the interval."""
        if case.state.run_since is None:
            return None
        age = case.measured_at - case.state.run_since
        if age >= self.seconds:
            return None
        return Verdict(case.current, "STABILIZING", {"age_seconds": max(0.0, age), "limit_seconds": self.seconds})


@dataclass(frozen=True, slots=True)
class Cooldown(Guard):
    """Keeps changes of size apart.

    The time counts from the order of the last change, not from the end of its restart. Both the job's state and Redis,
    which all deciders share, know it; the later of the two counts.
    """

    name: ClassVar = "cooldown"
    waits: ClassVar = True
    binds_manual: ClassVar = True
    reasons: ClassVar[Mapping[str, Reason]] = {
        "COOLDOWN": Reason("the last change was {age_seconds:.0f} s ago and the cooldown lasts {limit_seconds:.0f} s"),
    }

    up_seconds: float = option(60.0, "time after a change before the next scale-up", unit="s", ge=0)
    down_seconds: float = option(300.0, "time after a change before the next scale-down", unit="s", ge=0)

    @property
    def hold_seconds(self) -> float:
        """How long Redis holds the job's cooldown after a change of size: the shorter direction's time."""
        return min(self.up_seconds, self.down_seconds)

    def dispose(self, size: int, case: Case) -> Verdict | None:
        """Compare the age of the last change with the cooldown of the proposed direction."""
        limit = self.up_seconds if size > case.current else self.down_seconds
        since = case.state.last_action_at
        until = case.observed.cooldown_until
        if until is not None and until.timestamp() - self.hold_seconds > (since or 0.0):
            since = until.timestamp() - self.hold_seconds
        if since is None or case.decided_at - since >= limit:
            return None
        age = max(0.0, case.decided_at - since)
        return Verdict(case.current, "COOLDOWN", {"age_seconds": age, "limit_seconds": limit})
