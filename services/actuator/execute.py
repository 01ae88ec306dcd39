"""Carries out one command: asks the state machine for the next action, performs it, records its outcome, repeats."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from services.actuator.actions.announce import announce
from services.actuator.actions.find import find
from services.actuator.actions.moved import ENDED_BY_MOVE, where_it_ran
from services.actuator.actions.resize import resize
from services.actuator.actions.resume import resume
from services.actuator.actions.retire import retire
from services.actuator.actions.stop import stop
from services.actuator.actions.submit import submit
from services.actuator.actions.switch import switch
from services.actuator.actions.verify import verify
from services.actuator.actions.warm import warm
from services.actuator.admission import refusal
from services.actuator.backends import Backend
from services.actuator.checkpoint import CheckpointError
from services.actuator.command_log import CommandLog
from services.actuator.drivers import JobDrivers
from services.actuator.fence import Fence, JobFence, Outfenced, Overtaken
from services.actuator.machine import Action, ActionEvent, advance
from services.actuator.progress import CommandProgress
from services.actuator.task import Abandoned, ActionOutcome, Task
from tidegate.events.command import ScalingCommand
from tidegate.events.job import JobSpec
from tidegate.events.result import ActionResult, Phase
from tidegate.events.way import Way
from tidegate.launcher.control.files import Control
from tidegate.launcher.control.json_files import ControlError
from tidegate.launcher.kubernetes.api import Api
from tidegate.launcher.reports.failure import explanation, secrets_of
from tidegate.remote.files import WITHOUT_OPTIONS, Files
from tidegate.runtime.clock import Clock
from tidegate.runtime.logs import about
from tidegate.runtime.producer import TooLarge
from tidegate.runtime.spans import Trace, no_trace, spans_of_result

log = logging.getLogger(__name__)

FILES_SECONDS = 1.0
"""Between two tries while the job's files cannot be used."""
LONG_SECONDS = 60.0
"""A try that took at least this long shows that the files could be used meanwhile."""

_FILE_ERRORS = (ControlError, CheckpointError, OSError)

_ORPHANED = ActionOutcome(ActionEvent.ORPHANED, "The job was removed before the command ended.", "NO_SUCH_JOB")

_DOUBTFUL = ActionOutcome(
    ActionEvent.ORPHANED,
    "A record among the results cannot be read, and may tell that this command was carried out: it is not repeated.",
    "UNREADABLE_RESULT",
)

Publish = Callable[[ActionResult, str | None], None]
"""Publishes a result, with its trace id, and returns when the broker has acknowledged it."""


def control_of(spec: JobSpec, api: Api | None = None, files: Files = WITHOUT_OPTIONS) -> Control:
    """Return the control files of a job; a ConfigMap is reached through `api`, a folder elsewhere through `files`."""
    return Control.at(spec.application.control_place, spec.job_id, api=api, open_folder=files.remote)


