"""A consumer of the commands topic whose test says what is assigned, revoked and read, and a runner that it holds."""

# ruff: noqa: D102 - they implement ports

from __future__ import annotations

import threading
import time
import types
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Self, cast

from confluent_kafka import TIMESTAMP_CREATE_TIME, Consumer, KafkaError, TopicPartition
from prometheus_client import CollectorRegistry

from services.actuator.consumer import Actuator
from services.actuator.execute import CommandRunner
from services.actuator.metrics import ActuatorMetrics
from services.actuator.settings import ActuatorSettings
from tests.support.command_log import command_log
from tests.support.events import job
from tidegate.events.command import ScalingCommand
from tidegate.events.envelope import encode
from tidegate.events.job import JobSpec
from tidegate.events.result import Phase
from tidegate.events.wire import Wire
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.consumer import Partition
from tidegate.runtime.poll import wait_until

TOPIC = "tidegate.commands"


class FakeMessage:
    """A record of the commands topic, or of another one."""

    def __init__(
        self,
        partition: int,
        offset: int,
        event: Wire | bytes,
        error: KafkaError | None = None,
        *,
        key: bytes | None = b"k",
        job_id: str | None = None,
    ) -> None:
        self._error = error
        record = None if isinstance(event, bytes) else encode(event)
        self._place = (partition, offset)
        self._value = event if isinstance(event, bytes) else cast(Any, record).value
        self._key = key if record is None else record.key
        self.written_millis = int(time.time() * 1000)
        self._headers: list[tuple[str, bytes | None]] = [] if record is None else list(record.headers)
        if job_id is not None:
            self._headers.append(("ce_subject", job_id.encode()))

    def error(self) -> KafkaError | None:
        return self._error

    def topic(self) -> str:
        return TOPIC

    def partition(self) -> int:
        return self._place[0]

    def offset(self) -> int:
        return self._place[1]

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes:
        return cast(bytes, self._value)

    def timestamp(self) -> tuple[int, int]:
        return TIMESTAMP_CREATE_TIME, self.written_millis

    def headers(self) -> list[tuple[str, bytes | None]]:
        return self._headers


class FakeConsumer:
    """What the broker does, one step for each poll; afterwards nothing comes."""

    def __init__(self) -> None:
        self.steps: deque[Callable[[], Any]] = deque()
        self.stored: dict[int, int] = {}
        self.paused: set[int] = set()
        self._calls: dict[str, Callable[..., None]] = {}

    def subscribe(self, _topics: list[str], **calls: Callable[..., None]) -> None:
        self._calls = calls

    def assign(self, *numbers: int) -> None:
        """Have partitions assigned."""
        self.steps.append(lambda: self._calls["on_assign"](self, _places(numbers)))

    def revoke(self, *numbers: int) -> None:
        """Have partitions taken away."""
        self.steps.append(lambda: self._calls["on_revoke"](self, _places(numbers)))

    def deliver(self, partition: int, offset: int, event: ScalingCommand | bytes) -> None:
        """Have a record read."""
        self.steps.append(lambda: FakeMessage(partition, offset, event))

    def fail(self, error: KafkaError) -> None:
        """Have an error reported in place of a record."""
        self.steps.append(lambda: FakeMessage(0, 0, b"", error))

    def poll(self, _seconds: float) -> FakeMessage | None:
        if not self.steps:
            threading.Event().wait(0.002)
            return None
        found = self.steps.popleft()()
        return found if isinstance(found, FakeMessage) else None

    def pause(self, places: list[TopicPartition]) -> None:
        self.paused |= {place.partition for place in places}

    def resume(self, places: list[TopicPartition]) -> None:
        self.paused -= {place.partition for place in places}

    def store_offsets(self, *, offsets: list[TopicPartition]) -> None:
        self.stored |= {place.partition: place.offset for place in offsets}

    def close(self) -> None:
        pass


