"""What the decider remembers of one job: the engine's state, and the results the next snapshot will be told of.

It is kept as bytes in memory and in the changelog, from which it comes back after a crash; the live object stands
beside the bytes it was written as, so that a rebalance which brings other bytes is noticed and they are read instead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from pydantic import TypeAdapter
from pydantic_core import from_json, to_json

from tidegate.engine.state import JobState, from_wire, to_wire
from tidegate.events.decision import Decision, Evidence
from tidegate.events.result import ActionResult

SEEN_KEPT = 64
"""Result ids remembered to drop repeats: a command has at most fourteen, so those of the newest four and more."""

PENDING_KEPT = 200
"""Results kept for a job that sends no snapshots; the oldest go first."""

_RESULTS = TypeAdapter(tuple[ActionResult, ...])


@dataclass(frozen=True, slots=True)
class JobRecord:
    """The memory of one job."""

    state: JobState
    pending: tuple[ActionResult, ...] = ()
    """Results since the last decision, oldest first."""
    seen: tuple[str, ...] = ()
    """Ids of the newest results, pending or decided on."""
    parallelism: int | None = None
    evidence: Evidence | None = None
    """Both of the newest decision, for the job's neighbours; unknown after a restart until the next snapshot."""

    def told(self, result: ActionResult) -> Self:
        """Return the record with one more result pending."""
        pending = (*self.pending, result)[-PENDING_KEPT:]
        return replace(self, pending=pending, seen=(*self.seen, result.result_id)[-SEEN_KEPT:])

    def decided(self, state: JobState, decision: Decision) -> Self:
        """Return the record after a decision, which has used up what was pending."""
        return replace(
            self,
            state=state,
            pending=(),
            parallelism=decision.current_parallelism,
            evidence=decision.evidence,
        )

    def to_bytes(self) -> bytes:
        """Return the record as JSON."""
        wire: dict[str, object] = {"state": to_wire(self.state)}
        if self.pending:
            wire["pending"] = _RESULTS.dump_python(self.pending, mode="json", exclude_none=True)
        if self.seen:
            wire["seen"] = self.seen
        return to_json(wire)

    @classmethod
    def from_bytes(cls, raw: bytes) -> Self:
        """Return the record that `to_bytes` wrote; raise `ValueError`, `TypeError` or `KeyError` for anything else."""
        wire = from_json(raw)
        pending = _RESULTS.validate_json(to_json(wire.get("pending", ())), extra="ignore")
        return cls(state=from_wire(wire["state"]), pending=pending, seen=tuple(wire.get("seen", ())))


def key_of(pipeline_id: str, job_id: str) -> bytes:
    """Return the key of a job's state. Identifiers hold no `/`, so keys of different jobs differ."""
    return f"{pipeline_id}/{job_id}".encode()
