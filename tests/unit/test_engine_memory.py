"""Memories of policies: a declared type, written as JSON and read back as it was."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import pytest

from tidegate.engine.memory import (
    NoMemory,
    Recorded,
    UnreadableMemory,
    memory_readers,
    read_memory,
    write_memory,
)


class Point(NamedTuple):
    """A record inside a memory."""

    at: float
    size: int = 4


@dataclass(frozen=True, slots=True)
class Span:
    """A dataclass inside a memory."""

    first: Point
    last: Point | None = None


class Example(NamedTuple):
    """A memory with a field of each kind."""

    text: str = ""
    seen: bool = False
    rate: float | None = None
    pair: tuple[float, int] | None = None
    points: tuple[Point, ...] = ()
    span: Span | None = None
    counts: Mapping[int, tuple[float, ...]] | None = None


@dataclass(frozen=True, slots=True)
class Single:
    """A memory of one field, declared as a dataclass."""

    looked_at: float | None = None


FULL = Example(
    "a", True, 0.1 + 0.2, (1.5, 2), (Point(1.0), Point(2, 8)), Span(Point(3.0), Point(4.0)), {7: (1.0, 2.5), -1: ()}
)


@pytest.mark.parametrize("memory", [FULL, Example(), Single(), Single(3.25), NoMemory()])
def test_a_memory_comes_back_as_it_was(memory: object) -> None:
    """Written as JSON text and read back, a memory is equal to the one written, field by field."""
    wire = json.loads(json.dumps(write_memory(memory)))
    assert read_memory(type(memory), wire) == memory
    assert write_memory(read_memory(type(memory), wire)) == wire


def test_a_memory_is_written_compactly() -> None:
    """Defaults are left out at the top, and records inside are arrays."""
    assert write_memory(Example()) == {}
    assert write_memory(Example(text="a", points=(Point(1.0),))) == {"text": "a", "points": [[1.0, 4]]}
    assert write_memory(Recorded({"as": "it came"})) == {"as": "it came"}


def test_values_left_out_have_their_defaults() -> None:
    """Fields of a memory that a reader does not know are dropped; values that a record lacks have their defaults."""
    assert read_memory(Example, {"points": [[1.0]], "unheard_of": 1}) == Example(points=(Point(1.0, 4),))


@pytest.mark.parametrize(
    "wire",
    [
        {"text": 1},
        {"seen": 1},
        {"rate": "fast"},
        {"rate": True},
        {"pair": [1.0]},
        {"pair": 1.0},
        {"points": [[1.0, 2, 3]]},
        {"points": [[]]},
        {"span": [None]},
        {"counts": {"seven": []}},
        {"counts": []},
    ],
)
def test_a_memory_that_does_not_fit_is_refused(wire: dict[str, object]) -> None:
    """A value of another type is refused with the name of the memory, not taken in."""
    with pytest.raises(UnreadableMemory, match="Example"):
        read_memory(Example, wire)


class Unwritable(NamedTuple):
    """A memory with a field that JSON cannot hold."""

    what: set[int] = frozenset()  # type: ignore[assignment]


def test_a_type_without_a_json_form_is_refused_at_once() -> None:
    """A policy whose memory cannot be written is refused when the engine is built, not at its first decision."""
    with pytest.raises(TypeError, match="set"):
        memory_readers(Unwritable)
