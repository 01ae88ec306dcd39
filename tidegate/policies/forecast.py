"""`forecast`: proactive: the size for the load that is coming, from a time series of the arrival rate.

    coming   = largest arrival rate forecast within `horizon_seconds`, `widths` spreads above the expected one
    needed   = max(coming, arriving now) / `target_utilization` + lag / `drain_seconds`
    size     = ceil( needed / capacity per slot )

- coming, needed: records/s. lag: records. capacity per slot: measured, records/s; taken to be the same at each size.
- The forecast is exponential smoothing with a damped trend and, with `season_seconds`, a profile of the season (below);
  a spread is the usual error of a forecast one step ahead.

A smaller size is asked for only when it would do for `shrink_margin` more. Until `learning_steps` values are known, the
present arrival rate is the forecast.

Source: F. Lombardi et al., "PASCAL: An architecture for proactive auto-scaling of distributed services", FGCS 2019: a
model of the load and one of the performance (`forecast_rules`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import JsonValue

from tidegate.engine.case import Case, Proposal
from tidegate.engine.options import option
from tidegate.engine.reasons import Reason
from tidegate.events.decision import Figure
from tidegate.policies.forecast_rules import Model, Smoothing, ahead, learn
from tidegate.policies.shared import EVIDENCE_MISSING, IDLE, ceil_at, clamp, expect, measure, restart_seconds


@dataclass(frozen=True, slots=True)
class ForecastOptions:
    """Options of `forecast`."""

    window_seconds: float = option(120.0, "window of rates and capacity", unit="s", gt=0)
    step_seconds: float = option(60.0, "time one value of the series stands for", unit="s", gt=0)
    horizon_seconds: float = option(300.0, "how far ahead is looked", unit="s", gt=0, le=86_400)
    season_seconds: float | None = option(
        None, "length of a season, such as 86400 for a day; no season when absent", unit="s", gt=0
    )
    season_buckets: int = option(24, "parts a season is cut into", ge=2, le=48)
    widths: float = option(1.5, "spreads above the expected value to be ready for", ge=0)
    level_weight: float = option(0.4, "α: weight of the newest value in the level", unit="share", gt=0, le=1)
    trend_weight: float = option(0.1, "β: weight of the newest change in the trend", unit="share", ge=0, le=1)
    season_weight: float = option(0.3, "γ: weight of the newest value in the season", unit="share", ge=0, le=1)
    damping: float = option(0.9, "φ: how much of a trend goes on from step to step", unit="share", gt=0, le=1)
    learning_steps: int = option(5, "values the forecast needs", unit="steps", ge=2)
    target_utilization: float = option(0.7, "busy share of time to aim at", unit="share", gt=0, le=1)
    drain_seconds: float = option(300.0, "time in which lag is to be worked off", unit="s", gt=0)
    shrink_margin: float = option(0.1, "how much more load a smaller size must bear", unit="share", ge=0)
    assumed_restart_seconds: float = option(
        30.0, "restart time in the decision's expectation until one was measured", unit="s", ge=0
    )


class Forecast:
    """A forecast of the load, by smoothing with trend and season, over the capacity of a slot."""

    name: ClassVar[str] = "forecast"
    Options: ClassVar[type] = ForecastOptions
    reasons: ClassVar[Mapping[str, Reason]] = {
        "EVIDENCE_MISSING": EVIDENCE_MISSING,
        "IDLE": IDLE,
        "FORECAST_NEEDS": Reason(
            "{arrival:.0f} records/s arrive, up to {coming:.0f}/s are expected within {horizon:.0f} s and {lag} wait, "
            "which asks for a size of {wanted}"
        ),
        "FORECAST_FITS": Reason(
            "{arrival:.0f} records/s arrive and up to {coming:.0f}/s are expected; {current} slots are the right size"
        ),
        "FORECAST_MARGIN": Reason("a size of {wanted} would just do, and is not enough for a little more load"),
    }

    def __init__(self, options: ForecastOptions) -> None:
        self.options = options
        self.weights = Smoothing(options.level_weight, options.trend_weight, options.season_weight, options.damping)

    @property
    def window_seconds(self) -> float:
        """The window of rates."""
        return self.options.window_seconds

    def propose(self, case: Case) -> Proposal:
        """Return the size for the load forecast."""
        o, current = self.options, case.current
        model, kept = self._learned(case)
        found = measure(case, kept)
        if isinstance(found, Proposal):
            return found
        coming = found.arrival
        if model is not None and model.steps >= o.learning_steps:
            coming = max(coming, self._coming(case, model))
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
        restart = restart_seconds(case, o.assumed_restart_seconds)
        return Proposal(size, code, numbers, expect(case, size, restart), kept)

    def ordered(self, case: Case, proposal: Proposal, final: int) -> dict[str, JsonValue]:  # noqa: ARG002
        """Keep the model: what arrives does not depend on the size."""
        return dict(proposal.memory or case.state.memory)

    def _learned(self, case: Case) -> tuple[Model | None, dict[str, JsonValue]]:
        """Return (model, memory) with the value of the step that has ended, if one has."""
        memory = case.state.memory
        model, since = _recall(memory)
        arrived = case.state.window[-1].arrived if case.state.window else None
        if arrived is None or (
            since is not None and arrived >= since[1] and case.measured_at - since[0] < self.options.step_seconds - 1e-6
        ):
            return model, memory
        if since is None or arrived < since[1]:  # no step is under way, or the topic was made anew
            since = (case.measured_at, arrived)
        else:
            value = (arrived - since[1]) / (case.measured_at - since[0])
            buckets = self.options.season_buckets if self.options.season_seconds else 0
            model = learn(model, value, self._bucket(case.measured_at), buckets, self.weights)
            since = (case.measured_at, arrived)
        kept: dict[str, JsonValue] = {"since": list(since)}
        if model is not None:
            season: list[JsonValue] = [round(value, 3) for value in model.season]
            kept["model"] = [round(model.level, 6), round(model.trend, 6), round(model.spread, 6), season, model.steps]
        return _recall(kept)[0], kept

    def _coming(self, case: Case, model: Model) -> float:
        o = self.options
        steps = max(1, ceil_at(o.horizon_seconds / o.step_seconds))
        buckets = [self._bucket(case.measured_at + step * o.step_seconds) for step in range(1, steps + 1)]
        return ahead(model, steps, buckets, o.damping, o.widths)

    def _bucket(self, at: float) -> int:
        """Return the season's bucket of an instant, counted from the epoch."""
        season = self.options.season_seconds
        if season is None:
            return 0
        return min(self.options.season_buckets - 1, int(at % season / season * self.options.season_buckets))


def _recall(memory: Mapping[str, Any]) -> tuple[Model | None, tuple[float, int] | None]:
    """Return (model, when the step under way began and what had arrived by then)."""
    kept, since = memory.get("model"), memory.get("since")
    began = None if since is None else (since[0], since[1])
    if kept is None:
        return None, began
    level, trend, spread, season, steps = kept
    return Model(level, trend, spread, tuple(season), steps), began
