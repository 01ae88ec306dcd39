"""A case: everything one decision is made from. Policies and guards get it and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import ClassVar, Generic, NamedTuple, Protocol

from tidegate.engine.announced import Announced, announced
from tidegate.engine.memory import M
from tidegate.engine.reasons import Reason
from tidegate.engine.state import JobState, Slice
from tidegate.events.decision import Evidence, Expectation, Figure, Observed
from tidegate.events.job import JobSpec, ManualScale
from tidegate.events.snapshot import MetricSnapshot, WarningCode


class Case(NamedTuple):
    """One snapshot with everything known about it."""

    snapshot: MetricSnapshot
    spec: JobSpec
    observed: Observed
    state: JobState
    """With the snapshot already in its window and the results already applied."""
    evidence: Evidence
    current: int
    """Slots of the running job; 0 when it is not running."""
    measured_at: float
    """When the snapshot was taken, epoch seconds: the time policies calculate with."""
    decided_at: float
    """The decider's clock, epoch seconds: cooldowns and the age of a snapshot are measured against it."""
    manual: ManualScale | None = None
    """An operator's request that has not been served yet; None when there is none."""
    newest: Slice | None = None
    """The snapshot alone, as a slice of the window; None when the job is not running."""

    @property
    def running_seconds(self) -> float | None:
        """How long the running batch has been running, in seconds; None if none is known."""
        started = self.snapshot.current_batch_started_at
        return None if started is None else max(0.0, self.measured_at - started.timestamp())

    @property
    def announced(self) -> Announced | None:
        """The demand that the jobs upstream announce; None if no plan is known."""
        neighbours = self.observed.neighbours
        return announced(neighbours, self.sources, self.evidence, self.measured_at) if neighbours else None

    @property
    def time_zone(self) -> str:
        """The time zone of periods and cron expressions."""
        return self.spec.scaling.time_zone or "UTC"

    def local(self, instant: datetime) -> datetime:
        """Return an instant near the decision as the clocks in the job's time zone show it, as if that were UTC."""
        return instant + timedelta(seconds=self.observed.utc_offset_seconds or 0)

    @property
    def sources(self) -> tuple[str, ...]:
        """The topics that the spec names, and then those that the job reads besides and that are measured, too."""
        warnings = self.snapshot.warnings or ()
        others = [topic for each in warnings if each.code is WarningCode.TOPIC_NOT_LISTED for topic in each.topics]
        return (*self.spec.sources, *others)


class Proposal(NamedTuple, Generic[M]):
    """What a policy proposes: a size, the reason with its values, what it expects of the size, and its new memory."""

    size: int
    code: str
    numbers: Mapping[str, Figure] = MappingProxyType({})
    expectation: Expectation | None = None
    memory: M | None = None
    """The policy's memory from now on; None leaves it as it is."""
    capacity: float | None = None
    """Capacity of the present size, records/s, for `ordered` to remember; None if the policy did not determine it."""
    arrival_rate: float | None = None
    """Records/s that the policy expects to arrive, for the jobs downstream; None: what the evidence says."""
    catch_up_rate: float | None = None
    """Records/s that the policy wants to process besides, to work off the backlog; None if it has no such figure."""
    target_rate: float | None = None
    """Records/s that the policy wants to process in the long run, even if fewer arrive; None: what it expects to."""


class Policy(Protocol[M]):
    """A rule that proposes a parallelism from evidence. Pure: the same case and memory give the same proposal."""

    name: ClassVar[str]
    Options: ClassVar[type]
    Memory: ClassVar[type]
    """What the policy remembers of a job, see `tidegate.engine.memory`; `NoMemory` for a policy without."""
    reasons: ClassVar[Mapping[str, Reason]]
    """The codes its proposals use."""

    @property
    def window_seconds(self) -> float:
        """How much of the past the policy wants to see."""
        ...

    def propose(self, case: Case, memory: M) -> Proposal[M]:
        """Return the size the job should have."""
        ...

    def ordered(self, case: Case, memory: M, proposal: Proposal[M], final: int) -> M:
        """Return the memory after a command for `final` slots went out; `memory` is the one after the proposal."""
        ...
