"""The demo's script: the phases of the load, and the goal of each. Pure: it judges what the caller observed.

    steady         until the policy finds that the size fits the load and the delay is under the objective
    surge          three times the load, until the job has grown and the delay is back under the objective
    steady again   until the job has shrunk and the delay is under the objective

Each phase has a shortest and a longest time. The demo fails if a goal is not met in that time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tidegate.events.decision import Decision, Status
from tidegate.events.result import ActionResult, Phase

NOT_YET_JUDGED = frozenset(
    {
        *("TIDE_LEARNING", "TIDE_CAPACITY_UNKNOWN", "WINDOW_FILLING", "CAPACITY_UNKNOWN"),
        *("NO_EVIDENCE", "SIZE_UNKNOWN", "JOB_STARTING", "JOB_STATE_UNKNOWN"),
    }
)
"""First reason codes of decisions made before the policy could judge the load."""
IN_A_ROW = 3
"""How many decisions in a row must keep the size before it fits; together they outlast the delay of a scale-down."""


@dataclass(frozen=True, slots=True)
class Observations:
    """What was seen since a phase of the load started."""

    size_at_start: int
    decisions: Sequence[Decision]
    results: Sequence[ActionResult]
    seconds_under_objective: float
    """How long the delay has now been under the objective without interruption."""

    @property
    def command_pending(self) -> bool:
        """Whether a command of this phase has not finished yet."""
        ordered = {d.command.command_id for d in self.decisions if d.command is not None}
        return bool(ordered - {r.command_id for r in self.results if r.phase.terminal})

    @property
    def sizes(self) -> list[int]:
        """Verified sizes, oldest first."""
        return [r.parallelism for r in self.results if r.phase is Phase.VERIFIED]

    @property
    def fits(self) -> bool:
        """Whether the newest decisions judged the load and kept the size."""
        newest = self.decisions[-IN_A_ROW:]
        keeps = [d.status is Status.FINE and d.trail[0].code not in NOT_YET_JUDGED for d in newest]
        return len(keeps) == IN_A_ROW and all(keeps)


@dataclass(frozen=True, slots=True)
class LoadPhase:
    """One phase of the load."""

    name: str
    rate: float
    """Records/s."""
    shortest_seconds: float
    longest_seconds: float
    goal: str
    """What the phase waits for, in words."""
    reached: Callable[[Observations], bool]


@dataclass(frozen=True, slots=True)
class LoadScript:
    """The whole load of a run."""

    phases: tuple[LoadPhase, ...]
    objective_seconds: float


def settled(hold: float) -> Callable[[Observations], bool]:
    """Return the goal of a load that the current size can handle."""
    return lambda seen: seen.fits and not seen.command_pending and seen.seconds_under_objective >= hold


def grown(hold: float) -> Callable[[Observations], bool]:
    """Return the goal of a load that needs more slots."""
    return lambda seen: (
        any(size > seen.size_at_start for size in seen.sizes)
        and not seen.command_pending
        and seen.seconds_under_objective >= hold
    )


def shrunk(hold: float) -> Callable[[Observations], bool]:
    """Return the goal of a load that needs fewer slots."""
    return lambda seen: (
        any(size < seen.size_at_start for size in seen.sizes)
        and not seen.command_pending
        and seen.seconds_under_objective >= hold
    )


def steady_surge_steady(
    rate: float, objective_seconds: float, hold_seconds: float = 6.0, shortest_seconds: float = 20.0
) -> LoadScript:
    """Return the demo's script: `rate` records/s, three times that, and `rate` again.

    A goal needs the delay to stay under the objective for `hold_seconds`.
    """
    hold, least = hold_seconds, shortest_seconds
    phases = (
        LoadPhase("steady", rate, least, 110, "the size fits the load", settled(hold)),
        LoadPhase("surge", 3 * rate, least, 160, "the job has grown and caught up", grown(hold)),
        LoadPhase("steady again", rate, least, 130, "the job has shrunk and keeps up", shrunk(hold)),
    )
    return LoadScript(phases, objective_seconds)
