"""The Python client: iterate over Tidegate's events as typed, validated values.

    from tidegate import decisions
    for decision in decisions("127.0.0.1:9092", job="rates", follow=True):
        print(decision.final_parallelism, decision.sentence)

Events of one pipeline come in the order in which they were written; between pipelines there is no order. Nothing is
committed to any consumer group, so reading never disturbs the services.
"""

from __future__ import annotations

import socket
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, TypeVar

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from pydantic import model_validator

from tidegate.events.command import ScalingCommand
from tidegate.events.dead_letter import DeadLetter
from tidegate.events.decision import Decision
from tidegate.events.envelope import Unreadable, decode
from tidegate.events.job import JobSpec
from tidegate.events.result import ActionResult
from tidegate.events.snapshot import MetricSnapshot
from tidegate.events.topics import BY_MODEL
from tidegate.events.wire import Wire
from tidegate.runtime.jobs import JobsView
from tidegate.runtime.kafka import TopicReader, headers_of
from tidegate.runtime.settings import RedisSettings, ServiceSettings

W = TypeVar("W", bound=Wire)
REACH_SECONDS = 10.0
"""How long the broker may take to answer the first question."""


class ClientSettings(RedisSettings):
    """How a client reaches the broker: the services' own `TIDEGATE_…` variables, of which it needs only some."""

    @model_validator(mode="before")
    @classmethod
    def _no_unknown_variables(cls, data: Any) -> Any:
        return data  # the shell of an operator may hold the variables of every service

    def kafka(self) -> dict[str, Any]:
        """Return librdkafka's connection settings; its own log is kept off the user's terminal."""
        return {**super().kafka(), "log_level": "0"}


class Unreachable(ConnectionError):
    """No broker answers at the given address."""


class NoSuchTopic(LookupError):
    """The broker answers but has no such topic."""


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record that could not be read, for `on_error`."""

    topic: str
    partition: int
    offset: int
    error: Unreadable
    value: bytes | None

    def __str__(self) -> str:
        return f"{self.topic}, partition {self.partition}, offset {self.offset}: {self.error}"


@dataclass(frozen=True)
class Received(Generic[W]):
    """An event with where and when it stands on its topic."""

    event: W
    partition: int
    offset: int
    written_at: datetime
    """The record's timestamp: when the event was handed to Kafka."""
    key: bytes


OnError = Callable[[BadRecord], None]
Since = datetime | timedelta | None
Stop = Callable[[], bool]


def warn_of(bad: BadRecord) -> None:
    """Say in a warning that a record was skipped; what a client does unless it is given an `on_error`."""
    warnings.warn(f"skipped {bad}", UserWarning, stacklevel=2)


def received(
    model: type[W],
    settings: ServiceSettings,
    *,
    job: str | None = None,
    since: Since = None,
    follow: bool = False,
    on_error: OnError = warn_of,
    stop: Stop = lambda: False,
    timeout_seconds: float = 60.0,
) -> Iterator[Received[W]]:
    """Yield the events of one model with their places, oldest first per pipeline.

    `since` is an instant or an age and compares with the time at which an event was written. Without `follow` the
    iteration ends at the present end of the topic; with it, when `stop()` turns true. Raises `Unreachable` or
    `NoSuchTopic` before the first event, `TimeoutError` when the present end is not reached in `timeout_seconds`.
    """
    topic, start = BY_MODEL[model].named(settings.topic_prefix), _instant(since)
    check_reachable(settings, topic)
    reader = TopicReader(settings, [topic], since=start)
    deadline = time.monotonic() + timeout_seconds
    try:
        while not stop() and (follow or not reader.at_end):
            message = reader.poll(0.25 if reader.at_end else 0.05)
            if message is None:
                if not follow and not reader.at_end and time.monotonic() > deadline:
                    raise TimeoutError(f"{topic} could not be read to its end in {timeout_seconds:g} s")
                continue
            if message.value() is None and model is JobSpec:
                continue  # a tombstone: the job was removed
            try:
                event = decode(model, message.value(), headers_of(message), message.key())
            except Unreadable as error:
                on_error(BadRecord(topic, message.partition(), message.offset(), error, message.value()))
                continue
            if job is None or getattr(event, "job_id", (message.key() or b"").decode("utf-8", "replace")) == job:
                written_at = datetime.fromtimestamp(message.timestamp()[1] / 1000, UTC)
                yield Received(event, message.partition(), message.offset(), written_at, message.key() or b"")
    finally:
        reader.close()


