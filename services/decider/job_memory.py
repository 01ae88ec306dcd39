"""What the decider remembers about one job: the engine's state, and the results since the last snapshot.

The memory is stored as bytes, in the process and in the changelog, which restores it after a crash. The handler keeps
the live object together with its bytes: when a rebalance brings other bytes, it reads those instead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from pydantic import TypeAdapter
from pydantic_core import from_json, to_json

from tidegate.engine.links import NO_OUTLOOK, Outlook
from tidegate.engine.state import JobState, from_wire, to_wire
from tidegate.events.decision import Decision
from tidegate.events.job import JobSpec
from tidegate.events.result import ActionResult, Phase

SEEN_KEPT = 64
"""Result ids remembered to drop repeats. A command has at most fourteen, so this covers the newest four."""

PENDING_KEPT = 200
"""Results kept for a job without snapshots; the oldest are dropped first."""

_RESULTS = TypeAdapter(tuple[ActionResult, ...])


@dataclass(frozen=True, slots=True)
class JobMemory:
    """The memory of one job."""

    state: JobState
    pending: tuple[ActionResult, ...] = ()
    """Results since the last decision, oldest first."""
    seen: tuple[str, ...] = ()
    """Ids of the newest results, pending or used."""
    epoch: int = -1
    """The highest epoch of a command that had a result, other than that it was refused."""
    removal: int | None = None
    """The newest removal of the job that was known, as `Specs.removal`; None from an older decider, which told none."""
    outlook: Outlook = NO_OUTLOOK
    """What the decisions tell neighbouring jobs; unknown after a restart."""

    def has(self, result: ActionResult) -> bool:
        """Whether a result was taken before: one of an older command was, if its id is forgotten.

        Whoever sets the group's offsets back, or stops all deciders until Kafka forgets them, has a month of results
        read again. Taken again, each would bring back the size and the run of its time.
        """
        in_flight = self.state.in_flight
        is_awaited = in_flight is not None and in_flight.command_id == result.command_id
        return result.result_id in self.seen or (result.epoch < self.epoch and not is_awaited)

    def with_result(self, result: ActionResult) -> Self:
        """Return the memory with one more pending result."""
        pending = (*self.pending, result)[-PENDING_KEPT:]
        epoch = self.epoch if result.phase is Phase.REJECTED else max(self.epoch, result.epoch)
        return replace(self, pending=pending, seen=(*self.seen, result.result_id)[-SEEN_KEPT:], epoch=epoch)

    def after(self, state: JobState, decision: Decision, spec: JobSpec) -> Self:
        """Return the memory after a decision, which has used the pending results."""
        return replace(self, state=state, pending=(), outlook=self.outlook.after(decision, spec))

    def to_bytes(self) -> bytes:
        """Return the memory as JSON."""
        wire: dict[str, object] = {"state": to_wire(self.state)}
        if self.pending:
            wire["pending"] = _RESULTS.dump_python(self.pending, mode="json", exclude_none=True)
        if self.seen:
            wire["seen"] = self.seen
        if self.epoch >= 0:
            wire["epoch"] = self.epoch
        if self.removal is not None:
            wire["removal"] = self.removal
        return to_json(wire)

    @classmethod
    def from_bytes(cls, raw: bytes) -> Self:
        """Return the memory that `to_bytes` wrote; raise `ValueError`, `TypeError` or `KeyError` for anything else."""
        wire = from_json(raw)
        pending = _RESULTS.validate_json(to_json(wire.get("pending", ())), extra="ignore")
        seen, epoch = tuple(wire.get("seen", ())), int(wire.get("epoch", -1))
        removal = None if (told := wire.get("removal")) is None else int(told)
        return cls(state=from_wire(wire["state"]), pending=pending, seen=seen, epoch=epoch, removal=removal)


def key_of(pipeline_id: str, job_id: str) -> bytes:
    """Return the key of a job's state. Ids contain no `/`, so different jobs have different keys."""
    return f"{pipeline_id}/{job_id}".encode()


def ids_of(key: bytes) -> tuple[str, str]:
    """Return the pipeline and the job of a state's key."""
    pipeline_id, _, job_id = key.decode("utf-8", "replace").partition("/")
    return pipeline_id, job_id
