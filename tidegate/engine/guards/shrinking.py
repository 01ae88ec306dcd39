"""When a size may shrink: not soon after a growth, and only once fewer slots have been wanted for a while."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidegate.engine.case import Case, Verdict
from tidegate.engine.options import option


@dataclass(frozen=True, slots=True)
class ScaleDownGraceOptions:
    """How long after a growth nothing is taken away."""

    seconds: float = option(
        0.0, "time after a growth in which nothing is taken away, whatever the cooldown", unit="s", ge=0
    )


class ScaleDownGrace:
    """Stops a reduction soon after a growth."""

    name: ClassVar[str] = "scale_down_grace"
    Options: ClassVar[type] = ScaleDownGraceOptions
    waits: ClassVar[bool] = True
    binds_manual: ClassVar[bool] = False
    covers: ClassVar[frozenset[str]] = frozenset({"rescale"})

    def __init__(self, options: ScaleDownGraceOptions) -> None:
        self.options = options

    def dispose(self, wish: int, case: Case) -> Verdict | None:
        """Compare the age of the last growth with the grace period."""
        growth, limit = case.state.history.growth, self.options.seconds
        if wish >= case.current or growth is None or case.decided_at - growth.at >= limit:
            return None
        age = max(0.0, case.decided_at - growth.at)
        return Verdict(case.current, "SCALE_DOWN_GRACE", {"age_seconds": age, "limit_seconds": limit})


@dataclass(frozen=True, slots=True)
class ScaleDownWindowOptions:
    """How long fewer slots must have been wanted."""

    seconds: float = option(0.0, "time for which fewer slots must be wanted without a break", unit="s", ge=0)


class ScaleDownWindow:
    """Puts a reduction off until fewer slots were wanted for a while, then follows the largest wish meanwhile."""

    name: ClassVar[str] = "scale_down_window"
    Options: ClassVar[type] = ScaleDownWindowOptions
    waits: ClassVar[bool] = True
    binds_manual: ClassVar[bool] = False
    covers: ClassVar[frozenset[str]] = frozenset({"rescale"})

    def __init__(self, options: ScaleDownWindowOptions) -> None:
        self.options = options

    def dispose(self, wish: int, case: Case) -> Verdict | None:
        """Ask the history since when fewer slots are wanted."""
        shrink, limit = case.state.history.shrink, self.options.seconds
        if wish >= case.current or shrink is None or limit <= 0:
            return None
        since, largest = shrink
        if case.measured_at - since < limit:
            numbers = {"age_seconds": case.measured_at - since, "limit_seconds": limit}
            return Verdict(case.current, "SCALE_DOWN_WINDOW", numbers)
        return Verdict(largest, "SCALE_DOWN_LARGEST", {"largest": largest}) if largest > wish else None
