"""Reads commands from Kafka and runs them: those of one job one after the other, those of different jobs side by side.

A restart takes longer than a consumer may go without polling, so each command runs in a worker thread, and the main
loop goes on polling. All jobs of a pipeline share a partition, and a chain of jobs must be able to grow at once. So a
partition has a lane for each job. A job whose last command still runs waits for that, also if that one came from
another partition, or from this one before it was lost and came back. The offset of a command is stored when its last
result and those of all commands before it in the partition are acknowledged. If the process crashes, is stopped or
loses the partition before that, the commands stay on the topic; whoever gets the partition next finds in the results
how far each one came. No command of a partition is carried out before the results topic has been read to its end.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
from collections import Counter, deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, Protocol

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, KafkaException, TopicPartition

from services.actuator.execute import CommandRunner
from services.actuator.metrics import ActuatorMetrics
from services.actuator.open_offsets import OpenOffsets
from services.actuator.settings import ActuatorSettings
from services.actuator.task import Abandoned
from tidegate.events.command import ScalingCommand
from tidegate.events.envelope import Unreadable, decode, job_named_by, trace_from
from tidegate.events.result import ActionResult
from tidegate.events.topics import COMMANDS, RESULTS
from tidegate.events.wire import Wire
from tidegate.runtime.clock import Clock
from tidegate.runtime.consumer import Partition, TopicReader, headers_of, record_of
from tidegate.runtime.dead_letters import DeadLetterLimit, send_to_dead_letters
from tidegate.runtime.dependencies import Dependencies
from tidegate.runtime.health import Health
from tidegate.runtime.jobs import JobsView

log = logging.getLogger(__name__)

SPEC_SECONDS = 5.0
"""How long a command waits for the spec version that it was decided on, before it is refused."""

CLOCKS_DIFFER_SECONDS = 60.0
"""By how much the clocks of whoever orders and of whoever writes results may differ."""

FORGET_SECONDS = 3600.0
"""How often jobs are forgotten that were removed long ago."""

THREADS = "command"
"""How the names of the commands' threads start."""
MOST_OPEN = 200
"""No more is read of a partition while so many of its commands, from the first open one on, are kept."""


class Producer(Protocol):
    """Publishes an event and returns when the broker has it."""

    def publish(self, event: Wire, *, key: bytes | None = None, trace_id: str | None = None) -> None:
        """Publish one event and wait for its acknowledgement."""


@dataclass(slots=True)
class _Order:
    """A command that was read."""

    message: Any
    command: ScalingCommand
    spec_by: float
    """Until when it may wait for its spec, by the monotonic clock."""
    future: Future[Any] | None = None
    """The running command."""


@dataclass(slots=True)
class _Partition:
    """One partition: what was read of it and has not ended."""

    lanes: dict[str, deque[_Order]] = field(default_factory=dict)
    """By job; the first order of a lane is being carried out, or waits for its spec."""
    open: OpenOffsets = field(default_factory=OpenOffsets)
    cancelled: threading.Event = field(default_factory=threading.Event)
    paused: bool = True
    """True at first as well: librdkafka keeps a partition paused that is taken away and comes back."""

    @property
    def ready(self) -> list[_Order]:
        """The orders that may start, as far as this partition is concerned."""
        return [lane[0] for lane in self.lanes.values() if lane[0].future is None]

    @property
    def waiting(self) -> int:
        """Number of the commands that have not started."""
        return sum(order.future is None for lane in self.lanes.values() for order in lane)


