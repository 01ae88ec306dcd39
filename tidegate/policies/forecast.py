"""`forecast`: the size for the load that is coming, from a forecast of the arrival rate.

    coming   = largest arrival rate forecast within `horizon_seconds`, `widths` spreads above the expected one
    needed   = max(coming, arriving now) / `target_utilization` + lag / `drain_seconds`
    size     = ceil( needed / capacity per slot )

- coming, needed: records/s. lag: records. capacity per slot: as measured, records/s, assumed equal at every size; while
  nothing is processed, as measured last.
- The forecast is exponential smoothing with a damped trend. With `season_seconds` it also has a profile of the season.
  A spread is the usual error of a forecast one step ahead.

The job scales down only if the smaller size could carry `shrink_margin` more. Until `learning_steps` values are known,
the forecast is the current arrival rate.

When to choose it: The load has a trend or a daily pattern, and restarts take so long that scaling up late hurts.

Set first: `season_seconds`, and a `horizon_seconds` longer than a restart.

Details: `forecast_rules`.

Source: F. Lombardi et al., "PASCAL: An architecture for proactive auto-scaling of distributed services", FGCS 2019: a
model of the load and one of the performance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Final, NamedTuple

from tidegate.engine.case import Case, Proposal
from tidegate.engine.options import option
from tidegate.engine.reasons import Reason
from tidegate.events.decision import Figure
from tidegate.policies.forecast_rules import Model, Smoothing, ahead, learn
from tidegate.policies.rule import Rule
from tidegate.policies.sizing import EVIDENCE_MISSING, IDLE, Workload, ceil_at, clamp, measure

MOST_STEPS: Final = 1440
"""How many steps a forecast may look ahead: a day in steps of a minute."""


@dataclass(frozen=True, slots=True)
class ForecastOptions:
    """Options of `forecast`."""

    window_seconds: float = option(120.0, "window of rates and capacity", unit="s", gt=0)
    step_seconds: float = option(60.0, "length of one step of the forecast", unit="s", ge=1)
    horizon_seconds: float = option(300.0, "how far the forecast looks ahead", unit="s", gt=0, le=86_400)
    season_seconds: float | None = option(
        None, "length of a season, such as 86400 for a day; absent: no season", unit="s", gt=0
    )
    season_buckets: int = option(24, "number of parts of a season", ge=2, le=48)
    widths: float = option(1.5, "spreads above the expected load to be ready for", ge=0)
    level_weight: float = option(0.4, "α: weight of the newest value in the level", unit="share", gt=0, le=1)
    trend_weight: float = option(0.1, "β: weight of the newest change in the trend", unit="share", ge=0, le=1)
    season_weight: float = option(0.3, "γ: weight of the newest value in the season", unit="share", ge=0, le=1)
    damping: float = option(0.9, "φ: share of the trend that continues from step to step", unit="share", gt=0, le=1)
    learning_steps: int = option(5, "values needed for a forecast", unit="steps", ge=2)
    target_utilization: float = option(0.7, "utilization to aim at", unit="share", gt=0, le=1)
    drain_seconds: float = option(300.0, "time to work off the lag in", unit="s", gt=0)
    shrink_margin: float = option(0.1, "how much more load a smaller size must be able to carry", unit="share", ge=0)
    assumed_restart_seconds: float = option(30.0, "restart time to expect until one is measured", unit="s", ge=0)

    def __post_init__(self) -> None:
        """Refuse more steps than a decision has time for: all of them are computed at each snapshot."""
        if self.horizon_seconds > MOST_STEPS * self.step_seconds:
            least = self.horizon_seconds / MOST_STEPS
            raise ValueError(
                f"step_seconds: must be at least {least:g}, a {MOST_STEPS}th of horizon_seconds,"
                f" found {self.step_seconds:g}"
            )


class ForecastMemory(NamedTuple):
    """What `forecast` remembers."""

    model: Model | None = None
    since: tuple[float, int] | None = None
    """When the step under way started, epoch seconds, and what had arrived by then."""
    per_slot: float | None = None
    """Capacity of a slot when it was measured last, records/s."""


class Forecast(Rule[ForecastOptions, ForecastMemory]):
    """A forecast of the load, with trend and season, divided by the capacity of a slot."""

    name: ClassVar[str] = "forecast"
    Options: ClassVar[type] = ForecastOptions
    Memory: ClassVar[type] = ForecastMemory
    reasons: ClassVar[Mapping[str, Reason]] = {
        "EVIDENCE_MISSING": EVIDENCE_MISSING,
        "IDLE": IDLE,
        "FORECAST_NEEDS": Reason(
            "{arrival:rate} records/s arrive, up to {coming:rate}/s are expected within {horizon:.0f} s and {lag} are "
            "waiting, which calls for a size of {wanted}"
        ),
        "FORECAST_FITS": Reason(
            "{current} slots are the right size for {arrival:rate} records/s, with up to {coming:rate}/s expected"
        ),
        "FORECAST_MARGIN": Reason("a size of {wanted} would be just enough, and too small for a little more load"),
    }

    def __init__(self, options: ForecastOptions) -> None:
        super().__init__(options)
        self.weights = Smoothing(options.level_weight, options.trend_weight, options.season_weight, options.damping)

    def propose(self, case: Case, memory: ForecastMemory) -> Proposal[ForecastMemory]:
        """Return the size for the forecast load."""
        o, current = self.options, case.current
        memory = self._learned(case, memory)
        model = memory.model
        found = measure(case, memory)
        foreseen = 0.0 if model is None or model.steps < o.learning_steps else self._coming(case, model)
        if isinstance(found, Proposal):
            if found.code != "IDLE" or foreseen <= 0 or memory.per_slot is None:
                return found
            found = Workload(0.0, 0, memory.per_slot * current, memory.per_slot)
        memory = memory._replace(per_slot=found.per_slot)
        coming = max(found.arrival, foreseen)
        needed = coming / o.target_utilization + found.lag / o.drain_seconds
        wanted = size = clamp(case, ceil_at(needed / found.per_slot))
        code = "FORECAST_FITS" if size == current else "FORECAST_NEEDS"
        if size < current:
            size = min(current, clamp(case, ceil_at(needed * (1 + o.shrink_margin) / found.per_slot)))
            code = "FORECAST_MARGIN" if size == current else code
        numbers: dict[str, Figure] = {
            "arrival": found.arrival,
            "coming": coming,
            "horizon": o.horizon_seconds,
            "lag": found.lag,
            "wanted": wanted if code == "FORECAST_MARGIN" else size,
            "current": current,
        }
        return self._proposal(case, size, code, numbers, memory)

    def _learned(self, case: Case, memory: ForecastMemory) -> ForecastMemory:
        """Return the memory with the value of the step that has ended, if one has."""
        model, since, per_slot = memory
        arrived = case.state.window[-1].arrived if case.state.window else None
        if arrived is None or (
            since is not None and arrived >= since[1] and case.measured_at - since[0] < self.options.step_seconds - 1e-6
        ):
            return memory
        if since is not None and arrived >= since[1]:  # else no step is under way, or the topic was created again
            value = (arrived - since[1]) / (case.measured_at - since[0])
            buckets = self.options.season_buckets if self.options.season_seconds else 0
            model = _rounded(learn(model, value, self._bucket(case.measured_at), buckets, self.weights))
        return ForecastMemory(model, (case.measured_at, arrived), per_slot)

    def _coming(self, case: Case, model: Model) -> float:
        o = self.options
        # A step ends with a snapshot, so it lasts whole intervals.
        interval = case.snapshot.interval_seconds
        seconds = max(1, ceil_at(o.step_seconds / interval)) * interval
        steps = max(1, ceil_at(o.horizon_seconds / seconds))
        buckets = [self._bucket(case.measured_at + step * seconds) for step in range(1, steps + 1)]
        return ahead(model, steps, buckets, o.damping, o.widths)

    def _bucket(self, at: float) -> int:
        """Return the season's bucket of an instant, counted from the epoch."""
        season = self.options.season_seconds
        if season is None:
            return 0
        return min(self.options.season_buckets - 1, int(at % season / season * self.options.season_buckets))


def _rounded(model: Model) -> Model:
    """Return the model with as many digits as are worth keeping."""
    return replace(
        model,
        level=round(model.level, 6),
        trend=round(model.trend, 6),
        spread=round(model.spread, 6),
        season=tuple(round(value, 3) for value in model.season),
    )
