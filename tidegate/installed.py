"""The engine with every policy installed in this environment, ours and third parties' alike."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from typing import Any

from tidegate.engine.engine import Engine

GROUP = "tidegate.policies"
"""The entry point group in which a distribution names its policies."""


@cache
def engine() -> Engine:
    """Return the engine, made once per process."""
    policies: dict[str, Any] = {point.name: point.load() for point in entry_points(group=GROUP)}
    return Engine(policies)