@dataclass(kw_only=True)
class Actuator:
    """The service; `run` until `stop`."""

    settings: ActuatorSettings
    clock: Clock
    consumer: Consumer
    producer: Producer
    jobs: JobsView
    runner: CommandRunner
    health: Health
    metrics: ActuatorMetrics
    dependencies: Dependencies

    def __post_init__(self) -> None:
        self._partitions: dict[int, _Partition] = {}
        self._running: dict[str, Future[Any]] = {}
        """By job, whatever partition the command came from: it may have been lost, and come back, since."""
        self._stopping = threading.Event()
        self._pool = ThreadPoolExecutor(2 * self.settings.concurrent_commands, thread_name_prefix=THREADS)
        self._limit = DeadLetterLimit(self.settings.dead_letter_limit)
        self._results_limit = DeadLetterLimit(self.settings.dead_letter_limit)
        self._results_read: dict[Partition, int] = {}
        """Up to which offset each partition of the results was read."""
        self._forget_at = -math.inf
        self._topic = COMMANDS.named(self.settings.topic_prefix)

    def stop(self) -> None:
        """Start no other command; leave those that run where the next actuator can go on."""
        self._stopping.set()

    def run(self) -> int:
        """Carry out commands until `stop`; return 0, the exit status of the process.

        Returns `os.EX_TEMPFAIL` if another actuator has taken over a job, because this process was paused or cut off
        for too long. What it knows is then out of date, and it must be restarted. If a result cannot be
        published, that error is raised, for the same reason.
        """
        self.health.serve(self.settings.health_host, self.settings.health_port)
        self.dependencies.start()
        self.jobs.load(stop=self._is_stopping)
        self._read_results()  # before it joins the group: meanwhile another actuator carries out commands
        self.consumer.subscribe([self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked)
        try:
            while not self._stopping.is_set():
                self.health.beat()
                busy = any(partition.lanes for partition in self._partitions.values())
                message = self.consumer.poll(0.05 if busy else 0.25)
                self.jobs.poll()
                self._forget_removed()
                if message is not None:
                    self._take(message)
                for number, partition in list(self._partitions.items()):
                    self._serve(number, partition)
                self._start_next()
                self.metrics.running.set(len(self._running))
                self.metrics.waiting.set(sum(partition.waiting for partition in self._partitions.values()))
        except Abandoned as overtaken:
            log.warning("%s; this process ends, and its successor reads the results again", overtaken)
            return os.EX_TEMPFAIL
        finally:
            self._leave()
        return 0

    def _assigned(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._read_results()
        for partition in partitions:
            self._partitions[partition.partition] = _Partition()
        log.info("got partitions %s; the command log is up to date", [p.partition for p in partitions])

    def _forget_removed(self) -> None:
        """Now and then, forget the jobs that were removed long ago."""
        now = self.clock.monotonic()
        if now >= self._forget_at:
            self._forget_at = now + FORGET_SECONDS
            self.runner.log.forget(self._is_removed, self.clock.now())

    def _is_removed(self, job_id: str) -> bool:
        return self.jobs.get(job_id) is None and job_id not in self.jobs.unusable

    def _is_stopping(self) -> bool:
        """Return whether to stop; whoever asks is not stuck, but may wait for a broker."""
        self.health.beat()
        return self._stopping.is_set()

    def _read_results(self) -> None:
        """Bring the log of commands up to date: a month of results at first, afterwards what has come since.

        A stop ends it early; then no command is started any more.
        """
        topic = RESULTS.named(self.settings.topic_prefix)
        with contextlib.closing(TopicReader(self.settings, [topic], after=self._results_read)) as reader:
            for message in reader.read_to_end(stop=self._is_stopping):
                try:
                    self.runner.log.add(decode(ActionResult, message.value(), headers_of(message), message.key()))
                except Unreadable as error:
                    self._add_unreadable(message, error)
                else:
                    self._results_limit.good()
                self._results_read[topic, message.partition()] = message.offset() + 1

    def _add_unreadable(self, message: Any, error: Unreadable) -> None:
        """Leave alone the commands to which an unreadable result may belong: they may have been carried out (I3, I4).

        An actuator's record has its pipeline as key and names its job. What says neither may belong to any command
        that was ordered before.
        """
        now = self.clock.now().timestamp()
        kind, millis = message.timestamp()
        written = now if kind == TIMESTAMP_NOT_AVAILABLE else min(now, millis / 1000)
        job_id = job_named_by(headers_of(message))
        pipeline_id = message.key().decode("utf-8", "replace") if message.key() else None
        self.runner.log.add_unreadable(job_id, pipeline_id, math.ceil(written + CLOCKS_DIFFER_SECONDS))
        whose = f"job {job_id}" if job_id else f"pipeline {pipeline_id}" if pipeline_id else "any job"
        left = f"commands for {whose} that were ordered before it and have not ended are not carried out"
        log.warning("results[%d]@%d: %s; %s", message.partition(), message.offset(), error, left)
        self._dead_letter(message, error, RESULTS.suffix)
        self._results_limit.bad()

    def _revoked(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            lost = self._partitions.pop(partition.partition, None)
            if lost is not None:
                lost.cancelled.set()
        log.info("lost partitions %s", [p.partition for p in partitions])

    def _take(self, message: Any) -> None:
        error = message.error()
        if error is not None:
            if error.code() != KafkaError._PARTITION_EOF and not error.retriable():
                raise KafkaException(error)
            log.warning("commands: %s", error)
            return
        partition = self._partitions.get(message.partition())
        if partition is None:
            return
        partition.open.read(message.offset())
        if len(partition.open) >= MOST_OPEN:
            partition.paused = True
            self.consumer.pause([TopicPartition(self._topic, message.partition())])
            first = min((lane[0] for lane in partition.lanes.values()), key=lambda order: order.message.offset())
            text = "commands[%d]@%d: no further command is read until the one of job %s, at offset %d, has ended"
            log.warning(text, message.partition(), message.offset(), first.command.job_id, first.message.offset())
        try:
            command = decode(ScalingCommand, message.value(), headers_of(message), message.key())
        except Unreadable as unreadable:
            log.warning("commands[%d]@%d: %s", message.partition(), message.offset(), unreadable)
            self._dead_letter(message, unreadable, COMMANDS.suffix)
            self._limit.bad()
            self._end(partition, message)
            return
        self._limit.good()
        order = _Order(message, command, self.clock.monotonic() + SPEC_SECONDS)
        partition.lanes.setdefault(command.job_id, deque()).append(order)

    def _serve(self, number: int, partition: _Partition) -> None:
        for job_id, lane in list(partition.lanes.items()):
            future = lane[0].future
            if future is not None and future.done():
                phase = future.result()  # an error ends the process; the next one starts from the results
                self.metrics.ended.labels(phase or "repeated").inc()
                self._end(partition, lane.popleft().message)
            if not lane:
                del partition.lanes[job_id]
        if partition.paused and len(partition.open) < MOST_OPEN:
            partition.paused = False
            self.consumer.resume([TopicPartition(self._topic, number)])

    def _start_next(self) -> None:
        """Start commands, of each job one, while there are threads for them: of the clusters in turn, the first first.

        After an outage hundreds of jobs of one cluster may have to start, and a command that waits for long expires.
        Commands on a cluster that does not answer hold their threads for minutes. So when all are taken, there are as
        many again, for clusters that have less than half as many as are left: so one that answers finds one, too.
        """
        self._running = {job_id: future for job_id, future in self._running.items() if not future.done()}
        first = [(order, partition) for partition in self._partitions.values() for order in partition.ready]
        before = Counter(self._cluster(job_id) for job_id in self._running)
        turns: list[tuple[int, float, _Order, _Partition]] = []
        for order, partition in sorted(first, key=lambda pair: pair[0].spec_by):
            cluster = self._cluster(order.command.job_id)
            turns.append((before[cluster], order.spec_by, order, partition))
            before[cluster] += 1
        busy, usual = Counter(self._answerer(job_id) for job_id in self._running), self.settings.concurrent_commands
        for _, _, order, partition in sorted(turns, key=lambda turn: turn[:2]):
            job_id, running = order.command.job_id, len(self._running)
            answerer = self._answerer(job_id)
            if self._stopping.is_set() or running >= 2 * usual:
                return
            has_room = running < usual or 2 * busy[answerer] < 2 * usual - running
            if has_room and job_id not in self._running and self._start(order, partition.cancelled):
                busy[answerer] += 1

    def _cluster(self, job_id: str) -> str | None:
        """Return what tells the cluster of a job from others; None if that is not known."""
        spec = self.jobs.get(job_id)
        return None if spec is None else spec.application.cluster_place or spec.application.master

    def _answerer(self, job_id: str) -> str | None:
        """Return who answers for the cluster of a job: for all namespaces of Kubernetes, that is one API server."""
        spec = self.jobs.get(job_id)
        in_pods = spec is not None and spec.application.kubernetes is not None
        return "kubernetes" if in_pods else self._cluster(job_id)

    def _start(self, order: _Order, cancelled: threading.Event) -> bool:
        """Start the command, unless its spec may still arrive: only its own job waits for that. Return whether."""
        spec = self.jobs.get(order.command.job_id)
        if (spec is None or spec.version < order.command.spec_version) and self.clock.monotonic() < order.spec_by:
            return False
        trace_id = trace_from(headers_of(order.message))
        order.future = self._pool.submit(self.runner.run, order.command, spec, cancelled, trace_id)
        self._running[order.command.job_id] = order.future
        return True

    def _dead_letter(self, message: Any, error: Unreadable, topic: str) -> None:
        publish, seen_at = self.producer.publish, self.clock.now()
        send_to_dead_letters(publish, record_of(message), error, consumer="actuator", seen_at=seen_at)
        self.metrics.dead_letters.labels(topic, error.code).inc()

    def _end(self, partition: _Partition, message: Any) -> None:
        commit = partition.open.end(message.offset())
        if commit is not None:
            # the partition may have been lost: its next owner gets the command again and finds that it has ended
            with contextlib.suppress(KafkaException):
                self.consumer.store_offsets(offsets=[TopicPartition(message.topic(), message.partition(), commit)])

    def _leave(self) -> None:
        for partition in self._partitions.values():
            partition.cancelled.set()
        done, late = wait(self._running.values(), timeout=self.settings.leave_seconds)
        for future in done:
            error = future.exception()
            if error is not None and not isinstance(error, Abandoned):
                log.warning("a command ended with %s: %s", type(error).__name__, error)
        if late:
            log.warning("%d commands did not reach a point where they can be left", len(late))
        self._pool.shutdown(wait=not late, cancel_futures=True)
        self.consumer.close()
        self.jobs.close()
        self.dependencies.stop()
        self.health.close()
