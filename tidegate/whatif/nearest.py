"""What it would take to change a decision: for each input, the nearest value at which the engine decides otherwise.

Each input is tried up and down, in steps that grow by a seventh from a five-hundredth of its value, until the decision
is another one. Bisection between the last two values then finds where it changes. The engine is asked every time, on
the recorded state; nothing is assumed about how a decision depends on its inputs. A stretch of other decisions between
two steps would be missed. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tidegate.events.decision import Decision
from tidegate.installed import engine
from tidegate.whatif.altered import DecisionInputs
from tidegate.whatif.inputs import DecisionInput, inputs_of
from tidegate.whatif.recorded import RecordedJob, state_before
from tidegate.words import figure, size

FIRST = 0.002
GROWTH = 1.15
HUNDRED = 100.0
"""Seconds from which tenths say nothing."""
PRECISION = 1e-4
"""How close to each other the two values are between which the decision changes, relative to the recorded one."""


@dataclass(frozen=True, slots=True)
class NearestChange:
    """The nearest value of one input, in one direction, at which the decision is another one."""

    name: str
    unit: str
    was: float
    """As recorded."""
    value: float
    """At this value the decision is the other one."""
    before: float
    """At this value, a little nearer, it is still the recorded one."""
    decision: Decision
    """The other decision."""
    shown: float
    """The value as the evidence of the other decision has it."""

    @property
    def distance(self) -> float:
        """How far the value is from the recorded one, relative to that, or to the value where that is 0."""
        return abs(self.shown - self.was) / (abs(self.was) or abs(self.shown) or 1.0)


def what_would_change(recorded: RecordedJob, sequence: int) -> list[NearestChange]:
    """Return what would change a recorded decision, by the installed engine. Raises `CannotTry` like `state_before`."""
    state, moment = state_before(recorded, sequence, engine())
    return nearest_changes(DecisionInputs(state, moment.snapshot, moment.spec, moment.decision.observed))


def decide(at: DecisionInputs) -> Decision:
    """Return the decision of the installed engine."""
    return engine().step(at.state, at.snapshot, at.spec, at.observed)[1]


def nearest_changes(at: DecisionInputs) -> list[NearestChange]:
    """Return what would change a decision, the nearest first: at most one value per input and direction."""
    recorded = decide(at)
    found = [
        change
        for one in inputs_of(at, recorded)
        for way in (1, -1)
        if (change := _first_change(one, recorded, way)) is not None
    ]
    return sorted(found, key=lambda change: (change.distance, change.name))


def _first_change(one: DecisionInput, recorded: Decision, way: int) -> NearestChange | None:
    def other(value: float) -> Decision | None:
        made = decide(one.change(value))
        return made if _outcome(made) != _outcome(recorded) else None

    same = one.value
    for value in _steps(one, way):
        made = other(value)
        if made is not None:
            break
        same = value
    else:
        return None
    apart = max(one.step, PRECISION * abs(one.value or value))
    while abs(value - same) > apart:
        middle = (value + same) / 2
        if one.step:
            middle = same + round((middle - same) / one.step) * one.step
            if middle in (same, value):
                break
        tried = other(middle)
        if tried is None:
            same = middle
        else:
            value, made = middle, tried
    shown = one.seen(made.evidence) if one.seen is not None else None
    return NearestChange(one.name, one.unit, one.value, value, same, made, value if shown is None else shown)


def _steps(one: DecisionInput, way: int) -> Iterator[float]:
    """Yield the values to try, further and further away, the last one at the end of the range."""
    end = one.high if way > 0 else one.low
    scale, share, last = abs(one.value) or max(1.0, one.high / 1000), FIRST, one.value
    while last != end:
        value = one.value + way * share * scale
        if one.step:
            value = last + way * max(1, round(abs(value - last) / one.step)) * one.step
        last = end if (value - end) * way >= 0 else value
        yield last
        share *= GROWTH


def _outcome(decision: Decision) -> tuple[object, ...]:
    return decision.final_parallelism, decision.command is not None


def in_words(change: NearestChange) -> str:
    """Return a change as a sentence."""
    return f"It would have {_done(change.decision)} if {_condition(change)}."


def _done(decision: Decision) -> str:
    current, final = decision.current_parallelism, decision.final_parallelism
    if final == current:
        return f"stayed at {size(final)}" if current else "stayed stopped"
    if not final:
        return "stopped the job"
    verb = "started with" if not current else "grown to" if final > current else "shrunk to"
    return f"{verb} {size(final)}"


def _condition(change: NearestChange) -> str:
    if change.unit == "slots":
        return f"{change.name} were {size(round(change.shown))} instead of {change.was:.0f}"
    whole = change.unit != "s" and (change.unit != "s ago" or min(change.was, change.shown) >= HUNDRED)
    digits = 0 if whole and not 0 < change.shown < 1 else 1
    value, was = figure(change.shown, change.unit, digits), figure(change.was, digits=digits)
    match change.unit:
        case "free slots":
            return f"{change.name} had {value.removesuffix('s') if change.shown == 1 else value} instead of {was}"
        case "s ago":
            return f"{change.name} had been {value} instead of {was}"
    if not change.was or not change.unit.startswith("records"):
        return f"{change.name} were {value} instead of {was}"
    share = change.shown / change.was - 1.0
    if share > 1:
        return f"{change.name} were {share + 1:,.1f} times as high ({value} instead of {was})"
    much = f"{abs(share):.0%}" if abs(share) >= 0.1 else f"{abs(share):.1%}"
    return f"{change.name} were {much} {'higher' if share > 0 else 'lower'} ({value} instead of {was})"
