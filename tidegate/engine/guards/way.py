"""Whether the job's size can be changed at all, and what a stop will do to a long batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from tidegate.engine.case import Case
from tidegate.engine.guard import Guard, Verdict
from tidegate.engine.reasons import Reason
from tidegate.engine.ways import closed_by, way_to
from tidegate.events.result import CHECKPOINT_ELSEWHERE
from tidegate.events.way import Way


@dataclass(frozen=True, slots=True)
class PossibleWay(Guard):
    """Stops a change of size that is possible in no way that the spec allows.

    A job that keeps its checkpoint elsewhere than its spec says is changed in place only: a new run would not find the
    checkpoint, and would start from scratch.
    """

    name: ClassVar = "way"
    binds_manual: ClassVar = True
    reasons: ClassVar[Mapping[str, Reason]] = {
        "CHECKPOINT_ELSEWHERE": Reason(
            "the job keeps its checkpoint elsewhere than in {location}, as its spec says, so a new run would lose it",
            "set `application.checkpoint_location` to where the job keeps its checkpoint (the result of its last start "
            "names the path), or remove the location from the script and start the job again",
        ),
        "NO_WAY": Reason(
            "the size cannot be changed: the spec allows only {allowed}, and that is not possible",
            "add `restart` to `application.rescale`",
        ),
    }

    def dispose(self, size: int, case: Case) -> Verdict | None:
        """Check whether a way is left."""
        if way_to(case, size) is not None:
            return None
        application = case.spec.application
        closed = {closed_by(case.state, case.spec, way, case.decided_at) for way in Way}
        if CHECKPOINT_ELSEWHERE in closed:
            return Verdict(case.current, "CHECKPOINT_ELSEWHERE", {"location": application.checkpoint_location})
        return Verdict(case.current, "NO_WAY", {"allowed": ", ".join(application.ways)})


@dataclass(frozen=True, slots=True)
class StopDeadline(Guard):
    """Puts a scale-up off that would break a batch shortly before its end, and says when one breaks a longer one.

    A stop that breaks the running batch loses all work on it. So a restart to more slots waits until that batch ends
    before the stop deadline, if that takes no longer than the deadline itself.
    """

    name: ClassVar = "stop_deadline"
    waits: ClassVar = True
    reasons: ClassVar[Mapping[str, Reason]] = {
        "BATCH_ENDS_FIRST": Reason(
            "the running batch will last another {left_seconds:.0f} s and a stop waits {limit_seconds:.0f} s at most, "
            "so the restart waits until it does not break the batch any more"
        ),
        "BATCH_OUTLASTS_STOP": Reason(
            "a micro-batch lasts {batch_seconds:.0f} s and a stop waits {limit_seconds:.0f} s at most, "
            "so the restart breaks the running batch, and it runs again",
            "raise `application.stop_deadline_seconds`, or set Spark's `maxOffsetsPerTrigger` so that batches are "
            "shorter",
        ),
    }

    def dispose(self, size: int, case: Case) -> Verdict | None:
        """Compare the typical batch with the deadline."""
        batch, limit = case.evidence.batch_seconds, case.spec.application.stop_deadline_seconds
        if way_to(case, size) is not Way.RESTART:
            return None
        left = _left_seconds(case)
        if size > case.current and left is not None and limit < left <= 2.0 * limit:
            return Verdict(case.current, "BATCH_ENDS_FIRST", {"left_seconds": left, "limit_seconds": limit})
        if batch is None or batch <= limit:
            return None
        return Verdict(size, "BATCH_OUTLASTS_STOP", {"batch_seconds": batch, "limit_seconds": limit})


def _left_seconds(case: Case) -> float | None:
    """Return how long the running batch will still last by its tasks, or by the batches before; None if not known."""
    left, batch, running = case.evidence.running_left_seconds, case.evidence.batch_seconds, case.running_seconds
    return left if left is not None or batch is None or running is None else batch - running
