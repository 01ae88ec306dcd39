"""When each job's snapshot is due: at the multiples of its interval on the wall clock, the same for every collector.

An overdue snapshot is skipped, because end offsets read now are not those of then: a paused collector leaves a gap. If
the clock steps back, nothing is due until it has passed the newest measured instant, so sequences only rise.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from tidegate.events.job import JobSpec
from tidegate.runtime.logs import about
from tidegate.sparklog.application_run import Interval

log = logging.getLogger(__name__)

LATE_SHARE = 0.5
"""How late a snapshot may be, as a share of its interval."""


class Schedule:
    """Remembers the newest sequence of each job."""

    def __init__(self) -> None:
        self._newest: dict[str, int] = {}
        self._fresh: set[str] = set()
        self._stepped_back: set[str] = set()
        self._skipped = 0

    def due(self, specs: Iterable[JobSpec], now: datetime) -> dict[str, tuple[int, Interval]]:
        """Return sequence and interval of the jobs whose snapshot is due, and mark them as done."""
        due = {}
        epoch = now.timestamp()
        for spec in specs:
            sequence = int(epoch // spec.interval_seconds) * spec.interval_seconds
            newest = self._newest.get(spec.job_id)
            if newest is None and sequence < epoch:
                self._newest[spec.job_id] = sequence  # this interval ended before the job was known
                self._fresh.add(spec.job_id)
                continue
            if newest is not None and sequence <= newest:
                self._warn_of_step(spec, newest, sequence, now)
                continue
            self._stepped_back.discard(spec.job_id)
            first = newest is None or spec.job_id in self._fresh
            self._fresh.discard(spec.job_id)
            missed = 0 if newest is None else max(0, (sequence - newest) // spec.interval_seconds - 1)
            self._newest[spec.job_id] = sequence
            if epoch - sequence > LATE_SHARE * spec.interval_seconds:
                missed += 1
            else:
                start = datetime.fromtimestamp(sequence - spec.interval_seconds, UTC)
                end = datetime.fromtimestamp(sequence, UTC)
                due[spec.job_id] = sequence, Interval(start, end, first=first or missed > 0)
            if missed:
                self._skipped += missed
                with about(job_id=spec.job_id):
                    log.warning("job %s: skipped %d overdue snapshots", spec.job_id, missed)
        return due

    def seconds_to_next(self, specs: Iterable[JobSpec], now: datetime) -> float:
        """Return the seconds until the next snapshot of any job is due; infinity without jobs."""
        epoch = now.timestamp()
        waits = ((epoch // spec.interval_seconds + 1) * spec.interval_seconds - epoch for spec in specs)
        return min(waits, default=float("inf"))

    def take_skipped(self) -> int:
        """Return how many snapshots were skipped because they were overdue, since the last call."""
        skipped, self._skipped = self._skipped, 0
        return skipped

    def forget(self, present: Mapping[str, object]) -> None:
        """Drop jobs that no longer exist."""
        for job_id in self._newest.keys() - present.keys():
            del self._newest[job_id]
        self._fresh.intersection_update(present)
        self._stepped_back.intersection_update(present)

    def _warn_of_step(self, spec: JobSpec, newest: int, sequence: int, now: datetime) -> None:
        if sequence < newest - spec.interval_seconds and spec.job_id not in self._stepped_back:
            self._stepped_back.add(spec.job_id)
            until = datetime.fromtimestamp(newest, UTC)
            text = "job %s: the clock stepped back to %s; nothing is measured until %s"
            with about(job_id=spec.job_id):
                log.warning(text, spec.job_id, now, until)
