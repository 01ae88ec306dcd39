"""The engine with every policy installed in this environment, ours and third parties' alike."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import EntryPoint, entry_points
from itertools import groupby
from operator import attrgetter
from typing import Any

from tidegate.engine import decide
from tidegate.engine.engine import Engine
from tidegate.engine.third_party import NoPolicy, checked
from tidegate.engine.tide.policy import Tide

log = logging.getLogger(__name__)

GROUP = "tidegate.policies"
"""The entry point group in which a distribution names its policies."""


@cache
def engine() -> Engine:
    """Return the engine, made once per process.

    A policy of another package that cannot be used is named in a warning, and in the error of each spec that asks for
    it; all other policies are there.
    """
    points = sorted(entry_points(group=GROUP), key=attrgetter("name"))
    policies: dict[str, Any] = {point.name: point.load() for point in points if _is_ours(point)}
    unusable: dict[str, str] = {}
    others = [point for point in points if not _is_ours(point)]
    for name, named in groupby(others, key=attrgetter("name")):
        same = list(named)
        try:
            policies[name] = _third_party(same, policies)
        except (Exception, SystemExit) as error:  # noqa: BLE001  (another package's code, which may raise anything)
            packages = " and ".join(map(_package_of, same))
            unusable[name] = f"policy {name!r} of {packages} cannot be used: {_reason_of(error)}"
            log.warning("%s", unusable[name])
    return Engine(policies, unusable)


def _is_ours(point: EntryPoint) -> bool:
    return point.dist is None or point.dist.name == "tidegate"


def _package_of(point: EntryPoint) -> str:
    return "an unknown package" if point.dist is None else f"{point.dist.name} {point.dist.version}"


def _third_party(points: Sequence[EntryPoint], policies: dict[str, Any]) -> type[Any]:
    """Return the policy of one name, if the engine takes it together with `policies`."""
    point = points[0]
    if point.name in {Tide.name, *policies}:
        raise ValueError("Tidegate has a policy of that name; rename this one, or uninstall its package")
    if len(points) > 1:
        raise ValueError("they have the same name; uninstall all but one")
    policy = checked(point.load(), point.name, _package_of(point))
    Engine({**policies, point.name: policy})
    return policy


def _reason_of(error: BaseException) -> str:
    """Return what a package's code raised, or what was found wrong with it."""
    return str(error) if type(error) in {ValueError, NoPolicy} else f"{type(error).__name__}: {error}"


def is_compiled() -> bool:
    """Return whether the engine was compiled when it was installed. The decisions are the same."""
    return str(decide.__file__).endswith(tuple(EXTENSION_SUFFIXES))


def engine_name() -> str:
    """Return which engine this is, such as "engine 15, compiled"."""
    return f"engine {decide.ENGINE_VERSION}{', compiled' if is_compiled() else ''}"
