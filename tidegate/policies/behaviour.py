"""What `hpa`, `keda` and `varga` do between a proposed size and a decision, as the Horizontal Pod Autoscaler does it.

    proposed size -> stabilization windows -> rate policies -> bounds of the spec

A size outside the bounds of the spec first goes exactly to the bound, whatever is proposed.

**Stabilization.** A scale-up goes to the smallest size proposed in the last `stabilization_up_seconds`, a scale-down to
the largest proposed in the last `stabilization_down_seconds`. A short dip of the load therefore removes no slots.

**Rate policies** limit how fast the size changes. Each direction takes any number of them, as the `behavior` of a
HorizontalPodAutoscaler does. A policy is written `VALUE TYPE/PERIOD`, and `;` separates several:

    up_policies: 4 Pods/15s; 100 Percent/15s

This allows 4 more slots in any 15 s, or twice the size. A pod is a slot. `up_select` says which policy applies: `Max`
the one that allows the largest change, `Min` the smallest. `Disabled` forbids the direction, and an empty list does not
limit it. `down_policies` and `down_select` do the same for scale-downs.

**Legacy.** With `limits: legacy`, every change, also a scale-up, goes to the largest size proposed in the last
`stabilization_down_seconds`, and a scale-up to at most max(2 · size, 4). That is what Kubernetes does without a
`behavior`.

| in a HorizontalPodAutoscaler | in `policy_options` |
| --- | --- |
| `scaleUp.policies: [{type: Pods, value: 4, periodSeconds: 15}]` | `up_policies: 4 Pods/15s` |
| `scaleUp.selectPolicy: Min` | `up_select: Min` |
| `scaleDown.stabilizationWindowSeconds: 300` | `stabilization_down_seconds: 300` |

Source: kubernetes/kubernetes `pkg/controller/podautoscaler`. Options and defaults are those of its `behavior`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from tidegate.engine.case import Case, Proposal
from tidegate.engine.options import BadOption, option
from tidegate.engine.reasons import Reason
from tidegate.events.decision import Figure
from tidegate.policies import hpa_rules as rules
from tidegate.policies.rule import Rule, RuleOptions
from tidegate.policies.sizing import clamp

_ONE = r"[1-9][0-9]{0,8} (?:Pods|Percent)/(?:[1-9][0-9]{0,2}|1[0-7][0-9]{2}|1800)s"
RATE_POLICIES = rf"^\s*(?:{_ONE}\s*(?:;\s*{_ONE}\s*)*)?$"
"""The rate policies that Kubernetes permits, as a pattern for the JSON Schema: its longest period is 1800 s."""

BEHAVIOUR_REASONS = {
    "HPA_OUT_OF_BOUNDS": Reason("a size outside the spec's bounds first goes to the bound, whatever the metrics say"),
    "HPA_LIMITED": Reason("the desired size is {wanted}, and the rate policies allow {size} for now"),
    "HPA_STABILIZED": Reason("the desired size is {wanted}, and the stabilization window allows {size}"),
}


@dataclass(frozen=True, slots=True)
class BehaviourOptions(RuleOptions):
    """Options of the autoscaler's behaviour, with the defaults of Kubernetes."""

    tolerance_up: float = option(0.1, "share above the target that does not change the size", unit="share", ge=0)
    tolerance_down: float = option(
        0.1, "share below the target that does not change the size", unit="share", ge=0, le=1
    )
    stabilization_up_seconds: float = option(
        0.0, "a scale-up goes to the smallest size proposed in this time", unit="s", ge=0, le=3600
    )
    stabilization_down_seconds: float = option(
        300.0, "a scale-down goes to the largest size proposed in this time", unit="s", ge=0, le=3600
    )
    limits: str = option(
        "behavior",
        "`behavior`: stabilization windows and rate policies; `legacy`: what Kubernetes does without a `behavior`",
        choices=("behavior", "legacy"),
    )
    up_policies: str = option(
        "4 Pods/15s; 100 Percent/15s", "rate policies of scale-ups, `VALUE TYPE/PERIOD; ...`", pattern=RATE_POLICIES
    )
    up_select: str = option("Max", "which rate policy of scale-ups applies", choices=("Max", "Min", "Disabled"))
    down_policies: str = option(
        "100 Percent/15s", "rate policies of scale-downs, `VALUE TYPE/PERIOD; ...`", pattern=RATE_POLICIES
    )
    down_select: str = option("Max", "which rate policy of scale-downs applies", choices=("Max", "Min", "Disabled"))


class BehaviourMemory(NamedTuple):
    """What the behaviour remembers. Times are epoch seconds."""

    highs: tuple[tuple[float, int], ...] | None = None
    """(when, size) of the recommendations that may be the largest of their window, oldest first; None for none yet."""
    lows: tuple[tuple[float, int], ...] | None = None
    """The same for the smallest."""
    events: tuple[tuple[float, int], ...] = ()
    """(when, change in slots) of the commands that the rate policies count."""


