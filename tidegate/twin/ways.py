"""The three ways in which a twin job gets another size, in the phases of services/actuator/machine.py.

in place   accepted -> resizing -> verified
handover   accepted -> warming -> switching -> running -> retiring -> verified
restart    accepted -> stopping -> stopped -> starting -> running -> verified

in place   new executors die                       resizing, back to the last size -> rolled_back
handover   the second driver does not warm up      rolled_back
           no batch boundary, or no first commit   resuming, the first driver goes on -> rolled_back
restart    no first commit in time                 a restart with the last size -> rolled_back, or failed
"""

from __future__ import annotations

import math

from tidegate.events.command import CommandKind, ScalingCommand
from tidegate.events.result import Phase
from tidegate.events.way import Way, boundary_seconds
from tidegate.twin.execution import Execution, Report, incarnation
from tidegate.twin.job import Batch, Job, JobEvent, Life

FIRST_BATCH_SECONDS = 5.0
"""How long the first batch of a `start` goes on after its first finished task until the start counts as done."""


def execute(command: ScalingCommand, job: Job, epoch: float, report: Report, at: float) -> Execution:
    """Start a command: accept it and go the way it names, or else the first one that is possible; or reject it."""
    way = _way(command, job)
    execution = _EXECUTIONS[way or Way.RESTART](command, job, epoch, report)
    refusal = _refusal(command, job, epoch + at)
    if refusal is not None:
        execution.reject(at, *refusal)
    elif way is None:
        execution.emit(Phase.ACCEPTED, at)
        execution.reject(at, "NO_WAY", "the job can only hand over, and its pool has no room for both sizes")
    else:
        execution.accept(at)
    return execution


def _refusal(command: ScalingCommand, job: Job, now: float) -> tuple[str, str] | None:
    if now >= command.expires_at.timestamp():
        return "EXPIRED", "the command expired before it was started"
    if command.kind is CommandKind.START and job.life not in (Life.STOPPED, Life.FAILED):
        return "ALREADY_RUNNING", "the job is already running"
    if command.kind is not CommandKind.START and job.life is not Life.RUNNING:
        return "NOT_RUNNING", f"the job is {job.life.value}"
    return None


def _way(command: ScalingCommand, job: Job) -> Way | None:
    """Return the way to go: the command's if the job can go it, or the first possible one of the job's; None: none.

    The pool must have room for both drivers of a handover.
    """
    if command.kind is not CommandKind.RESCALE or command.way is None:
        return Way.RESTART
    ways = job.model.ways
    for way in (command.way, *ways) if command.way in ways else ways:
        if way is not Way.HANDOVER or job.pool.free >= command.to_parallelism:
            return way
    return None


class RestartExecution(Execution):
    """Stops the driver at a batch boundary, or at the deadline, and starts another; also starts and stops."""

    way = Way.RESTART

    def begin(self, at: float) -> None:
        """Stop what runs."""
        if self.command.kind is CommandKind.START:
            self._start(at)
        else:
            self._stop(at, at + self.job.model.stop_deadline_seconds)

    def act(self, at: float) -> None:
        """Judge the start by its progress; if it takes too long, go back to the last size once."""
        self.due_at = math.inf
        if self.phase is Phase.RUNNING and at < self._limit():
            self._follow_first_batch(at)
        elif self.attempt == 1 and self.command.from_parallelism:
            self.attempt, self.size = 2, self.command.from_parallelism
            self._stop(at, at)
        else:
            self.end(Phase.FAILED, at, code="START_DEADLINE", sentence="no batch was committed in time")
            self.job.stop(at, at)

    def on(self, event: JobEvent, at: float) -> None:
        """Go on when the old run has ended, and end when the new one has committed."""
        super().on(event, at)
        job = self.job
        if event is JobEvent.STOPPED:
            self.emit(Phase.STOPPED, at)
            if self.command.kind is CommandKind.STOP:
                self.end(Phase.VERIFIED, at)
            else:
                self._start(at)
        elif event is JobEvent.RUNNING:
            self.emit(Phase.RUNNING, at, incarnation=incarnation(job))
            self._follow_first_batch(at)
        elif event is JobEvent.COMMITTED and self.phase is Phase.STOPPING:
            self.remember_commit()
        elif event is JobEvent.COMMITTED:
            code, sentence = (
                ("START_DEADLINE", "the new size committed no batch in time") if self.attempt > 1 else ("OK", "")
            )
            phase = Phase.ROLLED_BACK if self.attempt > 1 else Phase.VERIFIED
            self.end(phase, at, incarnation=incarnation(job), code=code, sentence=sentence, **self.first_commit(at))

    def _stop(self, at: float, deadline: float) -> None:
        self.emit(Phase.STOPPING, at)
        self.job.stop(at, deadline)

    def _start(self, at: float) -> None:
        self.emit(Phase.STARTING, at)
        self.job.start(at, self.size)
        self._started_at = at
        self.due_at = self._limit()

    def _limit(self) -> float:
        """Return when the start has taken too long: later if a batch is at work."""
        works = self.job.batch is not None
        return self._started_at + (self.longest_start_seconds() if works else self.job.model.start_deadline_seconds)

    def _follow_first_batch(self, at: float) -> None:
        """Wait for the first commit; of a `start`, a finished task is enough if its batch goes on after that."""
        batch = self.job.batch
        if self.command.kind is not CommandKind.START:
            self.due_at = self._limit()
        elif batch is None or at < FIRST_BATCH_SECONDS + first_task_at(self.job, batch):
            self.due_at = min(at + FIRST_BATCH_SECONDS, self._limit())
        else:
            self.end(Phase.VERIFIED, at, code="FIRST_BATCH", incarnation=incarnation(self.job))


