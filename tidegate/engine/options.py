"""Options of policies and guards: frozen dataclasses whose fields carry unit, range and meaning.

The same declaration validates what a JobSpec says, supplies the defaults and is printed in docs/policies/.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_type_hints

from tidegate.events.wire import Scalar

T = TypeVar("T")


class BadOption(ValueError):
    """An option that is unknown, of the wrong type or out of range; the text names it, its value and its place."""


@dataclass(frozen=True, slots=True)
class NoOptions:
    """For what has nothing to set."""


def option(
    default: Scalar | None,
    doc: str,
    *,
    unit: str = "",
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    """Declare an option: its default, meaning, unit and permitted values."""
    limits = {"ge": ge, "gt": gt, "le": le, "choices": choices}
    return field(default=default, metadata={"doc": doc, "unit": unit, **limits})


def parse(cls: type[T], raw: Mapping[str, Scalar], place: str) -> T:
    """Return the options in `raw`, or raise `BadOption` with every problem found, each with field, value and place."""
    hints = get_type_hints(cls)
    known = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
    problems = [
        f"{place}.{name}: unknown option, known are {', '.join(sorted(known)) or 'none'}"
        for name in raw
        if name not in known
    ]
    values: dict[str, Scalar] = {}
    for name, value in raw.items():
        if name in known:
            problem, converted = _convert(value, hints[name], known[name].metadata)
            if problem:
                problems.append(f"{place}.{name}: {problem}, found {value!r}")
            values[name] = converted
    if problems:
        raise BadOption("; ".join(problems))
    return cls(**values)


def _convert(value: Scalar, hint: Any, meta: Mapping[str, Any]) -> tuple[str, Scalar]:
    kinds = set(get_args(hint)) - {NoneType} if isinstance(hint, UnionType) else {hint}
    if float in kinds and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) not in kinds:
        return f"must be {' or '.join(sorted(k.__name__ for k in kinds))}", value
    if isinstance(value, float) and not math.isfinite(value):
        return "must be finite", value
    if meta["choices"] and value not in meta["choices"]:
        return f"must be one of {', '.join(meta['choices'])}", value
    if isinstance(value, int | float) and not isinstance(value, bool):
        if meta["ge"] is not None and value < meta["ge"]:
            return f"must be at least {meta['ge']:g}", value
        if meta["gt"] is not None and value <= meta["gt"]:
            return f"must be above {meta['gt']:g}", value
        if meta["le"] is not None and value > meta["le"]:
            return f"must be at most {meta['le']:g}", value
    return "", value
