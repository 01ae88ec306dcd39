"""Policies, found by name: ours and anyone's, through the entry point group `tidegate.policies`."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points

from engine.case import Policy
from engine.policies.flip271 import Flip271
from engine.reasons import register

GROUP = "tidegate.policies"
OURS: tuple[type[Policy], ...] = (Flip271,)


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
