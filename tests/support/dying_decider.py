"""A decider that kills itself, or is slow, at a named step: `python -m tests.support.dying_decider STEP [SECONDS]`.

Steps: `before:Decision`, `after:Decision`, `before:ScalingCommand`, `after:ScalingCommand`, `after:state`. The last is
the state of the snapshot that brought the command, so its offset is not committed. With SECONDS it sleeps there
instead of dying. Production code knows nothing of this: the outbox is wrapped through the composition root.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from typing_extensions import override

from services.decider.app import run
from services.decider.job_memory import key_of
from services.decider.ports import Outbox
from services.decider.settings import DeciderSettings
from tests.support.wrapped_outbox import WrappedOutbox
from tidegate.events.command import ScalingCommand
from tidegate.events.decision import Decision
from tidegate.events.wire import Wire
from tidegate.runtime.logs import configure


class DyingOutbox(WrappedOutbox):
    """An outbox that kills the process like kill -9 when a decision with a command reaches the step."""

    def __init__(self, inner: Outbox, step: str, seconds: float | None) -> None:
        super().__init__(inner)
        self._step = step
        self._seconds = seconds
        self._ordered: set[bytes] = set()

    @override
    async def publish(self, event: Wire, *, trace_id: str | None = None, key: bytes | None = None) -> None:
        """Publish, unless the step is reached."""
        ours = isinstance(event, ScalingCommand) or (isinstance(event, Decision) and event.command is not None)
        if isinstance(event, Decision):
            (self._ordered.add if ours else self._ordered.discard)(key_of(event.pipeline_id, event.job_id))
        await self._reached(f"before:{type(event).__name__}", ours)
        await super().publish(event, trace_id=trace_id, key=key)
        await self._reached(f"after:{type(event).__name__}", ours)

    @override
    async def keep(self, partition: int, key: bytes, value: bytes) -> None:
        """Store the state, unless the step is reached after it."""
        await super().keep(partition, key, value)
        await self._reached("after:state", key in self._ordered)

    async def _reached(self, step: str, ours: bool) -> None:
        if not ours or step != self._step:
            return
        if self._seconds is None:
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            sys.stderr.write(f"AT {step}\n")
            sys.stderr.flush()
            await asyncio.sleep(self._seconds)


if __name__ == "__main__":
    settings = DeciderSettings()
    configure("decider", settings)
    pause = float(sys.argv[2]) if len(sys.argv) > 2 else None
    run(settings, wrap=lambda outbox: DyingOutbox(outbox, sys.argv[1], pause))
