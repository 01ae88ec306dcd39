"""How large a change and a size may be: steps, the spec's bounds, source partitions, whole executors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from tidegate.engine.case import Case
from tidegate.engine.guard import STARTS_AND_RESCALES, Guard, Verdict
from tidegate.engine.options import option
from tidegate.engine.reasons import Reason


@dataclass(frozen=True, slots=True)
class Steps(Guard):
    """Limits how many slots are added or removed at a time: to whole executors, and never to less than one."""

    name: ClassVar = "steps"
    waits: ClassVar = True
    reasons: ClassVar[Mapping[str, Reason]] = {
        "STEP_UP_LIMIT": Reason("at most {limit} slots may be added at a time"),
        "STEP_DOWN_LIMIT": Reason("at most {limit} slots may be removed at a time"),
    }

    up: int | None = option(None, "most slots added at a time; no limit when absent", unit="slots", ge=1)
    down: int | None = option(None, "most slots removed at a time; no limit when absent", unit="slots", ge=1)

    def dispose(self, size: int, case: Case) -> Verdict | None:
        """Clamp the difference."""
        cores = case.spec.application.executor_cores
        if self.up is not None and size > case.current + (up := max(self.up // cores, 1) * cores):
            return Verdict(case.current + up, "STEP_UP_LIMIT", {"limit": up})
        if self.down is not None and size < case.current - (down := max(self.down // cores, 1) * cores):
            return Verdict(case.current - down, "STEP_DOWN_LIMIT", {"limit": down})
        return None


@dataclass(frozen=True, slots=True)
class Bounds(Guard):
    """Keeps a size within the spec's minimum and maximum, and brings a job that is outside them back inside.

    It is asked three times: before all other guards, so that a job outside its bounds is changed even if nothing else
    asks for it; in its place among the guards; and after them, since they may have left less than the minimum. Guards
    that judge what a change is worth have no say on the way back inside.
    """

    name: ClassVar = "bounds"
    covers: ClassVar = STARTS_AND_RESCALES
    binds_manual: ClassVar = True
    reasons: ClassVar[Mapping[str, Reason]] = {
        "AT_MAXIMUM": Reason(
            "the spec allows at most {limit} slots", "raise `max_parallelism` if the job may use more"
        ),
        "AT_MINIMUM": Reason("the spec requires at least {limit} slots"),
        "MINIMUM_OUT_OF_REACH": Reason(
            "that is below the spec's minimum of {limit} slots",
            "lower `min_parallelism`, or lift the limit that is named before it",
        ),
    }

    def enter(self, size: int, case: Case) -> Verdict | None:
        """Bring a job inside that would stay outside the bounds, or be changed in the other direction."""
        verdict = self.dispose(size, case) if case.current else None
        if verdict is None or size == 0:
            return None
        turns = (verdict.size - case.current) * (size - case.current) < 0
        return verdict if turns or size == case.current else None

    def needed(self, size: int, case: Case) -> int:
        """Return as much of a change to a size as brings the job inside the bounds; the current size if it is.

        A job that is below its minimum because the pool gave fewer slots than ordered need not be changed again for it.
        """
        current, least, most = case.current, case.spec.scaling.min_parallelism, case.spec.scaling.max_parallelism
        if current < least:
            if case.state.changes.shortfall is not None:
                return current
            return max(current, min(size, least))
        return min(current, max(size, most)) if current > most else current

    def dispose(self, size: int, case: Case) -> Verdict | None:
        """Clamp the size."""
        scaling = case.spec.scaling
        if size > scaling.max_parallelism:
            return Verdict(scaling.max_parallelism, "AT_MAXIMUM", {"limit": scaling.max_parallelism})
        if size < scaling.min_parallelism:
            return Verdict(scaling.min_parallelism, "AT_MINIMUM", {"limit": scaling.min_parallelism})
        return None

    def leave(self, size: int, case: Case) -> Verdict | None:
        """Change nothing if the guards have left less than the minimum. A stop is no size."""
        if size in (case.current, 0) or size >= (least := case.spec.scaling.min_parallelism):
            return None
        return Verdict(case.current, "MINIMUM_OUT_OF_REACH", {"limit": least})


@dataclass(frozen=True, slots=True)
class SourcePartitions(Guard):
    """Caps growth at the number of source partitions: Spark reads a partition with one task.

    A job whose later stages have more tasks, for example after a shuffle, may use as many slots as the widest of them.
    Spark's `minPartitions` or `maxRecordsPerPartition` (Structured Streaming + Kafka guide) lifts the limit before any
    stage was seen; a job that sets one of them says so with `lifted`.
    """

    name: ClassVar = "partitions"
    binds_manual: ClassVar = True
    reasons: ClassVar[Mapping[str, Reason]] = {
        "SOURCE_PARTITIONS": Reason(
            "the sources have {partitions} partitions, no stage has more than {limit} tasks, and a slot without a task "
            "has nothing to do",
            "add partitions to the source topic, or set Spark's `minPartitions` to split them",
        ),
    }

    lifted: bool = option(
        False, "the job sets minPartitions or maxRecordsPerPartition, so partitions do not limit its size"
    )

    def dispose(self, size: int, case: Case) -> Verdict | None:
        """Cap growth at the tasks of the widest stage."""
        return None if self.lifted else at_widest_stage(size, case, case.evidence.partitions, "SOURCE_PARTITIONS")


def at_widest_stage(size: int, case: Case, partitions: int | None, code: str) -> Verdict | None:
    """Cap growth at the partitions, or at the tasks of a wider stage; a job that already has more slots keeps them."""
    if partitions is None or size <= case.current:
        return None
    limit = max(partitions, case.state.widest_stage or 0)
    if size <= limit:
        return None
    return Verdict(max(case.current, limit), code, {"partitions": partitions, "limit": limit})


@dataclass(frozen=True, slots=True)
class ExecutorCores(Guard):
    """Rounds a size up to whole executors, also on the way down, so that it never falls short."""

    name: ClassVar = "executors"
    covers: ClassVar = STARTS_AND_RESCALES
    binds_manual: ClassVar = True
    reasons: ClassVar[Mapping[str, Reason]] = {
        "EXECUTOR_CORES": Reason("an executor has {cores} cores, so the size must be a multiple of {cores}"),
    }

    def dispose(self, size: int, case: Case) -> Verdict | None:
        """Round up to a multiple of the executor's cores, never above the maximum."""
        cores = case.spec.application.executor_cores
        if size % cores == 0:
            return None
        whole = min(-(-size // cores) * cores, case.spec.scaling.max_parallelism // cores * cores)
        if size < case.current < whole:
            whole = case.current  # nothing smaller is whole, and nothing larger was asked for
        return Verdict(whole, "EXECUTOR_CORES", {"cores": cores})
