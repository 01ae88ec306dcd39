"""State and memory: what must not shrink, what must grow, and what must stop.

    memory pressure   garbage collection takes much of the time: nothing is taken away (growth would relieve it)
    state size        about 10 GB of state per executor: keeps a size up, and above 1.5 times that forces growth
    state limits      warns at 80 % of 500 GB; over it the job is stopped and may be resumed; over 1000 GB it fails

Growth that the state forces goes through all other guards; a pool that cannot give it says POOL_EXHAUSTED.

Source: Confluent Cloud documentation, "Flink SQL Autopilot", section on state size. GB are 10^9 bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from tidegate.engine.case import Case, Verdict
from tidegate.engine.history import FAILED, RESUMED, STOPPED
from tidegate.engine.options import BadOption, option
from tidegate.events.decision import Figure, Status
from tidegate.events.job import Mode

GB = 1e9


@dataclass(frozen=True, slots=True)
class MemoryPressureOptions:
    """When memory counts as short."""

    gc_share: float = option(
        0.3, "share of run time in garbage collection above which nothing is taken away", unit="share", gt=0, le=1
    )


class MemoryPressure:
    """Stops a reduction while garbage collection takes much of the time.

    Growth is free: it spreads the memory (Flink's autoscaler stops growth as well).
    """

    name: ClassVar[str] = "memory_pressure"
    Options: ClassVar[type] = MemoryPressureOptions
    waits: ClassVar[bool] = True
    binds_manual: ClassVar[bool] = False
    covers: ClassVar[frozenset[str]] = frozenset({"rescale"})

    def __init__(self, options: MemoryPressureOptions) -> None:
        self.options = options

    def dispose(self, wish: int, case: Case) -> Verdict | None:
        """Compare the share of garbage collection with the limit."""
        gc = case.evidence.gc_ratio
        if wish >= case.current or gc is None or gc <= self.options.gc_share:
            return None
        return Verdict(case.current, "MEMORY_PRESSURE", {"gc": gc})


@dataclass(frozen=True, slots=True)
class StateSizeOptions:
    """How much state an executor is to hold."""

    target_gb_per_executor: float = option(10.0, "state an executor is to hold, GB of 10^9 bytes", unit="GB", gt=0)
    force_factor: float = option(1.5, "times that target from which growth is asked for", ge=1)


class StateSize:
    """Keeps enough executors for the state, and asks for more when they hold too much of it."""

    name: ClassVar[str] = "state_size"
    Options: ClassVar[type] = StateSizeOptions
    waits: ClassVar[bool] = False
    binds_manual: ClassVar[bool] = True
    covers: ClassVar[frozenset[str]] = frozenset({"rescale"})

    def __init__(self, options: StateSizeOptions) -> None:
        self.options = options

    def force(self, wish: int, case: Case) -> Verdict | None:
        """Ask for the executors the state needs, once each holds too much; a stop is not turned into growth."""
        size, cores, o = case.evidence.state_bytes, case.spec.application.executor_cores, self.options
        if size is None or not case.current or wish == 0:
            return None
        per_executor = size / GB / math.ceil(case.current / cores)
        needed = self._needed(size, cores)
        if per_executor <= o.target_gb_per_executor * o.force_factor or wish >= needed:
            return None
        numbers: dict[str, Figure] = {
            "per_executor_gb": per_executor,
            "target_gb": o.target_gb_per_executor,
            "needed": needed,
        }
        return Verdict(needed, "STATE_FORCES_GROWTH", numbers)

    def dispose(self, wish: int, case: Case) -> Verdict | None:
        """Keep a reduction from leaving too few executors for the state, within what the spec allows."""
        size = case.evidence.state_bytes
        if wish >= case.current or size is None:
            return None
        needed = self._needed(size, case.spec.application.executor_cores)
        kept = min(case.current, needed, case.spec.scaling.max_parallelism)
        if wish >= kept:
            return None
        numbers: dict[str, Figure] = {
            "size_gb": size / GB,
            "target_gb": self.options.target_gb_per_executor,
            "needed": needed,
        }
        return Verdict(kept, "STATE_TOO_LARGE_TO_SHRINK", numbers)

    def _needed(self, size: int, cores: int) -> int:
        """Return the slots of the executors that hold the state at the target."""
        return max(1, math.ceil(size / (self.options.target_gb_per_executor * GB))) * cores


@dataclass(frozen=True, slots=True)
class StateLimitsOptions:
    """How much state a job may have."""

    soft_gb: float = option(500.0, "state over which the job is stopped, until `tidegate resume`", unit="GB", gt=0)
    hard_gb: float = option(1000.0, "state over which the job is stopped for good", unit="GB", gt=0)
    warn_share: float = option(0.8, "share of the soft limit from which decisions warn", unit="share", gt=0, le=1)


class StateLimits:
    """Stops a job whose state is over the soft or the hard limit, and keeps it from being started again.

    A paused job, or one in advise mode, is only warned about.
    """

    name: ClassVar[str] = "state_limits"
    Options: ClassVar[type] = StateLimitsOptions
    waits: ClassVar[bool] = False
    binds_manual: ClassVar[bool] = True
    covers: ClassVar[frozenset[str]] = frozenset({"start"})

    def __init__(self, options: StateLimitsOptions) -> None:
        if options.hard_gb < options.soft_gb:
            raise BadOption(
                f"scaling.guards.state_limits.hard_gb: must be at least soft_gb ({options.soft_gb:g}), "
                f"found {options.hard_gb:g}"
            )
        self.options = options

    def force(self, wish: int, case: Case) -> Verdict | None:
        """Ask for the stop, or warn."""
        o, size = self.options, case.evidence.state_bytes
        if size is None or size < o.warn_share * o.soft_gb * GB:
            return None
        halts = case.spec.scaling.mode is Mode.ACTIVE
        numbers: dict[str, Figure] = {"size_gb": size / GB, "limit_gb": o.soft_gb, "hard_gb": o.hard_gb}
        if size > o.hard_gb * GB and halts:
            numbers["limit_gb"] = o.hard_gb
            return Verdict(0, "STATE_LIMIT_FAIL", numbers, status=Status.FAILED_STATE_LIMIT)
        if size <= o.soft_gb * GB:
            return Verdict(wish, "STATE_NEAR_LIMIT", numbers)
        if halts and case.state.history.halt != RESUMED:
            return Verdict(0, "STATE_LIMIT_STOP", numbers, status=Status.STOPPED_STATE_LIMIT)
        return Verdict(wish, "STATE_OVER_SOFT_LIMIT", numbers)

    def dispose(self, wish: int, case: Case) -> Verdict | None:
        """Keep a job that was stopped for its state from being started."""
        halt = case.state.history.halt
        if halt == FAILED:
            return Verdict(case.current, "HALTED_FOR_GOOD", status=Status.FAILED_STATE_LIMIT)
        if halt == STOPPED:
            return Verdict(case.current, "HALTED_RESUMABLE", status=Status.STOPPED_STATE_LIMIT)
        return None
