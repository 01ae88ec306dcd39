"""Tunings: options found for a policy by `tidegate.lab.tune` on training loads that no table is scored on.

The loads are two made ones and a real one (`launch_day.csv`), all moved off the grid of snapshots as those scored are.
Tunings stand in `tunings.json`, written by the tuner: per policy its options, the options of guards, the loads they
were found on, and the seed of the search, so that each can be found again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files

from tidegate.events.wire import Scalar


@dataclass(frozen=True, slots=True)
class Tuning:
    """How a policy is run."""

    options: dict[str, Scalar]
    guards: dict[str, dict[str, Scalar]]
    trained_on: str = ""


DEFAULTS = Tuning({}, {})
"""A policy with its own defaults."""


def tunings() -> dict[str, Tuning]:
    """Return the tunings found, by policy."""
    path = files("tidegate.lab") / "tunings.json"
    if not path.is_file():
        return {}
    raw = json.loads(path.read_text(encoding="utf-8"))
    return {
        policy: Tuning(found["options"], found["guards"], found["trained_on"]) for policy, found in sorted(raw.items())
    }
