"""The script of the demo: phases of load, and when the goal of each is met. Pure: it is told what was seen.

    settle   the steady load, until the policy finds that the size fits and lag is under the objective
    surge    three times as much, until the job has grown, nothing is under way and lag is back under the objective
    ebb      the steady load again, until the job has shrunk and lag is under the objective

A phase lasts at least its shortest and at most its longest time; a goal not met by then fails the demo.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tidegate.events.decision import Decision, Status
from tidegate.events.result import ActionResult, Phase

UNJUDGED = frozenset(
    {
        *("TIDE_LEARNING", "TIDE_CAPACITY_UNKNOWN", "WINDOW_FILLING", "CAPACITY_UNKNOWN"),
        *("NO_EVIDENCE", "JOB_STARTING", "JOB_STATE_UNKNOWN"),
    }
)
"""First reason codes of decisions that could not judge the load yet."""
IN_A_ROW = 3
"""Judgements without a change that make a size fit; they take longer than a scale-down is delayed."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen since a phase began."""

    size_at_start: int
    decisions: Sequence[Decision]
    results: Sequence[ActionResult]
    seconds_under_objective: float
    """For how long lag has been under the objective without a break, up to now."""

    @property
    def under_way(self) -> bool:
        """Whether a command was ordered in this phase and has not ended."""
        ordered = {d.command.command_id for d in self.decisions if d.command is not None}
        return bool(ordered - {r.command_id for r in self.results if r.phase.terminal})

    @property
    def sizes(self) -> list[int]:
        """Sizes that were reached and verified, oldest first."""
        return [r.parallelism for r in self.results if r.phase is Phase.VERIFIED]

    @property
    def fits(self) -> bool:
        """Whether the newest decisions judged the load and found nothing to change."""
        newest = self.decisions[-IN_A_ROW:]
        content = [d.status is Status.FINE and d.trail[0].code not in UNJUDGED for d in newest]
        return len(content) == IN_A_ROW and all(content)


@dataclass(frozen=True, slots=True)
class Stage:
    """One phase of the load."""

    name: str
    rate: float
    """Records/s."""
    shortest_seconds: float
    longest_seconds: float
    aim: str
    """What is waited for, for people."""
    reached: Callable[[Seen], bool]


@dataclass(frozen=True, slots=True)
class Script:
    """The whole load of a run."""

    stages: tuple[Stage, ...]
    objective_seconds: float
    hold_seconds: float
    """How long lag must stay under the objective to count as back."""


def settled(hold: float) -> Callable[[Seen], bool]:
    """Return the goal of a load that the present size carries."""
    return lambda seen: seen.fits and not seen.under_way and seen.seconds_under_objective >= hold


def grown(hold: float) -> Callable[[Seen], bool]:
    """Return the goal of a load that needs more slots."""
    return lambda seen: (
        any(size > seen.size_at_start for size in seen.sizes)
        and not seen.under_way
        and seen.seconds_under_objective >= hold
    )


def shrunk(hold: float) -> Callable[[Seen], bool]:
    """Return the goal of a load that needs fewer slots."""
    return lambda seen: (
        any(size < seen.size_at_start for size in seen.sizes)
        and not seen.under_way
        and seen.seconds_under_objective >= hold
    )


def steady_surge_steady(
    rate: float, objective_seconds: float, hold_seconds: float = 6.0, shortest_seconds: float = 20.0
) -> Script:
    """Return the demo's script: `rate` records/s, three times as much, and `rate` again."""
    hold, least = hold_seconds, shortest_seconds
    stages = (
        Stage("steady", rate, least, 110, "the size fits the load", settled(hold)),
        Stage("surge x3", 3 * rate, least, 160, "the job has grown and caught up", grown(hold)),
        Stage("steady again", rate, least, 130, "the job has shrunk and keeps up", shrunk(hold)),
    )
    return Script(stages, objective_seconds, hold_seconds)
