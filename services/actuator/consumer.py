"""Reads commands from Kafka and runs them, one at a time per partition.

A restart takes longer than a consumer may go without polling. So each command runs in a worker thread: its partition is
paused, and the main loop goes on polling. The offset of a command is stored when its last result is acknowledged. If
the process crashes, is stopped or loses the partition before that, the command stays on the topic; whoever gets the
partition next finds in the results how far the command came. No command of a partition is carried out before the
results topic has been read to its end.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from services.actuator.execute import CommandRunner
from services.actuator.metrics import ActuatorMetrics
from services.actuator.settings import ActuatorSettings
from services.actuator.task import Abandoned
from tidegate.events.command import ScalingCommand
from tidegate.events.envelope import Unreadable, decode, trace_from
from tidegate.events.result import ActionResult
from tidegate.events.topics import COMMANDS, RESULTS
from tidegate.events.wire import Wire
from tidegate.runtime.clock import Clock
from tidegate.runtime.dead_letters import DeadLetterLimit, send_to_dead_letters
from tidegate.runtime.dependencies import Dependencies
from tidegate.runtime.health import Health
from tidegate.runtime.jobs import JobsView
from tidegate.runtime.kafka import TopicReader, headers_of, record_of

log = logging.getLogger(__name__)

SPEC_SECONDS = 5.0
"""How long a command waits for the spec version that it was decided on."""


class Producer(Protocol):
    """Publishes an event and returns when the broker has it."""

    def publish(self, event: Wire, *, key: bytes | None = None, trace_id: str | None = None) -> None:
        """Publish one event and wait for its acknowledgement."""


@dataclass(slots=True)
class _Lane:
    """One partition: the command being carried out, and those that arrived before the pause took effect."""

    waiting: deque[Any] = field(default_factory=deque)
    message: Any = None
    command: ScalingCommand | None = None
    """The command, while it waits for its spec; at most until `spec_by`."""
    spec_by: float = 0.0
    future: Future[Any] | None = None
    """The running command."""
    cancelled: threading.Event = field(default_factory=threading.Event)
    paused: bool = True
    """True at first as well: librdkafka keeps a partition paused that is taken away and comes back."""


@dataclass
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
        self._lanes: dict[int, _Lane] = {}
        self._stopping = threading.Event()
        self._pool = ThreadPoolExecutor(self.settings.concurrent_commands, thread_name_prefix="command")
        self._limit = DeadLetterLimit(self.settings.dead_letter_limit)
        self._topic = COMMANDS.named(self.settings.topic_prefix)

    def stop(self) -> None:
        """Start no other command; leave those that run where the next actuator can go on."""
        self._stopping.set()

    def run(self) -> int:
        """Carry out commands until `stop`; return 0, the exit status of the process.

        Returns `os.EX_TEMPFAIL` if another actuator has taken over a job, because this process was paused or cut off
        for too long. What it knows is then out of date, and it must be restarted. An action that fails raises its
        error, for the same reason.
        """
        self.health.serve(self.settings.health_host, self.settings.health_port)
        self.dependencies.start()
        self.jobs.load()
        self.consumer.subscribe([self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked)
        try:
            while not self._stopping.is_set():
                self.health.beat()
                busy = any(lane.message is not None for lane in self._lanes.values())
                message = self.consumer.poll(0.05 if busy else 0.25)
                self.jobs.poll()
                if message is not None:
                    self._take(message)
                for partition in list(self._lanes):
                    self._serve(partition)
                lanes = self._lanes.values()
                self.metrics.running.set(sum(lane.future is not None for lane in lanes))
                self.metrics.waiting.set(sum(len(lane.waiting) for lane in lanes))
        except Abandoned as overtaken:
            log.warning("%s; this process ends, and its successor reads the results again", overtaken)
            return os.EX_TEMPFAIL
        finally:
            self._leave()
        return 0

    def _assigned(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        with contextlib.closing(TopicReader(self.settings, [RESULTS.named(self.settings.topic_prefix)])) as reader:
            for message in reader.read_to_end():
                try:
                    self.runner.log.add(decode(ActionResult, message.value(), headers_of(message)))
                except Unreadable as error:
                    # only actuators write to this topic, and an unreadable result may hide a start: do nothing after it
                    raise RuntimeError(f"results[{message.partition()}]@{message.offset()}: {error}") from error
        for partition in partitions:
            self._lanes[partition.partition] = _Lane()
        log.info("got partitions %s; the command log is up to date", [p.partition for p in partitions])

    def _revoked(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            lane = self._lanes.pop(partition.partition, None)
            if lane is not None:
                lane.cancelled.set()
        log.info("lost partitions %s", [p.partition for p in partitions])

    def _take(self, message: Any) -> None:
        error = message.error()
        if error is not None:
            if error.code() != KafkaError._PARTITION_EOF and not error.retriable():
                raise KafkaException(error)
            log.warning("commands: %s", error)
            return
        lane = self._lanes.get(message.partition())
        if lane is not None:
            lane.waiting.append(message)
            lane.paused = True
            self.consumer.pause([TopicPartition(self._topic, message.partition())])

    def _serve(self, partition: int) -> None:
        lane = self._lanes[partition]
        if lane.future is not None and lane.future.done():
            future, message = lane.future, lane.message
            lane.future = lane.message = None
            phase = future.result()  # an error ends the process; the next one starts from the results
            self.metrics.ended.labels(phase or "repeated").inc()
            self._store(message)
        while lane.message is None and lane.waiting and not self._stopping.is_set():
            self._read(lane, lane.waiting.popleft())
        if lane.command is not None and not self._stopping.is_set():
            self._start(lane, lane.command)
        if lane.paused and lane.message is None and not lane.waiting:
            lane.paused = False
            self.consumer.resume([TopicPartition(self._topic, partition)])

    def _read(self, lane: _Lane, message: Any) -> None:
        try:
            lane.command = decode(ScalingCommand, message.value(), headers_of(message), message.key())
        except Unreadable as error:
            self._dead_letter(message, error)
            self._store(message)
            return
        self._limit.good()
        lane.message, lane.spec_by = message, self.clock.monotonic() + SPEC_SECONDS

    def _start(self, lane: _Lane, command: ScalingCommand) -> None:
        """Start the command, unless its spec may still arrive; only its own partition waits for that."""
        spec = self.jobs.get(command.job_id)
        if (spec is None or spec.version < command.spec_version) and self.clock.monotonic() < lane.spec_by:
            return
        lane.command = None
        trace_id = trace_from(headers_of(lane.message))
        lane.future = self._pool.submit(self.runner.run, command, spec, lane.cancelled, trace_id)

    def _dead_letter(self, message: Any, error: Unreadable) -> None:
        log.warning("commands[%d]@%d: %s", message.partition(), message.offset(), error)
        publish, seen_at = self.producer.publish, self.clock.now()
        send_to_dead_letters(publish, record_of(message), error, consumer="actuator", seen_at=seen_at)
        self.metrics.dead_letters.labels(COMMANDS.suffix, error.code).inc()
        self._limit.bad()

    def _store(self, message: Any) -> None:
        # the partition may have been lost: its next owner gets the command again and finds that it has ended
        with contextlib.suppress(KafkaException):
            self.consumer.store_offsets(
                offsets=[TopicPartition(message.topic(), message.partition(), message.offset() + 1)]
            )

    def _leave(self) -> None:
        for lane in self._lanes.values():
            lane.cancelled.set()
        running = [lane.future for lane in self._lanes.values() if lane.future is not None]
        done, late = wait(running, timeout=self.settings.leave_seconds)
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
