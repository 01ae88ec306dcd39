"""Metrics complete and fresh: what is unknown or old is not acted on. A missing figure is never a zero."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidegate.engine.case import Case, Verdict
from tidegate.engine.options import NoOptions, option
from tidegate.events.snapshot import Part

NEEDED = (Part.END_OFFSETS, Part.COMMITTED_OFFSETS, Part.PROGRESS, Part.JOB_STATE)
"""Without these no policy can judge; tasks and capacity have guards of their own."""


@dataclass(frozen=True, slots=True)
class FreshOptions:
    """How old measurements may be."""

    max_age_seconds: float = option(
        30.0, "age past which a snapshot is not acted on, in addition to its interval", unit="s", gt=0
    )
    max_ahead_seconds: float = option(10.0, "how far ahead of the decider's clock its time may be", unit="s", ge=0)


class Fresh:
    """Stops a change on a snapshot that is too old, or from the future."""

    name: ClassVar[str] = "fresh"
    Options: ClassVar[type] = FreshOptions
    waits: ClassVar[bool] = True
    binds_manual: ClassVar[bool] = True
    covers: ClassVar[frozenset[str]] = frozenset({"start", "rescale", "stop"})

    def __init__(self, options: FreshOptions) -> None:
        self.options = options

    def dispose(self, wish: int, case: Case) -> Verdict | None:
        """Compare the snapshot's time with the decider's clock."""
        age = case.decided_at - case.measured_at
        limit = self.options.max_age_seconds + case.snapshot.interval_seconds
        if age > limit:
            return Verdict(case.current, "SNAPSHOT_STALE", {"age_seconds": age, "limit_seconds": limit})
        if -age > self.options.max_ahead_seconds:
            return Verdict(case.current, "SNAPSHOT_FROM_FUTURE", {"ahead_seconds": -age})
        return None


class Complete:
    """Stops a change while offsets, batch progress or the state of the job are missing."""

    name: ClassVar[str] = "complete"
    Options: ClassVar[type] = NoOptions
    waits: ClassVar[bool] = True
    binds_manual: ClassVar[bool] = False
    covers: ClassVar[frozenset[str]] = frozenset({"rescale"})

    def __init__(self, options: NoOptions) -> None:
        self.options = options

    def dispose(self, wish: int, case: Case) -> Verdict | None:
        """Name what is missing."""
        absent = [part.value for part in case.snapshot.missing if part in NEEDED]
        return Verdict(case.current, "METRICS_INCOMPLETE", {"missing": ", ".join(absent)}) if absent else None
