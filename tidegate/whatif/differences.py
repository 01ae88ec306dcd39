"""What differs between the recorded decisions and a trial's, decision by decision. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import zip_longest

from tidegate.events.decision import Decision, TrailEntry
from tidegate.whatif.course import Point
from tidegate.whatif.trial import Trial
from tidegate.words import size


@dataclass(frozen=True, slots=True)
class DecisionDifference:
    """Consecutive decisions with the same other sizes. The texts are of the first one."""

    at: datetime
    """When the first of them was made."""
    sequence: int
    count: int
    was: str
    """Size and decided size, such as `4 → 6`."""
    would_be: str
    """The same of the trial; the least and the most of the twin's runs where they differ."""
    because: str
    """The first reason or guard that differs."""
    sentence: str
    """The trial's decision in words."""
    was_sentence: str
    on_the_twin: bool
    """Whether its snapshot comes from the twin: the sizes had been different before."""


def differences_of(trial: Trial) -> list[DecisionDifference]:
    """Return where the decisions differ, oldest first. A command starts a new entry, so does what follows it."""
    found: list[DecisionDifference] = []
    alone = True
    for place, (was, made) in enumerate(zip(trial.decisions, trial.made, strict=False)):
        one = _difference(trial, place, was, made)
        if one is None:
            continue
        orders = made.command is not None or was.command is not None
        last = found[-1] if found and not (alone or orders) else None
        if last is not None and _kind(last) == _kind(one):
            found[-1] = replace(last, count=last.count + 1)
        else:
            found.append(one)
        alone = orders
    return found


def _difference(trial: Trial, place: int, was: Decision, made: Decision) -> DecisionDifference | None:
    because = first_difference(was, made)
    if not because or (was.policy != made.policy and _outcome(was) == _outcome(made)):
        return None
    return DecisionDifference(
        was.decided_at,
        was.sequence,
        1,
        f"{was.current_parallelism} → {was.final_parallelism}",
        _sizes([course[place] for course in trial.courses]),
        because,
        made.sentence,
        was.sentence,
        trial.leaves_at is not None and place > trial.leaves_at,
    )


def _outcome(decision: Decision) -> tuple[object, ...]:
    """Return the sizes: between two policies, whose reasons always differ, only those count."""
    return decision.current_parallelism, decision.final_parallelism, decision.command is not None


def _kind(one: DecisionDifference) -> tuple[object, ...]:
    return one.was, one.would_be, one.on_the_twin


def _sizes(everyone: Sequence[Point]) -> str:
    return f"{_range([each.current for each in everyone])} → {_range([each.final for each in everyone])}"


def _range(sizes: Sequence[int]) -> str:
    least, most = min(sizes), max(sizes)
    return str(least) if least == most else f"{least} to {most}"


def first_difference(was: Decision, made: Decision) -> str:
    """Return the first reason or guard in which two decisions differ; "" if they say the same, figures aside."""
    for one, other in zip_longest(was.trail, made.trail):
        if _said(one) != _said(other):
            return f"{_named(one)} ⇒ {_named(other)}"
    if (was.current_parallelism, was.final_parallelism) != (made.current_parallelism, made.final_parallelism):
        return f"{size(was.current_parallelism)} ⇒ {size(made.current_parallelism)}"
    return ""


def _said(entry: TrailEntry | None) -> tuple[object, ...] | None:
    return None if entry is None else (entry.by, entry.code, entry.before, entry.after)


def _named(entry: TrailEntry | None) -> str:
    return "nothing" if entry is None else f"{entry.by} {entry.code} {entry.before} → {entry.after}"