def first_task_at(job: Job, batch: Batch) -> float:
    """Return when the first task of the running batch ends."""
    return batch.started_at + batch.overhead_seconds + min(task.finished for task in job.task_runs(batch)[0])


class InPlaceExecution(Execution):
    """Adds or removes executors of the running driver."""

    way = Way.IN_PLACE

    def begin(self, at: float) -> None:
        """Order executors: new ones work after a while; others leave at a batch boundary, if one comes soon."""
        job, costs = self.job, self.job.model.in_place
        self._before = job.size
        self._offered_at = math.inf
        self._leaving = False
        self.emit(Phase.RESIZING, at)
        if self.size < self._before:
            self.due_at = at + (costs.boundary_seconds if job.batch is not None else 0.0)
            return
        job.resizes += 1
        job.resize(at, self.size, self._before)
        jitter = costs.register_jitter_seconds * job.noise.uniform(7, job.resizes)
        registered = costs.register_seconds + jitter if job.size > self._before else 0.0
        self.details["registered_seconds"] = registered
        self.due_at = at + registered + (costs.working_seconds if registered else 0.0)

    def act(self, at: float) -> None:
        """Let new executors work, or old ones leave."""
        self.due_at = math.inf
        if self.size < self._before:
            self._shrink(at)
        elif not math.isinf(self._offered_at):
            self._verified(at)
        elif self.job.resizes in self.job.model.faults.failed_growths:
            self._roll_back(at)
        else:
            self._grow(at)

    def on(self, event: JobEvent, at: float) -> None:
        """Shrink at a batch boundary; a growth ends with the first batch on the new slots."""
        super().on(event, at)
        if event is not JobEvent.COMMITTED or self.done:
            return
        if self.size < self._before and not self._leaving:
            self._shrink(at)
        elif self.job.finished[-1].started_at >= self._offered_at:
            self._verified(at)

    def _grow(self, at: float) -> None:
        """Use what the pool has granted. It works once it has finished a task, or if there is nothing to process."""
        job = self.job
        self.size, self._offered_at = job.size, at
        worked_at = job.resize(at, self.size)
        if not math.isinf(worked_at):
            self.due_at = worked_at
        elif self.size == self._before or (job.batch is None and not job.lag(at)):
            self._verified(at)
        else:
            self.due_at = at + job.model.start_deadline_seconds

    def _shrink(self, at: float) -> None:
        job = self.job
        if self._leaving:
            job.resize(at, self.size)
            self.details["registered_seconds"] = self.since_order(at)
            self._verified(at)
        else:
            self._leaving = True
            job.resize(at, self._before, self.size)
            self.due_at = at + job.model.in_place.shrink_seconds

    def _roll_back(self, at: float) -> None:
        self.attempt, self.size = 2, self._before
        self.job.resize(at, self.size)
        sentence = "the new executors died before they worked"
        self.emit(Phase.RESIZING, at, code="EXECUTORS_DIED", sentence=sentence)
        self._end(Phase.ROLLED_BACK, at, "EXECUTORS_DIED", sentence)

    def _verified(self, at: float) -> None:
        ordered = self.command.to_parallelism
        self.details["working_seconds"] = self.since_order(at)
        if self.size == ordered:
            self._end(Phase.VERIFIED, at, "OK", "")
        else:
            self._end(Phase.VERIFIED, at, "GRANTED_FEWER", f"the cluster granted {self.size} of {ordered} slots")

    def _end(self, phase: Phase, at: float, code: str, sentence: str) -> None:
        self.end(
            phase,
            at,
            incarnation=incarnation(self.job),
            code=code,
            sentence=sentence,
            downtime_seconds=0.0,
            outage_seconds=0.0,
            delay_seconds=self.since_order(at),
        )


