"""Handling: a snapshot becomes a decision, a result becomes memory. Everything outside is a port.

The order is the guarantee. For a snapshot: see, decide, reserve, publish the decision, publish the command, keep the
state; only then does the caller acknowledge the snapshot. Each step waits for the one before to be acknowledged, so a
crash anywhere repeats the snapshot from the state before it, and with it the same decision id and command id; the
reservation is owned by that id and says yes again; the actuator drops the command it has seen.

A snapshot ends as exactly one of: a decision; a dead letter (unreadable, or of a job nobody has declared); dropped,
because its sequence has been decided on. What the handler raises is not for going on: the process must end, with the
event unacknowledged.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from services.decider.metrics import Metrics
from services.decider.ports import Ledger, Outbox, Specs, TooLargeToPublish
from services.decider.records import JobRecord, key_of
from tidegate.engine.links import Link
from tidegate.engine.reservations import Answer
from tidegate.engine.round import Reply, Request, Reserve
from tidegate.engine.state import JobState
from tidegate.events.decision import Decision, Neighbour, Observed
from tidegate.events.envelope import Unreadable, decode, trace_from
from tidegate.events.job import JobSpec
from tidegate.events.result import ActionResult, Phase
from tidegate.events.snapshot import MetricSnapshot
from tidegate.installed import engine
from tidegate.runtime.clock import Clock
from tidegate.runtime.dead_letters import DeadLetterLimit, bare, dead_letter

log = logging.getLogger(__name__)

CONSUMER = "decider"
CATCH_UP_EVERY_SECONDS = 5.0
AHEAD_SECONDS = 300.0
"""How far a snapshot's clock may be ahead of ours. It is decided on and held by a guard until there, and then the job
is without decisions for as long as the clock was ahead; from there on it is buried."""
DOWN = frozenset({Phase.STOPPED, Phase.STARTING})
"""Phases in which the master shows none of the job's slots as used, though all of them are spoken for."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """One record as it came from Kafka."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class Handler:
    """Handles one record of a partition at a time; the state of a job is with the outbox, the live object beside it."""

    def __init__(
        self, *, specs: Specs, ledger: Ledger, outbox: Outbox, clock: Clock, metrics: Metrics, limit: DeadLetterLimit
    ) -> None:
        self._specs = specs
        self._ledger = ledger
        self._outbox = outbox
        self._clock = clock
        self._metrics = metrics
        self._limit = limit
        self._live: dict[bytes, tuple[bytes, JobRecord]] = {}
        self._warned: dict[str, float] = {}
        self._waited_at: dict[int, float] = {}

    async def snapshot(self, incoming: Incoming) -> None:
        """Decide on a snapshot, or bury it, or drop it because it has been decided on."""
        began = self._clock.monotonic()
        try:
            snapshot = decode(MetricSnapshot, incoming.value, incoming.headers, incoming.key)
            self._refuse_the_future(snapshot)
            spec = await self._spec_of(snapshot, incoming.partition)
        except Unreadable as error:
            self._metrics.snapshots.labels("buried").inc()
            await self._bury(incoming, error)
            return
        self._limit.good()
        key = key_of(spec.pipeline_id, spec.job_id)
        record = self._record(key)
        if snapshot.sequence <= record.state.last_sequence:
            self._metrics.snapshots.labels("dropped").inc()
            return
        state, decision = await self._decide(record, snapshot, spec)
        trace = trace_from(incoming.headers)
        await self._outbox.publish(decision, trace_id=trace)
        if decision.command is not None:
            await self._outbox.publish(decision.command, trace_id=trace)
            self._metrics.commands.labels(decision.command.kind.value).inc()
        await self._keep(incoming.partition, key, record.decided(state, decision))
        self._metrics.snapshots.labels("decided").inc()
        self._metrics.decide_seconds.observe(self._clock.monotonic() - began)

    async def result(self, incoming: Incoming) -> None:
        """Remember a result for the job's next snapshot, and give back what its command held."""
        try:
            result = decode(ActionResult, incoming.value, incoming.headers, incoming.key)
        except Unreadable as error:
            self._metrics.results.labels("buried").inc()
            await self._bury(incoming, error)
            return
        self._limit.good()
        spec = self._specs.get(result.job_id)
        if spec is None or spec.pipeline_id != result.pipeline_id:
            self._metrics.results.labels("dropped").inc()
            return
        # The ledger first: repeated after a crash it changes nothing, left out it would leave the slots promised.
        if result.phase.terminal:
            await self._ledger.settle(spec.job_id, spec.pool_id, result.command_id, None)
        elif result.phase in DOWN:
            await self._ledger.settle(spec.job_id, spec.pool_id, result.command_id, result.parallelism)
        key = key_of(spec.pipeline_id, spec.job_id)
        record = self._record(key)
        if result.result_id in record.seen:
            self._metrics.results.labels("dropped").inc()
            return
        await self._keep(incoming.partition, key, record.told(result))
        self._metrics.results.labels("taken").inc()

    def _refuse_the_future(self, snapshot: MetricSnapshot) -> None:
        """Raise `Unreadable` for a sequence that no clock should give: decided on, it would shut out all before it."""
        ahead = snapshot.sequence - self._clock.now().timestamp()
        if ahead > AHEAD_SECONDS:
            detail = (
                f"sequence: {snapshot.sequence} is {ahead:.0f} s in the future, at most {AHEAD_SECONDS:g} are taken"
            )
            self._warn(snapshot.job_id, detail)
            raise _Unwanted("INVALID", detail)

    async def _spec_of(self, snapshot: MetricSnapshot, partition: int) -> JobSpec:
        """Return the spec in force, or raise `Unreadable` for a snapshot that nobody has asked for."""
        spec = self._specs.get(snapshot.job_id)
        if (spec is None or spec.pipeline_id != snapshot.pipeline_id) and self._may_wait(partition):
            # A job just declared may be measured before its spec is seen here.
            await self._specs.caught_up()
            spec = self._specs.get(snapshot.job_id)
        if spec is None:
            self._warn(snapshot.job_id, "it is not on the jobs topic")
            # Readable, so no sign of a wrong topic or version: it does not count towards the limit.
            raise _Unwanted("NO_JOB", f"job_id: {snapshot.job_id!r} is not on the jobs topic")
        if spec.pipeline_id != snapshot.pipeline_id:
            self._warn(snapshot.job_id, f"it came as of pipeline {snapshot.pipeline_id}")
            detail = f"pipeline_id: {snapshot.pipeline_id!r}, but version {spec.version} of {spec.job_id!r} has"
            raise _Unwanted("WRONG_KEY", f"{detail} {spec.pipeline_id!r}")
        return spec

    async def _decide(self, record: JobRecord, snapshot: MetricSnapshot, spec: JobSpec) -> tuple[JobState, Decision]:
        """Take one decision round: return the state after it and the decision, whose command is reserved."""
        known = Observed(
            at=self._clock.now(),
            results=record.pending,
            neighbours=tuple(self._neighbour(spec, link) for link in self._specs.links(spec.job_id)),
        )
        round_ = engine().round(record.state, snapshot, spec, known)
        request = next(round_)
        while True:
            reply = await self._reply(request)
            try:
                request = round_.send(reply)
            except StopIteration as ended:
                outcome: tuple[JobState, Decision] = ended.value
                return outcome

    async def _reply(self, request: Request) -> Reply:
        """Answer a question of the round from Redis. A view from the cache is at most a few seconds old."""
        if isinstance(request, Reserve):
            answer = await self._ledger.reserve(request.hold, request.free)
            self._metrics.reservations.labels(answer.value).inc()
            return answer is Answer.TAKEN
        cached = None if request.fresh else self._ledger.glance(request.job_id, request.pool_id)
        return cached or await self._ledger.view(request.job_id, request.pool_id)

    def _neighbour(self, spec: JobSpec, link: Link) -> Neighbour:
        found = self._live.get(key_of(spec.pipeline_id, link.job_id))
        return link.neighbour(found[1].parallelism, found[1].evidence) if found else link.neighbour(None, None)

    def _record(self, key: bytes) -> JobRecord:
        """Return the job's record: the live one if the outbox still holds what it was written as."""
        kept = self._outbox.kept(key)
        if kept is None:
            self._live.pop(key, None)
            return JobRecord(JobState.new())
        live = self._live.get(key)
        if live is not None and live[0] is kept:
            return live[1]
        try:
            record = JobRecord.from_bytes(kept)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            # Going on without the memory is safe (cooldown and fence are elsewhere too); standing still is not.
            log.warning("the state of %s cannot be read and begins anew: %s", key.decode(), error)
            self._metrics.states_lost.inc()
            return JobRecord(JobState.new())
        self._live[key] = (kept, record)
        return record

    async def _keep(self, partition: int, key: bytes, record: JobRecord) -> None:
        raw = record.to_bytes()
        await self._outbox.keep(partition, key, raw)
        self._live[key] = (raw, record)

    async def _bury(self, incoming: Incoming, error: Unreadable) -> None:
        """Publish the record to the dead letters; past the limit raise `TooManyDeadLetters` instead."""
        if not isinstance(error, _Unwanted):
            self._limit.bad()
        letter = dead_letter(
            error,
            consumer=CONSUMER,
            topic=incoming.topic,
            partition=incoming.partition,
            offset=incoming.offset,
            key=incoming.key,
            value=incoming.value,
            headers=incoming.headers,
            seen_at=self._clock.now(),
        )
        try:
            await self._outbox.publish(letter, key=incoming.key)
        except TooLargeToPublish:
            await self._outbox.publish(bare(letter))

    def _may_wait(self, partition: int) -> bool:
        """Whether to wait for newer specs: at most every five seconds, so that strangers' snapshots delay nobody.

        A partition waits for itself: the wait of one says nothing of jobs declared while it lasted.
        """
        now = self._clock.monotonic()
        if now - self._waited_at.get(partition, float("-inf")) < CATCH_UP_EVERY_SECONDS:
            return False
        self._waited_at[partition] = now
        return True

    def _warn(self, job_id: str, why: str) -> None:
        """Warn of a job's snapshots at most once a minute."""
        now = self._clock.monotonic()
        if now - self._warned.get(job_id, -60.0) >= 60.0:
            self._warned[job_id] = now
            log.warning("snapshots of job %s go to the dead letters: %s", job_id, why)


class _Unwanted(Unreadable):
    """A snapshot that can be read, and that there is nothing to decide on."""