class Behaviour:
    """The behaviour, with its rate policies parsed."""

    def __init__(self, options: BehaviourOptions) -> None:
        """Raise `BadOption` for a rate policy that cannot be read."""
        self.options = options
        self.up = _rate_policies("up_policies", options.up_policies)
        self.down = _rate_policies("down_policies", options.down_policies)

    def apply(self, case: Case, memory: BehaviourMemory, proposed: int) -> tuple[int, str, BehaviourMemory]:
        """Return (size, code of what changed the proposed one or "", memory from now on)."""
        o, now, current = self.options, case.measured_at, case.current
        cutoff = now - o.stabilization_down_seconds
        if o.limits == "legacy":  # there a record that is exactly as old as the window counts
            cutoff = math.nextafter(cutoff, -math.inf)
        # The first recommendation of all is the current size (`recordInitialRecommendation`).
        first = ((now, current),)
        highs = _kept(first if memory.highs is None else memory.highs, cutoff)
        lows = _kept(first if memory.lows is None else memory.lows, now - o.stabilization_up_seconds)
        size = clamp(case, current)
        if size != current:
            limited_by = "HPA_OUT_OF_BOUNDS"  # `reconcileAutoscaler` asks no metric then, so nothing is recommended
        else:
            size, limited_by = self._behaved(case, memory, proposed, highs, lows)
            while highs and highs[-1][1] <= proposed:
                highs.pop()
            while lows and lows[-1][1] >= proposed:
                lows.pop()
            highs.append((now, proposed))
            lows.append((now, proposed))
        kept = memory._replace(
            highs=tuple(highs) if o.stabilization_down_seconds > 0 else None,
            lows=tuple(lows) if o.stabilization_up_seconds > 0 else None,
        )
        return size, limited_by, kept

    def ordered(self, case: Case, memory: BehaviourMemory, final: int) -> BehaviourMemory:
        """Return the memory after a command for `final` slots, which the rate policies count (`storeScaleEvent`).

        It replaces the last event of its own direction that is older than the longest period of that direction.
        """
        now, change = case.measured_at, final - case.current
        policies = self.up if change > 0 else self.down
        oldest = now - max([policy.period_seconds for policy in policies], default=0.0)
        events = list(memory.events)
        outdated = [i for i, (at, was) in enumerate(events) if at < oldest and (was > 0) == (change > 0)]
        place = outdated[-1] if outdated else len(events)
        events[place : place + 1] = [(now, change)]
        return memory._replace(events=tuple(events))

    def _behaved(
        self,
        case: Case,
        memory: BehaviourMemory,
        proposed: int,
        highs: Sequence[tuple[float, int]],
        lows: Sequence[tuple[float, int]],
    ) -> tuple[int, str]:
        """Return (size, code of what changed the proposed one or "") from the recommendations of the windows."""
        o, now, current = self.options, case.measured_at, case.current
        if o.limits == "legacy":
            stable = max([proposed] + [size for _, size in highs])
        else:
            stable = rules.stabilize(
                current,
                proposed,
                [*highs, *lows],
                now,
                # Both queues are already cut to their own windows, so one list will do: a low is never above a high of
                # the same window, and a record outside the other window cannot be its extreme.
                up_window=o.stabilization_up_seconds,
                down_window=o.stabilization_down_seconds,
            )
        size = clamp(case, self._limited(current, stable, memory.events, now))
        if size != clamp(case, stable):
            return size, "HPA_LIMITED"
        return size, "HPA_STABILIZED" if size != clamp(case, proposed) else ""

    def _limited(self, current: int, proposed: int, events: Sequence[tuple[float, int]], now: float) -> int:
        """Return the proposed size, or as far towards it as the rate policies allow."""
        o = self.options
        if proposed > current:
            if o.limits == "legacy":
                return min(proposed, rules.legacy_up_limit(current))
            if self.up or o.up_select == "Disabled":
                return min(proposed, rules.scale_up_limit(current, events, self.up, o.up_select, now))
        elif proposed < current and o.limits == "behavior" and (self.down or o.down_select == "Disabled"):
            return max(proposed, rules.scale_down_limit(current, events, self.down, o.down_select, now))
        return proposed


B = TypeVar("B", bound=BehaviourOptions)


class BehavingRule(Rule[B, BehaviourMemory]):
    """A rule whose proposed sizes go through the behaviour; it remembers nothing else."""

    def __init__(self, options: B) -> None:
        super().__init__(options)
        self.behaviour = Behaviour(options)

    def ordered(
        self,
        case: Case,
        memory: BehaviourMemory,
        proposal: Proposal[BehaviourMemory],  # noqa: ARG002
        final: int,
    ) -> BehaviourMemory:
        """Remember the scale event."""
        return self.behaviour.ordered(case, memory, final)

    def _behaved(
        self, case: Case, proposed: int, code: str, numbers: dict[str, Figure], memory: BehaviourMemory
    ) -> Proposal[BehaviourMemory]:
        """Return the proposal of what the behaviour makes of a size."""
        size, limited_by, memory = self.behaviour.apply(case, memory, proposed)
        return self._proposal(case, size, limited_by or code, numbers | {"size": size}, memory)


def _kept(records: Sequence[tuple[float, int]], after: float) -> list[tuple[float, int]]:
    return [record for record in records if record[0] > after]


def _rate_policies(name: str, text: str) -> tuple[rules.RatePolicy, ...]:
    """Return the rate policies of an option, or raise `BadOption`."""
    items = [item.strip() for item in text.split(";")] if text.strip() else []
    return tuple(_rate_policy(name, item) for item in items)


def _rate_policy(name: str, item: str) -> rules.RatePolicy:
    if not re.fullmatch(_ONE, item):
        raise BadOption(
            f"scaling.policy_options.{name}: must be VALUE TYPE/PERIOD with a value of at least 1, the type Pods or "
            f"Percent, and a period from 1 to 1800 s, such as '4 Pods/15s; 100 Percent/15s', found {item!r}"
        )
    value, kind, period = re.split("[ /]", item.removesuffix("s"))
    return rules.RatePolicy(kind, int(value), int(period))
