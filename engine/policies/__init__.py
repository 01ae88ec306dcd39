"""Policies, found by name: ours and anyone's, through the entry point group `tidegate.policies`."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points

from engine.case import Policy
from engine.policies.cost import Cost
from engine.policies.flip271 import Flip271
from engine.policies.forecast import Forecast
from engine.policies.hpa import Hpa
from engine.policies.keda import Keda
from engine.policies.learning import Learning
from engine.policies.numaflow import Numaflow
from engine.policies.pid import Pid
from engine.policies.queueing import Queueing
from engine.policies.threshold import Threshold
from engine.policies.tide import Tide
from engine.policies.varga import Varga
from engine.reasons import register

GROUP = "tidegate.policies"
OURS: tuple[type[Policy], ...] = (
    Tide,
    Flip271,
    Numaflow,
    Varga,
    Hpa,
    Keda,
    Threshold,
    Pid,
    Queueing,
    Forecast,
    Cost,
    Learning,
)


class UnknownPolicy(ValueError):
    """No policy of that name is installed; the text lists those that are."""


@cache
def find(name: str) -> type[Policy]:
    """Return the policy class of a name, its reason codes registered, or raise `UnknownPolicy`."""
    found = {policy.name: policy for policy in OURS}.get(name) or _third_party(name)
    if found is None:
        raise UnknownPolicy(f"unknown policy {name!r}, known are {', '.join(names())}")
    register(found.reasons)
    return found


def names() -> list[str]:
    """Return the names of all installed policies, sorted."""
    return sorted({policy.name for policy in OURS} | {point.name for point in entry_points(group=GROUP)})


def _third_party(name: str) -> type[Policy] | None:
    for point in entry_points(group=GROUP):
        if point.name == name:
            loaded: type[Policy] = point.load()
            return loaded
    return None
