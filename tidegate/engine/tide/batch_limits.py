"""Limits of a micro-batch besides its work: the record limit of a batch, and the trigger interval.

Neither is told by the job's events, so both are inferred from its batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from tidegate.events.snapshot import MicroBatch

TOLERANCE: Final = 0.01
"""Two figures that differ by less than this share count as equal."""

LIMITED_LAG: Final = 2.5
"""Lag left behind, in batches, from which a batch must have hit its record limit."""

IDLE: Final = 0.05
"""A batch that starts later than this share of the previous batch's duration after its end waited for its trigger."""


class BatchLimits(NamedTuple):
    """The limits found, None where there seems to be none, and what they are inferred from."""

    max_records: int | None = None
    """M: most records of one batch (`maxOffsetsPerTrigger`)."""
    trigger_seconds: float | None = None
    """T': seconds from one trigger to the next."""
    last_records: int = 0
    """Records of the newest batch."""
    last_lag: int = 0
    """Records not committed at the newest snapshot."""
    gap: float = 0.0
    """Seconds between the starts of the last two batches of which the second waited."""

    def learned(self, batches: Sequence[MicroBatch], lag: int | None) -> BatchLimits:
        """Return the limits after a snapshot's batches, with `lag` records not committed.

        A job that keeps up has at most one batch running and one waiting. So two equal batches with more lag than that
        before and after them hit the record limit, unless another batch of the snapshot was larger. Two batches that
        started at the same distance, each later than the previous one had ended, waited for a trigger.
        """
        max_records, trigger_seconds, before, last_lag, gap = self
        if len(batches) > 1:
            before = batches[-2].input_records
        last, largest = batches[-1].input_records, max([batch.input_records for batch in batches])
        left = min(last_lag, lag or 0)
        if max_records is not None and largest > max_records * (1 + TOLERANCE):
            max_records = None
        # A batch without records, as stateful queries have them, shows no limit.
        is_largest = 0 < largest <= last * (1 + TOLERANCE)
        if is_largest and left > LIMITED_LAG * last and abs(before - last) <= TOLERANCE * last:
            max_records = last
        if len(batches) > 1:
            distance = (batches[-1].started_at - batches[-2].started_at).total_seconds()
            if distance > batches[-2].duration_seconds * (1 + IDLE):
                if abs(distance - gap) <= TOLERANCE * distance:
                    trigger_seconds = distance
                gap = distance
            elif trigger_seconds is not None and distance < 0.5 * trigger_seconds:
                trigger_seconds = None
        return BatchLimits(max_records, trigger_seconds, last, lag or 0, gap)


NO_LIMITS = BatchLimits()
"""For a job without batches so far."""
