"""Options of policies and guards: frozen dataclasses whose fields carry default, unit, range and meaning.

One declaration serves everything: pydantic validates by it what a spec says, the defaults come from it, and so do the
JSON Schema of the job file and the pages in docs/policies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, Literal, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic_core import ErrorDetails

from tidegate.events.wire import Scalar

T = TypeVar("T")

STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class BadOption(ValueError):
    """An option that is unknown, of the wrong type or out of range; the text names it, its value and its place."""


@dataclass(frozen=True, slots=True)
class NoOptions:
    """The options of a policy that has none."""


def option(
    default: Scalar | None,
    doc: str,
    *,
    unit: str = "",
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    choices: tuple[str, ...] = (),
    formerly: str = "",
    pattern: str = "",
    price: str = "",
) -> Any:
    """Declare an option: its default, meaning, unit and permitted values, and the name it had before, if any.

    A `price` names the field of `tidegate.engine.tariff.SlotSecondPrices` that the option has if the job has prices.

    An option whose default is None is off until it is set. A rule that spans several options belongs in
    `__post_init__`, which raises `ValueError` with a text that starts with the option's name. A `pattern` (a regular
    expression) goes into the JSON Schema only: whoever parses the text can say better what is wrong with it.
    """
    limits = {"ge": ge, "gt": gt, "le": le, "choices": choices}
    texts = {"doc": doc, "unit": unit, "formerly": formerly, "pattern": pattern, "price": price}
    return field(default=default, metadata=texts | limits)


def parse(cls: type[T], raw: Mapping[str, Scalar], place: str) -> T:
    """Return the options in `raw`, or raise `BadOption` with every problem found, each with field, value and place.

    An option may be given by its former name, so that specs written before the change keep their meaning. A class may
    have names in `removed`: what was an option once and is none any more.
    """
    declared: Any = cls
    model = option_model(declared)
    names = {former: name for name, former in former_names(declared).items()}
    if twice := [name for name in raw if names.get(name) in raw]:
        problems = [f"{place}.{name}: is the former name of {names[name]}, which is given too" for name in twice]
        raise BadOption("; ".join(problems))
    given = {names.get(name, name): name for name in raw}
    try:
        return cls(**dict(model.model_validate({name: raw[given[name]] for name in given})))
    except ValidationError as error:
        known = ", ".join(sorted(model.model_fields)) or "none"
        found = error.errors(include_url=False)
        removed: frozenset[str] = getattr(declared, "removed", frozenset())
        problems = [_problem(each, f"{place}.{given[str(each['loc'][0])]}", known, removed) for each in found]
        raise BadOption("; ".join(problems)) from None
    except ValueError as error:  # of `__post_init__`
        raise BadOption(f"{place}.{error}") from None
    except Exception as error:  # of that of another package: it may be wrong, and is no reason to decide for nobody
        raise BadOption(f"{place}: {type(error).__name__}: {error}") from error


def former_names(cls: Any) -> dict[str, str]:
    """Return the former name of each option that has one."""
    return {f.name: f.metadata["formerly"] for f in fields(cls) if f.metadata["formerly"]}


@cache
def option_model(cls: Any) -> type[BaseModel]:
    """Return the pydantic model of an options class: validation and JSON Schema come from it.

    Raises `TypeError` for a field that is no option.
    """
    hints = get_type_hints(cls)
    declared: dict[str, Any] = {}
    for one in fields(cls):
        meta = one.metadata
        if "choices" not in meta:
            raise TypeError(f"the field {one.name} of {cls.__name__} must be declared with option(…)")
        kind = Literal[meta["choices"]] if meta["choices"] else hints[one.name]
        extra = {name: meta[name] for name in ("unit", "pattern") if meta[name]} or None
        limits = {bound: meta[bound] for bound in ("ge", "gt", "le") if meta[bound] is not None}
        declared[one.name] = (
            kind,
            Field(default=one.default, description=meta["doc"], json_schema_extra=extra, **limits),
        )
    return create_model(cls.__name__, __config__=STRICT, __doc__=cls.__doc__, **declared)


def _problem(error: ErrorDetails, place: str, known: str, removed: frozenset[str]) -> str:
    """Return one problem as a line: place, what is permitted, what was found."""
    limits, value = error.get("ctx", {}), error["input"]
    match error["type"]:
        case "extra_forbidden" if error["loc"][0] in removed:
            return f"{place}: is no option any more, so remove it; known are {known}"
        case "extra_forbidden":
            return f"{place}: unknown option, known are {known}"
        case "finite_number":
            must = "be finite"
        case "literal_error":
            must = f"be one of {limits['expected']}"
        case "greater_than_equal":
            must = f"be at least {limits['ge']:g}"
        case "greater_than":
            must = f"be above {limits['gt']:g}"
        case "less_than_equal":
            must = f"be at most {limits['le']:g}"
        case kind if kind in _KINDS:
            must = f"be {_KINDS[kind]}"
        case _:  # of a type that only another package's options have
            return f"{place}: {error['msg']}, found {value!r}"
    return f"{place}: must {must}, found {value!r}"


_KINDS = {
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "a string",
}
