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
from importlib.machinery import EXTENSION_SUFFIXES
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


class CompiledConstant(RuntimeError):
    """A compiled module has its constants in its machine code, where they cannot be changed."""


@contextmanager
def with_constants(constants: Mapping[str, float]) -> Iterator[None]:
    """Give constants of modules other values for a while; raises `CompiledConstant` if one cannot be changed."""
    places = [name.rpartition(".") for name in constants]
    modules = [import_module(module) for module, _, _ in places]
    for module in modules:
        if str(module.__file__).endswith(tuple(EXTENSION_SUFFIXES)):
            raise CompiledConstant(f"{module.__name__} is compiled, so no constant of it can be changed")
    before = [getattr(module, constant) for module, (_, _, constant) in zip(modules, places, strict=True)]
    try:
        for module, (_, _, constant), value in zip(modules, places, constants.values(), strict=True):
            setattr(module, constant, value)
        yield
    finally:
        for module, (_, _, constant), value in zip(modules, places, before, strict=True):
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
