"""The engine with every policy installed in this environment, ours and third parties' alike."""

from __future__ import annotations

from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import entry_points
from typing import Any

from tidegate.engine import decide
from tidegate.engine.engine import Engine

GROUP = "tidegate.policies"
"""The entry point group in which a distribution names its policies."""


@cache
def engine() -> Engine:
    """Return the engine, made once per process."""
    policies: dict[str, Any] = {point.name: point.load() for point in entry_points(group=GROUP)}
    return Engine(policies)


def is_compiled() -> bool:
    """Return whether the engine was compiled when it was installed. The decisions are the same."""
    return str(decide.__file__).endswith(tuple(EXTENSION_SUFFIXES))


def engine_name() -> str:
    """Return which engine this is, such as "engine 15, compiled"."""
    return f"engine {decide.ENGINE_VERSION}{', compiled' if is_compiled() else ''}"
