"""Commands for one job, carried out in this process: an actuator without its Kafka loop."""

from __future__ import annotations

import threading
import uuid
from datetime import UTC, datetime, timedelta

from services.actuator.backends import Backend
from services.actuator.command_log import CommandLog
from services.actuator.execute import CommandRunner, Publish, control_of
from services.actuator.fence import Fence
from tidegate.events.command import CommandKind, ScalingCommand
from tidegate.events.job import JobSpec
from tidegate.events.result import ActionResult, Phase
from tidegate.events.way import Way
from tidegate.launcher.control.claims import Claims
from tidegate.launcher.control.files import Control, Token
from tidegate.launcher.kubernetes.api import Api
from tidegate.remote.files import WITHOUT_OPTIONS, Files
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.poll import wait_until

END_SECONDS = 20.0
"""How long drivers may take to end after they were killed."""


def new_command(
    spec: JobSpec, kind: CommandKind, to: int, *, before: int, epoch: int, way: Way | None = None
) -> ScalingCommand:
    """Return a command that expires after two minutes."""
    now = datetime.now(UTC)
    return ScalingCommand(
        command_id=str(uuid.uuid4()),
        job_id=spec.job_id,
        pipeline_id=spec.pipeline_id,
        snapshot_id=str(uuid.uuid4()),
        spec_version=1,
        kind=kind,
        from_parallelism=before,
        to_parallelism=to,
        epoch=epoch,
        issued_at=now,
        expires_at=now + timedelta(minutes=2),
        reason="ordered by hand",
        way=way,
    )


class OneActuator:
    """Tokens where there is one actuator: the control directory alone decides."""

    def claim(self, control: Control, job_id: str, epoch: int, owner: str) -> Token | None:
        """Return the next token of `epoch`; None if a newer epoch has claimed the job."""
        del job_id, owner
        newest = Claims(control).newest()
        if newest is not None and newest[0].epoch > epoch:
            return None
        return Claims(control).next_token(epoch)


class JobOperator:
    """Gives commands for one job, one after the other, and keeps the results."""

    def __init__(
        self,
        spec: JobSpec,
        cluster: Backend,
        *,
        fence: Fence | None = None,
        publish: Publish | None = None,
        api: Api | None = None,
        files: Files = WITHOUT_OPTIONS,
    ) -> None:
        self.spec = spec
        self._api = api
        self.files = files
        self.cluster = cluster
        self.results: list[ActionResult] = []
        self._publish_too = publish
        self._log = CommandLog()
        self._runner = CommandRunner(
            SystemClock(),
            self._log,
            fence or OneActuator(),
            {spec.application.backend: cluster},
            self._publish,
            owner=uuid.uuid4().hex,
            control=lambda spec: control_of(spec, api, files),
            files=files,
        )
        claimed = Claims(self.control).newest()
        self._epoch = 0 if claimed is None else claimed[0].epoch

    @property
    def size(self) -> int:
        """The size that worked last."""
        return self._log.job(self.spec.job_id).last_good or 0

    @property
    def control(self) -> Control:
        """The job's control files."""
        return control_of(self.spec, self._api, self.files)

    def carry_out(self, kind: CommandKind, size: int, way: Way | None = None) -> ActionResult:
        """Carry out a command; return its last result."""
        self._epoch += 1
        before = 0 if kind is CommandKind.START else self.size
        command = new_command(self.spec, kind, size, before=before, epoch=self._epoch, way=way)
        self._runner.run(command, self.spec, threading.Event())
        return self.results[-1]

    def order(self, kind: CommandKind, size: int, way: Way | None = None) -> ActionResult:
        """Carry out a command; return its last result. Raises `RuntimeError` if it ends otherwise than ordered."""
        end = self.carry_out(kind, size, way)
        if end.phase is not Phase.VERIFIED or (way is not None and end.way is not way):
            told = "\n".join(f"  {result.phase}: {result.sentence}" for result in self.results[-12:])
            raise RuntimeError(f"{kind} of job {self.spec.job_id} ended as {end.phase}; its results:\n{told}")
        return end

    def close(self) -> None:
        """End the drivers that still run; raise `TimeoutError` if they go on."""
        drivers = {result.submission_id for result in self.results if result.submission_id is not None}
        alive = {driver for driver in drivers if self.cluster.state(self.spec, driver).alive}
        for driver in alive:
            self.cluster.kill(self.spec, driver)
        ended = wait_until(lambda: not any(self.cluster.state(self.spec, each).alive for each in alive), END_SECONDS)
        if not ended:
            raise TimeoutError(f"drivers of job {self.spec.job_id} go on after they were killed: {alive}")

    def _publish(self, result: ActionResult, trace_id: str | None) -> None:
        if self._publish_too is not None:
            self._publish_too(result, trace_id)
        self.results.append(result)
