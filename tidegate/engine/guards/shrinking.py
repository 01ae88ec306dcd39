"""When a job may shrink: not soon after a scale-up, and only once fewer slots have been proposed for a while."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from tidegate.engine.case import Case
from tidegate.engine.guard import Guard, Verdict
from tidegate.engine.options import option
from tidegate.engine.reasons import Reason


@dataclass(frozen=True, slots=True)
class ScaleDownGrace(Guard):
    """Stops a scale-down soon after a scale-up."""

    name: ClassVar = "scale_down_grace"
    waits: ClassVar = True
    reasons: ClassVar[Mapping[str, Reason]] = {
        "SCALE_DOWN_GRACE": Reason(
            "the last scale-up was {age_seconds:.0f} s ago and nothing is removed for {limit_seconds:.0f} s after one"
        ),
    }

    seconds: float = option(
        0.0, "time after a scale-up in which nothing is removed, whatever the cooldown", unit="s", ge=0
    )

    def dispose(self, size: int, case: Case) -> Verdict | None:
        """Compare the age of the last scale-up with the grace period."""
        growth = case.state.history.growth
        if size >= case.current or growth is None or case.decided_at - growth.at >= self.seconds:
            return None
        age = max(0.0, case.decided_at - growth.at)
        return Verdict(case.current, "SCALE_DOWN_GRACE", {"age_seconds": age, "limit_seconds": self.seconds})


@dataclass(frozen=True, slots=True)
class ScaleDownWindow(Guard):
    """Puts a scale-down off until fewer slots have been proposed for a while, then takes the largest such proposal."""

    name: ClassVar = "scale_down_window"
    waits: ClassVar = True
    reasons: ClassVar[Mapping[str, Reason]] = {
        "SCALE_DOWN_WINDOW": Reason(
            "fewer slots have been proposed for only {age_seconds:.0f} s of the required {limit_seconds:.0f} s"
        ),
        "SCALE_DOWN_LARGEST": Reason("{largest} is the largest size proposed in the scale-down window"),
    }

    seconds: float = option(0.0, "time for which fewer slots must be proposed without a break", unit="s", ge=0)

    def dispose(self, size: int, case: Case) -> Verdict | None:
        """Check since when fewer slots have been proposed."""
        shrink, limit = case.state.history.shrink, self.seconds
        if size >= case.current or shrink is None or limit <= 0:
            return None
        since, largest = shrink
        age = case.measured_at - since
        if age < limit:
            return Verdict(case.current, "SCALE_DOWN_WINDOW", {"age_seconds": age, "limit_seconds": limit})
        return Verdict(largest, "SCALE_DOWN_LARGEST", {"largest": largest}) if largest > size else None
