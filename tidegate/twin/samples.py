"""The recorded batches to which a twin is fitted: those whose slots are known."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from tidegate.events.result import Phase
from tidegate.events.snapshot import MetricSnapshot, MicroBatch
from tidegate.events.way import Way
from tidegate.twin.recorded import RecordedChange
from tidegate.twin.schedule import makespan


@dataclass(frozen=True, slots=True)
class Sample:
    """A recorded batch and what is known of its circumstances."""

    batch: MicroBatch
    spread_records: float
    """Records times the makespan of one record."""
    slots: int
    cold: Way | None
    """The change of size after which it is the first batch."""
    committed_before: float | None
    """When the previous batch was committed, epoch seconds."""

    @property
    def started_at(self) -> float:
        """When it started, epoch seconds."""
        return self.batch.started_at.timestamp()


def samples_of(
    snapshots: Sequence[MetricSnapshot], shares: tuple[float, ...], changes: Sequence[RecordedChange]
) -> list[Sample]:
    """Return the non-empty batches whose slots are known.

    Left out are those of the first snapshot after a change in place, and those that ran while the size changed in place
    except the first one with all new executors.
    """
    found: list[Sample] = []
    run, size, last_end = None, None, None
    begin = snapshots[0].observed_at
    cold_changes = [change for change in changes if change.way is Way.IN_PLACE]
    in_place = ChangesUnderWay(cold_changes)
    # The second driver of a handover starts long before it processes anything.
    handed_over = {c.incarnation: c.at.get(Phase.RUNNING, 0.0) for c in changes if c.way is Way.HANDOVER}
    cold_runs = {s.incarnation for s in snapshots if s.incarnation_started_at and s.incarnation_started_at >= begin}
    for snapshot in snapshots:
        same = snapshot.incarnation == run
        # A job that has just stopped ran its last batch on its previous slots.
        slots = snapshot.slots_granted or (size if same else None)
        resized = same and size is not None and slots != size
        run, size = snapshot.incarnation, slots
        for batch in snapshot.batches:
            started_at = batch.started_at.timestamp()
            ends_at = started_at + batch.duration_seconds
            change = in_place.within(started_at, ends_at)
            first = change is not None and change in cold_changes and change.registered_at <= started_at
            known = first or (change is None and not resized)
            if batch.input_records and slots and known and _of_run(batch, snapshot, handed_over.get(run)):
                cold = None
                if change is not None:
                    cold = Way.IN_PLACE
                    cold_changes.remove(change)
                elif run in cold_runs:
                    cold = Way.HANDOVER if run in handed_over else Way.RESTART
                    cold_runs.discard(run)
                spread = batch.input_records * makespan(shares, slots)
                found.append(Sample(batch, spread, slots, cold, last_end))
            last_end = ends_at
    return found


class ChangesUnderWay:
    """Changes of size, to find the first one that was under way in a span: a day may have hundreds."""

    def __init__(self, changes: Sequence[RecordedChange]) -> None:
        self._changes = tuple(changes)
        self._working = list(accumulate((change.working_at for change in changes), max))
        """Until when the latest one of those up to a place was under way."""
        self._ordered = list(accumulate((change.ordered_at for change in reversed(changes)), min))[::-1]
        """When the earliest one of those from a place on was ordered."""

    def within(self, begin: float, end: float) -> RecordedChange | None:
        """Return it; None if there was none."""
        place = bisect_right(self._working, begin)
        while place < len(self._changes) and self._ordered[place] < end:
            change = self._changes[place]
            if begin < change.working_at and end > change.ordered_at:
                return change
            place += 1
        return None


def _of_run(batch: MicroBatch, snapshot: MetricSnapshot, took_over_at: float | None) -> bool:
    """Whether a batch belongs to the run its snapshot names, not to the previous run."""
    started_at = snapshot.incarnation_started_at
    if took_over_at is not None and batch.started_at.timestamp() < took_over_at:
        return False
    return snapshot.incarnation is not None and (started_at is None or batch.started_at >= started_at)
