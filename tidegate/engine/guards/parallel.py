"""What bounds the use of more slots: state partitions, stages of one task, skewed tasks and partitions.

A stage lasts at least as long as its slowest task, and at least as long as its work spread over all slots. Once the
slowest task is the longer of both, more slots change nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from operator import sub
from typing import ClassVar

from tidegate.engine.case import Case, Verdict
from tidegate.engine.options import option
from tidegate.events.decision import Figure


@dataclass(frozen=True, slots=True)
class StatePartitionsOptions:
    """Whether state partitions bound the size."""

    lifted: bool = option(False, "stages without state keep more slots busy, so state partitions do not bound the job")


class StatePartitions:
    """Caps growth at the number of state partitions, which the checkpoint's first batch fixed."""

    name: ClassVar[str] = "state_partitions"
    Options: ClassVar[type] = StatePartitionsOptions
    waits: ClassVar[bool] = False
    binds_manual: ClassVar[bool] = True
    covers: ClassVar[frozenset[str]] = frozenset({"rescale"})

    def __init__(self, options: StatePartitionsOptions) -> None:
        self.options = options

    def dispose(self, wish: int, case: Case) -> Verdict | None:
        """Cap growth at the state partitions; a job already above them is not shrunk for it."""
        partitions = case.evidence.state_partitions
        if self.options.lifted or partitions is None or wish <= case.current or wish <= partitions:
            return None
        return Verdict(max(case.current, partitions), "STATE_PARTITIONS", {"partitions": partitions})


@dataclass(frozen=True, slots=True)
class SingleTaskOptions:
    """How much of the time may go into stages of one task."""

    max_share: float = option(
        0.5, "share of stage time in stages of one task from which nothing is added", unit="share", gt=0, le=1
    )


class SingleTask:
    """Stops growth of a job whose time goes into stages of one task, such as a global aggregation."""

    name: ClassVar[str] = "single_task"
    Options: ClassVar[type] = SingleTaskOptions
    waits: ClassVar[bool] = False
    binds_manual: ClassVar[bool] = False
    covers: ClassVar[frozenset[str]] = frozenset({"rescale"})

    def __init__(self, options: SingleTaskOptions) -> None:
        self.options = options

    def dispose(self, wish: int, case: Case) -> Verdict | None:
        """Compare the share of stage time with the limit."""
        share = case.evidence.single_task_share
        if wish <= case.current or share is None or share < self.options.max_share:
            return None
        return Verdict(case.current, "SINGLE_TASK", {"share": share})


@dataclass(frozen=True, slots=True)
class SkewOptions:
    """What counts as skew."""

    task_ratio: float = option(
        3.0, "slowest task over the median one, in the busiest stage, from which nothing is added", gt=1
    )
    partition_share: float = option(
        0.5, "share of the lag in one partition from which nothing is added", unit="share", gt=0, le=1
    )
    min_partitions: int = option(4, "with fewer partitions the share is not looked at", ge=2)
    min_lag_seconds: float = option(
        10.0, "with less lag, in seconds of work, the share is not looked at", unit="s", ge=0
    )


class Skew:
    """Stops growth when one task, or one partition, sets the pace."""

    name: ClassVar[str] = "skew"
    Options: ClassVar[type] = SkewOptions
    waits: ClassVar[bool] = False
    binds_manual: ClassVar[bool] = False
    covers: ClassVar[frozenset[str]] = frozenset({"rescale"})

    def __init__(self, options: SkewOptions) -> None:
        self.options = options

    def dispose(self, wish: int, case: Case) -> Verdict | None:
        """Look at the busiest stage's tasks, then at the lag per partition."""
        if wish <= case.current:
            return None
        return self._tasks(case) or self._partitions(case)

    def _tasks(self, case: Case) -> Verdict | None:
        skew = case.evidence.task_skew
        if skew is None or skew < self.options.task_ratio or not case.snapshot.stages:
            return None
        stage = max(case.snapshot.stages, key=lambda stage: (stage.busy_seconds, stage.name))
        if stage.slowest_task_seconds * stage.runs < stage.busy_seconds / case.current:
            return None  # the other tasks still keep the slots busy longer than the slowest one
        return Verdict(case.current, "TASK_SKEW", {"skew": skew, "tasks": stage.tasks})

    def _partitions(self, case: Case) -> Verdict | None:
        o, e = self.options, case.evidence
        if e.lag_seconds is None or e.lag_seconds < o.min_lag_seconds or not e.lag_records or e.lag_records < 0:
            return None
        ends = list(chain.from_iterable(source.end_offsets for source in case.snapshot.sources))
        done = list(chain.from_iterable(source.committed_offsets for source in case.snapshot.sources))
        if len(ends) < o.min_partitions or None in ends or None in done:
            return None
        share = max(map(sub, ends, done)) / e.lag_records
        if share < o.partition_share:
            return None
        numbers: dict[str, Figure] = {"share": min(1.0, share), "partitions": len(ends)}
        return Verdict(case.current, "PARTITION_SKEW", numbers)
