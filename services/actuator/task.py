"""One command being carried out: what its steps share, and what each of them brings back."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from datetime import datetime

from services.actuator.backends import Backend
from services.actuator.checkpoint import QueryCheckpoint, read_checkpoints
from services.actuator.restart import RestartEvent
from tidegate.events.command import ScalingCommand
from tidegate.events.job import JobSpec
from tidegate.events.wire import Scalar
from tidegate.launcher.control import Control, Token
from tidegate.runtime.clock import Clock


class Abandoned(Exception):
    """This actuator is no longer the one to go on; the next one finds the command where it was left."""


@dataclass(frozen=True, slots=True)
class ActionOutcome:
    """What came of an action: the machine's event, and what the result of the new phase is to say."""

    event: RestartEvent
    sentence: str = ""
    code: str = "OK"
    details: dict[str, Scalar] = field(default_factory=dict)
    submission_id: str | None = None
    incarnation: str | None = None
    downtime_seconds: float | None = None


@dataclass(slots=True)
class Task:
    """One command, its spec, and the ports through which it is carried out."""

    command: ScalingCommand
    spec: JobSpec
    backend: Backend
    control: Control
    clock: Clock
    owner: str
    """The actuator process: only one at a time speaks for a job."""
    cancelled: threading.Event
    known_submissions: tuple[str, ...] = ()
    """Drivers submitted since the job was last known to be stopped, by the ledger."""
    claimed: frozenset[str] = frozenset()
    """Drivers that are known to be some job's, by the ledger."""
    claimed_applications: frozenset[str] = frozenset()
    """Applications that are known to be some job's, by the ledger."""
    gone: set[str] = field(default_factory=set)
    """Runs and drivers seen to have ended, which is for ever."""
    token: Token | None = None
    """The run this process has taken the fence for."""

    def check(self) -> None:
        """Raise `Abandoned` when another actuator has taken the job's fence, or this one is to go."""
        if self.cancelled.is_set():
            raise Abandoned(f"command {self.command.command_id} is left to the next actuator")
        held = self.control.fence()
        if self.token is not None and held != (self.token, self.owner):
            raise Abandoned(f"job {self.spec.job_id}: run {self.token} was overtaken by {held}")

    def wait(self, seconds: float) -> None:
        """Wait, but not longer than this actuator may go on."""
        self.cancelled.wait(seconds)
        self.check()

    def since(self, instant: datetime) -> float:
        """Return the seconds since an instant of a result."""
        return (self.clock.now() - instant).total_seconds()

    def checkpoints(self) -> list[QueryCheckpoint]:
        """Return what the job's checkpoints say now."""
        return read_checkpoints(self.spec.application.checkpoint_location)


def batches_to_text(checkpoints: list[QueryCheckpoint]) -> str:
    """Return the newest commit of each query, as a result can carry it."""
    return json.dumps({c.path.name: [c.query_id, c.newest_commit] for c in checkpoints}, separators=(",", ":"))


def batches_from_text(text: str) -> dict[str, tuple[str | None, int | None]]:
    """Return (query id, newest commit) by the checkpoint's folder name."""
    return {name: (query_id, commit) for name, (query_id, commit) in json.loads(text).items()}
