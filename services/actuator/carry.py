"""Carries one command to its end: asks the machine what to do, does it, and tells the result before the next step."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from services.actuator import starting, stopping
from services.actuator.admission import refusal
from services.actuator.backends import Backend
from services.actuator.checkpoint import CheckpointError
from services.actuator.command_log import CommandLog
from services.actuator.fence import Fence
from services.actuator.restart import Action, RestartEvent, RestartState, advance, next_action, resume
from services.actuator.task import Abandoned, ActionOutcome, Task
from tidegate.events.command import CommandKind, ScalingCommand
from tidegate.events.job import JobSpec
from tidegate.events.result import ActionResult, Phase, result_id
from tidegate.events.wire import Scalar
from tidegate.launcher.control import Control, ControlError
from tidegate.runtime.clock import Clock

log = logging.getLogger(__name__)

FILES_SECONDS = 1.0
"""Between two tries while the job's files cannot be used."""

Publish = Callable[[ActionResult, str | None], None]
"""Publishes a result (of a trace) and returns when the broker has acknowledged it."""


@dataclass(frozen=True, slots=True)
class Carrier:
    """What it takes to carry commands out. One carrier serves all jobs; `carry` may run in several threads."""

    clock: Clock
    ledger: CommandLog
    fence: Fence
    backends: Mapping[str, Backend]
    publish: Publish
    owner: str

    def carry(
        self,
        command: ScalingCommand,
        spec: JobSpec | None,
        cancelled: threading.Event,
        trace_id: str | None = None,
    ) -> Phase | None:
        """Carry a command to its end, from wherever its results say it stands; return its last phase.

        Returns None if there was nothing to do, because it had ended before. Raises `Abandoned` when another
        actuator is to go on with it.
        """
        if self.ledger.ended(command.command_id):
            log.info("job %s: command %s has ended before", command.job_id, command.command_id)
            return None
        job = self.ledger.job(command.job_id)
        state = resume(
            command, job.last_good or command.from_parallelism or None, self.ledger.results(command.command_id)
        )
        taken_over = state.phase is not None
        if state.phase is None:
            state = self._tell(command, state, self._admit(command, spec), trace_id)
        elif spec is None:
            outcome = ActionOutcome(RestartEvent.ORPHANED, "The job was removed while it was worked on.", "NO_SUCH_JOB")
            state = self._tell(command, state, outcome, trace_id)
        if spec is None or next_action(state) is Action.NOTHING:
            return state.phase
        task = self._task(command, spec, cancelled)
        while (action := next_action(state)) is not Action.NOTHING:
            outcome = self._step(action, task, state, taken_over=taken_over)
            taken_over = False
            state = self._tell(command, state, outcome, trace_id)
        return state.phase

    def _admit(self, command: ScalingCommand, spec: JobSpec | None) -> ActionOutcome:
        epoch = self.ledger.job(command.job_id).epoch
        refused = refusal(command, spec, epoch=epoch, backends=frozenset(self.backends), now=self.clock.now())
        if refused is None:
            return ActionOutcome(
                RestartEvent.ADMITTED, f"From size {command.from_parallelism} to {command.to_parallelism}."
            )
        return ActionOutcome(RestartEvent.REFUSED, refused[1], refused[0])

    def _task(self, command: ScalingCommand, spec: JobSpec, cancelled: threading.Event) -> Task:
        return Task(
            command=command,
            spec=spec,
            backend=self.backends[spec.application.backend],
            control=Control(spec.application.control_dir, spec.job_id),
            clock=self.clock,
            owner=self.owner,
            cancelled=cancelled,
            known_submissions=tuple(self.ledger.job(command.job_id).submissions),
            claimed=self.ledger.submissions(),
            claimed_applications=self.ledger.applications(),
        )

    def _step(self, action: Action, task: Task, state: RestartState, *, taken_over: bool) -> ActionOutcome:
        """Do an action, again for some time while the job's files cannot be used: one job's must not end all jobs'."""
        deadline = self.clock.monotonic() + task.spec.application.stop_deadline_seconds
        outcome: ActionOutcome | None = None
        while True:
            try:
                task.check()
                outcome = outcome or self._act(action, task, state, taken_over=taken_over)
                task.check()
            except (ControlError, CheckpointError, OSError) as error:
                if self.clock.monotonic() > deadline:
                    return ActionOutcome(
                        RestartEvent.BROKEN, f"The job's files cannot be used: {error}.", "BROKEN_FILES"
                    )
                log.warning("job %s: %s is held up by its files: %s", task.spec.job_id, action.value, error)
                taken_over = True  # how far it came is as unknown as after a predecessor
                if task.cancelled.wait(FILES_SECONDS):
                    raise Abandoned(f"command {task.command.command_id} is left to the next actuator") from error
            else:
                return outcome

    def _act(self, action: Action, task: Task, state: RestartState, *, taken_over: bool) -> ActionOutcome:
        match action:
            case Action.FIND:
                return stopping.find(task, task.spec.application.stop_deadline_seconds)
            case Action.STOP:
                return stopping.stop(task, self.fence)
            case Action.ANNOUNCE if state.kind is CommandKind.STOP:
                return ActionOutcome(RestartEvent.DONE, "The job is stopped.")
            case Action.ANNOUNCE:
                return starting.announce(task, self.fence)
            case Action.SUBMIT:
                return starting.submit(task, self.fence, state, taken_over=taken_over)
            case Action.VERIFY:
                return self._verify(task)
            case _:
                raise ValueError(f"{action} is not carried out here")

    def _verify(self, task: Task) -> ActionOutcome:
        command_id = task.command.command_id
        stopped = self.ledger.find(command_id, Phase.STOPPED)
        running = self.ledger.find(command_id, Phase.RUNNING)
        if stopped is None or running is None:
            raise RuntimeError(f"command {command_id}: verified without a stop and a start in the ledger")
        last = stopped.details.get("last_commit_at")
        outcome = starting.verify(
            task,
            begun_seconds_ago=task.since(running.at),
            before=str(stopped.details["last_batches"]),
            last_commit_at=float(last) if last is not None else None,
            run=int(running.details["run"]),
        )
        figures: dict[str, Scalar] = dict(outcome.details)
        figures["verify_seconds"] = round(task.since(running.at), 3)
        accepted = self.ledger.find(command_id, Phase.ACCEPTED)
        if accepted is not None:
            figures["restart_seconds"] = round(task.since(accepted.at), 3)
        for source, name in ((stopped, "stop_seconds"), (stopped, "clean"), (running, "submit_seconds")):
            if name in source.details:
                figures[name] = source.details[name]
        return ActionOutcome(
            outcome.event,
            outcome.sentence,
            outcome.code,
            figures,
            running.submission_id,
            outcome.incarnation,
            outcome.downtime_seconds,
        )

    def _tell(
        self, command: ScalingCommand, state: RestartState, outcome: ActionOutcome, trace_id: str | None
    ) -> RestartState:
        """Publish the result of a move and take it into the ledger; only then has the move happened."""
        moved = advance(state, outcome.event)
        if moved.phase is None:
            raise RuntimeError(f"command {command.command_id}: {outcome.event} leads nowhere")
        result = ActionResult(
            result_id=result_id(command.command_id, moved.phase, moved.attempt),
            command_id=command.command_id,
            job_id=command.job_id,
            pipeline_id=command.pipeline_id,
            kind=command.kind,
            phase=moved.phase,
            attempt=moved.attempt,
            epoch=command.epoch,
            at=self.clock.now(),
            parallelism=moved.parallelism,
            code=outcome.code,
            sentence=outcome.sentence,
            incarnation=outcome.incarnation,
            submission_id=outcome.submission_id,
            downtime_seconds=outcome.downtime_seconds,
            details=outcome.details,
        )
        self.publish(result, trace_id)
        self.ledger.take(result)
        log.info("job %s: %s at size %d. %s", command.job_id, moved.phase, moved.parallelism, outcome.sentence)
        return moved
