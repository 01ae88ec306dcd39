"""Reason codes: what each of them means, as a clause a tired operator understands, and what can be done about it.

A clause is a template over the values of its trail entry, so code, values and words can never disagree. In it, `:rate`
and `:,rate` write whole numbers, but a rate below ten with two significant digits: 0.04 records/s are not none. The
codes of a policy, a guard or the supervisor stand next to it; an engine puts them together into one table.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from string import Formatter

from tidegate.engine.batch_sums import Exact
from tidegate.events.decision import Figure, TrailEntry


@dataclass(frozen=True, slots=True)
class Reason:
    """What a code says, and what a person can do about it ("" when there is nothing to do)."""

    explanation: str
    remedy: str = ""


def merge(tables: Iterable[Mapping[str, Reason]]) -> dict[str, Reason]:
    """Return one table of all codes. A code means one thing: a second meaning raises `ValueError`."""
    merged: dict[str, Reason] = {}
    for table in tables:
        for code, reason in table.items():
            if merged.setdefault(code, reason) != reason:
                raise ValueError(f"reason code {code} already means something else")
    return merged


def explained(
    reasons: Mapping[str, Reason], by: str, code: str, before: int, after: int, values: Mapping[str, Figure]
) -> TrailEntry:
    """Return the trail entry of a code, its clause filled in from `values`; an unknown value reads as `?`."""
    clause, shown = reasons[code].explanation, dict[str, object](values)
    for name, is_rate in _shown_in(clause):
        value = values[name]
        if value is None:
            shown[name] = _UNKNOWN
        elif is_rate and not isinstance(value, str):
            shown[name] = _Rate(value)
    sentence = clause.format_map(shown)
    if "-0" in sentence:
        sentence = _MINUS_ZERO.sub(r"\1", sentence)
    if "1 slots" in sentence:
        sentence = _ONE_SLOT.sub(lambda found: "1 slot" + _ONE_DOES[found[1] or ""], sentence)
    return TrailEntry(by, code, before, after, sentence, dict(values))


@cache
def _shown_in(clause: str) -> tuple[tuple[str, bool], ...]:
    """Return the values that a clause shows, each with whether it is written as a rate."""
    found = [(name or "", spec or "") for _, name, spec, _ in Formatter().parse(clause)]
    return tuple([(name, spec.endswith("rate")) for name, spec in found if name.isidentifier()])


_ONE_DOES = {"": "", " are": " is", " have": " has", " keep": " keeps", " process": " processes", " were": " was"}
_ONE_SLOT = re.compile(r"\b1 slots( are\b| have\b| keep\b| process\b| were\b)?")


_MINUS_ZERO = re.compile(r"(?<![\w.:-])-(0(?:\.0+)?)(?![\w:-]|\.\d)")
"""A small negative number that was rounded to zero."""


class _Rate:
    """Stands in a clause for a figure that may be a rate."""

    def __init__(self, value: Exact) -> None:
        self.value = value

    def __format__(self, spec: str) -> str:
        return rate_text(self.value, spec[:-4]) if spec.endswith("rate") else format(self.value, spec)


def rate_text(value: float, comma: str = "") -> str:
    """Return a rate as a whole number, or with two significant digits if it is below ten."""
    size = abs(value)
    if not LEAST <= size < WHOLE:
        return format(value, f"{comma}.0f")
    text = f"{value:.{max(0, 1 - math.floor(math.log10(size)))}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


WHOLE = 9.5
"""Rates from here on are told as whole numbers."""

LEAST = 1e-6
"""Rates below this are told as none."""


class _Unknown:
    """Stands in a clause for a value that is not known."""

    def __format__(self, spec: str) -> str:
        return "?"


_UNKNOWN = _Unknown()
