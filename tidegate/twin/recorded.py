"""Figures read directly from a recording: arrivals, their spread over the partitions, lag."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from tidegate.events.snapshot import MetricSnapshot, MicroBatch
from tidegate.twin.load import Load

Part = Callable[[MicroBatch], bool]
"""A selection of batches."""


class CannotCalibrate(ValueError):
    """The recording does not hold enough; the text says what is missing."""


def every(_: MicroBatch) -> bool:
    """Take every batch."""
    return True


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
    step, rates = snapshots[0].interval_seconds, []
    for (before, first), (after, last) in pairwise(points):
        # The counters survive a gap in the sequence, so it is filled with the mean rate over it.
        rates += [max(0, last - first) / (after - before)] * max(1, round((after - before) / step))
    return Load(rates, step)


def lag_of(snapshot: MetricSnapshot) -> int | None:
    """Return the records that have arrived but are not committed; None if an offset is unknown."""
    ends = _ends(snapshot)
    done = [offset for source in snapshot.sources for offset in source.committed_offsets]
    if ends is None or None in done:
        return None
    return sum(ends) - sum(offset for offset in done if offset is not None)


def _ends(snapshot: MetricSnapshot) -> list[int] | None:
    ends = [end for source in snapshot.sources for end in source.end_offsets]
    return [end for end in ends if end is not None] if ends and None not in ends else None
