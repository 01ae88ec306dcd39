"""How far a command has come. Each outcome becomes a result; only when it is published has the command moved on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from services.actuator.command_log import CommandLog
from services.actuator.machine import Action, CommandState, advance, next_action, resume
from services.actuator.task import ActionOutcome
from tidegate.events.command import ScalingCommand
from tidegate.events.result import ActionResult, CheckpointMark, Phase, result_id
from tidegate.runtime.clock import Clock

log = logging.getLogger(__name__)


class CommandProgress:
    """The state and the results of one command; begins wherever the command log says that it stands."""

    def __init__(
        self,
        command: ScalingCommand,
        results: CommandLog,
        clock: Clock,
        publish: Callable[[ActionResult], None],
        executor_cores: int,
    ) -> None:
        self._command = command
        self._results = results
        self._clock = clock
        self._publish = publish
        last_good = results.job(command.job_id).last_good or command.from_parallelism
        whole = -(-last_good // executor_cores) * executor_cores  # it may be from a spec with smaller executors
        self.state: CommandState = resume(command, whole or None, results.results(command.command_id))

    def next_action(self) -> Action:
        """Return what to do now; NOTHING when the command has ended."""
        return next_action(self.state)

    def newest(self, phase: Phase) -> ActionResult:
        """Return the newest result of a phase; raise `LookupError` if there is none."""
        return self._results.newest(self._command.command_id, phase)

    def failed_from(self) -> CheckpointMark | None:
        """Return where the checkpoint stood before the restart that is now being taken back; None if there was none."""
        first = {r.phase: r for r in self._results.results(self._command.command_id) if r.attempt == 1}
        if Phase.RUNNING not in first or Phase.STOPPED not in first:
            return None
        return first[Phase.STOPPED].checkpoint

    def record(self, outcome: ActionOutcome) -> None:
        """Publish the result of an action and add it to the log."""
        result = self.result_of(outcome)
        self._publish(result)
        self._results.add(result)
        log.info("job %s: %s at size %d. %s", result.job_id, result.phase, result.parallelism, result.sentence)
        self.state = advance(self.state, outcome.event)

    def result_of(self, outcome: ActionOutcome) -> ActionResult:
        """Return the result of an action; raise `ValueError` if it has what no result can hold."""
        command, moved = self._command, advance(self.state, outcome.event)
        if moved.phase is None:
            raise RuntimeError(f"command {command.command_id}: {outcome.event} leads nowhere")
        if moved.phase is Phase.ROLLED_BACK:
            outcome = self._with_reason(outcome)
        return ActionResult(
            result_id=result_id(command.command_id, moved.phase, moved.attempt),
            command_id=command.command_id,
            job_id=command.job_id,
            pipeline_id=command.pipeline_id,
            kind=command.kind,
            phase=moved.phase,
            attempt=moved.attempt,
            epoch=command.epoch,
            at=self._clock.now(),
            parallelism=moved.parallelism if outcome.parallelism is None else outcome.parallelism,
            code=outcome.code,
            sentence=outcome.sentence,
            incarnation=outcome.incarnation,
            submission_id=outcome.submission_id,
            downtime_seconds=outcome.downtime_seconds,
            outage_seconds=outcome.outage_seconds,
            delay_seconds=outcome.delay_seconds,
            application=outcome.application,
            details=dict(outcome.details),
            checkpoint=outcome.checkpoint,
            run=outcome.run,
            way=moved.way,
        )

    def _with_reason(self, outcome: ActionOutcome) -> ActionOutcome:
        """Return the outcome of a rollback with the reason for it, which is in the first result of attempt 2."""
        failed = next((r for r in self._results.results(self._command.command_id) if r.attempt == 2), None)
        if failed is None:
            return outcome
        sentence = (
            f"Size {self._command.to_parallelism} failed: {failed.sentence}"
            f" Back at the last good size: {outcome.sentence}"
        )
        return replace(outcome, code=failed.code if outcome.code == "OK" else outcome.code, sentence=sentence)