@dataclass(frozen=True, slots=True)
class CommandRunner:
    """Carries out commands of all jobs; `run` may be called from several threads."""

    clock: Clock
    log: CommandLog
    fence: Fence
    backends: Mapping[str, Backend]
    publish: Publish
    owner: str
    """This process: only one actuator at a time may act for a job."""
    control: Callable[[JobSpec], Control] = control_of
    """Finds the control files of a job."""
    files: Files = WITHOUT_OPTIONS
    """Finds checkpoints and event logs."""
    trace: Trace = no_trace
    """Exports the spans of results."""

    def run(
        self, command: ScalingCommand, spec: JobSpec | None, cancelled: threading.Event, trace_id: str | None = None
    ) -> Phase | None:
        """Carry out a command from wherever its results say it stands; return its last phase.

        Returns None if the command had ended before. Raises `Abandoned` if another actuator must go on with it.
        """
        if cancelled.is_set():  # it waited for a thread, and somebody else may have ended it since
            raise Abandoned(f"command {command.command_id} is left to the next actuator")
        with about(job_id=command.job_id, decision_id=command.command_id):
            return self._carry_out(command, spec, cancelled, trace_id)

    def _carry_out(
        self, command: ScalingCommand, spec: JobSpec | None, cancelled: threading.Event, trace_id: str | None
    ) -> Phase | None:
        if self.log.ended(command.command_id):
            log.info("job %s: command %s has already ended", command.job_id, command.command_id)
            return None
        cores = 1 if spec is None else spec.application.executor_cores
        progress = CommandProgress(command, self.log, self.clock, partial(self._publish, command, trace_id), cores)
        taken_over = progress.state.phase is not None
        if self.log.is_doubtful(command):
            changed = progress.state.phase not in (None, Phase.ACCEPTED)
            progress.record(_DOUBTFUL if changed else replace(_DOUBTFUL, event=ActionEvent.REFUSED))
            return progress.state.phase
        cluster = None if spec is None else self._former_cluster(spec)
        if not taken_over:
            progress.record(self._admit(command, spec))
        elif spec is None or (cluster is not None and progress.state.phase is not Phase.ACCEPTED):
            progress.record(_ORPHANED if spec is None else ENDED_BY_MOVE)
        if spec is None or progress.next_action() is Action.NOTHING:
            return progress.state.phase
        try:
            drivers = self._drivers(spec)
            if cluster is not None:
                drivers.before = self._drivers(where_it_ran(spec, cluster))
        except _FILE_ERRORS as error:  # there can be no file at the place that the spec names by now
            progress.record(replace(_broken(spec, error), event=ActionEvent.ORPHANED))
            return progress.state.phase
        fence = JobFence(self.fence, drivers.control, spec.job_id, command.epoch, self.owner)
        task = Task(command, spec, self.clock, fence, cancelled, self.files)
        while progress.next_action() is not Action.NOTHING:
            outcome = self._perform(progress, task, drivers, taken_over=taken_over)
            taken_over = False
            try:
                progress.record(outcome)
            except TooLarge as error:  # such as where thousands of queries stood; the next actuator would end here too
                progress.record(_broken(spec, error))
        return progress.state.phase

    def _publish(self, command: ScalingCommand, trace_id: str | None, result: ActionResult) -> None:
        self.publish(result, trace_id)
        self.trace(spans_of_result(command, self.log.results(command.command_id), result, trace_id))

    def _former_cluster(self, spec: JobSpec) -> Mapping[str, str] | None:
        """Return the cluster where the job was started last, if its spec names another one and it was not stopped."""
        cluster = self.log.job(spec.job_id).cluster
        return cluster if cluster and spec.application.moved_from(cluster) else None

    def _drivers(self, spec: JobSpec) -> JobDrivers:
        return JobDrivers(spec, self.backends[spec.application.backend], self.control(spec), self.log, self.files)

    def _admit(self, command: ScalingCommand, spec: JobSpec | None) -> ActionOutcome:
        epoch = self.log.job(command.job_id).epoch
        backends, now = frozenset(self.backends), self.clock.now()
        refused = refusal(command, spec, epoch=epoch, backends=backends, now=now, files=self.files)
        if refused is not None:
            code, sentence = refused
            return ActionOutcome(ActionEvent.REFUSED, sentence, code)
        sentence = f"From size {command.from_parallelism} to {command.to_parallelism}."
        return ActionOutcome(ActionEvent.ADMITTED, sentence)

    def _perform(
        self, progress: CommandProgress, task: Task, drivers: JobDrivers, *, taken_over: bool
    ) -> ActionOutcome:
        """Perform the next action; while the job's files cannot be used, or anything else fails, try again for a while.

        That time begins with the first failure: the action itself may take hours. What is wrong with one job must not
        end the commands of all jobs: the next actuator would end at the same place.
        """
        action, longest = progress.next_action(), task.spec.application.stop_deadline_seconds
        outcome: ActionOutcome | None = None
        give_up_at: float | None = None
        maybe_submitted = taken_over
        while True:
            began = self.clock.monotonic()
            try:
                task.check()
                outcome = outcome or _actions(task, drivers, progress, maybe_submitted=maybe_submitted)[action]()
                progress.result_of(outcome)  # a driver may have written what none can hold
                task.check()
            except Outfenced:
                return ActionOutcome(ActionEvent.OUTFENCED, "A newer command holds the job's fence.", "OUTFENCED")
            except Overtaken:  # it is the other one's to say how the command ends
                raise Abandoned(f"job {task.spec.job_id}: another actuator carries out the same command") from None
            except Abandoned:
                raise
            except Exception as error:  # whatever it is, it must not end the commands of all jobs
                expected = isinstance(error, _FILE_ERRORS)
                because = "because of the job's files" if expected else "unexpectedly"
                told = not expected and give_up_at is None
                log.warning("job %s: %s failed %s: %s", task.spec.job_id, action.value, because, error, exc_info=told)
                maybe_submitted = True  # nobody knows how far the action came
                now = self.clock.monotonic()
                if give_up_at is None or (expected and now - began > max(longest, LONG_SECONDS)):
                    give_up_at = now + longest
                if now > give_up_at:
                    return _broken(task.spec, error)
            else:
                return outcome
            task.cancelled.wait(FILES_SECONDS)


def _actions(
    task: Task, drivers: JobDrivers, progress: CommandProgress, *, maybe_submitted: bool
) -> dict[Action, Callable[[], ActionOutcome]]:
    """Return the function of each action, with its inputs."""
    state, newest = progress.state, progress.newest
    return {
        Action.FIND: lambda: find(task, drivers),
        Action.RESIZE: lambda: resize(task, drivers, state, accepted=newest(Phase.ACCEPTED)),
        Action.STOP: lambda: stop(task, drivers, progress.failed_from(), may_refuse=state.attempt == 1),
        Action.ANNOUNCE: lambda: announce(task, drivers),
        Action.SUBMIT: lambda: submit(
            task, drivers, state.parallelism, newest(Phase.STOPPED).checkpoint, maybe_submitted=maybe_submitted
        ),
        Action.VERIFY: lambda: verify(
            task,
            drivers,
            accepted=newest(Phase.ACCEPTED),
            stopped=newest(Phase.RUNNING if state.way is Way.HANDOVER else Phase.STOPPED),
            running=newest(Phase.RUNNING),
            last=advance(state, ActionEvent.SILENT).phase is Phase.FAILED,
        ),
        Action.WARM: lambda: warm(task, drivers, state.parallelism, maybe_submitted=maybe_submitted),
        Action.SWITCH: lambda: switch(task, drivers, newest(Phase.SWITCHING)),
        Action.RETIRE: lambda: retire(task, drivers, running=newest(Phase.RUNNING), verified=newest(Phase.RETIRING)),
        Action.RESUME: lambda: resume(task, drivers, newest(Phase.SWITCHING)),
    }


def _broken(spec: JobSpec, error: Exception) -> ActionOutcome:
    """Return that the command cannot go on because of an error, without the job's secrets."""
    if isinstance(error, _FILE_ERRORS):
        return ActionOutcome(ActionEvent.BROKEN, f"The job's files cannot be used: {error}.", "BROKEN_FILES")
    secrets = secrets_of(spec.application.conf, spec.application.env)
    why = explanation(f"{type(error).__name__}: {error}", secrets)
    return ActionOutcome(ActionEvent.BROKEN, f"Something failed that Tidegate does not expect: {why}.", "UNEXPECTED")
