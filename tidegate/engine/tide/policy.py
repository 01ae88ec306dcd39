"""`tide`: model-predictive control of a job's size, with learned capacity, forecast and cost of a change.

Each useful size is simulated over the next `horizon_seconds` with the forecast of arrivals, the learned capacity, the
present lag and what the way of the change costs (outage and delay), and priced: slots, time over the lag objective, and
the change itself (`rollout`, `capacity`, `forecast`). The cheapest size wins. But a change now competes with a change
later:

    scale-up    happens when waiting for one more measurement would cost more lateness than it could save slots. A step
                change in arrivals is always measured twice: the first interval shows only part of it, and a size for
                that part would soon have to grow again.
    scale-down  happens when the smaller size would have been cheaper without interruption, and the slot-seconds it
                would have saved (the regret) reach the switching threshold, in prices of a change. The threshold is
                learned: it doubles when a scale-down is reversed before it has paid for its changes, and halves when
                it has.

Prices are in slot-seconds. With the defaults and `max_parallelism: 8`, a second over the lag objective costs
2 · 8 = 16, and a restart 30 · 8 = 240 besides the lateness it causes. A scale-down by restart waits until it would
have saved 1.5 · 240 = 360 slot-seconds: by two slots, 3 minutes. A change in place or by handover costs only
2 · 8 = 16, so such a scale-down waits 12 seconds.

A run that has shown fewer than `min_batches` batches may still grow. Once a batch has been running for two intervals,
its finished tasks give an upper bound of the capacity. If even that is too little, the job does not wait for the batch
to end. Nothing shrinks on such a bound. A new job with a prior may grow even earlier, by what similar jobs
have shown (`prior`).

What the jobs upstream plan to emit counts as demand before it arrives (`tidegate.engine.announced`). A scale-up for it
does not wait for another measurement.

Afterwards `tide` checks what a scale-up achieved. If the job is hardly faster, it goes back and does not try that size
again for a while. If the previous size would have been enough, it remembers that too (`counterfactual`).

When to choose it: By default. It learns the job's capacity, the cost of a change and the noise by itself.

Set first: `late_price` (higher: more slots, less lateness), `change_price` and `restart_price` (higher: fewer changes).

Details: `rollout`, `capacity`, `forecast`, `counterfactual`, `prior`.

Source: model-predictive control of restarts after Phoebe (Geldenhuys et al., 2022: recovery time is part of the
choice); capacity per size after DS2 (OSDI 2018), with overhead apart and sub-linear scaling; the one-step look-ahead
rule of optimal stopping (Chow, Robbins & Siegmund, 1971).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise
from typing import ClassVar

from tidegate.engine.case import Case, Proposal
from tidegate.engine.emission import is_read
from tidegate.engine.reasons import Reason
from tidegate.engine.tide.capacity import CapacityModel, fit_model, shape_of, useful_sizes
from tidegate.engine.tide.change import planned_change, planned_way
from tidegate.engine.tide.forecast import TimeConstants
from tidegate.engine.tide.memory import GrowthTrial, Reduction, TideMemory, early_work, newest_rate
from tidegate.engine.tide.options import TideOptions
from tidegate.engine.tide.prior import seeds
from tidegate.engine.tide.reasons import REASONS
from tidegate.engine.tide.rollout import Choice, Rollout, SlotPrices
from tidegate.engine.ways import CHANGES
from tidegate.events.decision import Expectation, Figure
from tidegate.events.way import Way

WAIT_INTERVALS = 2.0
"""A change put off now is decided at the next snapshot and starts before the one after it."""

TRIAL_BATCHES = 3
"""Batches after which a scale-up is judged, as a multiple of `min_batches`."""

SATURATED = 0.95
"""Utilization from which the processing rate is the capacity, if the lag grows too."""

FASTER = 1.1
"""A scale-up to a size this much faster was effective, whatever was expected of it."""


class Tide:
    """Model-predictive scaling with learned capacity and cost of a change."""

    name: ClassVar[str] = "tide"
    Options: ClassVar[type] = TideOptions
    Memory: ClassVar[type] = TideMemory
    reasons: ClassVar[Mapping[str, Reason]] = REASONS

    def __init__(self, options: TideOptions) -> None:
        self.options = options
        self.constants = TimeConstants(
            options.level_seconds, options.residual_seconds, options.damping_seconds, options.outage_seconds
        )

    @property
    def window_seconds(self) -> float:
        """The window of the evidence."""
        return self.options.window_seconds

    def propose(self, case: Case, memory: TideMemory) -> Proposal[TideMemory]:
        """Return the cheapest size over the horizon, or the present one while another is not worth a change."""
        prior = case.spec.scaling.prior
        if prior is not None and not memory.sizes:
            memory = memory._replace(sizes=seeds(prior))
        memory = self._relax_threshold(case, memory.learned(case, self.constants))
        evidence = case.evidence
        lag = evidence.lag_records
        if memory.batches < self.options.min_batches:
            grow = self._early(case, memory) or self._as_similar(case, memory)
            return grow or self._idle(case, memory) or self._learning(case, memory)
        model = self._model(case, memory)
        if model is None or lag is None or memory.forecast.at is None:
            return Proposal(case.current, "TIDE_CAPACITY_UNKNOWN", memory=memory)
        if memory.review.running:
            review = memory.review.advanced(
                case.measured_at,
                case.state.window[-1].arrived,
                model,
                late_seconds=(1.0 - self.options.lag_headroom) * case.spec.scaling.lag_objective_seconds,
                done_seconds=case.spec.interval_seconds,
            )
            memory = memory._replace(review=review)
        memory, undo = self._judge(case, memory, model)
        return undo or self._weigh(case, memory, model, float(lag))

    def ordered(self, case: Case, memory: TideMemory, proposal: Proposal[TideMemory], final: int) -> TideMemory:
        """Return the memory with the change to be judged later; raise the threshold if it reverses a scale-down."""
        o = self.options
        memory = memory._replace(regret=0.0, batches=0)
        if final < case.current:
            return memory._replace(reduction=Reduction(case.measured_at, case.current - final), trial=None)
        if memory.reduction is not None:
            threshold = min(2.0 * (memory.threshold or o.switching_threshold), o.switching_threshold_max)
            memory = memory._replace(threshold=threshold, reduction=None)
        if proposal.capacity is not None:
            memory = memory._replace(trial=GrowthTrial(case.measured_at, case.current, final, proposal.capacity))
        arrived = case.state.window[-1].arrived if case.state.window else None
        lag = float(case.evidence.lag_records or 0)
        return memory._replace(review=memory.review.after_growth(case.current, case.measured_at, arrived, lag))

    def _model(self, case: Case, memory: TideMemory) -> CapacityModel | None:
        return fit_model(
            memory.sizes,
            case.current,
            shape_of(memory.stages, case.evidence.partitions),
            max(case.spec.scaling.lag_objective_seconds / 2.0, 1.0),
            self._kept_up_with(case) or 0.0,
            memory.limits,
        )

    def _early(self, case: Case, memory: TideMemory) -> Proposal[TideMemory] | None:
        """Return a larger size if the tasks of a long running batch show that the present one is too small.

        What they show is an upper bound of a run that is still cold. So a job grows on it and never shrinks, and the
        scale-up is not judged against it.
        """
        evidence, work = case.evidence, early_work(case)
        if work is None or evidence.lag_records is None or memory.forecast.at is None:
            return None
        seen = memory.with_running(case, work)
        model, lag = self._model(case, seen), max(0.0, evidence.lag_records - work.records_done)
        proposal = None if model is None else self._weigh(case, seen, model, lag)
        if proposal is None or proposal.size <= case.current:
            return None
        tasks: dict[str, Figure] = {"finished": evidence.running_tasks_finished, "tasks": evidence.running_tasks}
        return proposal._replace(
            code="TIDE_GROW_EARLY", numbers={**proposal.numbers, **tasks}, memory=memory, capacity=None
        )

    def _as_similar(self, case: Case, memory: TideMemory) -> Proposal[TideMemory] | None:
        """Return a larger size for a job that has shown little so far, if its prior says that the load needs one.

        Once its size has changed, a job with a prior is like any other.
        """
        prior, lag = case.spec.scaling.prior, case.evidence.lag_records
        if prior is None or lag is None or memory.forecast.at is None or case.state.last_action_at is not None:
            return None
        model = self._model(case, memory)
        proposal = None if model is None else self._weigh(case, memory, model, float(lag))
        if proposal is None or proposal.size <= case.current:
            return None
        jobs: dict[str, Figure] = {"jobs": ", ".join(prior.learned_from[:3])}
        return proposal._replace(
            code="TIDE_GROW_PRIOR", numbers={**proposal.numbers, **jobs}, memory=memory, capacity=None
        )

    def _prices(self, case: Case, way: Way) -> SlotPrices:
        o, largest = self.options, case.spec.scaling.max_parallelism
        change = o.restart_price if way is Way.RESTART else o.change_price
        return SlotPrices(o.core_price, o.late_price * largest, change * largest)

    def _relax_threshold(self, case: Case, memory: TideMemory) -> TideMemory:
        """Halve the switching threshold once the last scale-down has paid for itself and for its way back."""
        if memory.reduction is None:
            return memory
        at, freed = memory.reduction
        if (
            self.options.core_price * freed * (case.measured_at - at)
            < 2.0 * self._prices(case, planned_way(case)).change
        ):
            return memory
        threshold = max(0.5 * (memory.threshold or 0.0), self.options.switching_threshold)
        return memory._replace(threshold=threshold, reduction=None)

    def _kept_up_with(self, case: Case) -> float | None:
        """Return the processing rate if the lag does not grow: the capacity is at least that."""
        evidence = case.evidence
        if evidence.lag_trend is None or evidence.arrival_rate is None or evidence.lag_trend > 0:
            return None
        return evidence.processing_rate

    def _learning(self, case: Case, memory: TideMemory) -> Proposal[TideMemory]:
        numbers: dict[str, Figure] = {"batches": max(0, memory.batches), "need": self.options.min_batches}
        return Proposal(case.current, "TIDE_LEARNING", numbers, memory=memory)

    def _idle(self, case: Case, memory: TideMemory) -> Proposal[TideMemory] | None:
        """Return the smallest size if nothing arrived during the whole window; the guard `silence` may stop the job."""
        evidence, o = case.evidence, self.options
        low = case.spec.smallest_size
        idle = evidence.utilization == 0.0 and evidence.lag_records == 0 and evidence.arrival_rate == 0.0
        if not idle or case.current <= low or evidence.window_seconds < 0.9 * o.window_seconds:
            return None
        return Proposal(low, "TIDE_IDLE", {"size": low}, memory=memory)

    def _judge(
        self, case: Case, memory: TideMemory, model: CapacityModel
    ) -> tuple[TideMemory, Proposal[TideMemory] | None]:
        """Judge the last scale-up as soon as that is possible; propose the previous size if it was ineffective."""
        o, evidence, trial = self.options, case.evidence, memory.trial
        if trial is None or trial.after != case.current or memory.batches < TRIAL_BATCHES * o.min_batches:
            return memory, None
        saturated = (evidence.utilization or 0.0) >= SATURATED and (evidence.lag_trend or 0.0) > 0
        if not model.separated and not saturated:
            return memory, None
        memory = memory._replace(trial=None)
        at, before, after, capacity = trial
        expected = capacity * after / before
        gain = (model.rate - capacity) / (expected - capacity) if expected > capacity else 1.0
        if gain >= o.ineffective_gain or model.rate >= FASTER * capacity:
            return memory, None
        ineffective = (*memory.ineffective, (after, case.measured_at + o.ineffective_seconds))[-4:]
        memory = memory._replace(ineffective=ineffective)
        numbers: dict[str, Figure] = {
            "current": after,
            "size": before,
            "capacity": model.rate,
            "before": capacity,
            "at": at,
        }
        return memory, Proposal(before, "TIDE_UNDO", numbers, memory=memory, capacity=model.rate)

    def _weigh(self, case: Case, memory: TideMemory, model: CapacityModel, lag: float) -> Proposal[TideMemory]:
        """Return the cheapest size, or the present one while waiting is cheaper still."""
        o, current, rollout = self.options, case.current, self._rollout(case, memory, model, lag)
        change, prices, stay = rollout.change, rollout.prices, rollout.stay()
        best, cost, late = stay if rollout.is_right_size(stay) else self._cheapest(case, memory, rollout, stay)
        saved = stay.cost - cost
        numbers: dict[str, Figure] = {
            "demand": max(rollout.demand, rollout.segments[1][1]) if best >= current else rollout.sustained,
            "lag": int(lag),
            "current": current,
            "size": best,
            "capacity": model.rate,
            "capacity_then": model.capacity(best),
            "late_stay": min(stay.late, o.horizon_seconds),
            "late": min(late, o.horizon_seconds),
            "saved": saved,
            "horizon": o.horizon_seconds,
            "change": CHANGES[change.way],
            "outage_seconds": change.outage,
            "delay_seconds": change.delay,
            "beta": model.beta,
        }
        missed = prices.core_second * (current - best) * case.spec.interval_seconds
        regret = memory.regret + missed if best < current else 0.0
        if regret != memory.regret:
            memory = memory._replace(regret=regret)
        if best == current or saved <= o.margin * rollout.slot_cost * current:
            return self._answer(case, current, "TIDE_HOLD", numbers, memory, rollout)
        if best > current:
            return self._grow(case, best, numbers, memory, rollout)
        threshold = (memory.threshold or o.switching_threshold) * prices.change
        if memory.regret < threshold:
            numbers |= {"wasted": memory.regret, "patience": threshold}  # codespell:ignore patience
            return self._answer(case, current, "TIDE_PATIENCE", numbers, memory, rollout)
        return self._answer(case, best, "TIDE_SHRINK", numbers, memory, rollout)

    def _grow(
        self, case: Case, best: int, numbers: dict[str, Figure], memory: TideMemory, rollout: Rollout
    ) -> Proposal[TideMemory]:
        """Return the larger size, unless it pays to measure once more or the load was handled without it before."""
        o, current, model, prices = self.options, case.current, rollout.model, rollout.prices
        wait = WAIT_INTERVALS * case.spec.interval_seconds
        # The smallest growth that is sustained decides, whatever the lag: more lag never makes waiting cheaper.
        smallest = rollout.smallest_growth()
        waiting = rollout.late_if_delayed(smallest, wait) - rollout.late(smallest, rollout.lag_at_stop)
        numbers["waiting"] = waiting
        gain = prices.core_second * (smallest - current) * wait  # slots not paid for while waiting
        unsure = memory.forecast.outlier is not None or (o.catch_up and prices.late_second * waiting <= gain)
        announced, code = case.announced, "TIDE_GROW"
        start = rollout.change.delay + wait
        if announced and announced.grows_above((1.0 - o.headroom) * model.rate, start):
            # The job upstream has measured it already.
            unsure, code = False, "TIDE_GROW_ANNOUNCED"
            numbers |= announced.values
        lag, rate = case.evidence.lag_records or 0, newest_rate(case.state.window) or 0.0
        delay = rollout.segments[0][0]
        known = memory.review.sufficient(range(current, best), case.measured_at, lag, rate, delay)
        # If the size known to be sufficient is itself a growth, it waits like any growth. Otherwise more lag, for which
        # no size is known to be sufficient, could lead to a smaller size than less lag does.
        if known is not None and (known.size == current or not unsure):
            memory = memory._replace(review=memory.review.seen_again(known, case.measured_at))
            most = known.lag / model.capacity(known.size)
            numbers |= {"times": known.times, "most": most, "rate": known.rate, "calm": known.size}
            return self._answer(case, known.size, "TIDE_CALM", numbers, memory, rollout)
        if unsure:
            return self._answer(case, current, "TIDE_CONFIRMING", numbers, memory, rollout)
        return self._answer(case, best, code, numbers, memory, rollout)

    def _cheapest(self, case: Case, memory: TideMemory, rollout: Rollout, stay: Choice) -> Choice:
        """Return the cheapest size of those that are not known to be ineffective."""
        # The margin is not used for a job with a record limit.
        has_limit = rollout.model.limits.max_records is not None
        sizes_seen = rollout.sizes if has_limit else [each.size for each in memory.sizes]
        ineffective = [size for size, until in memory.ineffective if until > case.measured_at and size > case.current]
        return rollout.cheapest(stay, sizes_seen, min(ineffective, default=math.inf), self.options.extrapolation_margin)

    def _rollout(self, case: Case, memory: TideMemory, model: CapacityModel, lag: float) -> Rollout:
        """Return the rollout of the case: the horizon in segments, each with the upper bound of its demand."""
        o = self.options
        change = planned_change(case, o.restart_seconds)
        spans = _spans(max(change.outage, change.delay), o.horizon_seconds)
        segments = memory.forecast.as_step().ahead(spans, self.constants, o.confidence)
        if (announced := case.announced) is not None:
            ends = [start + seconds for start, seconds in spans]
            rates = announced.on_grid(ends, [rate for _, rate in segments])
            segments = [(seconds, rate) for (_, seconds), rate in zip(spans, rates, strict=True)]
        scaling, cores = case.spec.scaling, case.spec.application.executor_cores
        sizes = useful_sizes(case.spec.smallest_size, scaling.max_parallelism, model.shape, cores)
        return Rollout(
            model,
            sizes,
            self._prices(case, change.way),
            segments,
            lag if o.catch_up else 0.0,
            objective_seconds=scaling.lag_objective_seconds,
            lag_headroom=o.lag_headroom,
            headroom=o.headroom,
            change=change,
            changes=o.catch_up,
            horizon_seconds=o.horizon_seconds,
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
            ((_, arrivals),) = memory.forecast.ahead(((start, self.options.horizon_seconds),), self.constants, 0.0)
        return Proposal(size, code, numbers, expectation, memory, rollout.model.rate, arrivals)


@lru_cache(maxsize=1024)
def _spans(change: float, horizon: float) -> tuple[tuple[float, float], ...]:
    """Return (from, seconds) of the segments of the horizon: the change, then three ever longer ones."""
    ends = (0.0, change, change + 60.0, change + 180.0, max(horizon, change + 240.0))
    return tuple((start, end - start) for start, end in pairwise(ends))
