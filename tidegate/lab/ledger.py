"""The decider's ledger in memory: cooldowns and pool reservations as Redis keeps them, in simulated time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from tidegate.engine.guards.timing import hold_seconds
from tidegate.events.command import ScalingCommand
from tidegate.events.job import JobSpec
from tidegate.events.result import ActionResult, Phase


@dataclass(frozen=True, slots=True)
class _Hold:
    owner: str
    pool_id: str
    slots: int


class MemoryLedger:
    """Holds of all jobs of one simulation. Instants are epoch seconds."""

    def __init__(self) -> None:
        self._cooldowns: dict[str, tuple[float, str]] = {}
        self._holds: dict[str, _Hold] = {}

    def cooldown(self, job_id: str, now: float) -> tuple[datetime | None, str | None]:
        """Return until when the job's cooldown is held, and by which decision; (None, None) when it is over."""
        until, owner = self._cooldowns.get(job_id, (0.0, ""))
        return (datetime.fromtimestamp(until, UTC), owner) if until > now else (None, None)

    def reserved(self, job_id: str, pool_id: str) -> int:
        """Return the slots of the pool promised to other jobs and not yet visible at the master."""
        return sum(hold.slots for name, hold in self._holds.items() if name != job_id and hold.pool_id == pool_id)

    def take(self, spec: JobSpec, command: ScalingCommand, granted: int, free: int | None) -> bool:
        """Take what the command needs whole, or nothing and return False: the pool has not got it.

        `granted` are the slots the job holds already, `free` those the pool had when it was measured (None: unknown).
        """
        slots = max(0, command.to_parallelism - granted)
        if slots and free is not None and slots > free - self.reserved(spec.job_id, spec.pool_id):
            return False
        self._holds[spec.job_id] = _Hold(command.command_id, spec.pool_id, slots)
        seconds = hold_seconds(spec, command)
        if seconds > 0:
            self._cooldowns[spec.job_id] = (command.issued_at.timestamp() + seconds, command.command_id)
        return True

    def settle(self, result: ActionResult) -> None:
        """Follow a result: while the job is down all its slots are a promise, at the end none are."""
        hold = self._holds.get(result.job_id)
        if hold is None or hold.owner != result.command_id:
            return
        if result.phase.terminal:
            del self._holds[result.job_id]
        elif result.phase is Phase.STOPPED:
            self._holds[result.job_id] = replace(hold, slots=result.parallelism)
        elif result.phase is Phase.STARTING:
            # In the twin a submitted job holds its slots at once, so the promise is already kept.
            self._holds[result.job_id] = replace(hold, slots=0)
