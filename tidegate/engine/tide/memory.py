"""What `tide` remembers of a job across snapshots and restarts."""

from __future__ import annotations

from typing import Final, NamedTuple

from tidegate.engine.batch_sums import one_batch
from tidegate.engine.case import Case
from tidegate.engine.costs import COSTS_KEPT
from tidegate.engine.records import quick_replace
from tidegate.engine.running import RunningWork, long_work
from tidegate.engine.tide.batch_limits import NO_LIMITS, BatchLimits
from tidegate.engine.tide.capacity import (
    CapacityModel,
    SizeFit,
    StageWork,
    learn,
    learn_overhead,
    learn_stages,
    shape_of,
    work_of,
)
from tidegate.engine.tide.contest import NO_CONTEST, Contest
from tidegate.engine.tide.forecast import NO_FORECAST, ArrivalForecast
from tidegate.engine.tide.pulses import NO_PULSES, Pulses, newest_rate
from tidegate.engine.tide.shift import NO_SHIFT, NO_STREAK, Shift, Streak, shifted
from tidegate.engine.tide.variation import NO_VARIATION, Variation, fit_of, without_slow
from tidegate.engine.total import total
from tidegate.engine.ways import measured
from tidegate.events.way import Way

MAX_BATCHES: Final = 1000
"""Batches of a run are counted up to this."""

LONG_BATCH_SECONDS: Final = 20.0
"""A batch counts once for each such time that it lasted: a long one shows as much as several short ones."""

WARM_BATCH_SECONDS: Final = 60.0
"""A run's first batches count if they last this long, as loading code and state is then a small part of them, and if
other batches of the job are known: alone, the few records of a long first batch would seem to be very expensive."""

WARM_UP_SECONDS = 60.0
"""How long a run is young after its first batch: the JVMs still compile, and caches fill."""

WAY_BACK: Final = 1.0
"""The way back from a scale-down costs about as much as the scale-down."""

CAUTION_MAX = 8.0
"""How far the switching threshold may rise after scale-downs that did not pay, as a multiple."""

EARLY_INTERVALS: Final = 2.0
"""Age of a running batch from which its tasks count, in intervals."""


class FirstBatch(NamedTuple):
    """The first batch of the present run."""

    records: int
    seconds: float
    at: float = 0.0
    """When it was seen."""


class ScaleDown(NamedTuple):
    """The last scale-down, until the job grows again."""

    at: float
    slots: int
    """How many fewer."""
    price: float
    """What it cost, lateness included, slot-seconds."""


