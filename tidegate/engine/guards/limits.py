"""How large a change and a size may be: steps, the spec's bounds, executors, source partitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidegate.engine.case import Case, Verdict
from tidegate.engine.options import NoOptions, option


@dataclass(frozen=True, slots=True)
class StepOptions:
    """The largest steps."""

    up: int | None = option(None, "most slots added at a time; no limit when absent", unit="slots", ge=1)
    down: int | None = option(None, "most slots taken away at a time; no limit when absent", unit="slots", ge=1)


class Steps:
    """Cuts a change to the largest step."""

    name: ClassVar[str] = "steps"
    Options: ClassVar[type] = StepOptions
    waits: ClassVar[bool] = True
    binds_manual: ClassVar[bool] = False
    covers: ClassVar[frozenset[str]] = frozenset({"rescale"})

    def __init__(self, options: StepOptions) -> None:
        self.options = options

    def dispose(self, wish: int, case: Case) -> Verdict | None:
        """Clamp the difference."""
        up, down = self.options.up, self.options.down
        if up is not None and wish > case.current + up:
            return Verdict(case.current + up, "STEP_UP_LIMIT", {"limit": up})
        if down is not None and wish < case.current - down:
            return Verdict(case.current - down, "STEP_DOWN_LIMIT", {"limit": down})
        return None


class Bounds:
    """Keeps a size within the spec's minimum and maximum; a job outside them is brought inside."""

    name: ClassVar[str] = "bounds"
    Options: ClassVar[type] = NoOptions
    waits: ClassVar[bool] = False
    binds_manual: ClassVar[bool] = True
    covers: ClassVar[frozenset[str]] = frozenset({"start", "rescale"})

    def __init__(self, options: NoOptions) -> None:
        self.options = options

    def dispose(self, wish: int, case: Case) -> Verdict | None:
        """Clamp the size."""
        scaling = case.spec.scaling
        if wish > scaling.max_parallelism:
            return Verdict(scaling.max_parallelism, "AT_MAXIMUM", {"limit": scaling.max_parallelism})
        if wish < scaling.min_parallelism:
            return Verdict(scaling.min_parallelism, "AT_MINIMUM", {"limit": scaling.min_parallelism})
        return None


class SourcePartitions:
    """Caps growth at the number of source partitions: Spark reads a partition with one task.

    Spark's `minPartitions` or `maxRecordsPerPartition` (Structured Streaming + Kafka guide) lifts the bound; a job
    that sets one of them says so with `lifted`.
    """

    @dataclass(frozen=True, slots=True)
    class Settings:
        """Whether the job splits partitions."""

        lifted: bool = option(
            False, "the job sets minPartitions or maxRecordsPerPartition, so partitions do not bound it"
        )

    name: ClassVar[str] = "partitions"
    Options: ClassVar[type] = Settings
    waits: ClassVar[bool] = False
    binds_manual: ClassVar[bool] = True
    covers: ClassVar[frozenset[str]] = frozenset({"rescale"})

    def __init__(self, options: Settings) -> None:
        self.options = options

    def dispose(self, wish: int, case: Case) -> Verdict | None:
        """Cap growth at the partitions; a job already above them is not shrunk for it."""
        partitions = case.evidence.partitions
        if self.options.lifted or partitions is None or wish <= case.current or wish <= partitions:
            return None
        return Verdict(max(case.current, partitions), "SOURCE_PARTITIONS", {"partitions": partitions})


class ExecutorCores:
    """Rounds a size to whole executors: growth up, reduction up too, so that it never falls short."""

    name: ClassVar[str] = "executors"
    Options: ClassVar[type] = NoOptions
    waits: ClassVar[bool] = False
    binds_manual: ClassVar[bool] = True
    covers: ClassVar[frozenset[str]] = frozenset({"start", "rescale"})

    def __init__(self, options: NoOptions) -> None:
        self.options = options

    def dispose(self, wish: int, case: Case) -> Verdict | None:
        """Round up to a multiple of the executor's cores, never above the maximum."""
        cores = case.spec.application.executor_cores
        if wish % cores == 0:
            return None
        size = min(-(-wish // cores) * cores, case.spec.scaling.max_parallelism // cores * cores)
        return Verdict(size, "EXECUTOR_CORES", {"cores": cores})
