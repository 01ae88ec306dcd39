"""A case: all that one decision is made from. Policies and guards get it and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, Generic, NamedTuple, Protocol

from tidegate.engine.memory import M
from tidegate.engine.reasons import Reason
from tidegate.engine.state import JobState, Slice
from tidegate.events.decision import Evidence, Expectation, Figure, Observed, Status
from tidegate.events.job import JobSpec
from tidegate.events.snapshot import MetricSnapshot


class Case(NamedTuple):
    """One snapshot with everything known about it."""

    snapshot: MetricSnapshot
    spec: JobSpec
    observed: Observed
    state: JobState
    """With the snapshot already in its window and the results already taken in."""
    evidence: Evidence
    current: int
    """Slots of the running job; 0 when it does not run."""
    measured_at: float
    """When the snapshot was taken, epoch seconds: the time policies calculate with."""
    decided_at: float
    """The decider's clock, epoch seconds: cooldowns and the age of a snapshot are measured against it."""
    manual: bool = False
    """Whether an operator asked for this size."""
    newest: Slice | None = None
    """The snapshot alone, as a slice of the window; None when the job does not run."""


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


class Verdict(NamedTuple):
    """What a guard makes of a wish: another size (or the current one, to stop it) and why."""

    size: int
    code: str
    numbers: Mapping[str, Figure] = MappingProxyType({})
    status: Status | None = None
    """Set where the guard's finding is a status of its own, such as POOL_EXHAUSTED."""
    withhold: bool = False
    """The size stands, but no command goes out (advise mode)."""


class Guard(Protocol):
    """A rule that may bend or stop a wish, and says why. None: no objection."""

    name: ClassVar[str]
    Options: ClassVar[type]
    waits: ClassVar[bool]
    """Whether a stopped wish is only put off (its status stays PENDING) rather than settled."""
    binds_manual: ClassVar[bool]
    """Whether it also holds for an operator's request."""
    covers: ClassVar[frozenset[str]]
    """Which of `start`, `rescale`, `stop` it is asked about."""

    def dispose(self, wish: int, case: Case) -> Verdict | None:
        """Return what becomes of `wish`, or None."""
        ...


class Forcing(Guard, Protocol):
    """A guard that may also ask for a change when the policy does not; the guards then dispose of its wish too."""

    def force(self, wish: int, case: Case) -> Verdict | None:
        """Return the size to ask for instead of the policy's `wish` (or `wish` itself, to warn) and why, or None."""
        ...
