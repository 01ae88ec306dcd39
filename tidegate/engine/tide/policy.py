"""`tide`: chooses the size that costs least over the next minutes, by simulating the job with what it has learned.

On each snapshot, `tide` simulates the next `horizon_seconds` of the job at its present size and at larger ones, with

- the arrivals that it expects (`forecast`),
- the speed that a size has shown in past micro-batches, or what other sizes tell about it (`capacity`),
- the records that wait now,
- what changes of size have cost this job: the *outage*, a time without commits, and the *delay* until the new size
  works. The longest of the last eight counts, or the second longest of five or more.

One such simulation is a *rollout*. Its price is in slot-seconds: for the slots, for the time in which the oldest record
is older than the lag objective, and for the change. If a larger size costs least, the job should grow. Otherwise `tide`
looks for a smaller size that is enough. At the next snapshot all is computed again: this is model-predictive control.

A change can also be made later. So `tide` compares changing now with waiting:

    scale-up    when waiting for one more measurement would cost more in lateness than it could save in slots; until
                then `TIDE_CONFIRMING`. A step change in arrivals is always measured twice (`TIDE_OUTLIER`): the first
                interval shows only part of it, and a size for that part would soon have to grow again.
    scale-down  when the smaller size would have been enough for so long that the slots it would have saved have cost
                as much as the change: its price, and the lateness it causes; until then `TIDE_PATIENCE`. If a
                scale-down has not saved twice its cost by the time the job grows again, the next one must have saved
                twice as much, at most eight times as much; one that has saved it halves this again. In place, a size
                that falls behind slowly also counts as enough for a while (`rollout`).

An example with the default prices and `max_parallelism: 8`: a second above the lag objective costs 2 · 8 = 16
slot-seconds, and a restart costs 30 · 8 = 240, besides the lateness it causes. A restart with two slots fewer, which
makes no record late, is worth it once it would have saved 240 slot-seconds, that is after 2 minutes. A change in place
or by handover costs only 2 · 8 = 16, so there the same scale-down comes after 8 seconds, if the guard `cooldown`
allows.

**New sizes.** A job may grow before its present size has shown three batches. Once a batch has been running for
two intervals, its finished tasks give an upper bound of the capacity. If even that is too little, the job grows before
the batch ends. In place, where growth interrupts nothing, what other sizes have shown is enough, and for a new job with
a prior, what similar jobs have shown (`prior`). None of this makes a job smaller.

**New runs.** A run is slow at first, while the JVMs compile and caches fill. In the minute after its first
batch, `tide` takes it to be at least as fast as the job's other sizes suggest.

**Batches that vary.** The more a job's batches vary, the more of its capacity is kept free, and a slow batch counts for
at most 1.5 times what its records need (`variation`). Once four batches in a row have all been clearly slower, or all
clearly faster, than expected, `tide` corrects what it knows of every size at once (`shift`).

**Arrivals in pulses**, as from another micro-batch job, count by the mean of a whole cycle (`pulses`).

**Jobs upstream.** What they plan to emit counts as demand before it arrives (`tidegate.engine.announced`). A scale-up
for it does not wait for another measurement. If all sources have a plan, only the level of the arrivals counts besides
it, without trend and upper bound.

When to choose it: By default. It learns the job's capacity, the cost of a change and the noise by itself.

Set first: `late_price` (higher: more slots, less lateness), `change_price` and `restart_price` (higher: fewer changes).

Details: `rollout`, `capacity`, `batch_limits`, `variation`, `shift`, `forecast`, `pulses`, `contest`, `prior`.

Source: model-predictive control of restarts after Phoebe (Geldenhuys et al., 2022: recovery time is part of the
choice); capacity per size after DS2 (OSDI 2018), with overhead apart and sub-linear scaling; the one-step look-ahead
rule of optimal stopping (Chow, Robbins & Siegmund, 1971).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise
from typing import ClassVar, Final, NamedTuple

from tidegate.engine.announced import is_awaited
from tidegate.engine.case import Case, Proposal
from tidegate.engine.emission import is_read
from tidegate.engine.reasons import Reason
from tidegate.engine.tide.capacity import CapacityModel, SizeFit, fit_model, shape_of, useful_sizes
from tidegate.engine.tide.change import planned_change
from tidegate.engine.tide.forecast import ArrivalForecast
from tidegate.engine.tide.memory import TideMemory, early_work
from tidegate.engine.tide.options import TideOptions
from tidegate.engine.tide.prior import seeds
from tidegate.engine.tide.reasons import REASONS
from tidegate.engine.tide.rollout import Backlog, Goal, Rollout, SlotPrices, Timing
from tidegate.engine.tide.shift import LEAST_SHIFT
from tidegate.engine.ways import CHANGES, way_to
from tidegate.events.decision import Expectation, Figure
from tidegate.events.way import Way
from tidegate.events.wire import Scalar

WAIT_INTERVALS: Final = 2.0
"""A change put off now is decided at the next snapshot and starts before the one after it."""

LEVEL_SECONDS = 800.0
"""Memory of the level of the arrivals: noise averages out."""

SHORT_LEVEL_SECONDS: Final = 50.0
"""That of the short forecast: a load that wanders is followed within a minute."""

WINDOW_SECONDS = 120.0
"""Window of the measurements."""

LONG_SHARE: Final = 0.5
"""Share of the window from which a batch is too long for the window to show a rate that the job has kept up with."""

MIN_BATCHES = 3
"""Micro-batches to see before the first decision; one counts once per 20 s that it lasts."""

SWITCHING_THRESHOLD = 1.0
"""How much too many slots must have cost before the job switches to fewer, per what the switch costs."""

WAITING: Final = frozenset({"TIDE_PATIENCE", "TIDE_CONFIRMING", "TIDE_OUTLIER"})
"""Reasons to keep the size for now although another one costs less."""


class Shrinking(NamedTuple):
    """A smaller size that would be enough."""

    size: int
    late: float
    """Seconds for which the job would be late because of the switch."""
    seconds: float
    """How long the size would have been enough by now."""
    wasted: float
    """What it would have saved in that time, slot-seconds."""
    price: float
    """What the switch costs, times the switching threshold, slot-seconds."""


class Tide:
    """Model-predictive scaling with learned capacity and cost of a change."""

    name: ClassVar[str] = "tide"
    Options: ClassVar[type] = TideOptions
    Memory: ClassVar[type] = TideMemory
    reasons: ClassVar[Mapping[str, Reason]] = REASONS
    guard_defaults: ClassVar[Mapping[str, Mapping[str, Scalar]]] = {
        "stabilization": {"batches": 0},
        "single_task": {"max_share": 1.0},
        "skew": {"max_share": 1.0},
    }
    """`tide` knows what a new size can do before its batches have shown it, and shrinks only once they have. It weighs
    how much a larger size shortens the batches, so it is stopped only where nothing gets shorter."""

    def __init__(self, options: TideOptions) -> None:
        self.options = options

    @property
    def window_seconds(self) -> float:
        """The window of the evidence."""
        return WINDOW_SECONDS

    def propose(self, case: Case, memory: TideMemory) -> Proposal[TideMemory]:
        """Return the cheapest size over the horizon, or the present one while another is not worth a change."""
        prior = case.spec.scaling.prior
        if prior is not None and not memory.sizes:
            memory = memory._replace(sizes=seeds(prior))
        memory = memory.learned(case, LEVEL_SECONDS, SHORT_LEVEL_SECONDS)
        if memory.has_new_outage(case) and (model := self._model(case, memory)) is not None:
            memory = memory.with_outage(case, model)
        evidence = case.evidence
        lag = evidence.lag_records
        if memory.batches < MIN_BATCHES:
            grow = self._early(case, memory) or self._while_learning(case, memory)
            return grow or self._idle(case, memory) or self._learning(case, memory)
        model = self._model(case, memory)
        if model is None or lag is None or memory.forecast.at is None:
            return Proposal(case.current, "TIDE_CAPACITY_UNKNOWN", memory=memory)
        return self._weigh(case, memory, model, float(lag))

    def ordered(self, case: Case, memory: TideMemory, proposal: Proposal[TideMemory], final: int) -> TideMemory:
        """Return the memory of a job whose size changes: batches and sizes that are enough start from zero."""
        price = float(proposal.numbers.get("price") or 0.0)
        return memory.with_change(case.measured_at, final - case.current, price / memory.caution)

    def _model(self, case: Case, memory: TideMemory) -> CapacityModel | None:
        """Return the model at the present size; None if nothing is known.

        A young run is slower than it will be. So it counts as at least as fast as the job's other sizes promise.
        """
        model = self._fitted(case, memory, memory.sizes)
        if model is None or not memory.is_young(case.measured_at):
            return model
        others = tuple([each for each in memory.sizes if each.size != case.current])
        promised = self._fitted(case, memory, others)
        return model if promised is None or promised.rate <= model.rate else promised

    def _fitted(self, case: Case, memory: TideMemory, sizes: tuple[SizeFit, ...]) -> CapacityModel | None:
        return fit_model(
            sizes,
            case.current,
            shape_of(memory.stages, case.evidence.partitions),
            case.spec.scaling.lag_objective_seconds,
            self._kept_up_with(case) or 0.0,
            memory.limits,
        )

    def _early(self, case: Case, memory: TideMemory) -> Proposal[TideMemory] | None:
        """Return a larger size if the tasks of a long running batch show that the present one is too small.

        What they show is an upper bound of a run that is still cold.
        """
        evidence, work = case.evidence, early_work(case)
        if work is None or evidence.lag_records is None or memory.forecast.at is None:
            return None
        lag = max(0.0, evidence.lag_records - work.records_done)
        proposal = self._unproved_growth(case, memory.with_running(case, work), lag)
        if proposal is None:
            return None
        tasks: dict[str, Figure] = {"finished": evidence.running_tasks_finished, "tasks": evidence.running_tasks}
        return proposal._replace(code="TIDE_GROW_EARLY", numbers={**proposal.numbers, **tasks}, memory=memory)

    def _while_learning(self, case: Case, memory: TideMemory) -> Proposal[TideMemory] | None:
        """Return a larger size if other sizes of the job, or its prior, say that the load needs one."""
        lag = case.evidence.lag_records
        # Once its size has changed, a job with a prior is like any other.
        prior = case.spec.scaling.prior if case.state.last_action_at is None else None
        if prior is None and way_to(case, case.current) is not Way.IN_PLACE:
            return None
        if lag is None or memory.forecast.at is None:
            return None
        proposal = self._unproved_growth(case, memory, float(lag))
        if proposal is None or prior is None:
            return proposal
        jobs: dict[str, Figure] = {"jobs": ", ".join(prior.learned_from[:3])}
        return proposal._replace(code="TIDE_GROW_PRIOR", numbers={**proposal.numbers, **jobs})

    def _unproved_growth(self, case: Case, memory: TideMemory, lag: float) -> Proposal[TideMemory] | None:
        """Return a larger size by what the present one has not proved yet: nothing shrinks on that.

        Nor is the scale-up judged against it, and weighing the sizes leaves no trace in the memory.
        """
        model = self._model(case, memory)
        proposal = None if model is None else self._weigh(case, memory, model, lag)
        if proposal is None or proposal.size <= case.current:
            return None
        return proposal._replace(memory=memory, capacity=None)

    def _prices(self, case: Case, way: Way) -> SlotPrices:
        o, largest = self.options, case.spec.scaling.max_parallelism
        change = o.restart_price if way is Way.RESTART else o.change_price
        return SlotPrices(o.late_price * largest, change * largest, o.horizon_seconds)

    def _kept_up_with(self, case: Case) -> float | None:
        """Return the processing rate if the lag does not grow: the capacity is at least that."""
        evidence = case.evidence
        if evidence.lag_trend is None or evidence.arrival_rate is None or evidence.lag_trend > 0:
            return None
        batch = evidence.batch_seconds
        if batch is not None and batch > LONG_SHARE * WINDOW_SECONDS:
            return None  # the window shows the commit of a batch, and not all of the time that it took
        return evidence.processing_rate

    def _learning(self, case: Case, memory: TideMemory) -> Proposal[TideMemory]:
        numbers: dict[str, Figure] = {"batches": max(0, memory.batches), "need": MIN_BATCHES}
        return Proposal(case.current, "TIDE_LEARNING", numbers, memory=memory)

    def _idle(self, case: Case, memory: TideMemory) -> Proposal[TideMemory] | None:
        """Return the smallest size if nothing arrived during the whole window; the guard `silence` may stop the job."""
        evidence = case.evidence
        low = case.spec.smallest_size
        idle = evidence.utilization == 0.0 and evidence.lag_records == 0 and evidence.arrival_rate == 0.0
        idle = idle and not memory.pulses.are_seen and not is_awaited(case.observed.neighbours)
        if not idle or case.current <= low or evidence.window_seconds < 0.9 * WINDOW_SECONDS:
            return None
        return Proposal(low, "TIDE_IDLE", {"size": low}, memory=memory)

    def _weigh(self, case: Case, memory: TideMemory, model: CapacityModel, lag: float) -> Proposal[TideMemory]:
        """Return the cheapest size, or the present one while waiting is cheaper still."""
        o, current, rollout = self.options, case.current, self._rollout(case, memory, model, lag)
        change, stay = rollout.change, rollout.stay()
        # Without lateness, more slots would only cost more.
        growth = rollout.cheapest_growth(stay) if stay.late > 0.0 else stay
        shrinking = None
        if growth.size == current:
            memory, shrinking = self._shrinking(case, memory, rollout)
        best, late = (growth.size, growth.late) if shrinking is None else (shrinking.size, shrinking.late)
        numbers: dict[str, Figure] = {
            "demand": rollout.peak if best >= current else rollout.sustained,
            "lag": int(lag),
            "current": current,
            "size": best,
            "capacity": model.rate,
            "capacity_then": model.capacity(best),
            "headroom": rollout.headroom,
            "late_stay": min(stay.late, o.horizon_seconds),
            "late": min(late, o.horizon_seconds),
            "horizon": o.horizon_seconds,
            "change": CHANGES[change.way],
            "outage_seconds": change.outage,
            "delay_seconds": change.delay,
            "beta": model.scaling.beta,
        }
        if memory.pulses.are_seen:
            numbers["cycle_seconds"] = memory.pulses.seconds
        if shrinking is not None:
            numbers |= {"enough": shrinking.seconds, "wasted": shrinking.wasted, "price": shrinking.price}
            code = self._shrink(shrinking, numbers, rollout)
        elif best == current:
            code = self._hold(case, numbers, memory, rollout)
        else:
            code = self._grow(case, numbers, memory, rollout)
        return self._answer(case, current if code in WAITING else best, code, numbers, memory, rollout)

    def _shrink(self, smaller: Shrinking, numbers: dict[str, Figure], rollout: Rollout) -> str:
        """Return why to shrink, or not yet."""
        if smaller.wasted < smaller.price:
            return "TIDE_PATIENCE"
        if rollout.holds(smaller.size):
            return "TIDE_SHRINK"
        numbers["lasts"] = rollout.lasts(smaller.size)
        return "TIDE_SHRINK_BRIEFLY"

    def _hold(self, case: Case, numbers: dict[str, Figure], memory: TideMemory, rollout: Rollout) -> str:
        """Return why to keep the size: also why no size meets the lag objective, if that is so."""
        objective, reachable = case.spec.scaling.lag_objective_seconds, rollout.objective_seconds
        if reachable == objective:
            return "TIDE_HOLD"
        trigger, overhead = memory.limits.trigger_seconds, rollout.model.overhead
        numbers |= {"objective": objective, "reachable": reachable, "trigger": trigger, "overhead": overhead}
        return "TIDE_HOLD_TRIGGER" if memory.limits.reachable(objective) == reachable else "TIDE_HOLD_OVERHEAD"

    def _shrinking(self, case: Case, memory: TideMemory, rollout: Rollout) -> tuple[TideMemory, Shrinking | None]:
        """Return the memory with the sizes that are enough, and the smaller size most worth the switch, if any.

        This is the ski rental problem: too many slots are the rent, and a switch is the purchase. Who buys once the
        rent has added up to the price pays at most twice the least possible (Karlin, Manasse, Rudolph & Sleator,
        "Competitive snoopy caching", 1988). A job whose scale-downs do not pay, because its load soon returns, waits
        for a multiple of the price.
        """
        model, prices = rollout.model, rollout.prices
        # The margin is not used for a job with a record limit.
        seen = rollout.sizes if model.limits.max_records is not None else [each.size for each in memory.sizes]
        enough = rollout.smaller(seen)
        if not enough and not memory.sufficient:
            return memory, None
        if enough != [size for size, _ in memory.sufficient]:
            since = dict(memory.sufficient)
            memory = memory._replace(sufficient=tuple([(size, since.get(size, case.measured_at)) for size in enough]))
        best: Shrinking | None = None
        threshold = memory.caution * SWITCHING_THRESHOLD
        for size, at in memory.sufficient:
            seconds = case.measured_at - at + case.spec.interval_seconds
            wasted = (model.size - size) * seconds
            if best is not None and wasted - threshold * prices.change <= best.wasted - best.price:
                continue
            # A size that is too small is left before it is late.
            late = rollout.late(size, rollout.lag_at_stop, rollout.age_at_stop) if rollout.holds(size) else 0.0
            price = threshold * (prices.change + prices.late_second * late)
            if best is None or wasted - price > best.wasted - best.price:
                best = Shrinking(size, late, seconds, wasted, price)
        return memory, best

    def _grow(self, case: Case, numbers: dict[str, Figure], memory: TideMemory, rollout: Rollout) -> str:
        """Return why to grow, or why it pays to measure once more."""
        o, model, prices = self.options, rollout.model, rollout.prices
        wait = WAIT_INTERVALS * case.spec.interval_seconds
        # The smallest growth that is sustained decides, whatever the lag: more lag never makes waiting cheaper.
        smallest = rollout.smallest_growth()
        at_once = rollout.late_if_delayed(smallest, 0.0)
        waiting = rollout.late_if_delayed(smallest, wait) - at_once
        numbers["waiting"] = waiting
        gain = (smallest - case.current) * wait  # slots not paid for while waiting
        announced, start = case.announced, rollout.change.delay + wait
        if announced and announced.grows_above((1.0 - rollout.headroom) * model.rate, start):
            # The job upstream has measured it already.
            numbers |= announced.values
            return "TIDE_GROW_ANNOUNCED"
        if self._forecast(memory)[0].outlier is not None:
            return "TIDE_OUTLIER"
        if o.catch_up and prices.late_second * waiting <= gain:
            return "TIDE_CONFIRMING"
        slower = memory.shift.named(case.measured_at)
        if slower >= 1.0 + LEAST_SHIFT:
            numbers["slower"] = slower
            return "TIDE_GROW_SLOWER"
        return "TIDE_GROW"

    def _forecast(self, memory: TideMemory) -> tuple[ArrivalForecast, float]:
        """Return the forecast that is believed, with its memory of the level, seconds."""
        if memory.contest.short_wins:
            return memory.short, SHORT_LEVEL_SECONDS
        return memory.forecast, LEVEL_SECONDS

    def _rollout(self, case: Case, memory: TideMemory, model: CapacityModel, lag: float) -> Rollout:
        """Return the rollout of the case: the horizon in segments, each with its demand."""
        o = self.options
        change = planned_change(case, o.restart_seconds, [seconds for _, seconds in memory.outages])
        spans = _spans(max(change.outage, change.delay), o.horizon_seconds)
        forecast, level_seconds = self._forecast(memory)
        announced = case.announced
        if announced is not None and announced.is_complete:
            # The plan says how the arrivals will change. With a trend of their own, a growth would count twice.
            segments = [(seconds, forecast.level) for _, seconds in spans]
        else:
            segments = forecast.as_step().ahead(spans, level_seconds, o.confidence)
        if announced is not None:
            ends = [start + seconds for start, seconds in spans]
            rates = announced.on_grid(ends, [rate for _, rate in segments])
            segments = [(seconds, rate) for (_, seconds), rate in zip(spans, rates, strict=True)]
        scaling, cores = case.spec.scaling, case.spec.application.executor_cores
        sizes = useful_sizes(case.spec.smallest_size, scaling.max_parallelism, model.scaling.work.shape, cores)
        if o.catch_up:
            age, running = _age(case, lag, segments[0][1]), case.running_seconds or 0.0
            backlog, variation = Backlog(lag, age, running), memory.variation.coefficient
        else:
            backlog, variation = Backlog(), 0.0
        objective = memory.limits.reachable(scaling.lag_objective_seconds, model.overhead)
        reaction = change.delay + WAIT_INTERVALS * case.spec.interval_seconds
        return Rollout(
            model,
            sizes,
            segments,
            backlog,
            Goal(objective, o.headroom, variation),
            Timing(change, reaction, _stop_seconds(case, change.way), is_simulated=o.catch_up),
            self._prices(case, change.way),
        )

    def _answer(
        self, case: Case, size: int, code: str, numbers: dict[str, Figure], memory: TideMemory, rollout: Rollout
    ) -> Proposal[TideMemory]:
        """Return the proposal with what is expected of it."""
        capacity, waiting, restart = rollout.model.capacity(size), rollout.lag, 0.0
        way = outage = delay = None
        if size != case.current:
            way, outage, delay = rollout.change
            waiting = rollout.lag_after_change(waiting)
            restart = outage if way is Way.RESTART else 0.0
        spare = capacity - rollout.demand
        expectation = Expectation(
            processing_rate=capacity,
            lag_seconds=waiting / capacity,
            catch_up_seconds=waiting / spare if spare > 0 else None,
            restart_seconds=restart,
            core_seconds=size * self.options.horizon_seconds,
            way=way,
            outage_seconds=outage,
            delay_seconds=delay,
        )
        arrivals = None
        if is_read(case):
            # Without the deviations that a size is planned for: they would add up from job to job.
            start = rollout.segments[0][0]
            forecast, level_seconds = self._forecast(memory)
            ((_, arrivals),) = forecast.ahead(((start, self.options.horizon_seconds),), level_seconds)
        return Proposal(size, code, numbers, expectation, memory, rollout.model.rate, arrivals)


def _age(case: Case, lag: float, demand: float) -> float:
    """Return the age of the oldest record not committed, in seconds; where it is not known, by the lag."""
    evidence = case.evidence
    if evidence.delay_seconds is not None and not evidence.delay_at_least:
        return evidence.delay_seconds
    return lag / demand if demand > 0 else 0.0


def _stop_seconds(case: Case, way: Way) -> float:
    """Return how long a change waits for the end of a batch before it breaks that."""
    return case.spec.application.stop_deadline_seconds if way is Way.RESTART else math.inf


@lru_cache(maxsize=1024)
def _spans(change: float, horizon: float) -> tuple[tuple[float, float], ...]:
    """Return (from, seconds) of the segments of the horizon: the change, then three ever longer ones."""
    ends = (0.0, change, change + 60.0, change + 180.0, max(horizon, change + 240.0))
    return tuple((start, end - start) for start, end in pairwise(ends))