@quick_replace
class TideMemory(NamedTuple):
    """A job's memory. Times are epoch seconds."""

    forecast: ArrivalForecast = NO_FORECAST
    limits: BatchLimits = NO_LIMITS
    sizes: tuple[SizeFit, ...] = ()
    """What each of the sizes that ran last has shown; the newest is last."""
    stages: tuple[StageWork, ...] = ()
    """The busiest ones."""
    overhead: float | None = None
    """Seconds per batch, as the job's events tell it."""
    incarnation: str | None = None
    batches: int = 0
    """Batches of the present run; -1 until its first ones have ended."""
    short: ArrivalForecast = NO_FORECAST
    """The forecast with the short memory; `forecast` has the long one."""
    contest: Contest = NO_CONTEST
    first_batch: FirstBatch | None = None
    outages: tuple[tuple[int, float], ...] = ()
    """(when its cost was measured, outage in seconds without the work of its first batch) of the newest restarts."""
    sufficient: tuple[tuple[int, float], ...] = ()
    """(size, since when) of the smaller sizes that would be enough."""
    scale_down: ScaleDown | None = None
    caution: float = 1.0
    """Factor of the switching threshold: it rises with each scale-down that did not pay."""
    pulses: Pulses = NO_PULSES
    """While arrivals come in pulses, the forecasts get a rate per cycle, not per snapshot."""
    variation: Variation = NO_VARIATION
    streak: Streak = NO_STREAK
    shift: Shift = NO_SHIFT

    def learned(self, case: Case, long_memory: float, short_memory: float) -> TideMemory:
        """Return the memory with the newest snapshot added to the capacity, and to both forecasts.

        They remember the level for so many seconds.
        """
        stages, memory = case.snapshot.stages, self._with_batches(case)
        forecast, short, contest, pulses = self.forecast, self.short, self.contest, self.pulses
        window, spec = case.state.window, case.spec
        newest = newest_rate(window)
        if newest is not None:
            pulses = pulses.after(newest, window[-2], spec.scaling.lag_objective_seconds, spec.interval_seconds)
            if pulses.are_seen and not self.pulses.are_seen:
                # What was learned from the rates of single intervals is wrong.
                forecast, short, contest = NO_FORECAST, NO_FORECAST, NO_CONTEST
            rate = pulses.rate_since(self.pulses, newest)
            if rate is not None:
                forecast = forecast.update(rate.at, rate.rate, long_memory)
                short = short.update(rate.at, rate.rate, short_memory)
                contest = contest.judged(rate.at, rate.arrived, (forecast, long_memory), (short, short_memory))
        return memory._replace(
            limits=memory.limits.at_start(case.snapshot.current_batch_started_at, window),
            forecast=forecast,
            short=short,
            contest=contest,
            pulses=pulses,
            stages=learn_stages(self.stages, stages) if stages else self.stages,
            incarnation=case.state.incarnation,
        )

    def _with_batches(self, case: Case) -> TideMemory:
        """Return the memory with the batches of the newest snapshot."""
        fresh, at = case.snapshot.batches, case.measured_at
        is_new = case.state.incarnation != self.incarnation
        memory = self._replace(batches=-1, first_batch=None, streak=NO_STREAK) if is_new else self
        if not fresh:
            return memory
        sizes, overhead, batches, first = memory.sizes, memory.overhead, memory.batches, memory.first_batch
        variation, streak, shift = memory.variation, memory.streak, memory.shift
        limits = memory.limits.learned(fresh, case.state.window)
        if first is None:
            first = FirstBatch(fresh[0].input_records, fresh[0].duration_seconds, at)
        # The first batches of a run load code, state and backlog, so they do not show its capacity.
        if not is_new and case.current and case.newest is not None:
            sums, seen = case.newest.sums, fit_of(sizes, case.current)
            if batches > 0 and seen is not None:
                streak = NO_STREAK if self.is_young(at) else streak.after(fresh, seen, variation.coefficient)
                if streak.is_shift:
                    shift = shift.after(at, streak.factor(seen))
                    longer, factor = streak.explained(seen)
                    if overhead is not None:  # it is smoothed, so it lags behind
                        overhead = min(overhead, max(0.0, seen.overhead + longer))
                    sizes = shifted(sizes, longer, factor, overhead or 0.0, variation.noise)
                    streak, seen = NO_STREAK, sizes[-1]
                variation = variation.after(fresh, seen)
                sums = without_slow(sums, fresh, seen)
            else:
                streak = NO_STREAK
            if batches >= 0 or (sizes and sums.seconds >= WARM_BATCH_SECONDS * sums.batches):
                if batches >= 0:  # in a run's first batch, most of it is the start of the run
                    overhead = learn_overhead(overhead, fresh)
                counted = max(int(sums.batches), int(sums.seconds / LONG_BATCH_SECONDS))
                batches = min(max(batches, 0) + counted, MAX_BATCHES)
                sizes = learn(sizes, case.current, sums, overhead or 0.0, variation.noise)
            else:
                batches = 0
        return memory._replace(
            limits=limits,
            sizes=sizes,
            overhead=overhead,
            batches=batches,
            first_batch=first,
            variation=variation,
            streak=streak,
            shift=shift,
        )

    def is_young(self, at: float) -> bool:
        """Whether the present run has ended its first batch only a short while ago."""
        return self.first_batch is not None and at - self.first_batch.at < WARM_UP_SECONDS

    def has_new_outage(self, case: Case) -> bool:
        """Whether the newest restart's cost and first batch are known, but not its outage."""
        if self.first_batch is None:
            return False
        restart = Way.RESTART
        for cost in reversed(case.state.changes.costs):
            if cost.way is restart:
                return not self.outages or self.outages[-1][0] != cost.at
        return False

    def with_change(self, at: float, slots: int, price: float) -> TideMemory:
        """Return the memory after a change by so many slots was ordered, at a price if it is a scale-down.

        A scale-down has paid if it has saved its price and that of the way back before the job grows again.
        """
        down, caution = self.scale_down, self.caution
        if slots < 0:
            down = ScaleDown(at, -slots, price)
        elif down is not None:
            paid = down.slots * (at - down.at) >= (1.0 + WAY_BACK) * down.price
            caution = max(1.0, caution / 2.0) if paid else min(CAUTION_MAX, caution * 2.0)
            down = None
        return self._replace(batches=0, sufficient=(), scale_down=down, caution=caution)

    def with_outage(self, case: Case, model: CapacityModel) -> TideMemory:
        """Return the memory with the outage of the newest restart.

        A measured downtime ends with the first commit, so it holds the work of the first batch. That is not part of the
        outage: how long the first batch of another restart lasts depends on what waits then, and on the size.
        """
        cost, first = measured(case.state, Way.RESTART)[-1], self.first_batch or FirstBatch(0, 0.0)
        work = min(first.seconds, model.overhead + model.record_seconds(case.current) * first.records)
        outage = round(max(0.0, cost.outage - work), 2)
        return self._replace(outages=(*self.outages, (cost.at, outage))[-COSTS_KEPT:])

    def with_running(self, case: Case, work: RunningWork) -> TideMemory:
        """Return the memory as if the running batch had ended in the way its finished tasks suggest.

        It counts as one batch, and only for this decision.
        """
        stages = self.stages or (StageWork(work.reading, 1.0),)
        reading = total([each.busy for each in stages if each.tasks == work.reading])
        share = reading / total([each.busy for each in stages]) if reading > 0 else 1.0
        cost = max(work.record_seconds, work.read_seconds / share) / work_of(shape_of(stages, None)).slots(case.current)
        records, overhead = work.records, self.overhead or 0.0
        seconds = overhead + cost * records
        sums = one_batch(records, seconds)
        return self._replace(
            stages=stages,
            sizes=learn(self.sizes, case.current, sums, overhead, self.variation.noise),
        )


def early_work(case: Case) -> RunningWork | None:
    """Return the work of the running batches; None if they are short, or tell nothing yet."""
    shot = case.snapshot
    if not shot.running or not case.current:
        return None
    age = case.measured_at - shot.running[0].started_at.timestamp()
    return long_work(shot, len(case.state.topics)) if age >= EARLY_INTERVALS * shot.interval_seconds else None
