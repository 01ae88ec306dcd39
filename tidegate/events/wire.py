"""What all wire models share: strict when written, tolerant when read.

A model built in Python refuses unknown fields and never coerces (`strict`), so a producer cannot emit what the
contract does not say. Reading goes through `tidegate.events.envelope.decode`, which drops fields it does not know: a
newer producer never breaks an older reader. NaN and infinity are refused both ways: a missing figure is absent.

Units are in the names: `_seconds` (float), `_bytes`, `_records`; rates are records/s; instants are UTC, RFC 3339.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha1
from typing import Annotated, Any, Self, TypeVar, dataclass_transform
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints

NAMESPACE = uuid.UUID("6f1d5f1e-0f0a-5d0e-9c53-7a1de6a7e000")
"""Namespace of every Tidegate id; changing it would orphan all recorded events."""

_NAMESPACE_HASH = sha1(NAMESPACE.bytes, usedforsecurity=False)
_VARIANT = dict(zip("0123456789abcdef", 4 * "89ab", strict=True))
"""The hexadecimal digit with its two highest bits set to 10, which marks an RFC 9562 UUID."""


class Wire(BaseModel):
    """Base of every event and of the values inside events: frozen, strict, no unknown fields, no NaN."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    @classmethod
    def trusted(cls, **fields: Any) -> Self:
        """Return the event with all its fields, defaults included, each known to be what it must be.

        What pydantic's `model_construct` is for, in a third of its time: nothing is checked and nothing filled in.
        """
        made = cls.__new__(cls)
        put = object.__setattr__  # the model is frozen
        put(made, "__dict__", fields)
        put(made, "__pydantic_fields_set__", set(fields))
        put(made, "__pydantic_extra__", None)
        put(made, "__pydantic_private__", None)
        return made


T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[T]) -> type[T]:
    """Make a class of values inside events: a dataclass, validated when it is read from the wire.

    The engine makes ten thousand of them a second, so what freezes it is the type checker: at run time the check
    would cost more than all else that making one costs.
    """
    cls.__pydantic_config__ = ConfigDict(strict=True, allow_inf_nan=False, use_attribute_docstrings=True)  # type: ignore[attr-defined]
    return dataclass(slots=True)(cls)


def _utc(instant: datetime) -> datetime:
    try:
        return instant.astimezone(UTC)
    except OverflowError:  # before the year 1 or after 9999; pydantic would pass it on
        raise ValueError("is out of range in UTC") from None


Instant = Annotated[AwareDatetime, AfterValidator(_utc)]
"""A moment in UTC; written as RFC 3339. A time without an offset is refused."""


def _no_double_dot(name: str) -> str:
    if ".." in name or name == ".":
        raise ValueError("must not contain '..' nor be '.'")
    return name


_NO_DOUBLE_DOT = Field(json_schema_extra={"not": {"pattern": r"\.\.|^\.$"}})

Identifier = Annotated[
    str,
    StringConstraints(pattern=r"^[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?$"),
    AfterValidator(_no_double_dot),
    _NO_DOUBLE_DOT,
]
"""1 to 63 of `a-z 0-9 . _ -`, starting and ending with a letter or digit, no `..`: safe in paths, keys and metrics."""

TopicName = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,249}$"), AfterValidator(_no_double_dot), _NO_DOUBLE_DOT
]


def _known_zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"no time zone {name!r} is known, such as 'Europe/Berlin' or 'America/New_York'") from None
    return name


TimeZone = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9_+-]+(?:/[A-Za-z0-9_+-]+)*$"), AfterValidator(_known_zone)
]
"""The name of a time zone in the IANA time zone database."""

LONGEST_SECONDS = 1_000_000_000.0
"""Thirty years: a time that is added to any date of this millennium is a date, too."""

SHORTEST_SECONDS = 1e-9

MOST_SLOTS = 1_000_000


def at_most(limit: float) -> AfterValidator:
    """Return a check that a value is at most `limit`; unlike `le`, it is no part of the published schema.

    So it can be added to a field that is already published. It keeps out what no honest writer writes, and what would
    make the sums of a reader overflow.
    """

    def check(value: float) -> float:
        if value > limit:
            raise ValueError(f"must be at most {limit:,.0f}")
        return value

    return AfterValidator(check)


def _measured(seconds: float) -> float:
    """Return a time, or 0 for one that no clock can measure: quotients of it would overflow."""
    return seconds if seconds >= SHORTEST_SECONDS else 0.0


Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
Positive = Annotated[int, Field(ge=1), at_most(2**63 - 1)]
Parallelism = Annotated[int, Field(ge=1, le=MOST_SLOTS)]
Slots = Annotated[Count, at_most(MOST_SLOTS)]
Seconds = Annotated[float, Field(ge=0), at_most(LONGEST_SECONDS), AfterValidator(_measured)]
Deadline = Annotated[float, Field(gt=0), at_most(LONGEST_SECONDS)]

Scalar = str | bool | int | float
"""What an option of a policy or guard may be. `bool` stands before `int`, so `true` stays a bool."""


def identity(*parts: object) -> str:
    """Return the id that is a function of `parts`: the same parts give the same id on any machine, for ever."""
    # uuid5 of RFC 9562, section 5.5, without the object in between: ids are made with every event.
    digest = _NAMESPACE_HASH.copy()
    digest.update("\x1f".join(map(str, parts)).encode())
    text = digest.hexdigest()
    return f"{text[:8]}-{text[8:12]}-5{text[13:16]}-{_VARIANT[text[16]]}{text[17:20]}-{text[20:32]}"
