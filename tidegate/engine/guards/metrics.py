"""Complete and fresh metrics: Tidegate does not act on what is unknown or old. A missing value is never a zero."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from tidegate.engine.case import Case
from tidegate.engine.guard import ALL_CHANGES, Guard, Verdict
from tidegate.engine.options import option
from tidegate.engine.reasons import Reason
from tidegate.events.snapshot import Part

NEEDED = (Part.END_OFFSETS, Part.COMMITTED_OFFSETS, Part.PROGRESS, Part.JOB_STATE)
"""Without these no policy can judge the job; tasks and capacity have guards of their own."""


@dataclass(frozen=True, slots=True)
class Fresh(Guard):
    """Stops a change based on a snapshot that is too old, or from the future."""

    name: ClassVar = "fresh"
    covers: ClassVar = ALL_CHANGES
    waits: ClassVar = True
    binds_manual: ClassVar = True
    reasons: ClassVar[Mapping[str, Reason]] = {
        "SNAPSHOT_STALE": Reason(
            "the measurements are {age_seconds:.0f} s old, and the limit is {limit_seconds:.0f} s",
            "the decider or the collector is behind: check their lag and their logs",
        ),
        "SNAPSHOT_FROM_FUTURE": Reason(
            "the measurements are {ahead_seconds:.0f} s in the future",
            "the clocks of collector and decider disagree: check time synchronization",
        ),
    }

    max_age_seconds: float = option(
        30.0, "how old a snapshot may be, in addition to its interval, before it is ignored", unit="s", gt=0
    )
    max_ahead_seconds: float = option(
        10.0, "how far a snapshot's time may be ahead of the decider's clock", unit="s", ge=0
    )

    def dispose(self, size: int, case: Case) -> Verdict | None:
        """Compare the snapshot's time with the decider's clock."""
        age = case.decided_at - case.measured_at
        limit = self.max_age_seconds + case.snapshot.interval_seconds
        if age > limit:
            return Verdict(case.current, "SNAPSHOT_STALE", {"age_seconds": age, "limit_seconds": limit})
        if -age > self.max_ahead_seconds:
            return Verdict(case.current, "SNAPSHOT_FROM_FUTURE", {"ahead_seconds": -age})
        return None


@dataclass(frozen=True, slots=True)
class Complete(Guard):
    """Stops a change while offsets, batch progress or the state of the job are missing."""

    name: ClassVar = "complete"
    waits: ClassVar = True
    reasons: ClassVar[Mapping[str, Reason]] = {
        "METRICS_INCOMPLETE": Reason(
            "some measurements are missing ({missing}), and nothing changes without them",
            "check the collector's log for the source that does not answer",
        ),
    }

    def dispose(self, size: int, case: Case) -> Verdict | None:
        """Name what is missing."""
        absent = [part.value for part in case.snapshot.missing if part in NEEDED]
        return Verdict(case.current, "METRICS_INCOMPLETE", {"missing": ", ".join(absent)}) if absent else None