def check_reachable(settings: ServiceSettings, topic: str | None = None) -> None:
    """Raise `Unreachable` when no broker answers in `REACH_SECONDS`, `NoSuchTopic` when it has no such topic."""
    _knock(settings.bootstrap_servers)
    admin = AdminClient(settings.kafka())
    try:
        found = admin.list_topics(timeout=REACH_SECONDS)
    except KafkaException as error:
        raise Unreachable(f"no Kafka broker answers at {settings.bootstrap_servers} ({error.args[0].str()})") from None
    if topic is not None and topic not in found.topics:
        raise NoSuchTopic(f"the broker at {settings.bootstrap_servers} has no topic {topic}")


def _knock(bootstrap_servers: str) -> None:
    """Raise `Unreachable` when nobody listens at any of the addresses: librdkafka would go on trying all its time."""
    refusals = []
    for address in bootstrap_servers.split(","):
        host, _, port = address.strip().rpartition("://")[2].rpartition(":")
        if not (host and port.isdigit()):
            refusals.append(f"{address.strip()!r} is not HOST:PORT")
            continue
        try:
            socket.create_connection((host.strip("[]"), int(port)), REACH_SECONDS).close()
        except (OSError, OverflowError) as error:
            refusals.append(f"{address.strip()}: {getattr(error, 'strerror', None) or error}")
        else:
            return
    raise Unreachable(f"no Kafka broker answers at {bootstrap_servers} ({'; '.join(refusals)})")


class Events(Generic[W]):
    """A topic to iterate over: `for event in decisions("127.0.0.1:9092", job="rates", follow=True): ...`."""

    def __init__(self, model: type[W]) -> None:
        self._model = model

    def __call__(
        self,
        bootstrap_servers: str | None = None,
        *,
        job: str | None = None,
        since: Since = None,
        follow: bool = False,
        topic_prefix: str | None = None,
        on_error: OnError = warn_of,
        stop: Stop = lambda: False,
    ) -> Iterator[W]:
        """Yield events, oldest first per pipeline; see `received` for `since`, `follow`, `stop` and what is raised.

        Where `bootstrap_servers` or `topic_prefix` is None, `TIDEGATE_BOOTSTRAP_SERVERS` and `TIDEGATE_TOPIC_PREFIX`
        hold; SASL and TLS come from the same `TIDEGATE_…` variables as for the services. A record that cannot be
        read is skipped with a warning, or given to `on_error`, which may raise. `job` keeps the events of one job;
        dead letters have none, so there it compares with the key of the buried record.
        """
        settings = settings_for(bootstrap_servers, topic_prefix)
        for one in received(self._model, settings, job=job, since=since, follow=follow, on_error=on_error, stop=stop):
            yield one.event


decisions = Events(Decision)
"""What was decided on every snapshot, "no change" included, with the reasons."""
snapshots = Events(MetricSnapshot)
"""What was measured of every job over every interval."""
commands = Events(ScalingCommand)
"""What was ordered to be done."""
results = Events(ActionResult)
"""The phases of what was done."""
dead_letters = Events(DeadLetter)
"""What could not be read."""


def jobs(bootstrap_servers: str | None = None, *, topic_prefix: str | None = None) -> dict[str, JobSpec]:
    """Return the spec in force of every job, by job id."""
    return current_specs(settings_for(bootstrap_servers, topic_prefix))


def current_specs(settings: ServiceSettings) -> dict[str, JobSpec]:
    """Return the spec in force of every job, by job id; raises `Unreachable` and `NoSuchTopic`."""
    check_reachable(settings, BY_MODEL[JobSpec].named(settings.topic_prefix))
    view = JobsView(settings)
    try:
        view.load()
        return {spec.job_id: spec for spec in view}
    finally:
        view.close()


def settings_for(bootstrap_servers: str | None, topic_prefix: str | None) -> ClientSettings:
    """Return the environment's settings with what is given instead."""
    given = {"bootstrap_servers": bootstrap_servers, "topic_prefix": topic_prefix}
    return ClientSettings(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]


def _instant(since: Since) -> datetime | None:
    if isinstance(since, datetime) and since.tzinfo is None:
        raise ValueError(f"since={since.isoformat()} has no time zone; use an aware datetime")
    return datetime.now(UTC) - since if isinstance(since, timedelta) else since
