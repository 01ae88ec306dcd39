"""What bounds a micro-batch besides its work: the records at which it is cut off, and the trigger it waits for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tidegate.events.snapshot import MicroBatch

ALIKE = 0.01
"""Batches that differ by less are cut off at the same limit."""

CUT_LAG = 2.5
IDLE = 0.05
"""A batch that begins later than this share of the one before it after its end has waited for its trigger."""


class Pace(NamedTuple):
    """What bounds a batch from outside; None where no bound was seen."""

    records: int | None = None
    """M: records at which a batch is cut off."""
    seconds: float | None = None
    """T': seconds from one trigger to the next."""
    last: int = 0
    """Records of the newest batch."""
    lag: int = 0
    """Records that were not committed when the newest snapshot was taken."""
    largest: int = 0
    """Records of the largest batch seen."""
    gap: float = 0.0
    """Seconds between the starts of the last two batches of which the second waited."""

    def learned(self, batches: Sequence[MicroBatch], lag: int | None) -> Pace:
        """Return the pace after a snapshot's batches, with `lag` records not committed.

        Batches that keep up leave no more than one under way and one to come. Two alike that had more before them
        and left more were cut off.
        Batches that begin later than the ones before them ended, and twice at one distance, wait for a trigger.
        """
        records, seconds, before, behind, largest, gap = self
        for batch in batches[:-1]:
            before = batch.input_records
            largest = max(largest, before)
        last = batches[-1].input_records
        left = min(behind, lag or 0)
        if left > CUT_LAG * last and abs(before - last) <= ALIKE * last:
            records = last
        elif records is not None and last > records * (1 + ALIKE):
            records = None
        if len(batches) > 1:
            distance = (batches[-1].started_at - batches[-2].started_at).total_seconds()
            if distance > batches[-2].duration_seconds * (1 + IDLE):
                if abs(distance - gap) <= ALIKE * distance:
                    seconds = distance
                gap = distance
            elif seconds is not None and distance < 0.5 * seconds:
                seconds = None
        return Pace(records, seconds, last, lag or 0, max(largest, last), gap)


UNBOUND = Pace()
"""Of a job of which no batch was seen."""
