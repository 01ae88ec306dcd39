"""Figures read directly from a recording: arrivals, their spread over the partitions, lag, changes of size."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter

from tidegate.events.result import ActionResult, Phase
from tidegate.events.snapshot import MetricSnapshot, MicroBatch
from tidegate.events.way import Way
from tidegate.twin.load import Load

Part = Callable[[MicroBatch], bool]
"""A selection of batches."""


YEAR_SECONDS = 366 * 86_400


class CannotCalibrate(ValueError):
    """The recording does not hold enough; the text says what is missing."""


def every(_: MicroBatch) -> bool:
    """Take every batch."""
    return True


def of_one_time(snapshots: Iterable[MetricSnapshot]) -> list[MetricSnapshot]:
    """Return a job's snapshots in order, without those that a wrong clock has put years from most of the others."""
    pieces: list[list[MetricSnapshot]] = [[]]
    for snapshot in sorted(snapshots, key=attrgetter("sequence")):
        if pieces[-1] and snapshot.sequence - pieces[-1][-1].sequence > YEAR_SECONDS:
            pieces.append([])
        pieces[-1].append(snapshot)
    return max(pieces, key=len)


def shares_of(snapshots: Sequence[MetricSnapshot]) -> tuple[float, ...]:
    """Return each partition's share of the arrivals. Raises `CannotCalibrate` if nothing arrived."""
    columns = [ends for s in snapshots if (ends := _ends(s)) is not None]
    if len(columns) < 2 or len(columns[0]) != len(columns[-1]):
        raise CannotCalibrate("end offsets of the same partitions are needed in at least 2 snapshots")
    grown = [max(0, last - first) for first, last in zip(columns[0], columns[-1], strict=True)]
    if not sum(grown):
        raise CannotCalibrate("no record arrived in the recording")
    return tuple(max(count, 1e-6) / sum(grown) for count in grown)


def load_of(snapshots: Sequence[MetricSnapshot]) -> Load:
    """Return the recorded arrivals as a load that starts at the first snapshot. Raises `CannotCalibrate`."""
    points = [(s.sequence, sum(ends)) for s in snapshots if (ends := _ends(s)) is not None]
    if len(points) < 2:
        raise CannotCalibrate("end offsets are needed in at least 2 snapshots")
    rates, begin = list[float](), snapshots[0].sequence
    step = math.gcd(snapshots[0].interval_seconds, *(sequence - begin for sequence, _ in points))
    for (before, first), (after, last) in pairwise(points):
        # The counters survive a gap in the sequence, so it is filled with the mean rate over it. Before the first known
        # end offsets, the first known rate is all there is.
        rates += [max(0, last - first) / (after - before)] * ((after - begin) // step)
        begin = after
    return Load(rates, step)


def lag_of(snapshot: MetricSnapshot) -> int | None:
    """Return the records that can be read and are not committed; None if an offset is unknown.

    As for the engine, no partition has a negative lag: its end offset may be older than what is committed, or its topic
    recreated.
    """
    rows = [pair for source in snapshot.sources for pair in zip(source.end_offsets, source.next_offsets, strict=True)]
    known = [max(0, end - done) for end, done in rows if end is not None and done is not None]
    return sum(known) if rows and len(known) == len(rows) else None


@dataclass(frozen=True, slots=True)
class RecordedChange:
    """A change of size that was verified. Instants are epoch seconds."""

    way: Way
    parallelism: int
    incarnation: str | None
    """The run it led to."""
    at: dict[Phase, float]
    """When each phase was reached."""
    registered_at: float
    """In place: when there were as many executors as ordered."""
    working_at: float
    """When the new size did its first work."""

    @property
    def ordered_at(self) -> float:
        """When the command was accepted, or the first phase after that."""
        return min(self.at.values())


def changes_of(results: Iterable[ActionResult]) -> list[RecordedChange]:
    """Return the verified changes of size whose results name their way, oldest first."""
    commands: dict[str, list[ActionResult]] = {}
    for result in results:
        commands.setdefault(result.command_id, []).append(result)
    found = []
    for phases in commands.values():
        end = phases[-1]
        if end.phase is not Phase.VERIFIED or end.way is None:
            continue
        at = {result.phase: result.at.timestamp() for result in phases}
        begin = min(at.values())
        working = begin + end.delay_seconds if end.delay_seconds is not None else end.at.timestamp()
        seconds = end.details.get("registered_seconds")
        registered = begin + seconds if isinstance(seconds, int | float) else working
        found.append(RecordedChange(end.way, end.parallelism, end.incarnation, at, registered, working))
    return found


def _ends(snapshot: MetricSnapshot) -> list[int] | None:
    ends = [end for source in snapshot.sources for end in source.end_offsets]
    return [end for end in ends if end is not None] if ends and None not in ends else None