class HandoverExecution(Execution):
    """Warms up a second driver, which goes on from the batch boundary where the first one pauses."""

    way = Way.HANDOVER

    def begin(self, at: float) -> None:
        """Start the second driver next to the first."""
        job = self.job
        self.emit(Phase.WARMING, at)
        self._first = job.run
        costs = job.model.handover
        self.due_at = at + costs.warm_seconds + costs.warm_slot_seconds * self.size
        self._second = job.warm_up(at, self.size)
        self._code, self._sentence = "OK", ""
        self._figures: dict[str, object] = {}

    def act(self, at: float) -> None:
        """Take the step that was due in this phase."""
        job, phase = self.job, self.phase
        self.due_at = math.inf
        if phase is Phase.WARMING and self._second.ordinal in job.model.faults.failed_warm_ups:
            self.attempt, self.size = 2, job.size
            job.retire(at)
            self._code, self._sentence = "NOT_WARM", "the second driver ended before it was warm; the first one goes on"
            self._end(Phase.ROLLED_BACK, at)
        elif phase is Phase.WARMING:
            self.emit(Phase.SWITCHING, at)
            self._boundary = job.batch is None
            self.due_at = at + boundary_seconds(job.model.ways, job.model.stop_deadline_seconds)
            if self._boundary:
                self._pause(at)
        elif phase is Phase.SWITCHING and self._boundary:
            job.switch(at, self._second)
            self.emit(Phase.RUNNING, at, incarnation=incarnation(job))
            self._limit = at + self.longest_start_seconds()
            self.due_at = at + job.model.start_deadline_seconds
        elif phase is Phase.SWITCHING:
            self._go_back(at, "NO_BOUNDARY", "no batch ended before the deadline; the first driver goes on")
            job.retire(at)
            self._end(Phase.ROLLED_BACK, at)
        elif phase is Phase.RUNNING and job.batch is not None and at < self._limit:
            self.due_at = self._limit
        elif phase is Phase.RUNNING:
            self._go_back(at, "START_DEADLINE", "the second driver committed no batch in time; the first one goes on")
            job.pause()
            self.due_at = at + job.model.handover.switch_seconds
        elif phase is Phase.RESUMING:
            job.switch(at, self._first)
            job.retire(at)
            self._first.commits = 0  # so that an idle query shows that it goes on
        elif phase is Phase.RETIRING:
            job.retire(at)
            self._end(Phase.VERIFIED, at)

    def on(self, event: JobEvent, at: float) -> None:
        """Switch at a batch boundary; retire the first driver once the second has committed."""
        super().on(event, at)
        if event is not JobEvent.COMMITTED or self.done:
            return
        if self.phase is Phase.WARMING:
            self.remember_commit()
        elif self.phase is Phase.SWITCHING:
            self.remember_commit()
            self._boundary = True
            self._pause(at)
        elif self.phase is Phase.RUNNING:
            self._figures = self.first_commit(at)
            self.emit(Phase.RETIRING, at, incarnation=incarnation(self.job))
            self.due_at = at + self.job.model.restart.exit_seconds
        elif self.phase is Phase.RESUMING:
            self._figures = self.first_commit(at)
            self._end(Phase.ROLLED_BACK, at)

    def _pause(self, at: float) -> None:
        self.job.pause()
        self.due_at = at + self.job.model.handover.switch_seconds + self.job.load_seconds

    def _go_back(self, at: float, code: str, sentence: str) -> None:
        self.attempt, self.size = 2, self.command.from_parallelism
        self._code, self._sentence = code, sentence
        self.emit(Phase.RESUMING, at, code=code, sentence=sentence)

    def _end(self, phase: Phase, at: float) -> None:
        self.end(
            phase, at, incarnation=incarnation(self.job), code=self._code, sentence=self._sentence, **self._figures
        )


_EXECUTIONS: dict[Way, type[Execution]] = {
    Way.IN_PLACE: InPlaceExecution,
    Way.HANDOVER: HandoverExecution,
    Way.RESTART: RestartExecution,
}
