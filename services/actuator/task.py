"""What all actions of one command share: which command on which job, the time, and the right to go on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

from services.actuator.fence import JobFence
from services.actuator.machine import ActionEvent
from tidegate.events.command import ScalingCommand
from tidegate.events.job import JobSpec
from tidegate.events.result import CheckpointMark
from tidegate.events.wire import Scalar
from tidegate.remote.files import WITHOUT_OPTIONS, Files
from tidegate.runtime.clock import Clock
from tidegate.runtime.poll import poll_until

T = TypeVar("T")


class Abandoned(Exception):
    """This actuator must not go on with the command; the next one finds it where it was left."""


@dataclass(frozen=True, slots=True)
class ActionOutcome:
    """How an action ended: the event for the state machine, and what the result of the new phase will say."""

    event: ActionEvent
    sentence: str = ""
    code: str = "OK"
    details: Mapping[str, Scalar] = field(default_factory=dict)
    submission_id: str | None = None
    incarnation: str | None = None
    downtime_seconds: float | None = None
    outage_seconds: float | None = None
    delay_seconds: float | None = None
    application: str | None = None
    checkpoint: CheckpointMark | None = None
    run: int | None = None
    parallelism: int | None = None
    """The size that was reached, where it is not the ordered one."""


@dataclass(frozen=True, slots=True)
class Task:
    """One command on one job. Its actions wait only through the task, so they stop as soon as it is taken away."""

    command: ScalingCommand
    spec: JobSpec
    clock: Clock
    fence: JobFence
    cancelled: threading.Event
    files: Files = WITHOUT_OPTIONS

    def check(self) -> None:
        """Raise `Abandoned` if this actuator is to end, or another one has claimed the job; see `JobFence.lost`."""
        if self.cancelled.is_set():
            raise Abandoned(f"command {self.command.command_id} is left to the next actuator")
        if self.fence.lost():
            raise Abandoned(f"job {self.spec.job_id}: another actuator has overtaken command {self.command.command_id}")

    def seconds_since(self, instant: datetime) -> float:
        """Return the seconds that have passed; 0 if another clock, which was ahead, has told the instant."""
        return max(0.0, round((self.clock.now() - instant).total_seconds(), 3))

    def wait(self, seconds: float) -> None:
        """Wait; raise `Abandoned` if this actuator must not go on."""
        self.cancelled.wait(seconds)
        self.check()

    def until(
        self,
        condition: Callable[[], T],
        seconds: float,
        every: float,
        retry_on: tuple[type[Exception], ...] = (),
    ) -> T:
        """Poll `condition` for at most `seconds`; see `poll_until`."""
        deadline = self.clock.monotonic() + seconds
        return poll_until(condition, deadline, every, self.clock, wait=self.wait, retry_on=retry_on)

    def follow(self, look: Callable[[], T | None], every: float) -> T:
        """Look until there is something to return; `look` itself says so when its time is over."""
        while (found := look()) is None:
            self.wait(every)
        return found

    def answer(
        self, question: Callable[[], T], seconds: float, every: float, retry_on: tuple[type[Exception], ...]
    ) -> T:
        """Return the answer to a question; ask again for at most `seconds` while it raises one of `retry_on`."""
        return self.until(lambda: (question(),), seconds, every, retry_on)[0]
