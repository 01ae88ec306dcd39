"""What `doctor` has found: one line of its report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "warn", "fail"]
NAMED = 3
"""How many jobs of one master, file system or warning are named."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    verdict: Verdict
    what: str
    found: str
    remedy: str = ""


def probe(what: str, look: Callable[[], str], remedy: str) -> Finding:
    """Return what `look` tells; if it raises, its error and the remedy."""
    try:
        return Finding("ok", what, look())
    except Exception as error:  # noqa: BLE001  (whatever is wrong belongs in the report)
        return Finding("fail", what, str(error).splitlines()[0] if str(error) else type(error).__name__, remedy)
