"""`tide`: looks ahead, weighs every size against its restart, and checks afterwards what it brought.

Each useful size is played through the next `horizon_seconds`, with the forecast of arrivals, the learned capacity, the
lag and the length of a restart, and priced: slots, time with the lag objective violated, the restart itself
(`tide_play`, `tide_capacity`, `tide_forecast`). The cheapest size wins. But acting now competes with acting later:

    growth     when one more measurement would cost more than it could save. A jump in arrivals is always looked at
               once more: the interval it came in shows only a part of it, and a size for a part has to grow again.
    reduction  when the smaller size would have been the cheaper one without a break until it had spared `patience`
               restart prices. Patience is learned: it doubles when a reduction is taken back before it has paid for
               its restarts, and relaxes when it has.

Prices are in slot-seconds. With the defaults and `max_parallelism: 8`, a second over the lag objective costs
2 · 8 = 16, and a restart 30 · 8 = 240 besides the lateness it brings; a reduction waits until 1.5 · 240 = 360
slot-seconds would have been spared: by two slots fewer, 3 minutes.

What is expected of a change is remembered; a growth that brought nothing is undone and not tried again for a while.

When to choose it: By default. It learns the job's capacity, restart time and noise by itself.

Set first: `late_price` (higher: more slots, less lateness), `restart_price` (higher: fewer restarts).

Details: `play`, `capacity`, `forecast`, `hindsight`.

Source: model-predictive control of restarts after Phoebe (Geldenhuys et al., 2022: recovery time in the choice),
capacity per size after DS2 (OSDI 2018) with overhead apart and sub-linear scaling, and the one-step look-ahead rule of
optimal stopping (Chow, Robbins & Siegmund, 1971).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise
from typing import ClassVar

from tidegate.engine.case import Case, Proposal
from tidegate.engine.reasons import Reason
from tidegate.engine.tide.capacity import CapacityModel, model, shape_of, useful_sizes
from tidegate.engine.tide.forecast import Smoothing
from tidegate.engine.tide.memory import TideMemory, newest_rate
from tidegate.engine.tide.options import TideOptions
from tidegate.engine.tide.play import Choice, Play, Prices
from tidegate.events.decision import Expectation, Figure

WAIT_INTERVALS = 2.0
"""What is put off now is decided after one more snapshot, and begun before the one after that."""


class Tide:
    """Model-predictive scaling with learned capacity and restart time."""

    name: ClassVar[str] = "tide"
    Options: ClassVar[type] = TideOptions
    Memory: ClassVar[type] = TideMemory
    reasons: ClassVar[Mapping[str, Reason]] = {
        "TIDE_LEARNING": Reason("{batches} micro-batches were seen, {need} are needed to judge the job"),
        "TIDE_CAPACITY_UNKNOWN": Reason("nothing was processed yet, so the capacity is not known"),
        "TIDE_IDLE": Reason("nothing has arrived and nothing waits; {size} slots will do"),
        "TIDE_GROW": Reason(
            "up to {demand:.0f} records/s are expected and {lag} wait, {current} slots can do {capacity:.0f}/s: "
            "of the next {horizon:.0f} s they would be late for {late_stay:.0f} s, {size} slots for {late:.0f} s, "
            "the restart included"
        ),
        "TIDE_SHRINK": Reason(
            "at most {demand:.0f} records/s are expected to last and {size} slots can do {capacity_then:.0f}/s: "
            "that saves {saved:.0f} slot-seconds in {horizon:.0f} s, the restart paid"
        ),
        "TIDE_HOLD": Reason(
            "up to {demand:.0f} records/s are expected, {current} slots can do {capacity:.0f}/s, "
            "and no other size would repay its restart"
        ),
        "TIDE_CONFIRMING": Reason(
            "{size} slots would be better for {demand:.0f} records/s, but one more measurement costs only "
            "{waiting:.0f} s late and may show otherwise"
        ),
        "TIDE_CALM": Reason(
            "{size} slots would be better for {demand:.0f} records/s, but the last {times} growths from {calm} slots "
            "were in vain: {calm} would have come through {rate:.0f} records/s with at most {most:.0f} s of lag"
        ),
        "TIDE_PATIENCE": Reason(
            "{size} slots would do and would have spared {wasted:.0f} slot-seconds so far; "
            "from {patience:.0f} on they are worth their restart"
        ),
        "TIDE_UNDO": Reason(
            "{current} slots bring {capacity:.0f}/s, hardly more than the {before:.0f}/s of {size} slots"
        ),
    }

    def __init__(self, options: TideOptions) -> None:
        self.options = options
        self.smoothing = Smoothing(
            options.level_seconds,
            options.swing_seconds,
            options.damping_seconds,
            options.silence_seconds,
        )

    @property
    def window_seconds(self) -> float:
        """The window of the evidence."""
        return self.options.window_seconds

    def propose(self, case: Case, memory: TideMemory) -> Proposal[TideMemory]:
        """Return the cheapest size that holds the lag objective over the horizon, if it repays its restart."""
        memory = self._relax(case, memory.learned(case, self.smoothing))
        evidence = case.evidence
        lag = evidence.lag_records
        if memory.batches < self.options.min_batches:
            idle = self._idle(case, memory)
            if idle is not None:
                return idle
            numbers: dict[str, Figure] = {"batches": max(0, memory.batches), "need": self.options.min_batches}
            return Proposal(case.current, "TIDE_LEARNING", numbers, memory=memory)
        known = model(
            memory.rows,
            case.current,
            shape_of(memory.stages, evidence.partitions),
            max(case.spec.scaling.lag_objective_seconds / 2.0, 1.0),
            self._kept_up_with(case) or 0.0,
            memory.pace,
        )
        if known is None or lag is None or memory.forecast.at is None:
            return Proposal(case.current, "TIDE_CAPACITY_UNKNOWN", {}, memory=memory)
        if memory.hindsight.shadows:
            hindsight = memory.hindsight.watched(
                case.measured_at,
                case.state.window[-1].arrived,
                known,
                late_seconds=(1.0 - self.options.reserve) * case.spec.scaling.lag_objective_seconds,
                done_seconds=case.spec.interval_seconds,
            )
            memory = memory._replace(hindsight=hindsight)
        memory, undo = self._judge(case, memory, known)
        if undo is not None:
            return undo
        return self._weigh(case, memory, known, float(lag))

    def ordered(self, case: Case, memory: TideMemory, proposal: Proposal[TideMemory], final: int) -> TideMemory:
        """Remember what the change was meant to bring, and whether it takes back a reduction too soon."""
        o = self.options
        memory = memory._replace(wasted=0.0, batches=0)
        if final < case.current:
            return memory._replace(shrunk=(case.measured_at, case.current - final), trial=None)
        if memory.shrunk is not None:
            memory = memory._replace(patience=min(2.0 * (memory.patience or o.patience), o.patience_max), shrunk=None)
        if proposal.capacity is not None:
            memory = memory._replace(trial=(case.measured_at, case.current, final, proposal.capacity))
        arrived = case.state.window[-1].arrived if case.state.window else None
        lag = float(case.evidence.lag_records or 0)
        return memory._replace(hindsight=memory.hindsight.grown(case.current, case.measured_at, arrived, lag))

    def _prices(self, case: Case) -> Prices:
        o, largest = self.options, case.spec.scaling.max_parallelism
        return Prices(o.core_price, o.late_price * largest, o.restart_price * largest)

    def _relax(self, case: Case, memory: TideMemory) -> TideMemory:
        """Let patience relax once the last reduction has paid for itself and its way back."""
        if memory.shrunk is None:
            return memory
        at, freed = memory.shrunk
        if self.options.core_price * freed * (case.measured_at - at) < 2.0 * self._prices(case).restart:
            return memory
        return memory._replace(patience=max(0.5 * (memory.patience or 0.0), self.options.patience), shrunk=None)

    def _kept_up_with(self, case: Case) -> float | None:
        """Return an arrival rate the present size keeps up with, if its lag does not grow."""
        evidence = case.evidence
        if evidence.lag_trend is None or evidence.arrival_rate is None or evidence.lag_trend > 0:
            return None
        return evidence.processing_rate

    def _idle(self, case: Case, memory: TideMemory) -> Proposal[TideMemory] | None:
        """Return a reduction to the minimum when nothing arrived for the whole patience."""
        evidence, o = case.evidence, self.options
        low = case.spec.scaling.min_parallelism
        idle = evidence.utilization == 0.0 and evidence.lag_records == 0 and evidence.arrival_rate == 0.0
        if not idle or case.current <= low or evidence.window_seconds < 0.9 * o.window_seconds:
            return None
        return Proposal(low, "TIDE_IDLE", {"size": low}, memory=memory)

    def _restart_seconds(self, case: Case) -> float:
        """Return the downtime to reckon with: the second longest of many, the longest of few."""
        if not case.state.restarts:
            return self.options.restart_seconds
        kept = sorted([seconds for _, seconds in case.state.restarts])
        return kept[-2] if len(kept) >= 5 else kept[-1]

    def _judge(
        self, case: Case, memory: TideMemory, known: CapacityModel
    ) -> tuple[TideMemory, Proposal[TideMemory] | None]:
        """Judge the last growth once that can be done; if it brought nothing, propose the way back."""
        if memory.trial is None or memory.trial[2] != case.current:
            return memory, None
        at, before, after, capacity = memory.trial
        evidence = case.evidence
        # Then the rate is the capacity.
        full = (evidence.utilization or 0.0) >= 0.95 and (evidence.lag_trend or 0.0) > 0
        if memory.batches < 3 * self.options.min_batches or not (known.told_apart or full):
            return memory, None
        memory = memory._replace(trial=None)
        expected = capacity * after / before
        gain = (known.rate - capacity) / (expected - capacity) if expected > capacity else 1.0
        if gain >= self.options.useless_gain or known.rate >= 1.1 * capacity:
            return memory, None
        memory = memory._replace(
            useless=(*memory.useless, (after, case.measured_at + self.options.useless_seconds))[-4:]
        )
        numbers: dict[str, Figure] = {
            "current": after,
            "size": before,
            "capacity": known.rate,
            "before": capacity,
            "at": at,
        }
        return memory, Proposal(before, "TIDE_UNDO", numbers, memory=memory, capacity=known.rate)

    def _weigh(self, case: Case, memory: TideMemory, known: CapacityModel, lag: float) -> Proposal[TideMemory]:
        """Return the cheapest size, unless waiting is cheaper still."""
        o, current, play = self.options, case.current, self._play(case, memory, known, lag)
        prices, stay = play.prices, play.stay()
        best, cost, late = stay if play.settled(stay) else self._cheapest(case, memory, play, stay)
        saved = stay.cost - cost
        numbers: dict[str, Figure] = {
            "demand": max(play.demand, play.stretches[1][1]) if best >= current else play.lasting,
            "lag": int(lag),
            "current": current,
            "size": best,
            "capacity": known.rate,
            "capacity_then": known.capacity(best),
            "late_stay": min(stay.late, o.horizon_seconds),
            "late": min(late, o.horizon_seconds),
            "saved": saved,
            "horizon": o.horizon_seconds,
            "restart_seconds": play.stretches[0][0],
            "beta": known.beta,
        }
        spared = prices.core_second * (current - best) * case.spec.interval_seconds
        wasted = memory.wasted + spared if best < current else 0.0
        if wasted != memory.wasted:
            memory = memory._replace(wasted=wasted)
        if best == current or saved <= o.margin * stay.cost:
            return self._answer(case, current, "TIDE_HOLD", numbers, memory, play)
        if best > current:
            wait = WAIT_INTERVALS * case.spec.interval_seconds
            # Judged by the smallest growth that lasts, whatever the lag: more lag never makes waiting cheaper.
            least = play.least_growth()
            numbers["waiting"] = waiting = play.late_by_waiting(least, wait) - play.late(least, play.lag_at_stop)
            gain = prices.core_second * (least - current) * wait  # the slots meanwhile
            rate = newest_rate(case.state.window) or 0.0
            calm = memory.hindsight.calm(range(current, best), case.measured_at, lag, rate, play.stretches[0][0])
            unsure = memory.forecast.surprise is not None or (o.catch_up and prices.late_second * waiting <= gain)
            # What may wait, waits: else more lag, at which there is no calm, could ask for less.
            if calm is not None and (calm.size == current or not unsure):
                memory = memory._replace(hindsight=memory.hindsight.seen(calm, case.measured_at))
                numbers |= {"times": calm.times, "most": calm.lag / known.capacity(calm.size), "rate": calm.rate}
                return self._answer(case, calm.size, "TIDE_CALM", numbers | {"calm": calm.size}, memory, play)
            if unsure:
                return self._answer(case, current, "TIDE_CONFIRMING", numbers, memory, play)
            return self._answer(case, best, "TIDE_GROW", numbers, memory, play)
        patience = (memory.patience or o.patience) * prices.restart
        if memory.wasted < patience:
            numbers |= {"wasted": memory.wasted, "patience": patience}
            return self._answer(case, current, "TIDE_PATIENCE", numbers, memory, play)
        return self._answer(case, best, "TIDE_SHRINK", numbers, memory, play)

    def _cheapest(self, case: Case, memory: TideMemory, play: Play, stay: Choice) -> Choice:
        """Return the cheapest size of those that are not known to be useless."""
        tried = play.sizes if play.known.pace.records is not None else [row.size for row in memory.rows]
        useless = [size for size, until in memory.useless if until > case.measured_at and size > case.current]
        return play.cheapest(stay, tried, min(useless, default=math.inf), self.options.doubt)

    def _play(self, case: Case, memory: TideMemory, known: CapacityModel, lag: float) -> Play:
        """Return the play of the case: the horizon in stretches, each with the upper bound of its demand."""
        o, restart = self.options, self._restart_seconds(case)
        spans = _spans(restart, o.horizon_seconds)
        stretches = memory.forecast.believed().ahead(spans, self.smoothing, o.confidence)
        scaling, cores = case.spec.scaling, case.spec.application.executor_cores
        sizes = useful_sizes(scaling.min_parallelism, scaling.max_parallelism, known.shape, cores)
        return Play(
            known,
            sizes,
            self._prices(case),
            stretches,
            lag if o.catch_up else 0.0,
            objective_seconds=scaling.lag_objective_seconds,
            reserve=o.reserve,
            headroom=o.headroom,
            restarts=o.catch_up,
            horizon_seconds=o.horizon_seconds,
        )

    def _answer(
        self, case: Case, size: int, code: str, numbers: dict[str, Figure], memory: TideMemory, play: Play
    ) -> Proposal[TideMemory]:
        """Return the proposal with what is expected of it."""
        capacity, (restart, demand) = play.known.capacity(size), play.stretches[0]
        restart = restart if size != case.current else 0.0
        waiting = play.lag + demand * restart
        spare = capacity - demand
        expectation = Expectation(
            processing_rate=capacity,
            lag_seconds=waiting / capacity,
            catch_up_seconds=waiting / spare if spare > 0 else None,
            restart_seconds=restart,
            core_seconds=size * self.options.horizon_seconds,
        )
        return Proposal(size, code, numbers, expectation, memory, play.known.rate)


@lru_cache(maxsize=1024)
def _spans(restart: float, horizon: float) -> tuple[tuple[float, float], ...]:
    """Return (from, seconds) of the stretches of the horizon: the restart, and three ever longer ones after it."""
    ends = (0.0, restart, restart + 60.0, restart + 180.0, max(horizon, restart + 240.0))
    return tuple((start, end - start) for start, end in pairwise(ends))
