"""Behaviour of `hpa`, `keda` and `varga`: what the Horizontal Pod Autoscaler does between a wish and a size.

    wish -> stabilization windows -> limits of the rate -> the spec's bounds

- Stabilization: growth goes to the smallest size wanted in the last `stabilization_up_seconds`, a reduction to the
  largest wanted in the last `stabilization_down_seconds`. So a short dip of the load gives nothing back.
- Limits: in any period at most so many slots, or so many percent, are added or taken away. Where both are set,
  `…_select` says which holds: `Max` the one that allows more, `Min` less; `Disabled` forbids the direction.

Source: kubernetes/kubernetes `pkg/controller/podautoscaler`. Options and defaults are those of its `behavior`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from tidegate.engine.case import Case
from tidegate.engine.options import option
from tidegate.engine.reasons import Reason
from tidegate.policies import hpa_rules as rules
from tidegate.policies.shared import clamp

LIMITED = Reason("the size wanted is {wanted}, and the rate policies allow {size} for now")
STABILIZED = Reason("the size wanted is {wanted}, and {size} is what the stabilization window allows")


@dataclass(frozen=True, slots=True)
class BehaviourOptions:
    """Options of the autoscaler's behaviour, with the defaults of Kubernetes."""

    tolerance_up: float = option(0.1, "share above the target that leaves the size alone", unit="share", ge=0)
    tolerance_down: float = option(0.1, "share below the target that leaves the size alone", unit="share", ge=0, le=1)
    stabilization_up_seconds: float = option(0.0, "growth follows the smallest wish of this time", unit="s", ge=0)
    stabilization_down_seconds: float = option(
        300.0, "reduction follows the largest wish of this time", unit="s", ge=0, le=3600
    )
    limits: str = option(
        "behavior",
        "`behavior`: the limits below; `legacy`: growth to at most max(2 · size, 4), no limit on reduction",
        choices=("behavior", "legacy"),
    )
    up_pods: int = option(4, "most slots added in a period; 0: no such limit", unit="slots", ge=0)
    up_percent: int = option(100, "most growth in a period; 0: no such limit", unit="%", ge=0)
    up_period_seconds: float = option(15.0, "period of the limits on growth", unit="s", gt=0, le=1800)
    up_select: str = option("Max", "which limit on growth holds", choices=("Max", "Min", "Disabled"))
    down_pods: int = option(0, "most slots taken away in a period; 0: no such limit", unit="slots", ge=0)
    down_percent: int = option(100, "most reduction in a period; 0: no such limit", unit="%", ge=0, le=100)
    down_period_seconds: float = option(15.0, "period of the limits on reduction", unit="s", gt=0, le=1800)
    down_select: str = option("Max", "which limit on reduction holds", choices=("Max", "Min", "Disabled"))


@dataclass(frozen=True, slots=True)
class Behaved:
    """A size after the behaviour, the code of what bent the wish ("" for nothing), and the memory from now on."""

    size: int
    bent: str
    memory: dict[str, JsonValue]


def behave(case: Case, wanted: int, options: BehaviourOptions) -> Behaved:
    """Return what the behaviour makes of a raw wish at the case's time."""
    memory: Mapping[str, Any] = case.state.memory
    now, current = case.measured_at, case.current
    # The first recommendation of all is the present size (`recordInitialRecommendation`).
    highs = _kept(memory.get("highs", [(now, current)]), now - options.stabilization_down_seconds)
    lows = _kept(memory.get("lows", [(now, current)]), now - options.stabilization_up_seconds)
    stable = rules.stabilize(
        current,
        wanted,
        [*highs, *lows],
        now,
        # Each queue is cut to its own window already, and answers for its own extreme only: a low is never above a
        # high of the same window, and one outside the other's window is not the extreme asked for.
        up_window=options.stabilization_up_seconds,
        down_window=options.stabilization_down_seconds,
    )
    events = [(at, change) for at, change in memory.get("events", ())]
    size = clamp(case, _limited(current, stable, events, now, options))
    bent = "HPA_STABILIZED" if stable != wanted else ""
    if size != clamp(case, stable):
        bent = "HPA_LIMITED"
    while highs and highs[-1][1] <= wanted:
        highs.pop()
    while lows and lows[-1][1] >= wanted:
        lows.pop()
    kept: dict[str, JsonValue] = {}
    if options.stabilization_down_seconds > 0:
        kept["highs"] = [list(record) for record in [*highs, (now, wanted)]]
    if options.stabilization_up_seconds > 0:
        kept["lows"] = [list(record) for record in [*lows, (now, wanted)]]
    period = max(options.up_period_seconds, options.down_period_seconds)
    if recent := [list(event) for event in events if event[0] > now - period]:
        kept["events"] = recent  # type: ignore[assignment]
    return Behaved(size, bent, kept)


def remember_event(case: Case, memory: Mapping[str, Any], final: int) -> dict[str, JsonValue]:
    """Return the memory after a command for `final` slots, which the rate policies count."""
    return {**memory, "events": [*memory.get("events", ()), [case.measured_at, final - case.current]]}


def _kept(records: Sequence[Sequence[Any]], after: float) -> list[tuple[float, int]]:
    return [(at, size) for at, size in records if at > after]


def _limited(
    current: int, wanted: int, events: Sequence[tuple[float, int]], now: float, options: BehaviourOptions
) -> int:
    if wanted > current:
        if options.limits == "legacy":
            return min(wanted, rules.legacy_up_limit(current))
        policies = _policies(options.up_pods, options.up_percent, options.up_period_seconds)
        limit = rules.scale_up_limit(current, events, policies, options.up_select, now)
        return min(wanted, limit) if policies or options.up_select == "Disabled" else wanted
    if wanted < current and options.limits == "behavior":
        policies = _policies(options.down_pods, options.down_percent, options.down_period_seconds)
        limit = rules.scale_down_limit(current, events, policies, options.down_select, now)
        return max(wanted, limit) if policies or options.down_select == "Disabled" else wanted
    return wanted


def _policies(pods: int, percent: int, period: float) -> list[rules.RatePolicy]:
    policies = []
    if pods:
        policies.append(rules.RatePolicy("Pods", pods, period))
    if percent:
        policies.append(rules.RatePolicy("Percent", percent, period))
    return policies
