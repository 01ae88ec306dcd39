"""What limits the use of more slots: state partitions, single-task stages, skewed tasks and partitions.

A stage lasts at least as long as its slowest task, and at least as long as its work spread over all slots. Once the
slowest task is the longer of the two and begins at once, more slots change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import sub
from typing import ClassVar

from tidegate.engine.case import Case
from tidegate.engine.guard import Guard, Verdict
from tidegate.engine.guards.limits import at_widest_stage
from tidegate.engine.options import option
from tidegate.engine.reasons import Reason
from tidegate.engine.total import total


@dataclass(frozen=True, slots=True)
class StatePartitions(Guard):
    """Caps growth at the number of state partitions, which the checkpoint's first batch fixed.

    A job whose stages without state have more tasks may use as many slots as the widest of them.
    """

    name: ClassVar = "state_partitions"
    binds_manual: ClassVar = True
    reasons: ClassVar[Mapping[str, Reason]] = {
        "STATE_PARTITIONS": Reason(
            "the state has {partitions} partitions, fixed by the checkpoint, no stage has more than {limit} tasks, "
            "and a slot without a task has nothing to do",
            "start from an empty checkpoint with a higher `spark.sql.shuffle.partitions`, or repartition the "
            "checkpoint's state offline",
        ),
    }

    lifted: bool = option(
        False, "stages without state keep more slots busy, so state partitions do not limit the job's size"
    )

    def dispose(self, size: int, case: Case) -> Verdict | None:
        """Cap growth at the tasks of the widest stage."""
        return None if self.lifted else at_widest_stage(size, case, case.evidence.state_partitions, "STATE_PARTITIONS")


@dataclass(frozen=True, slots=True)
class SingleTask(Guard):
    """Stops growth of a job whose time goes into single-task stages, such as a global aggregation."""

    name: ClassVar = "single_task"
    judges_worth: ClassVar = True
    reasons: ClassVar[Mapping[str, Reason]] = {
        "SINGLE_TASK": Reason(
            "{share:.0%} of the time goes into single-task stages, which more slots do not speed up",
            "a global aggregation runs in one task: group it by a key, or aggregate in two steps",
        ),
    }

    max_share: float = option(
        0.5, "share of stage time in single-task stages from which nothing is added", unit="share", gt=0, le=1
    )

    def dispose(self, size: int, case: Case) -> Verdict | None:
        """Compare the share of stage time with the limit."""
        share = case.evidence.single_task_share
        if size <= case.current or share is None or share < self.max_share:
            return None
        return Verdict(case.current, "SINGLE_TASK", {"share": share})


@dataclass(frozen=True, slots=True)
class Skew(Guard):
    """Stops growth when one task, or one partition, sets the pace of a batch.

    On n slots, a stage lasts max(slowest task, work / n). It is bound if its slowest task is the longer of the two. The
    guard compares the bound stages' share of the time with `max_share`. The partition with most of the lag will be the
    slowest task of the stages that read; where no stage was seen, the whole batch counts as one.
    """

    name: ClassVar = "skew"
    judges_worth: ClassVar = True
    reasons: ClassVar[Mapping[str, Reason]] = {
        "TASK_SKEW": Reason(
            "the slowest task takes {skew:.1f} times the median, and {bound:.0%} of the time goes into stages that "
            "last as long as their slowest task, which more slots do not speed up",
            "spread the data: salt hot keys, or split large groups",
        ),
        "PARTITION_SKEW": Reason(
            "{share:.0%} of the lag is in one of {partitions} partitions, and only one slot reads a partition",
            "spread the producer's keys over the partitions; check whether records of that partition fail or hang",
        ),
    }

    max_share: float = option(
        0.5, "share of stage time in bound stages from which nothing is added", unit="share", gt=0, le=1
    )
    task_ratio: float = option(
        3.0, "slowest task over the median one, in the busiest stage, from which tasks count as skewed", gt=1
    )
    partition_share: float = option(
        0.5, "share of the lag in one partition from which partitions count as skewed", unit="share", gt=0, le=1
    )
    min_partitions: int = option(4, "with fewer partitions the share is ignored", ge=2)
    min_lag_seconds: float = option(10.0, "with less lag, in seconds of work, the share is ignored", unit="s", ge=0)

    def dispose(self, size: int, case: Case) -> Verdict | None:
        """Check the busiest stage's tasks, then the lag per partition."""
        if size <= case.current:
            return None
        return self._tasks(case) or self._partitions(case)

    def _tasks(self, case: Case) -> Verdict | None:
        skew, stages = case.evidence.task_skew, case.snapshot.stages
        if skew is None or skew < self.task_ratio or not stages:
            return None
        busiest = max(stages, key=lambda stage: (stage.busy_seconds, stage.name))
        if (busiest.slowest_task_place or 0) >= case.current:
            return None  # it waits for a slot, and would begin earlier with more
        work = [(each.busy_seconds, each.slowest_task_seconds * each.runs) for each in stages]
        bound = _bound_share(work, case.current)
        if bound < self.max_share:
            return None
        return Verdict(case.current, "TASK_SKEW", {"skew": skew, "tasks": busiest.tasks, "bound": bound})

    def _partitions(self, case: Case) -> Verdict | None:
        e = case.evidence
        if e.lag_seconds is None or e.lag_seconds < self.min_lag_seconds or not e.lag_records or e.lag_records < 0:
            return None
        ends = list(chain.from_iterable(source.end_offsets for source in case.snapshot.sources))
        done = list(chain.from_iterable(source.next_offsets for source in case.snapshot.sources))
        if len(ends) < self.min_partitions or None in ends or None in done:
            return None
        share = min(1.0, max(map(sub, ends, done)) / e.lag_records)
        if share < self.partition_share:
            return None
        readers = {len(ends), *(len(source.end_offsets) for source in case.snapshot.sources)}
        stages = case.snapshot.stages
        work = [(each.busy_seconds, share * each.busy_seconds if each.tasks in readers else 0.0) for each in stages]
        if _bound_share(work or [(1.0, share)], case.current) < self.max_share:
            return None
        return Verdict(case.current, "PARTITION_SKEW", {"share": share, "partitions": len(ends)})


def _bound_share(stages: Sequence[tuple[float, float]], slots: int) -> float:
    """Return the share of the time that is in bound stages, given each stage's (work, slowest task) in slot-seconds."""
    whole = total(max(slowest, work / slots) for work, slowest in stages)
    bound = total(slowest for work, slowest in stages if slowest >= work / slots)
    return bound / whole if whole > 0 else 0.0
