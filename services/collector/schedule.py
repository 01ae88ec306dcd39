"""When each job's snapshot is due: at the multiples of its interval on the wall clock, the same for every collector.

An overdue snapshot is skipped, because end offsets read now are not those of then: a paused collector leaves a gap.

If the clock steps back by a few minutes, nothing is due until it has passed the newest measured instant, so sequences
only rise. If it steps back further, it was wrong before or is now, and each job starts over as in a new collector. If
it was wrong before, the decider has refused what was measured then, and needs what is measured now. If it is wrong now,
the decider drops what is measured: it has decided on those sequences.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from tidegate.events.job import JobSpec
from tidegate.runtime.logs import about
from tidegate.sparklog.application_run import Interval

log = logging.getLogger(__name__)

LATE_SHARE = 0.5
"""How late a snapshot may be, as a share of its interval."""

STEP_SECONDS = 300.0
"""A clock that steps back further is not waited for: so far ahead of its own clock, a decider refuses snapshots."""


@dataclass(slots=True)
class _Grid:
    """A job's intervals: which ones have been due."""

    newest: int
    """The newest sequence, measured or not."""
    first: bool = True
    """Whether none has been due since the job is known."""
    stepped_back: bool = False
    """Whether it was said that the clock stepped back."""


class Schedule:
    """Remembers the newest sequence of each job."""

    def __init__(self) -> None:
        self._grids: dict[str, _Grid] = {}
        self._skipped = 0

    def due(self, specs: Iterable[JobSpec], now: datetime) -> dict[str, Interval]:
        """Return the intervals of the jobs whose snapshot is due, and mark them as done."""
        asked = ((spec.job_id, self._due(spec, now)) for spec in specs)
        return {job_id: interval for job_id, interval in asked if interval is not None}

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
        self._grids = {job_id: grid for job_id, grid in self._grids.items() if job_id in present}

    def _due(self, spec: JobSpec, now: datetime) -> Interval | None:
        epoch, every = now.timestamp(), spec.interval_seconds
        sequence = int(epoch // every) * every
        grid = self._grids.get(spec.job_id)
        if grid is not None and grid.newest - epoch > STEP_SECONDS:
            _say_step(spec, now, "it is measured again")
            grid = None
        if grid is None:
            # an interval that ended before the job was known is not measured
            grid = self._grids[spec.job_id] = _Grid(sequence if sequence < epoch else sequence - every)
        if sequence <= grid.newest:
            self._warn_of_step(spec, grid, sequence, now)
            return None
        missed = max(0, (sequence - grid.newest) // every - 1)
        late = epoch - sequence > LATE_SHARE * every
        interval = Interval(_instant(sequence - every), _instant(sequence), first=grid.first or missed > 0)
        self._grids[spec.job_id] = _Grid(sequence, first=False)
        if skipped := missed + late:
            self._skipped += skipped
            with about(job_id=spec.job_id):
                log.warning("job %s: skipped %d overdue snapshots", spec.job_id, skipped)
        return None if late else interval

    def _warn_of_step(self, spec: JobSpec, grid: _Grid, sequence: int, now: datetime) -> None:
        if sequence < grid.newest - spec.interval_seconds and not grid.stepped_back:
            grid.stepped_back = True
            _say_step(spec, now, f"nothing is measured until {_instant(grid.newest)}")


def _say_step(spec: JobSpec, now: datetime, so: str) -> None:
    with about(job_id=spec.job_id):
        log.warning("job %s: the clock stepped back to %s; %s", spec.job_id, now, so)


def _instant(sequence: int) -> datetime:
    return datetime.fromtimestamp(sequence, UTC)
