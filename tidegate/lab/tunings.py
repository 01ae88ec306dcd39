"""Tunings: options that `tidegate.lab.tune` found for a policy, on training loads that no table scores.

The loads are two synthetic ones and a real one (`launch_day.csv`), shifted off the grid of snapshots like the scored
ones. The tuner writes `tunings.json`: per policy its options, its guards' options, the training loads and the seed of
the search, so that each tuning can be reproduced.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files

from tidegate.events.wire import Scalar


@dataclass(frozen=True, slots=True)
class Tuning:
    """The options of a policy and its guards."""

    options: dict[str, Scalar]
    guards: dict[str, dict[str, Scalar]]
    trained_on: str = ""


DEFAULTS = Tuning({}, {})
"""A policy with its own defaults."""


def tunings() -> dict[str, Tuning]:
    """Return the tunings by policy."""
    path = files("tidegate.lab") / "tunings.json"
    if not path.is_file():
        return {}
    raw = json.loads(path.read_text(encoding="utf-8"))
    return {
        policy: Tuning(found["options"], found["guards"], found["trained_on"]) for policy, found in sorted(raw.items())
    }
