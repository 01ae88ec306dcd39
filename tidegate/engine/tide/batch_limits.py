"""Limits of a micro-batch besides its work: the record limit of a batch, and the trigger interval.

Neither is told by the job's events, so both are inferred from its batches.

With triggers every T' seconds, a record waits up to T' for its batch, and for the end of the batch before. So at a lag
objective O a batch may last

    D = min(O / 2, O - T')

With T' > 0.9 · O no size can meet the objective. Then O = 2 · T' is planned for: each batch ends before the next
trigger. Nor can a size if the overhead a of a batch is more than 0.9 · D, as where it rewrites a large table. Then
D = 2 · a is planned for, so O = max(4 · a, T' + 2 · a): a batch spends half its time on records.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

from tidegate.engine.batch_sums import micro
from tidegate.engine.state import Slice
from tidegate.events.snapshot import MicroBatch

TOLERANCE: Final = 0.01
"""Two figures that differ by less than this share count as equal."""

LIMITED_LAG: Final = 2.5
"""Lag left behind, in batches, from which a batch must have hit its record limit."""

IDLE: Final = 0.05
"""A batch that starts later than this share of the previous batch's duration after its end waited for its trigger."""

WAITING: Final = 0.5
"""Share of the records of even arrivals that waits at least for a trigger: without one, a batch starts at once."""

LONGEST_WAIT: Final = 0.9
"""Share of the lag objective that a record may wait for its trigger, and of D that a batch may last without records."""


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
    last_started: float = 0.0
    """When the newest batch started, epoch seconds; 0 before the first one."""
    last_seconds: float = 0.0
    """How long it lasted."""
    last_id: int | None = None
    """Its number."""
    running_since: float = 0.0
    """When the batch started that ran at the newest snapshot with a running one, epoch seconds."""
    waiting: float | None = None
    """How many records had waited for it; None if that is not known."""

    def at_start(self, started: datetime | None, window: Sequence[Slice]) -> BatchLimits:
        """Return the limits with how many records had waited for the running batch, if it is a new one.

        A batch may last longer than the window, so this is to be seen when it starts.
        """
        if started is None or not self.last_started or (begins := started.timestamp()) == self.running_since:
            return self
        return self._replace(
            running_since=begins, waiting=_waited(window, self.last_started, self.last_seconds, begins)
        )

    def learned(self, batches: Sequence[MicroBatch], window: Sequence[Slice]) -> BatchLimits:
        """Return the limits after the batches of a snapshot, the newest of the window.

        A job that keeps up has at most one batch running and one waiting. So two equal batches with more lag than that
        before and after them hit the record limit, unless another batch of the snapshot was larger. Two batches that
        started at the same distance, each later than the previous one had ended, waited for a trigger. If they are of
        two snapshots, records must have waited with both: without a trigger, a batch waits for records. Two batches
        between which one was not seen, because a snapshot was lost, show none of this.
        """
        newest, several = batches[-1], len(batches) > 1
        before, started, seconds, number = self.last_records, self.last_started, self.last_seconds, self.last_id
        if several:
            earlier = batches[-2]
            before, started, seconds = earlier.input_records, earlier.started_at.timestamp(), earlier.duration_seconds
            number = earlier.batch_id
        now, waiting = newest.started_at.timestamp(), self.waiting
        if not several and now != self.running_since:
            waiting = _waited(window, started, seconds, now)
        trigger_seconds, gap = self.trigger_seconds, 0.0
        if started and number is not None and newest.batch_id == number + 1:
            waited = True if several else None if waiting is None else waiting > WAITING * newest.input_records
            trigger_seconds, gap = self._trigger(micro(now - started), seconds, waited=waited)
        lag = (window[-1].lag if window else None) or 0
        return BatchLimits(
            max_records=self._record_limit(batches, before, lag),
            trigger_seconds=trigger_seconds,
            last_records=newest.input_records,
            last_lag=lag,
            gap=gap,
            last_started=now,
            last_seconds=newest.duration_seconds,
            last_id=newest.batch_id,
            running_since=self.running_since,
            waiting=waiting,
        )

    def _record_limit(self, batches: Sequence[MicroBatch], before: int, lag: int) -> int | None:
        """Return M after the batches of a snapshot; the batch before the newest one had `before` records."""
        last, largest = batches[-1].input_records, max([batch.input_records for batch in batches])
        # A batch without records, as stateful queries have them, shows no limit.
        is_largest = 0 < largest <= last * (1 + TOLERANCE)
        if is_largest and min(self.last_lag, lag) > LIMITED_LAG * last and abs(before - last) <= TOLERANCE * last:
            return last
        known = self.max_records
        return None if known is not None and largest > known * (1 + TOLERANCE) else known

    def _trigger(self, distance: float, seconds: float, *, waited: bool | None) -> tuple[float | None, float]:
        """Return T' and the gap after a batch that started so long after the start of the one before.

        That one lasted `seconds`. `waited` says whether records have waited with the batch; None if it is not known.
        """
        known, gap = self.trigger_seconds, self.gap
        if distance <= seconds * (1 + IDLE):
            return None if known is not None and distance < 0.5 * known else known, gap
        if not waited:
            return known, gap if waited is None else 0.0
        return distance if abs(distance - gap) <= TOLERANCE * distance else known, distance

    def cycle(self, batch_seconds: float) -> float:
        """Return how many seconds after the start of a batch, which lasts so long, the next one can start."""
        return max(batch_seconds, self.trigger_seconds or 0.0)

    def reachable(self, objective_seconds: float, overhead: float = 0.0) -> float:
        """Return O: the lag objective, or a longer one where the trigger or a batch's overhead lets no size meet it."""
        trigger = self.trigger_seconds or 0.0
        objective = objective_seconds if trigger <= LONGEST_WAIT * objective_seconds else 2.0 * trigger
        if overhead <= LONGEST_WAIT * min(objective / 2.0, objective - trigger):
            return objective
        return max(4.0 * overhead, trigger + 2.0 * overhead)

    def longest_batch(self, objective_seconds: float, overhead: float = 0.0) -> float:
        """Return D, how many seconds a batch may last at a lag objective; at least one."""
        objective = self.reachable(objective_seconds, overhead)
        return max(1.0, min(objective / 2.0, objective - (self.trigger_seconds or 0.0)))


def _waited(window: Sequence[Slice], started: float, seconds: float, begins: float) -> float | None:
    """Return how many records waited when a batch began, the one before which had `started` and lasted so long.

    That is by the last snapshot before, if it found no batch running, and by even arrivals; None without such a one.
    """
    for piece in reversed(window):
        if piece.at < begins:
            lag = piece.lag if piece.at > started + seconds else None
            return None if lag is None else lag * (begins - started) / (piece.at - started)
    return None


NO_LIMITS = BatchLimits()
"""For a job without batches so far."""
