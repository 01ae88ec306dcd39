"""Which packages of this environment a part of Tidegate may import."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import cache
from importlib.metadata import packages_distributions

_distributions = cache(packages_distributions)


def normal(name: str) -> str:
    """Return a distribution's name as package indexes spell it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def modules_without(allowed: Collection[str]) -> set[str]:
    """Return the top-level modules installed here that none of these distributions has."""
    return {top for top, owners in _distributions().items() if not set(allowed) & set(map(normal, owners))}
