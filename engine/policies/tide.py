"""`tide`: looks ahead, weighs every size against its restart, and checks afterwards what it brought.

For each useful size p the next `horizon` seconds are played through in closed form, with the forecast arrivals λ
(their upper bound), the learned capacity C(p), the lag L and the restart time R (0 for the present size):

    lag after the restart     L + λ·R
    seconds late              time with lag above objective · C(p), during and after the restart
    cost(p)                   core price · p · horizon + late price · seconds late + restart price [p ≠ current]

The cheapest size wins, but a change must repay itself: it has to save more than `margin` of the present cost.
Growth is decided on the upper bound of the forecast over the restart and what follows, so before saturation;
reduction only when the smaller size would have been enough for `patience` seconds on end. Patience is learned: it
doubles when a reduction had to be taken back soon (a load that swings faster than it pays to follow), and relaxes
when reductions last. What is expected of a change is remembered; a growth that brought nothing is undone and not
tried again for a while.

Source: model-predictive control of restarts after Phoebe (Geldenhuys et al., 2022: recovery time in the
choice), capacity per size after DS2 (OSDI 2018) with overhead apart and sub-linear scaling; see `tide_capacity` and
`tide_forecast`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pydantic import JsonValue

from engine.case import Case, Proposal
from engine.options import option
from engine.policies.tide_capacity import CapacityModel, Row, learn, model, useful_sizes
from engine.policies.tide_forecast import Forecast
from engine.reasons import Reason
from engine.state import Slice
from schemas.decision import Expectation, Figure


@dataclass(frozen=True, slots=True)
class TideOptions:
    """Options of `tide`."""

    horizon_seconds: float = option(600.0, "how far ahead each size is played through", unit="s", gt=0)
    window_seconds: float = option(180.0, "window of the evidence", unit="s", gt=0)
    headroom: float = option(0.12, "share of capacity kept free of the expected load", unit="share", ge=0, le=0.9)
    confidence: float = option(1.3, "standard deviations of the forecast error to be ready for", ge=0)
    core_price: float = option(1.0, "price of a slot for a second", gt=0)
    late_price: float = option(60.0, "price of a second with the lag objective violated", unit="slot-seconds", ge=0)
    restart_price: float = option(60.0, "price of a restart besides what it costs in lag", unit="slot-seconds", ge=0)
    margin: float = option(0.03, "share of the present cost that a change must save", unit="share", ge=0)
    restart_seconds: float = option(30.0, "assumed downtime of a restart until some were measured", unit="s", ge=0)
    patience_seconds: float = option(180.0, "shortest time a smaller size must have sufficed", unit="s", ge=0)
    patience_max_seconds: float = option(3600.0, "longest time it is made to wait", unit="s", ge=0)
    regret_seconds: float = option(
        1200.0, "a reduction taken back sooner than this doubles the patience", unit="s", ge=0
    )
    level_seconds: float = option(30.0, "time constant of the arrival level", unit="s", gt=0)
    trend_seconds: float = option(120.0, "time constant of the arrival trend", unit="s", gt=0)
    min_batches: int = option(4, "micro-batches to see before the first decision", ge=1)
    useless_seconds: float = option(3600.0, "how long a size that brought nothing is left alone", unit="s", ge=0)
    useless_gain: float = option(0.25, "share of the expected gain below which growth brought nothing", ge=0, le=1)


class Tide:
    """Model-predictive scaling with learned capacity and restart time."""

    name: ClassVar[str] = "tide"
    Options: ClassVar[type] = TideOptions
    reasons: ClassVar[Mapping[str, Reason]] = {
        "TIDE_LEARNING": Reason("{batches} micro-batches were seen, {need} are needed to judge the job"),
        "TIDE_CAPACITY_UNKNOWN": Reason("nothing was processed yet, so the capacity is not known"),
        "TIDE_IDLE": Reason("nothing has arrived and nothing waits; {size} slots will do"),
        "TIDE_GROW": Reason(
            "up to {demand:.0f} records/s are expected and {lag} wait, {current} slots can do {capacity:.0f}/s: "
            "they would be late for {late_stay:.0f} s, {size} slots for {late:.0f} s, the restart included"
        ),
        "TIDE_SHRINK": Reason(
            "at most {demand:.0f} records/s are expected and {size} slots can do {capacity_then:.0f}/s: "
            "that saves {saved:.0f} slot-seconds in {horizon:.0f} s, the restart paid"
        ),
        "TIDE_HOLD": Reason(
            "up to {demand:.0f} records/s are expected, {current} slots can do {capacity:.0f}/s, "
            "and no other size would repay its restart"
        ),
        "TIDE_CONFIRMING": Reason(
            "arrivals have just moved away from the {level:.0f} records/s expected; one more measurement tells how far"
        ),
        "TIDE_PATIENCE": Reason("{size} slots have sufficed for {sufficed:.0f} s and must for {patience:.0f} s"),
        "TIDE_UNDO": Reason(
            "{current} slots bring {capacity:.0f}/s, hardly more than the {before:.0f}/s of {size} slots"
        ),
    }

    def __init__(self, options: TideOptions) -> None:
        self.options = options

    @property
    def window_seconds(self) -> float:
        """The window of the evidence."""
        return self.options.window_seconds

    def propose(self, case: Case) -> Proposal:
        """Return the cheapest size that holds the lag objective over the horizon, if it repays its restart."""
        memory = _Memory.of(case.state.memory)
        self._learn(case, memory)
        evidence = case.evidence
        lag = evidence.lag_records
        if memory.batches < self.options.min_batches:
            idle = self._idle(case, memory)
            if idle is not None:
                return idle
            numbers: dict[str, Figure] = {"batches": memory.batches, "need": self.options.min_batches}
            return Proposal(case.current, "TIDE_LEARNING", numbers, memory=memory.wire())
        known = model(
            memory.rows,
            case.current,
            evidence.partitions,
            max(case.spec.scaling.lag_objective_seconds / 3.0, 1.0),
            self._kept_up_with(case),
        )
        if known is None or lag is None or memory.forecast.at is None:
            return Proposal(case.current, "TIDE_CAPACITY_UNKNOWN", {}, memory=memory.wire())
        objective = case.spec.scaling.lag_objective_seconds
        if memory.forecast.surprise and lag < 0.5 * objective * known.rate:
            return Proposal(case.current, "TIDE_CONFIRMING", {"level": memory.forecast.level}, memory=memory.wire())
        undo = self._undo(case, memory, known)
        if undo is not None:
            return undo
        return self._weigh(case, memory, known, float(lag))

    def ordered(self, case: Case, proposal: Proposal, final: int) -> dict[str, JsonValue]:
        """Remember what the change was meant to bring, and whether it takes back a reduction too soon."""
        memory = _Memory.of(proposal.memory or case.state.memory)
        o = self.options
        capacity = proposal.numbers.get("capacity")
        if final > case.current:
            if memory.shrunk_at is not None and case.at - memory.shrunk_at < o.regret_seconds:
                memory.patience = min(2.0 * (memory.patience or o.patience_seconds), o.patience_max_seconds)
            memory.shrunk_at = None
            if isinstance(capacity, float):
                memory.trial = (case.at, case.current, final, capacity)
        else:
            memory.shrunk_at = case.at
            memory.trial = None
        memory.sufficed_since = None
        memory.batches = 0
        return memory.wire()

    def _learn(self, case: Case, memory: _Memory) -> None:
        """Take the newest slice into forecast and capacity."""
        window = case.state.window
        newest = window[-1]
        o = self.options
        if memory.shrunk_at is not None and case.at - memory.shrunk_at >= o.regret_seconds:
            # A reduction that lasted: patience relaxes again.
            memory.patience = max(0.5 * (memory.patience or 0.0), o.patience_seconds)
            memory.shrunk_at = None
        rate = _newest_rate(window)
        if rate is not None:
            memory.forecast = memory.forecast.update(
                newest.at, rate, level_seconds=o.level_seconds, trend_seconds=o.trend_seconds
            )
        fresh = case.snapshot.batches
        if fresh and case.current and memory.incarnation == case.state.incarnation:
            memory.batches = min(memory.batches + len(fresh), 1000)
            memory.rows = learn(memory.rows, case.current, _of_batches(fresh))
        elif memory.incarnation != case.state.incarnation:
            # The first batches of a run load code, state and backlog: they do not show its capacity.
            memory.incarnation = case.state.incarnation
            memory.batches = 0

    def _kept_up_with(self, case: Case) -> float | None:
        """Return an arrival rate the present size keeps up with, if its lag does not grow."""
        evidence = case.evidence
        if evidence.lag_trend is None or evidence.arrival_rate is None or evidence.lag_trend > 0:
            return None
        return evidence.processing_rate

    def _idle(self, case: Case, memory: _Memory) -> Proposal | None:
        """Return a reduction to the minimum when nothing arrived for the whole patience."""
        evidence, o = case.evidence, self.options
        low = case.spec.scaling.min_parallelism
        idle = evidence.utilization == 0.0 and evidence.lag_records == 0 and evidence.arrival_rate == 0.0
        if not idle or case.current <= low or evidence.window_seconds < min(o.patience_seconds, 0.9 * o.window_seconds):
            return None
        return Proposal(low, "TIDE_IDLE", {"size": low}, memory=memory.wire())

    def _restart_seconds(self, case: Case) -> float:
        """Return the downtime to reckon with: the second longest of many, the longest of few."""
        kept = sorted(seconds for _, seconds in case.state.restarts)
        if not kept:
            return self.options.restart_seconds
        return kept[-2] if len(kept) >= 5 else kept[-1]

    def _demand(self, memory: _Memory, seconds: float) -> float:
        """Return the upper bound of arrivals within the next `seconds`."""
        o, forecast = self.options, memory.forecast
        points = (0.0, 0.25 * seconds, 0.5 * seconds, seconds)
        rate = max(forecast.ahead(point, trend_seconds=o.trend_seconds) for point in points)
        return rate + o.confidence * forecast.deviation(0.5 * seconds, level_seconds=o.level_seconds)

    def _undo(self, case: Case, memory: _Memory, known: CapacityModel) -> Proposal | None:
        """Return the way back when the last growth brought nothing, and remember the size."""
        if memory.trial is None or memory.trial[2] != case.current:
            return None
        at, before, after, capacity = memory.trial
        evidence = case.evidence
        full = (evidence.utilization or 0.0) >= 0.95 and (
            evidence.lag_trend or 0.0
        ) > 0  # then the rate is the capacity
        if memory.batches < 3 * self.options.min_batches or not (known.told_apart or full):
            return None
        memory.trial = None
        expected = capacity * after / before
        gain = (known.rate - capacity) / (expected - capacity) if expected > capacity else 1.0
        if gain >= self.options.useless_gain or known.rate >= 1.1 * capacity:
            return None
        memory.useless = [*memory.useless, (after, case.at + self.options.useless_seconds)][-4:]
        numbers: dict[str, Figure] = {
            "current": after,
            "size": before,
            "capacity": known.rate,
            "before": capacity,
            "at": at,
        }
        return Proposal(before, "TIDE_UNDO", numbers, memory=memory.wire())

    def _weigh(self, case: Case, memory: _Memory, known: CapacityModel, lag: float) -> Proposal:
        o, scaling = self.options, case.spec.scaling
        current = case.current
        restart = self._restart_seconds(case)
        demand = self._demand(memory, restart + 60.0)
        play = _Play(case, o, lag, demand, restart)
        stay = play.cost(current, known)
        sizes = useful_sizes(
            scaling.min_parallelism, scaling.max_parallelism, known.partitions, case.spec.application.executor_cores
        )
        barred = {size for size, until in memory.useless if until > case.at}
        best, best_cost = current, stay
        for size in sizes:
            if size == current or any(size >= bar > current for bar in barred):
                continue
            cost = play.cost(size, known)
            if size < current and cost.late_seconds > stay.late_seconds + 1.0 + restart:
                continue  # nobody is helped by being late more cheaply
            if cost.total < best_cost.total:
                best, best_cost = size, cost
        saved = stay.total - best_cost.total
        numbers: dict[str, Figure] = {
            "demand": demand,
            "lag": int(lag),
            "current": current,
            "size": best,
            "capacity": known.rate,
            "capacity_then": known.capacity(best),
            "late_stay": stay.late_seconds,
            "late": best_cost.late_seconds,
            "saved": saved,
            "horizon": o.horizon_seconds,
            "restart_seconds": restart,
            "beta": known.beta,
        }
        if best >= current:
            memory.sufficed_since = None
        if best == current or saved <= o.margin * stay.total:
            return self._answer(case, current, "TIDE_HOLD", numbers, memory, known, play)
        if best > current:
            return self._answer(case, best, "TIDE_GROW", numbers, memory, known, play)
        if memory.sufficed_since is None:
            memory.sufficed_since = case.at
        sufficed = case.at - memory.sufficed_since
        patience = memory.patience or o.patience_seconds
        if sufficed < patience:
            numbers |= {"sufficed": sufficed, "patience": patience}
            return self._answer(case, current, "TIDE_PATIENCE", numbers, memory, known, play)
        return self._answer(case, best, "TIDE_SHRINK", numbers, memory, known, play)

    def _answer(
        self,
        case: Case,
        size: int,
        code: str,
        numbers: dict[str, Figure],
        memory: _Memory,
        known: CapacityModel,
        play: _Play,
    ) -> Proposal:
        capacity = known.capacity(size)
        restart = play.restart if size != case.current else 0.0
        waiting = play.lag + play.demand * restart
        spare = capacity - play.demand
        expectation = Expectation(
            processing_rate=capacity,
            lag_seconds=waiting / capacity,
            catch_up_seconds=waiting / spare if spare > 0 else None,
            restart_seconds=restart,
            core_seconds=size * self.options.horizon_seconds,
        )
        return Proposal(size, code, numbers, expectation, memory.wire())


@dataclass(frozen=True, slots=True)
class _Cost:
    total: float
    late_seconds: float


@dataclass(frozen=True, slots=True)
class _Play:
    """Plays a size through the horizon in closed form."""

    case: Case
    options: TideOptions
    lag: float
    demand: float
    restart: float

    def cost(self, size: int, known: CapacityModel) -> _Cost:
        """Return the price of going on with `size` slots, and the seconds it would be late."""
        o = self.options
        stays = size == self.case.current
        objective = self.case.spec.scaling.lag_objective_seconds
        full = known.capacity(size)
        limit = objective * full
        capacity = full * (1.0 - (o.headroom if not stays else o.headroom / 2))
        lag, late = self.lag, 0.0
        left = o.horizon_seconds
        if not stays:
            here = objective * known.rate
            late += max(0.0, self.restart - max(0.0, here - lag) / self.demand) if self.demand > 0 else 0.0
            lag += self.demand * self.restart
            left = max(0.0, left - self.restart)
        spare = capacity - self.demand
        if lag > limit:
            late += min(left, (lag - limit) / spare) if spare > 0 else left
        elif spare < 0:
            late += max(0.0, left - (limit - lag) / -spare)
        # What is still over the limit in the end has to be worked off after the horizon.
        late += max(0.0, lag - spare * left - limit) / full
        price = o.core_price * size * o.horizon_seconds + o.late_price * late
        return _Cost(price if stays else price + o.restart_price, late)


@dataclass(slots=True)
class _Memory:
    """What `tide` keeps of a job across snapshots and restarts."""

    forecast: Forecast
    rows: list[Row]
    batches: int = 0
    """Batches of the present run."""
    incarnation: str | None = None
    patience: float | None = None
    sufficed_since: float | None = None
    shrunk_at: float | None = None
    trial: tuple[float, int, int, float] | None = None
    """(when, from, to, capacity before) of the last growth, until it was judged."""
    useless: list[tuple[int, float]] = field(default_factory=list)

    @staticmethod
    def of(wire: Mapping[str, Any]) -> _Memory:
        trial = wire.get("trial")
        return _Memory(
            forecast=Forecast.of(wire.get("forecast")),
            rows=[(int(row[0]), *row[1:]) for row in wire.get("rows", ())],
            batches=wire.get("batches", 0),
            incarnation=wire.get("incarnation"),
            patience=wire.get("patience"),
            sufficed_since=wire.get("sufficed_since"),
            shrunk_at=wire.get("shrunk_at"),
            trial=(trial[0], trial[1], trial[2], trial[3]) if trial else None,
            useless=[(size, until) for size, until in wire.get("useless", ())],
        )

    def wire(self) -> dict[str, JsonValue]:
        kept: dict[str, JsonValue] = {
            "forecast": self.forecast.wire(),
            "rows": [list(row) for row in self.rows],
            "batches": self.batches,
        }
        for name in ("incarnation", "patience", "sufficed_since", "shrunk_at"):
            value = getattr(self, name)
            if value is not None:
                kept[name] = value
        if self.trial:
            kept["trial"] = list(self.trial)
        if self.useless:
            kept["useless"] = [list(bar) for bar in self.useless]
        return kept


def _newest_rate(window: tuple[Slice, ...]) -> float | None:
    """Return the arrival rate of the newest stretch of the window."""
    if len(window) < 2 or window[-1].arrived is None or window[-2].arrived is None:
        return None
    gap = window[-1].at - window[-2].at
    return (window[-1].arrived - window[-2].arrived) / gap if gap > 0 else None


def _of_batches(batches: Any) -> Slice:
    """Return the sums over a snapshot's batches."""
    return Slice(
        at=0.0,
        arrived=None,
        committed=None,
        batches=len(batches),
        records=sum(b.input_records for b in batches),
        duration_seconds=sum(b.duration_seconds for b in batches),
        records_squared=sum(b.input_records * b.input_records for b in batches),
        records_times_seconds=math.fsum(b.input_records * b.duration_seconds for b in batches),
    )