class HeldRunner:
    """Takes commands, and ends each when the test says so, whatever else happens."""

    def __init__(self) -> None:
        self.log = command_log()
        self.started: list[str] = []
        self.running: list[str] = []
        self.most: dict[str, int] = {}
        """How many commands of a job were carried out at once."""
        self.specs: list[JobSpec | None] = []
        """With which specs the commands were carried out."""
        self.gone: dict[str, threading.Event] = {}
        """By command, whether it was told to leave."""
        self.failure: Exception | None = None
        """With what commands end, instead of well."""
        self._held: set[str] = set()
        self._ends: dict[str, threading.Event] = {}
        self._lock = threading.Lock()

    def end(self, command_id: str) -> None:
        """Let a command end."""
        self._event(command_id).set()

    def holds(self, commands: int) -> bool:
        """Whether it carries out so many commands, and none of them may end."""
        with self._lock:
            return len(self._held) == commands and not any(self._event(held).is_set() for held in self._held)

    def run(self, command: ScalingCommand, spec: JobSpec | None, gone: threading.Event, _trace: str | None) -> Phase:
        with self._lock:
            self.specs.append(spec)
            self.gone[command.command_id] = gone
            self.started.append(command.command_id)
            self.running.append(command.job_id)
            self._held.add(command.command_id)
            at_once = self.running.count(command.job_id)
            self.most[command.job_id] = max(self.most.get(command.job_id, 0), at_once)
        self._event(command.command_id).wait(20)
        with self._lock:
            self.running.remove(command.job_id)
            self._held.remove(command.command_id)
        if self.failure is not None:
            raise self.failure
        return Phase.VERIFIED

    def _event(self, command_id: str) -> threading.Event:
        return self._ends.setdefault(command_id, threading.Event())


LOOKS = 10
"""How often nothing may have changed until nothing will."""


class ActuatorRun:
    """An actuator that runs in a thread, on a fake consumer."""

    def __init__(self, runner: Any, **settings: Any) -> None:
        self.consumer = FakeConsumer()
        self.runner = runner
        self.letters: list[Any] = []
        self.beats = 0
        """How often the actuator has said that it is alive."""
        self.specs: dict[str, JobSpec | None] = {}
        """The specs of jobs that have one of their own, or None; all others have the usual one."""

        def beat() -> None:
            self.beats += 1

        nothing = types.SimpleNamespace(
            serve=_nothing, beat=beat, close=_nothing, start=_nothing, stop=_nothing, load=_nothing, poll=_nothing
        )
        jobs = types.SimpleNamespace(load=_nothing, poll=_nothing, close=_nothing, get=self._spec, unusable={})
        producer = types.SimpleNamespace(publish=lambda event, **_: self.letters.append(event))
        self.actuator = Actuator(
            settings=ActuatorSettings(leave_seconds=0.5, **settings),
            clock=SystemClock(),
            consumer=cast(Consumer, self.consumer),
            producer=cast(Any, producer),
            jobs=cast(Any, jobs),
            runner=cast(CommandRunner, runner),
            health=cast(Any, nothing),
            metrics=ActuatorMetrics(CollectorRegistry()),
            dependencies=cast(Any, nothing),
        )
        self.code: list[int | BaseException] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.actuator.stop()
        self._thread.join(10)

    def settle(self) -> None:
        """Wait until the actuator has taken all steps, and its commands do not change from one look to the next."""
        calm, looked, started = 0, self.beats, 0

        def is_calm() -> bool:
            nonlocal calm, looked, started
            if self.beats > looked + 1:
                before, looked, started = started, self.beats, len(self.runner.started)
                is_same = started == before and not self.consumer.steps and self.runner.holds(self._unended())
                calm = calm + 1 if is_same else 0
            return calm == LOOKS or bool(self.code)

        assert wait_until(is_calm, 20, 0.002)

    def _unended(self) -> int:
        return sum(not command.done() for command in list(self.actuator._running.values()))

    def _spec(self, job_id: str) -> JobSpec | None:
        return self.specs.get(job_id, job(job_id))

    def _run(self) -> None:
        try:
            self.code.append(self.actuator.run())
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.code.append(error)


class NoResults:
    """A results topic in which nothing is."""

    def __init__(self, *_: object, after: Mapping[Partition, int]) -> None:
        self.after = dict(after)
        """Up to where results were read before."""

    def read_to_end(self, **_: Any) -> Any:
        return []

    def close(self) -> None:
        pass


def _places(numbers: tuple[int, ...]) -> list[TopicPartition]:
    return [TopicPartition(TOPIC, number) for number in numbers]


def _nothing(*_: object, **__: object) -> None:
    pass
