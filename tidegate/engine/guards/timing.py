"""When a change may come: not while another is under way or the job settles, nor soon after another or a failure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from tidegate.engine.case import Case
from tidegate.engine.guard import ALL_CHANGES, Guard, Verdict
from tidegate.engine.options import option
from tidegate.engine.reasons import Reason
from tidegate.engine.state import InFlight
from tidegate.engine.ways import way_to
from tidegate.events.decision import Figure
from tidegate.events.way import Way

MOST_DOUBLINGS: Final = 30
"""More would only make the number too large."""


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
    """Stops a change until the job has had time to settle: after a start or restart, and after a change in place.

    A change in place starts no new run, so a few micro-batches at the new size are enough. Growth in place interrupts
    nothing, so it need not wait as long after a start: a job that starts with a backlog may need it at once.
    """

    name: ClassVar = "stabilization"
    waits: ClassVar = True
    reasons: ClassVar[Mapping[str, Reason]] = {
        "STABILIZING": Reason("the job started {age_seconds:.0f} s ago and gets {limit_seconds:.0f} s to settle"),
        "SETTLING": Reason(
            "the size was changed in place {age_seconds:.0f} s ago, and {batches} of the {need} micro-batches needed "
            "to see its effect have ended"
        ),
    }

    seconds: float = option(60.0, "longest time after a start or a change in which nothing changes", unit="s", ge=0)
    batches: int = option(
        2, "micro-batches at the new size that end this time after a change in place", unit="batches", ge=0
    )

    in_place: float = option(0.25, "share of this time that holds before growth in place", unit="share", ge=0, le=1)

    def dispose(self, size: int, case: Case) -> Verdict | None:
        """Compare the age of the run, or of the last change in place, with the interval."""
        state = case.state
        if state.run_since is None:
            return None
        age = max(0.0, case.measured_at - state.run_since)
        grows_in_place = size > case.current and way_to(case, size) is Way.IN_PLACE
        limit = self.seconds * (self.in_place if grows_in_place else 1.0)
        if age < limit:
            return Verdict(case.current, "STABILIZING", {"age_seconds": age, "limit_seconds": limit})
        age = case.measured_at - state.changes.resized_at
        if age >= self.seconds or state.changes.resized_at < state.run_since:
            return None
        seen = sum(int(piece.sums.batches) for piece in state.window)
        if seen >= self.batches:
            return None
        return Verdict(case.current, "SETTLING", {"age_seconds": max(0.0, age), "batches": seen, "need": self.batches})


@dataclass(frozen=True, slots=True)
class Cooldown(Guard):
    """Keeps changes of size apart: for a shorter time before a change in place than before one that needs a new run.

    The time counts from the order of the last change, not from its end. Both the job's state and Redis, which all
    deciders share, know it; the later of the two counts.
    """

    name: ClassVar = "cooldown"
    waits: ClassVar = True
    binds_manual: ClassVar = True
    reasons: ClassVar[Mapping[str, Reason]] = {
        "COOLDOWN": Reason("the last change was {age_seconds:.0f} s ago and the cooldown lasts {limit_seconds:.0f} s"),
    }

    up_seconds: float = option(60.0, "time after a change before the next scale-up", unit="s", ge=0)
    down_seconds: float = option(300.0, "time after a change before the next scale-down", unit="s", ge=0)
    in_place: float = option(0.25, "share of these times that holds before a change in place", unit="share", ge=0, le=1)

    def limits(self, way: Way | None) -> tuple[float, float]:
        """Return the time before a scale-up and before a scale-down in some way."""
        share = self.in_place if way is Way.IN_PLACE else 1.0
        return share * self.up_seconds, share * self.down_seconds

    def hold_seconds(self, way: Way | None) -> float:
        """Return how long Redis holds the job's cooldown after a change: the shorter direction's time."""
        return min(self.limits(way))

    def dispose(self, size: int, case: Case) -> Verdict | None:
        """Compare the age of the last change with the cooldown of the way and direction; a new application grows."""
        up, down = self.limits(way_to(case, size))
        limit, since, until = (
            up if size >= case.current else down,
            case.state.last_action_at,
            case.observed.cooldown_until,
        )
        age = math.inf if since is None else max(0.0, case.decided_at - since)
        left = 0.0 if until is None else until.timestamp() - case.decided_at
        if left > 0:  # Redis does not say which way the last change went; one by restart holds longest
            age = min(age, max(0.0, self.hold_seconds(None) - left))
            limit = max(limit, age + left)
        return Verdict(case.current, "COOLDOWN", {"age_seconds": age, "limit_seconds": limit}) if age < limit else None


@dataclass(frozen=True, slots=True)
class Backoff(Guard):
    """Makes the next change wait after one that failed, and longer after each further failure.

    The time counts from the order of the last change. It doubles with each change in the same direction that fails or
    is rolled back. A change that works, or a new version of the spec, ends it. A request with `tidegate scale` does
    not wait.
    """

    name: ClassVar = "backoff"
    waits: ClassVar = True
    reasons: ClassVar[Mapping[str, Reason]] = {
        "BACKOFF": Reason(
            "the last {direction} failed ({failed} in a row); it was ordered {age_seconds:.0f} s ago, and the next one "
            "waits until {limit_seconds:.0f} s after it",
            "`tidegate why JOB` shows how it ended, and the driver's log why; once that is fixed, "
            "`tidegate scale JOB SIZE --reason WHY` does not wait",
        ),
    }

    seconds: float = option(60.0, "time after the first change that failed", unit="s", ge=0)
    longest_seconds: float = option(3600.0, "longest time, after many", unit="s", ge=0)

    def dispose(self, size: int, case: Case) -> Verdict | None:
        """Compare the age of the last order with the time that the failures call for."""
        failed, since, grows = case.state.history.failed, case.state.last_action_at, size > case.current
        if failed is None or since is None or failed[0] is not grows:
            return None
        limit = min(self.longest_seconds, self.seconds * 2.0 ** min(failed[1] - 1, MOST_DOUBLINGS))
        age = max(0.0, case.decided_at - since)
        if age >= limit:
            return None
        values: dict[str, Figure] = {"direction": "scale-up" if grows else "scale-down", "failed": failed[1]}
        return Verdict(case.current, "BACKOFF", {**values, "age_seconds": age, "limit_seconds": limit})
