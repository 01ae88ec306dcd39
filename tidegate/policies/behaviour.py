"""What `hpa`, `keda` and `varga` do between a proposed size and a decision, as the Horizontal Pod Autoscaler does it.

    proposed size -> stabilization windows -> rate policies -> bounds of the spec

**Stabilization.** A scale-up goes to the smallest size proposed in the last `stabilization_up_seconds`, a scale-down to
the largest proposed in the last `stabilization_down_seconds`. A short dip of the load therefore removes no slots.

**Rate policies** limit how fast the size changes. Each direction takes any number of them, as the `behavior` of a
HorizontalPodAutoscaler does. A policy is written `VALUE TYPE/PERIOD`, and `;` separates several:

    up_policies: 4 Pods/15s; 100 Percent/15s

This allows 4 more slots in any 15 s, or twice the size. A pod is a slot. `up_select` says which policy applies: `Max`
the one that allows the largest change, `Min` the smallest. `Disabled` forbids the direction, and an empty list does not
limit it. `down_policies` and `down_select` do the same for scale-downs.

| in a HorizontalPodAutoscaler | in `policy_options` |
| --- | --- |
| `scaleUp.policies: [{type: Pods, value: 4, periodSeconds: 15}]` | `up_policies: 4 Pods/15s` |
| `scaleUp.selectPolicy: Min` | `up_select: Min` |
| `scaleDown.stabilizationWindowSeconds: 300` | `stabilization_down_seconds: 300` |

Source: kubernetes/kubernetes `pkg/controller/podautoscaler`. Options and defaults are those of its `behavior`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from tidegate.engine.case import Case
from tidegate.engine.options import BadOption, option
from tidegate.engine.reasons import Reason
from tidegate.policies import hpa_rules as rules
from tidegate.policies.shared import clamp

RATE_POLICY = re.compile(r"([0-9]{1,9}) (Pods|Percent)/([0-9]{1,9})s")
MAX_PERIOD_SECONDS = 1800
"""The longest `periodSeconds` that Kubernetes permits."""

LIMITED = Reason("the desired size is {wanted}, and the rate policies allow {size} for now")
STABILIZED = Reason("the desired size is {wanted}, and the stabilization window allows {size}")


@dataclass(frozen=True, slots=True)
class BehaviourOptions:
    """Options of the autoscaler's behaviour, with the defaults of Kubernetes."""

    tolerance_up: float = option(0.1, "share above the target that does not change the size", unit="share", ge=0)
    tolerance_down: float = option(
        0.1, "share below the target that does not change the size", unit="share", ge=0, le=1
    )
    stabilization_up_seconds: float = option(
        0.0, "a scale-up goes to the smallest size proposed in this time", unit="s", ge=0
    )
    stabilization_down_seconds: float = option(
        300.0, "a scale-down goes to the largest size proposed in this time", unit="s", ge=0, le=3600
    )
    limits: str = option(
        "behavior",
        "`behavior`: the rate policies; `legacy`: a scale-up to at most max(2 · size, 4), no limit on scale-downs",
        choices=("behavior", "legacy"),
    )
    up_policies: str = option("4 Pods/15s; 100 Percent/15s", "rate policies of scale-ups, `VALUE TYPE/PERIOD; ...`")
    up_select: str = option("Max", "which rate policy of scale-ups applies", choices=("Max", "Min", "Disabled"))
    down_policies: str = option("100 Percent/15s", "rate policies of scale-downs, `VALUE TYPE/PERIOD; ...`")
    down_select: str = option("Max", "which rate policy of scale-downs applies", choices=("Max", "Min", "Disabled"))


@dataclass(frozen=True, slots=True)
class Behaved:
    """A size after the behaviour, the code of what changed it ("" for nothing), and the memory from now on."""

    size: int
    bent: str
    memory: dict[str, JsonValue]


class Behaviour:
    """The behaviour with its rate policies parsed."""

    def __init__(self, options: BehaviourOptions) -> None:
        """Raise `BadOption` for a rate policy that cannot be read."""
        self.options = options
        self.up = _rate_policies("up_policies", options.up_policies)
        self.down = _rate_policies("down_policies", options.down_policies)
        self.longest_period = max((policy.period_seconds for policy in self.up + self.down), default=0.0)

    def limited(self, current: int, proposed: int, events: Sequence[tuple[float, int]], now: float) -> int:
        """Return the proposed size, or as far as the rate policies allow."""
        o = self.options
        if proposed > current:
            if o.limits == "legacy":
                return min(proposed, rules.legacy_up_limit(current))
            if self.up or o.up_select == "Disabled":
                return min(proposed, rules.scale_up_limit(current, events, self.up, o.up_select, now))
        elif proposed < current and o.limits == "behavior" and (self.down or o.down_select == "Disabled"):
            return max(proposed, rules.scale_down_limit(current, events, self.down, o.down_select, now))
        return proposed


def behave(case: Case, wanted: int, behaviour: Behaviour) -> Behaved:
    """Return what the behaviour makes of a proposed size at the case's time."""
    options = behaviour.options
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
        # Both queues are already cut to their own windows, so one list will do: a low is never above a high of the same
        # window, and a record outside the other window cannot be its extreme.
        up_window=options.stabilization_up_seconds,
        down_window=options.stabilization_down_seconds,
    )
    events = [(at, change) for at, change in memory.get("events", ())]
    size = clamp(case, behaviour.limited(current, stable, events, now))
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
    if recent := [list(event) for event in events if event[0] > now - behaviour.longest_period]:
        kept["events"] = recent  # type: ignore[assignment]
    return Behaved(size, bent, kept)


def remember_event(case: Case, memory: Mapping[str, Any], final: int) -> dict[str, JsonValue]:
    """Return the memory after a command for `final` slots, which the rate policies count."""
    return {**memory, "events": [*memory.get("events", ()), [case.measured_at, final - case.current]]}


def _kept(records: Sequence[Sequence[Any]], after: float) -> list[tuple[float, int]]:
    return [(at, size) for at, size in records if at > after]


def _rate_policies(name: str, text: str) -> tuple[rules.RatePolicy, ...]:
    """Return the rate policies of an option, or raise `BadOption`."""
    items = [item.strip() for item in text.split(";")] if text.strip() else []
    return tuple(_rate_policy(name, item) for item in items)


def _rate_policy(name: str, item: str) -> rules.RatePolicy:
    found = RATE_POLICY.fullmatch(item)
    if found is None:
        raise BadOption(
            f"scaling.policy_options.{name}: must be VALUE TYPE/PERIOD with the type Pods or Percent, "
            f"such as '4 Pods/15s; 100 Percent/15s', found {item!r}"
        )
    value, kind, period = int(found[1]), found[2], int(found[3])
    if value < 1:
        raise BadOption(f"scaling.policy_options.{name}: the value must be at least 1, found {item!r}")
    if not 1 <= period <= MAX_PERIOD_SECONDS:
        raise BadOption(
            f"scaling.policy_options.{name}: the period must be from 1 to {MAX_PERIOD_SECONDS} s, found {item!r}"
        )
    return rules.RatePolicy(kind, value, period)
