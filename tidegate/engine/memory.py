"""What a policy remembers of a job between decisions, as its own type and as JSON.

A policy declares its memory as an immutable record: a `NamedTuple`, or a frozen dataclass with slots, every field of
which has a default. The engine starts a job with `Memory()`, hands each proposal the memory of the last one, and
stores it with the job's state. On the wire

    the memory itself     is an object by field name; a field that has its default is left out
    records inside it     are arrays in the order of their fields, as are tuples
    numbers, text, None   are themselves; floats survive exactly, since JSON writes their shortest round-trip form

A memory that comes from the wire is kept as `Recorded` until the job's next decision, because only then its policy is
known. It is read once; from then on the state holds the policy's own type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, partial
from operator import attrgetter
from types import MappingProxyType, NoneType, UnionType
from typing import Any, NamedTuple, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from pydantic import JsonValue

M = TypeVar("M")
"""The memory of a policy."""


@dataclass(frozen=True, slots=True)
class NoMemory:
    """The memory of a policy that remembers nothing."""


class Recorded(NamedTuple):
    """A memory as it came from the wire, not yet read; empty for a job that has none."""

    values: Mapping[str, JsonValue] = MappingProxyType({})


class UnreadableMemory(ValueError):
    """A memory from the wire does not fit the type that the policy declares."""


def write_memory(memory: object) -> dict[str, JsonValue]:
    """Return a memory as JSON values, without the fields that have their default."""
    if isinstance(memory, Recorded):
        return dict(memory.values)
    kind: Any = type(memory)
    names, values, defaults = _record(kind)
    pairs = zip(names, values(memory), defaults, strict=True)
    return {name: _written(value) for name, value, default in pairs if value != default}


def read_memory(kind: type[M], values: Mapping[str, Any]) -> M:
    """Return the memory that `write_memory` wrote; fields that `kind` does not have are dropped.

    Raises `UnreadableMemory` if a value is not of its field's type.
    """
    made: Any = kind
    readers = memory_readers(made)
    try:
        return cast(M, made(**{name: readers[name](value) for name, value in values.items() if name in readers}))
    except (TypeError, ValueError, AttributeError) as error:
        raise UnreadableMemory(f"the memory does not fit {kind.__qualname__}: {error}") from None


@cache
def memory_readers(kind: Any) -> dict[str, Callable[[Any], Any]]:
    """Return how each field of a memory is read; raise `TypeError` for a field that has no form on the wire."""
    hints = get_type_hints(kind)
    return {name: _reader(hints[name]) for name in _record(kind)[0]}


@cache
def _record(kind: Any) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]], tuple[Any, ...]]:
    """Return (names of the fields, how their values are taken, their defaults) of a record."""
    names = _names(kind)
    values: Callable[[Any], tuple[Any, ...]] = attrgetter(*names) if len(names) > 1 else partial(_values, names)
    return names, values, values(kind())


def _values(names: tuple[str, ...], record: Any) -> tuple[Any, ...]:
    """Do for one field or none what `attrgetter` does for more."""
    return tuple(getattr(record, name) for name in names)


def _names(kind: Any) -> tuple[str, ...]:
    if is_dataclass(kind):
        return tuple(f.name for f in fields(kind))
    return cast(tuple[str, ...], kind._fields)


def _is_record(kind: Any) -> bool:
    return is_dataclass(kind) or (isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"))


def _written(value: Any) -> Any:
    """Return a value of a field as JSON values."""
    if isinstance(value, tuple | list):
        return [_written(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _written(item) for key, item in value.items()}
    if is_dataclass(value):
        return [_written(getattr(value, name)) for name in _names(value)]
    return value


@cache
def _reader(hint: Any) -> Callable[[Any], Any]:
    """Return the function that reads a value of a type from its JSON form."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in _SCALARS:
        return _checked(*_SCALARS[hint])
    if _is_record(hint):
        hints = get_type_hints(hint)
        return _record_reader(hint, [_reader(hints[name]) for name in _names(hint)])
    if origin in (UnionType, Union) and len(arguments) == 2 and NoneType in arguments:
        inner = _reader(next(kind for kind in arguments if kind is not NoneType))
        return lambda value: None if value is None else inner(value)
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        item = _reader(arguments[0])
        return lambda value: tuple([item(each) for each in _array(value)])
    if origin is tuple:
        items = [_reader(kind) for kind in arguments]
        return lambda value: tuple([read(each) for read, each in zip(items, _array(value), strict=True)])
    if origin in (dict, Mapping) and arguments[0] in (str, int):
        key, entry = arguments[0], _reader(arguments[1])
        return lambda value: {key(name): entry(each) for name, each in value.items()}
    raise TypeError(f"a memory cannot hold {hint}")


def _record_reader(kind: Any, items: list[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    """Return the function that reads a record from its array; values left out at the end have their defaults."""

    def read(value: Any) -> Any:
        if len(_array(value)) > len(items):
            raise ValueError(f"{kind.__qualname__} has {len(items)} fields, found {len(value)}")
        return kind(*[item(each) for item, each in zip(items, value, strict=False)])

    return read


def _array(value: Any) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"must be an array, found {value!r:.80}")  # noqa: TRY004 - a value, not a call, is wrong
    return cast(list[Any], value)


def _checked(*kinds: type) -> Callable[[Any], Any]:
    """Return the function that takes values of some types as they are."""

    def read(value: Any) -> Any:
        if type(value) not in kinds:
            raise ValueError(f"must be {' or '.join(kind.__name__ for kind in kinds)}, found {value!r:.80}")
        return value

    return read


_NUMBER = (float, int)
_SCALARS: dict[Any, tuple[type, ...]] = {
    bool: (bool,),
    int: (int,),
    float: _NUMBER,
    int | float: _NUMBER,
    str: (str,),
}
