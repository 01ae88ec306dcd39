"""Ablation: a policy with each of its mechanisms off in turn, on the same pairs.

A mechanism is switched off by options or, where there is none, by a constant of a module. What it is worth is the mean
difference per pair to the whole policy, with the standard error of that difference: pairs differ far more from each
other than two versions of a policy on one pair.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from tidegate.events.wire import Scalar
from tidegate.lab.compare import PairCost, standard_error
from tidegate.lab.suite import UnknownName
from tidegate.lab.tunings import Setting, Tuning

LEVEL = 0.005
"""A pair got dearer or cheaper if its cost changed by more than this multiple of the attainable plan's."""


@dataclass(frozen=True, slots=True)
class Mechanism:
    """One mechanism of a policy, and what switches it off."""

    name: str
    options: dict[str, Scalar] = field(default_factory=dict)
    constants: dict[str, float] = field(default_factory=dict)
    """`module.NAME` to its value without the mechanism."""


TIDE = "tidegate.engine.tide"
MECHANISMS: dict[str, tuple[Mechanism, ...]] = {
    "tide": (
        Mechanism("trend", constants={f"{TIDE}.forecast.DAMPING_SECONDS": 1.0}),
        Mechanism("memory of the level", constants={f"{TIDE}.policy.LEVEL_SECONDS": 120.0}),
        Mechanism("memory of residuals", constants={f"{TIDE}.forecast.RESIDUAL_SECONDS": 1.0}),
        Mechanism("short memory", constants={f"{TIDE}.contest.SHORT_BIAS": 0.0}),
        Mechanism("forecast interval", {"confidence": 0.0}),
        Mechanism("cycles of pulses", constants={f"{TIDE}.pulses.MIN_CYCLES": 1e9}),
        Mechanism("gaps in arrivals", constants={f"{TIDE}.forecast.OUTAGE_SECONDS": 0.0}),
        Mechanism("long horizon", {"horizon_seconds": 300.0}),
        Mechanism("catching up", {"catch_up": False}),
        Mechanism("headroom", {"headroom": 0.0}),
        Mechanism("headroom for slow batches", constants={f"{TIDE}.rollout.HEADROOM_PER_VARIATION": 0.0}),
        Mechanism("slow batches shortened", constants={f"{TIDE}.variation.SLOW": 1e9}),
        Mechanism("shifts of the cost", constants={f"{TIDE}.shift.STREAK": 10**9}),
        Mechanism("lag headroom", constants={f"{TIDE}.rollout.LAG_HEADROOM": 0.0}),
        Mechanism("extrapolation margin", constants={f"{TIDE}.rollout.EXTRAPOLATION_MARGIN": 0.0}),
        Mechanism("switching threshold", constants={f"{TIDE}.policy.SWITCHING_THRESHOLD": 0.0}),
        Mechanism("learned threshold", constants={f"{TIDE}.memory.CAUTION_MAX": 1.0}),
        Mechanism("sizes enough for a while", constants={f"{TIDE}.rollout.BRIEF_WORTH": 1e9}),
        Mechanism("place of the slowest task", constants={f"{TIDE}.capacity.UNEQUAL": 1e9}),
        Mechanism("overhead told by events", constants={f"{TIDE}.capacity.OVERHEAD_BATCHES": 1e-9}),
        Mechanism("overhead told by batches", constants={f"{TIDE}.variation.NOISY": 1e-9}),
        Mechanism("warm-up of a run", constants={f"{TIDE}.memory.WARM_UP_SECONDS": 0.0}),
        Mechanism("batches to see first", constants={f"{TIDE}.policy.MIN_BATCHES": 1}),
        Mechanism("long window", constants={f"{TIDE}.policy.WINDOW_SECONDS": 60.0}),
    ),
}
"""The mechanisms by policy."""


@dataclass(frozen=True, slots=True)
class Worth:
    """What the cost is without a mechanism."""

    name: str
    more: float
    """Mean cost without it less that of the whole policy; above 0: it pays."""
    error: float
    """Standard error of that difference."""
    dearer: int
    """Pairs that cost more without it."""
    cheaper: int
    late_seconds: float
    changes: int


def settings_of(policy: str) -> list[Setting]:
    """Return a policy as it is, and without each of its mechanisms. Raises `UnknownName` for one without a table."""
    if policy not in MECHANISMS:
        raise UnknownName(f"the mechanisms of policy {policy!r} are not known, those of {', '.join(MECHANISMS)} are")
    whole = Setting(policy, policy, Tuning({}, {}))
    return [
        whole,
        *(
            Setting(f"{policy} without {each.name}", policy, Tuning(dict(each.options), {}, constants=each.constants))
            for each in MECHANISMS[policy]
        ),
    ]


def worths(policy: str, outcomes: Sequence[PairCost]) -> list[Worth]:
    """Return what each mechanism is worth, the most valuable first."""
    found: dict[str, dict[int, PairCost]] = {}
    for each in outcomes:
        found.setdefault(each.label, {})[each.pair.seed] = each
    whole, rows = found[policy], []
    for mechanism in MECHANISMS[policy]:
        without = found[f"{policy} without {mechanism.name}"]
        more = [without[seed].ratio - whole[seed].ratio for seed in whole]
        rows.append(
            Worth(
                name=mechanism.name,
                more=statistics.fmean(more),
                error=standard_error(more),
                dearer=sum(each > LEVEL for each in more),
                cheaper=sum(each < -LEVEL for each in more),
                late_seconds=sum(each.late_seconds for each in without.values()),
                changes=sum(each.changes for each in without.values()),
            )
        )
    return sorted(rows, key=lambda row: -row.more)
