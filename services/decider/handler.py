"""The handler turns a snapshot into a decision and stores results. Everything outside is a port.

The order is the guarantee. For a snapshot: look, decide, reserve, publish the decision, publish the command, store the
state. Only then does the caller acknowledge the snapshot. Each step waits for the acknowledgement of the one before, so
after a crash the snapshot is repeated from the previous state, with the same decision id and command id. The
reservation belongs to that id and is granted again; the actuator ignores the command it has seen.

A snapshot ends as exactly one of: a decision; a dead letter (unreadable, of an undeclared job, one on which the engine
failed, or one whose decision is too large for its topic); dropped, because its sequence was decided before. After any
exception from the handler the process must exit without acknowledging the record.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from services.decider.job_memory import JobMemory, ids_of, key_of
from services.decider.metrics import DeciderMetrics
from services.decider.ports import Outbox, Reservations, Specs
from tidegate.engine.links import NO_OUTLOOK, Link
from tidegate.engine.reservations import DOWN, Answer
from tidegate.engine.round import Reply, Request, Reserve
from tidegate.engine.state import JobState
from tidegate.events.decision import Decision, Neighbour, Observed
from tidegate.events.envelope import Unreadable, decode, trace_from
from tidegate.events.job import JobSpec
from tidegate.events.result import ActionResult
from tidegate.events.snapshot import MetricSnapshot
from tidegate.events.topics import RESULTS, SNAPSHOTS, Topic
from tidegate.installed import engine
from tidegate.runtime.clock import Clock
from tidegate.runtime.dead_letters import ConsumedRecord, DeadLetterLimit, send_to_dead_letters
from tidegate.runtime.logs import about
from tidegate.runtime.producer import TooLarge
from tidegate.runtime.spans import Trace, no_trace, spans_of_decision

log = logging.getLogger(__name__)

CONSUMER = "decider"
CATCH_UP_EVERY_SECONDS = 5.0
AHEAD_SECONDS = 300.0
"""How far a snapshot's clock may be ahead of ours. Up to here a guard holds the decision, and the job gets no decisions
until our clock has caught up; a snapshot further ahead goes to the dead letters."""


@dataclass(kw_only=True)
class Handler:
    """Handles one record of a partition at a time. The outbox has each job's state, the handler the live object."""

    specs: Specs
    reservations: Reservations
    outbox: Outbox
    clock: Clock
    metrics: DeciderMetrics
    limit: DeadLetterLimit
    trace: Trace = no_trace
    """Exports the spans of decisions with a command."""

    def __post_init__(self) -> None:
        self._live: dict[bytes, tuple[bytes, JobMemory]] = {}
        self._warned: dict[str, float] = {}
        self._waited_at: dict[int, float] = {}

    async def snapshot(self, record: ConsumedRecord) -> None:
        """Decide on a snapshot, send it to the dead letters, or drop it because it was decided before."""
        started = self.clock.monotonic()
        try:
            snapshot = decode(MetricSnapshot, record.value, record.headers, record.key)
            with about(job_id=snapshot.job_id):
                self._refuse_the_future(snapshot)
                spec = await self._spec_of(snapshot, record.partition)
                self.limit.good()
                await self._decided(record, snapshot, spec, started)
        except Unreadable as error:
            self.metrics.snapshots.labels("dead_lettered").inc()
            await self._send_to_dead_letters(SNAPSHOTS, record, error)

    async def _decided(self, record: ConsumedRecord, snapshot: MetricSnapshot, spec: JobSpec, started: float) -> None:
        """Decide on a snapshot of a known job, publish what comes of it, and store the state."""
        key = key_of(spec.pipeline_id, spec.job_id)
        memory = self._memory_of(key)
        if snapshot.sequence <= memory.state.last_sequence:
            self.metrics.snapshots.labels("dropped").inc()
            self._tell_of_a_clock(snapshot.job_id, memory.state.last_sequence)
            return
        state, decision = await self._decide(memory, snapshot, spec)
        trace = trace_from(record.headers)
        with about(decision_id=decision.decision_id):
            if memory.state.engine_version not in ("", decision.engine_version):
                text = "engine %s decides in place of engine %s, without what policy %s remembered; %s"
                kept = "what changes of size have cost is still known"
                log.info(text, decision.engine_version, memory.state.engine_version, memory.state.policy, kept)
            try:
                await self.outbox.publish(decision, trace_id=trace)
            except TooLarge as error:  # with the spec that it carries; it would be as large after a restart
                if decision.command is not None:
                    await self.reservations.release(spec.job_id, spec.pool_id, decision.decision_id)
                detail = f"the decision on it is larger than its topic accepts, with the job's spec in it: {error}"
                self._warn_of_letters(snapshot.job_id, detail)
                raise _Unwanted("TOO_LARGE", detail) from error
            if (command := decision.command) is not None:
                await self.outbox.publish(command, trace_id=trace)
                log.info("%s ordered, to size %d. %s", command.kind.value, command.to_parallelism, decision.sentence)
                self.trace(spans_of_decision(snapshot, decision, command, trace))
            await self._keep(record.partition, key, memory.after(state, decision, spec))
        self.metrics.jobs.decided(spec, snapshot, state, decision)
        self.metrics.snapshots.labels("decided").inc()
        self.metrics.decide_seconds.observe(self.clock.monotonic() - started)

    async def result(self, record: ConsumedRecord) -> None:
        """Store a result for the job's next snapshot, and release what its command held.

        One that does not fit into the job's state goes to the dead letters, like one that cannot be read.
        """
        try:
            result = decode(ActionResult, record.value, record.headers, record.key)
            self.limit.good()
            with about(job_id=result.job_id, decision_id=result.command_id):
                await self._taken(record, result)
        except Unreadable as error:
            self.metrics.results.labels("dead_lettered").inc()
            await self._send_to_dead_letters(RESULTS, record, error)

    async def _taken(self, record: ConsumedRecord, result: ActionResult) -> None:
        """Store a result that could be read."""
        spec = self.specs.get(result.job_id)
        if spec is None or spec.pipeline_id != result.pipeline_id:
            self.metrics.results.labels("dropped").inc()
            return
        # Redis first: a repeat after a crash changes nothing there, but an omission would leave the slots held.
        if result.phase.terminal:
            await self.reservations.release(spec.job_id, spec.pool_id, result.command_id)
        elif result.phase in DOWN:
            await self.reservations.adjust(spec.job_id, spec.pool_id, result.command_id, result.parallelism)
        key = key_of(spec.pipeline_id, spec.job_id)
        memory = self._memory_of(key)
        if memory.has(result):
            self.metrics.results.labels("dropped").inc()
            return
        await self._keep(record.partition, key, memory.with_result(result))
        self.metrics.jobs.result(result)
        self.metrics.results.labels("taken").inc()

    async def forget_removed(self) -> None:
        """Forget the jobs that were removed, or belong to another pipeline now. One that is added again starts over.

        What fences commands is kept elsewhere: an epoch is the time of a snapshot, and the actuator has the highest.
        """
        engine().keep(tuple(self.specs))
        gone = [key for key in {*self.outbox.keys(), *self._live} if not self.specs.has(*ids_of(key))]
        if gone:
            await self.specs.caught_up()  # a job may be so new that another decider knew it before
        for key in gone:
            pipeline_id, job_id = ids_of(key)
            if not self.specs.has(pipeline_id, job_id):
                await self.outbox.drop(key)
                self._live.pop(key, None)
                self.reservations.forget(job_id)
                log.info("job %s is not in pipeline %s any more: its state is forgotten", job_id, pipeline_id)

    def _refuse_the_future(self, snapshot: MetricSnapshot) -> None:
        """Raise `Unreadable` for a sequence too far in the future: a decision on it would block all earlier ones."""
        ahead = snapshot.sequence - self.clock.now().timestamp()
        if ahead > AHEAD_SECONDS:
            detail = f"sequence: {snapshot.sequence} is {ahead:.0f} s in the future; the limit is {AHEAD_SECONDS:g} s"
            self._warn_of_letters(snapshot.job_id, detail)
            raise _Unwanted("INVALID", detail)

    def _tell_of_a_clock(self, job_id: str, last_sequence: int) -> None:
        """Warn if a job was decided on by a clock that was ahead: until then, all its snapshots are dropped.

        Nothing is done about it: it may be the clock of this machine that is wrong, and behind.
        """
        if last_sequence - self.clock.now().timestamp() > AHEAD_SECONDS:
            until = datetime.fromtimestamp(last_sequence, UTC)
            self._warn(job_id, f"are dropped: the newest decision is of {until}, so a clock was wrong; see the runbook")

    async def _spec_of(self, snapshot: MetricSnapshot, partition: int) -> JobSpec:
        """Return the current spec, or raise `Unreadable` for a snapshot of an unknown job or another pipeline."""
        spec = self.specs.get(snapshot.job_id)
        if (spec is None or spec.pipeline_id != snapshot.pipeline_id) and self._may_wait(partition):
            # The collector may measure a new job before its spec arrives here.
            await self.specs.caught_up()
            spec = self.specs.get(snapshot.job_id)
        if spec is None:
            unusable = self.specs.has(snapshot.pipeline_id, snapshot.job_id)
            why = "has a spec that cannot be used" if unusable else "is not on the jobs topic"
            self._warn_of_letters(snapshot.job_id, f"the job {why}")
            # It is readable, so not a sign of a wrong topic or version, and does not count towards the limit.
            raise _Unwanted("NO_JOB", f"job_id: {snapshot.job_id!r} {why}")
        if spec.pipeline_id != snapshot.pipeline_id:
            self._warn_of_letters(snapshot.job_id, f"they belong to pipeline {snapshot.pipeline_id}")
            detail = f"pipeline_id: {snapshot.pipeline_id!r}, but version {spec.version} of {spec.job_id!r} has"
            raise _Unwanted("WRONG_KEY", f"{detail} {spec.pipeline_id!r}")
        return spec

    async def _decide(self, memory: JobMemory, snapshot: MetricSnapshot, spec: JobSpec) -> tuple[JobState, Decision]:
        """Take one decision round: return the state after it and the decision, whose command is reserved."""
        now = self.clock.now()
        known = Observed(
            at=now,
            results=memory.pending,
            neighbours=tuple(self._neighbour(spec, link) for link in self.specs.links(spec.job_id)),
            utc_offset_seconds=spec.scaling.utc_offset_seconds(now),
        )
        round_ = engine().round(memory.state, snapshot, spec, known)
        reply: Reply | None = None
        while True:
            try:
                request = round_.send(reply)  # type: ignore[arg-type]  # a generator is started with None
            except StopIteration as ended:
                outcome: tuple[JobState, Decision] = ended.value
                return outcome
            except Exception as error:  # the engine is pure: it would fail in the same way after a restart
                detail = f"{type(error).__name__}: {error}"
                self._warn_of_letters(snapshot.job_id, f"the engine failed on one: {detail}", error)
                raise _Unwanted("ENGINE_FAILED", detail) from error
            reply = await self._reply(request)

    async def _reply(self, request: Request) -> Reply:
        """Answer a question of the round from Redis. A cached view is at most a few seconds old."""
        if isinstance(request, Reserve):
            answer = await self.reservations.reserve(request.hold, request.free)
            self.metrics.reservations.labels(answer.value).inc()
            return answer is Answer.TAKEN
        cached = None if request.fresh else self.reservations.cached_view(request.job_id, request.pool_id)
        return cached or await self.reservations.view(request.job_id, request.pool_id)

    def _neighbour(self, spec: JobSpec, link: Link) -> Neighbour:
        """Return a linked job as its newest decision shows it; unknown if another decider has decided since."""
        key = key_of(spec.pipeline_id, link.job_id)
        found = self._live.get(key)
        is_newest = found is not None and found[0] is self.outbox.kept(key)
        return link.neighbour(found[1].outlook if found is not None and is_newest else NO_OUTLOOK)

    def _memory_of(self, key: bytes) -> JobMemory:
        """Return the job's memory; an empty one if it is new, or was removed since and is added again."""
        kept, removal = self.outbox.kept(key), self.specs.removal(ids_of(key)[1])
        if kept is None:
            self._live.pop(key, None)
            return JobMemory(JobState.new(), removal=removal)
        memory = self._read(key, kept)
        if memory.removal is not None and memory.removal < removal:
            log.info("job %s was removed and added again: its state is forgotten", ids_of(key)[1])
            return JobMemory(JobState.new(), removal=removal)
        return replace(memory, removal=removal) if memory.removal is None else memory

    def _read(self, key: bytes, kept: bytes) -> JobMemory:
        """Return the memory that the outbox has for a job: the live object, if it has its bytes."""
        live = self._live.get(key)
        if live is not None and live[0] is kept:
            return live[1]
        try:
            memory = JobMemory.from_bytes(kept)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            # Continuing without it is safe, because cooldown and fence are kept elsewhere; standing still is not.
            log.warning("cannot read the state of %s, which starts from scratch: %s", key.decode(), error)
            self.metrics.lost_states.inc()
            return JobMemory(JobState.new())
        self._live[key] = (kept, memory)
        return memory

    async def _keep(self, partition: int, key: bytes, memory: JobMemory) -> None:
        raw = memory.to_bytes()
        try:
            await self.outbox.keep(partition, key, raw)
        except TooLarge as error:  # with results that name thousands of queries; it would be as large after a restart
            raise _Unwanted(
                "TOO_LARGE", f"the job's state with it is larger than its topic accepts: {error}"
            ) from error
        self._live[key] = (raw, memory)

    async def _send_to_dead_letters(self, topic: Topic, record: ConsumedRecord, error: Unreadable) -> None:
        """Publish the record to the dead letters; past the limit raise `TooManyDeadLetters` instead."""
        if not isinstance(error, _Unwanted):
            self.limit.bad()
        publish = self.outbox.publish
        await send_to_dead_letters(publish, record, error, consumer=CONSUMER, seen_at=self.clock.now())
        self.metrics.dead_letters.labels(topic.suffix, error.code).inc()

    def _may_wait(self, partition: int) -> bool:
        """Return whether to wait for newer specs: at most every five seconds, so that unknown jobs delay nobody.

        Each partition waits for itself, because a job may be declared while another partition waits.
        """
        now = self.clock.monotonic()
        if now - self._waited_at.get(partition, float("-inf")) < CATCH_UP_EVERY_SECONDS:
            return False
        self._waited_at[partition] = now
        return True

    def _warn_of_letters(self, job_id: str, why: str, error: Exception | None = None) -> None:
        self._warn(job_id, f"go to the dead letters: {why}", error)

    def _warn(self, job_id: str, what: str, error: Exception | None = None) -> None:
        """Warn about a job's snapshots at most once a minute, with the traceback of an error."""
        now = self.clock.monotonic()
        if now - self._warned.get(job_id, -60.0) >= 60.0:
            self._warned = {job: at for job, at in self._warned.items() if now - at < 60.0} | {job_id: now}
            log.warning("snapshots of job %s %s", job_id, what, exc_info=error)


class _Unwanted(Unreadable):
    """A readable snapshot that must not lead to a decision."""
