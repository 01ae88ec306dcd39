"""State and memory: what must not shrink, what must grow, and what must stop.

Growth forced by the state passes all other guards too; a pool that cannot provide it gives POOL_EXHAUSTED.

Source: Confluent Cloud documentation, "Flink SQL Autopilot", section on state size. GB are 10^9 bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from tidegate.engine.case import Case
from tidegate.engine.guard import ForcingGuard, Guard, Verdict
from tidegate.engine.history import FAILED, RESUMED, STOPPED
from tidegate.engine.options import option
from tidegate.engine.reasons import Reason
from tidegate.events.command import CommandKind
from tidegate.events.decision import Figure, Status
from tidegate.events.job import Mode

GB = 1e9


@dataclass(frozen=True, slots=True)
class MemoryPressure(Guard):
    """Stops a scale-down while garbage collection takes much of the time.

    Growth stays allowed, since it spreads the memory (Flink's autoscaler stops growth as well).
    """

    name: ClassVar = "memory_pressure"
    waits: ClassVar = True
    reasons: ClassVar[Mapping[str, Reason]] = {
        "MEMORY_PRESSURE": Reason(
            "{gc:.0%} of the run time goes into garbage collection, so no memory is removed",
            "give the executors more memory",
        ),
    }

    gc_share: float = option(
        0.3, "share of run time in garbage collection above which nothing is removed", unit="share", gt=0, le=1
    )

    def dispose(self, size: int, case: Case) -> Verdict | None:
        """Compare the share of garbage collection with the limit."""
        gc = case.evidence.gc_ratio
        if size >= case.current or size == 0 or gc is None or gc <= self.gc_share:
            return None
        return Verdict(case.current, "MEMORY_PRESSURE", {"gc": gc})


@dataclass(frozen=True, slots=True)
class StateSize(ForcingGuard):
    """Keeps enough executors for the state, and asks for more when each of them holds too much of it."""

    name: ClassVar = "state_size"
    binds_manual: ClassVar = True
    reasons: ClassVar[Mapping[str, Reason]] = {
        "STATE_TOO_LARGE_TO_SHRINK": Reason(
            "{size_gb:.1f} GB of state at {target_gb:.0f} GB per executor need {needed} slots"
        ),
        "STATE_FORCES_GROWTH": Reason(
            "the executors hold {per_executor_gb:.1f} GB of state each and should hold {target_gb:.0f} GB, "
            "which takes {needed} slots"
        ),
    }

    target_gb_per_executor: float = option(10.0, "state an executor should hold, GB of 10^9 bytes", unit="GB", gt=0)
    force_factor: float = option(1.5, "multiple of that target above which growth is forced", ge=1)

    def force(self, size: int, case: Case) -> Verdict | None:
        """Ask for the executors that the state needs, once each holds too much; a stop stays a stop."""
        state, cores = case.evidence.state_bytes, case.spec.application.executor_cores
        if state is None or not case.current or size == 0:
            return None
        per_executor = state / GB / math.ceil(case.current / cores)
        needed, target = self._needed(state, cores), self.target_gb_per_executor
        if per_executor <= target * self.force_factor or size >= needed:
            return None
        values: dict[str, Figure] = {"per_executor_gb": per_executor, "target_gb": target, "needed": needed}
        return Verdict(needed, "STATE_FORCES_GROWTH", values)

    def dispose(self, size: int, case: Case) -> Verdict | None:
        """Keep a scale-down from leaving too few executors for the state, within what the spec allows.

        A job that is stopped has its state in the checkpoint only.
        """
        state = case.evidence.state_bytes
        if size >= case.current or size == 0 or state is None:
            return None
        needed = self._needed(state, case.spec.application.executor_cores)
        kept = min(case.current, needed, case.spec.scaling.max_parallelism)
        if size >= kept:
            return None
        target = self.target_gb_per_executor
        values: dict[str, Figure] = {"size_gb": state / GB, "target_gb": target, "needed": needed}
        return Verdict(kept, "STATE_TOO_LARGE_TO_SHRINK", values)

    def _needed(self, state_bytes: int, cores: int) -> int:
        """Return the slots of the executors that hold the state at the target."""
        return max(1, math.ceil(state_bytes / (self.target_gb_per_executor * GB))) * cores


@dataclass(frozen=True, slots=True)
class StateLimits(ForcingGuard):
    """Stops a job whose state is over the soft or the hard limit, and keeps it from starting again.

    A job that is paused or in advise mode only gets a warning.
    """

    name: ClassVar = "state_limits"
    covers: ClassVar = frozenset({CommandKind.START})
    binds_manual: ClassVar = True
    reasons: ClassVar[Mapping[str, Reason]] = {
        "STATE_NEAR_LIMIT": Reason(
            "the state of {size_gb:.0f} GB is close to the limit of {limit_gb:.0f} GB, at which the job is stopped",
            "shorten watermarks or state timeouts, or split the job",
        ),
        "STATE_OVER_SOFT_LIMIT": Reason(
            "the state of {size_gb:.0f} GB is over the limit of {limit_gb:.0f} GB and the job continues at its own "
            "risk; at {hard_gb:.0f} GB it fails for good",
            "shorten watermarks or state timeouts, or split the job",
        ),
        "STATE_LIMIT_STOP": Reason(
            "the state of {size_gb:.0f} GB is over the limit of {limit_gb:.0f} GB",
            "shorten watermarks or state timeouts, then run `tidegate resume JOB`: the job continues at its own risk",
        ),
        "STATE_LIMIT_FAIL": Reason(
            "the state of {size_gb:.0f} GB is over the hard limit of {limit_gb:.0f} GB",
            "the job cannot be resumed: remove it, and start it under another name with an empty checkpoint",
        ),
        "HALTED_RESUMABLE": Reason(
            "the job was stopped because its state is too large",
            "`tidegate resume JOB` lets it continue at its own risk",
        ),
        "HALTED_FOR_GOOD": Reason(
            "the job failed because its state is too large, and it is no longer scaled",
            "remove the job, and start it under another name with an empty checkpoint",
        ),
    }

    soft_gb: float = option(500.0, "state over which the job is stopped, until `tidegate resume`", unit="GB", gt=0)
    hard_gb: float = option(1000.0, "state over which the job is stopped for good", unit="GB", gt=0)
    warn_share: float = option(0.8, "share of the soft limit from which decisions warn", unit="share", gt=0, le=1)

    def __post_init__(self) -> None:
        """Refuse a hard limit below the soft one."""
        if self.hard_gb < self.soft_gb:
            raise ValueError(f"hard_gb: must be at least soft_gb ({self.soft_gb:g}), found {self.hard_gb:g}")

    def force(self, size: int, case: Case) -> Verdict | None:
        """Ask for the stop, or warn."""
        state = case.evidence.state_bytes
        if state is None or state < self.warn_share * self.soft_gb * GB:
            return None
        halts = case.spec.scaling.mode is Mode.ACTIVE
        values: dict[str, Figure] = {"size_gb": state / GB, "limit_gb": self.soft_gb, "hard_gb": self.hard_gb}
        if state > self.hard_gb * GB and halts:
            values["limit_gb"] = self.hard_gb
            return Verdict(0, "STATE_LIMIT_FAIL", values, status=Status.FAILED_STATE_LIMIT)
        if state <= self.soft_gb * GB:
            return Verdict(size, "STATE_NEAR_LIMIT", values)
        if halts and case.state.history.halt != RESUMED:
            return Verdict(0, "STATE_LIMIT_STOP", values, status=Status.STOPPED_STATE_LIMIT)
        return Verdict(size, "STATE_OVER_SOFT_LIMIT", values)

    def dispose(self, size: int, case: Case) -> Verdict | None:
        """Keep a job that was stopped for its state from starting."""
        halt = case.state.history.halt
        if halt == FAILED:
            return Verdict(case.current, "HALTED_FOR_GOOD", status=Status.FAILED_STATE_LIMIT)
        if halt == STOPPED:
            return Verdict(case.current, "HALTED_RESUMABLE", status=Status.STOPPED_STATE_LIMIT)
        return None
