"""What `tide` remembers of a job across snapshots and restarts."""

from __future__ import annotations

from typing import NamedTuple

from tidegate.engine.batch_sums import BatchSums
from tidegate.engine.case import Case
from tidegate.engine.running import RunningWork, long_work
from tidegate.engine.state import Slice
from tidegate.engine.tide.batch_limits import NO_LIMITS, BatchLimits
from tidegate.engine.tide.capacity import SizeFit, effective, learn, learn_overhead, learn_stages, shape_of
from tidegate.engine.tide.counterfactual import NO_REVIEW, GrowthReview
from tidegate.engine.tide.forecast import NO_FORECAST, ArrivalForecast, TimeConstants

MAX_BATCHES = 1000
"""Batches of a run are counted up to this."""

LONG_BATCH_SECONDS = 20.0
"""A batch counts once for each such time that it lasted: a long one shows as much as several short ones."""

WARM_BATCH_SECONDS = 60.0
"""A run's first batches count if they last this long: then loading code and state is a small part of them."""

EARLY_INTERVALS = 2.0
"""Age of a running batch from which its tasks count, in intervals."""


class Reduction(NamedTuple):
    """A scale-down that has not paid for itself yet."""

    at: float
    freed: int
    """Slots."""


class GrowthTrial(NamedTuple):
    """A scale-up that was not judged yet."""

    at: float
    before: int
    after: int
    capacity: float
    """Of the size before, records/s."""


class TideMemory(NamedTuple):
    """A job's memory. Times are epoch seconds."""

    forecast: ArrivalForecast = NO_FORECAST
    limits: BatchLimits = NO_LIMITS
    sizes: tuple[SizeFit, ...] = ()
    """What each of the sizes that ran last has shown; the newest is last."""
    stages: tuple[tuple[int, float], ...] = ()
    """(tasks, slot-seconds) of the busiest stages."""
    overhead: float | None = None
    """Seconds per batch, as the job's events tell it."""
    incarnation: str | None = None
    batches: int = 0
    """Batches of the present run; -1 until its first ones have ended."""
    regret: float = 0.0
    """Slot-seconds that a smaller size would have saved so far."""
    threshold: float | None = None
    """Switching threshold learned, in prices of a change; None: the option's."""
    reduction: Reduction | None = None
    trial: GrowthTrial | None = None
    review: GrowthReview = NO_REVIEW
    ineffective: tuple[tuple[int, float], ...] = ()
    """(size, until when) of sizes that were no faster than the size before them."""

    def learned(self, case: Case, constants: TimeConstants) -> TideMemory:
        """Return the memory with the newest snapshot added to forecast and capacity."""
        forecast, limits, sizes, stages, overhead, incarnation, batches = self[:7]
        rate = newest_rate(case.state.window)
        if rate is not None:
            forecast = forecast.update(case.measured_at, rate, constants)
        fresh = case.snapshot.batches
        if fresh:
            limits = limits.learned(fresh, case.evidence.lag_records)
        if incarnation != case.state.incarnation:
            # The first batches of a run load code, state and backlog, so they do not show its capacity.
            incarnation, batches = case.state.incarnation, -1
        elif fresh and case.current and case.newest is not None:
            sums = case.newest.sums
            if batches >= 0 or sums.seconds >= WARM_BATCH_SECONDS * sums.batches:
                counted = max(int(sums.batches), int(sums.seconds / LONG_BATCH_SECONDS))
                batches = min(max(batches, 0) + counted, MAX_BATCHES)
                overhead = learn_overhead(overhead, fresh)
                sizes = learn(sizes, case.current, sums, overhead or 0.0)
            else:
                batches = 0
        if case.snapshot.stages:
            stages = learn_stages(stages, case.snapshot.stages)
        return TideMemory(forecast, limits, sizes, stages, overhead, incarnation, batches, *self[7:])

    def with_running(self, case: Case, work: RunningWork) -> TideMemory:
        """Return the memory as if the running batch had ended in the way its finished tasks suggest.

        It counts as one batch, and only for this decision.
        """
        stages = self.stages or ((work.reading, 1.0),)
        reading: float = sum([busy for tasks, busy in stages if tasks == work.reading])
        total: float = sum([busy for _, busy in stages])
        share = reading / total if reading > 0 else 1.0
        cost = max(work.record_seconds, work.read_seconds / share) / effective(case.current, shape_of(stages, None))
        records, overhead = work.records, self.overhead or 0.0
        seconds = overhead + cost * records
        sums = BatchSums(1, records, seconds, records * records, records * seconds)
        return self._replace(
            stages=stages,
            sizes=learn(self.sizes, case.current, sums, overhead),
            limits=self.limits._replace(largest=max(self.limits.largest, records)),
        )


def early_work(case: Case) -> RunningWork | None:
    """Return the work of the running batches; None if they are short, or tell nothing yet."""
    shot = case.snapshot
    if not shot.running or not case.current:
        return None
    age = case.measured_at - shot.running[0].started_at.timestamp()
    return long_work(shot, len(case.state.topics)) if age >= EARLY_INTERVALS * shot.interval_seconds else None


def newest_rate(window: tuple[Slice, ...]) -> float | None:
    """Return the arrival rate of the newest slice of the window, records/s."""
    if len(window) < 2 or window[-1].arrived is None or window[-2].arrived is None:
        return None
    gap = window[-1].at - window[-2].at
    return (window[-1].arrived - window[-2].arrived) / gap if gap > 0 else None
