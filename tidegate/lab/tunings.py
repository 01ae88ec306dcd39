"""Tunings: options that `tidegate.lab.tune` found for a policy, on training loads that no table scores.

The loads are two synthetic ones and a real one (`launch_day.csv`), shifted off the grid of snapshots like the scored
ones. The tuner writes `tunings.json`: per policy its options, its guards' options, the training loads and the seed of
the search, so that each tuning can be reproduced.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from importlib.resources import files

from tidegate.events.wire import Scalar


@dataclass(frozen=True, slots=True)
class Tuning:
    """The options of a policy and its guards, and what a table of the lab changes besides."""

    options: dict[str, Scalar]
    guards: dict[str, dict[str, Scalar]]
    trained_on: str = ""
    constants: Mapping[str, float] = field(default_factory=dict)
    """`module.NAME` to the value that the constant has while a run is simulated."""


DEFAULTS = Tuning({}, {})
"""A policy with its own defaults."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A policy with options, under a label."""

    label: str
    policy: str
    tuning: Tuning


class FinalConstant(ValueError):
    """A constant is `Final`: a compiled module has it in its machine code, and would not see another value."""


@contextmanager
def with_constants(constants: Mapping[str, float]) -> Iterator[None]:
    """Give constants of modules other values for a while; raises `FinalConstant` for one that is `Final`."""
    before = []
    for name in constants:
        module_name, _, constant = name.rpartition(".")
        module = import_module(module_name)
        if "Final" in getattr(module, "__annotations__", {}).get(constant, ""):
            raise FinalConstant(f"{name} is Final, so a compiled engine would not see another value")
        before.append((module, constant, getattr(module, constant)))
    try:
        for (module, constant, _), value in zip(before, constants.values(), strict=True):
            setattr(module, constant, value)
        yield
    finally:
        for module, constant, value in before:
            setattr(module, constant, value)


def tunings() -> dict[str, Tuning]:
    """Return the tunings by policy."""
    path = files("tidegate.lab") / "tunings.json"
    if not path.is_file():
        return {}
    raw = json.loads(path.read_text(encoding="utf-8"))
    return {
        policy: Tuning(found["options"], found["guards"], found["trained_on"]) for policy, found in sorted(raw.items())
    }
