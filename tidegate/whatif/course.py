"""A course: what was measured and decided at each snapshot, in a few numbers, so that weeks of them fit into memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tidegate.engine.delay import NO_ARRIVALS, offsets_of, watched
from tidegate.events.command import CommandKind
from tidegate.events.decision import Decision
from tidegate.events.snapshot import MetricSnapshot
from tidegate.events.way import Way
from tidegate.twin.recorded import lag_of


@dataclass(frozen=True, slots=True)
class Point:
    """A job at one snapshot."""

    at: int
    """The snapshot's sequence, epoch seconds."""
    slots: int
    delay_seconds: float | None
    """None: unknown, as at the first snapshots, before which nothing is known of the arrivals."""
    lag_records: int | None
    current: int
    """The size that the decision knew."""
    final: int
    """The size that it decided."""
    way: Way | None
    """How it changed the size; None if it did not."""


Course = tuple[Point, ...]


def course_of(decided: Iterable[tuple[MetricSnapshot, Decision]]) -> Course:
    """Return snapshots and the decisions on them, oldest first, as a course."""
    arrivals, slots = NO_ARRIVALS, 0
    found: list[Point] = []
    for snapshot, decision in decided:
        arrivals, age = watched(arrivals, offsets_of(snapshot))
        slots = slots if snapshot.slots_granted is None else snapshot.slots_granted
        known = age is not None and not (age.at_least and len(found) < 2)
        command = decision.command
        rescales = command is not None and command.kind is CommandKind.RESCALE
        found.append(
            Point(
                snapshot.sequence,
                slots,
                age.seconds if known and age else None,
                lag_of(snapshot),
                decision.current_parallelism,
                decision.final_parallelism,
                (command.way or Way.RESTART) if rescales and command else None,
            )
        )
    return tuple(found)
