"""The Python client: iterates over Tidegate's events as typed, validated values.

    from tidegate import decisions
    for decision in decisions("127.0.0.1:9092", job="rates", follow=True):
        print(decision.final_parallelism, decision.sentence)

Events of one pipeline come in the order in which they were written; there is no order between pipelines. The client
commits to no consumer group, so it never disturbs the services.
"""

from __future__ import annotations

import socket
import warnings
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, TypeVar

from tidegate.events.command import ScalingCommand
from tidegate.events.dead_letter import DeadLetter
from tidegate.events.decision import Decision
from tidegate.events.envelope import Unreadable, decode, job_named_by
from tidegate.events.job import JobSpec
from tidegate.events.result import ActionResult
from tidegate.events.snapshot import MetricSnapshot
from tidegate.events.topics import BY_MODEL
from tidegate.events.wire import Wire
from tidegate.runtime.consumer import TopicReader, headers_of, written_at
from tidegate.runtime.jobs import JobsView
from tidegate.runtime.reach import NoLogin as NoLogin  # noqa: PLC0414 - the client's errors
from tidegate.runtime.reach import Unreachable as Unreachable  # noqa: PLC0414
from tidegate.runtime.reach import ask
from tidegate.runtime.settings import RedisSettings, ServiceSettings

W = TypeVar("W", bound=Wire)
REACH_SECONDS = 10.0
"""How long the broker may take to answer the first request."""
CLOCKS_DIFFER = timedelta(minutes=1)
"""By how much the clocks of a service and the broker may differ."""


class ClientSettings(RedisSettings):
    """How a client reaches the broker: some of the services' `TIDEGATE_…` variables."""

    def kafka(self) -> dict[str, Any]:
        """Return librdkafka's connection settings, with its log kept off the terminal."""
        return {**super().kafka(), "log_level": "0"}


class NoSuchTopic(LookupError):
    """The broker answers but has no such topic."""


@dataclass(frozen=True, slots=True)
class BadRecord:
    """An unreadable record, as passed to `on_error`."""

    topic: str
    partition: int
    offset: int
    error: Unreadable
    value: bytes | None

    def __str__(self) -> str:
        return f"{self.topic}, partition {self.partition}, offset {self.offset}: {self.error}"


@dataclass(frozen=True)
class Received(Generic[W]):
    """An event, and its place and time on the topic."""

    event: W
    partition: int
    offset: int
    written_at: datetime
    """The record's timestamp: when the event was sent to Kafka."""
    key: bytes


OnError = Callable[[BadRecord], None]
Since = datetime | timedelta | None
Stop = Callable[[], bool]


def warn_of(bad: BadRecord) -> None:
    """Warn that a record was skipped: the default `on_error`."""
    warnings.warn(f"skipped {bad}", UserWarning, stacklevel=2)


def skip(_bad: BadRecord) -> None:
    """Skip an unreadable record: the services write dead letters of those, and `tidegate tail` shows them."""


def received(
    model: type[W],
    settings: ServiceSettings,
    *,
    job: str | Collection[str] | None = None,
    since: Since = None,
    follow: bool = False,
    on_error: OnError = warn_of,
    stop: Stop = lambda: False,
    timeout_seconds: float = 60.0,
) -> Generator[Received[W], None, None]:
    """Yield the events of one model with their places, oldest first per pipeline.

    `since` is an instant or an age, compared with the time an event was written. Without `follow`, the iteration ends
    at the current end of the topic; with it, once `stop()` is true. With `job`, one or several, records whose headers
    name another job are passed over unread. Raises `Unreachable` or `NoSuchTopic` before the
    first event, and `TimeoutError` if nothing more comes for `timeout_seconds` before the current end.
    """
    topic, start = BY_MODEL[model].named(settings.topic_prefix), _instant(since)
    wanted = None if job is None else frozenset([job] if isinstance(job, str) else job)
    check_reachable(settings, topic)
    with closing(TopicReader(settings, [topic], since=start)) as reader:
        for message in reader.read_to_end(timeout_seconds, follow=follow, stop=stop):
            if message.value() is None and model is JobSpec:
                continue  # a tombstone: the job was removed
            headers = headers_of(message)
            if wanted is not None and (named := job_named_by(headers)) is not None and named not in wanted:
                continue
            try:
                event = decode(model, message.value(), headers, message.key())
            except Unreadable as error:
                on_error(BadRecord(topic, message.partition(), message.offset(), error, message.value()))
                continue
            of = getattr(event, "job_id", (message.key() or b"").decode("utf-8", "replace"))
            if wanted is None or of in wanted:
                at = written_at(message)
                yield Received(event, message.partition(), message.offset(), at, message.key() or b"")


def up_to(events: Iterable[Received[W]], sequence: int) -> Iterator[Received[W]]:
    """Yield the events of one job up to the first one of a later sequence: of what is long ago, the rest is not read.

    A sequence is a second. One that is later than its event was written, or than now, is of a wrong clock, and ends
    nothing.
    """
    for one in events:
        latest = (min(one.written_at, datetime.now(UTC)) + CLOCKS_DIFFER).timestamp()
        if sequence < getattr(one.event, "sequence", sequence) < latest:
            return
        yield one


def check_reachable(settings: ServiceSettings, topic: str | None = None) -> None:
    """Raise `Unreachable` if no broker answers in `REACH_SECONDS`, `NoSuchTopic` if it has no such topic.

    Raises `NoLogin` as soon as a broker, or the provider of access tokens, refuses this client.
    """
    _check_ports(settings.bootstrap_servers)
    found = ask(settings, seconds=REACH_SECONDS, try_login_again=False)
    if topic is not None and topic not in found.topics:
        raise NoSuchTopic(f"the broker at {settings.bootstrap_servers} has no topic {topic}")


def _check_ports(bootstrap_servers: str) -> None:
    """Raise `Unreachable` if nothing listens at any of the addresses; librdkafka would retry until its timeout."""
    refusals = []
    for address in bootstrap_servers.split(","):
        host, _, port = address.strip().rpartition("://")[2].rpartition(":")
        if not (host and port.isdecimal()):
            refusals.append(f"{address.strip()!r} is not HOST:PORT")
            continue
        try:
            socket.create_connection((host.strip("[]"), int(port)), REACH_SECONDS).close()
        except (OSError, OverflowError, UnicodeError) as error:  # the last for a name that no DNS can have
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
        """Yield events, oldest first per pipeline; see `received` for `since`, `follow`, `stop` and the errors.

        `bootstrap_servers` and `topic_prefix` default to `TIDEGATE_BOOTSTRAP_SERVERS` and `TIDEGATE_TOPIC_PREFIX`. SASL
        and TLS come from the same `TIDEGATE_…` variables as for the services. An unreadable record is skipped with a
        warning, or passed to `on_error`, which may raise. `job` selects the events of one job; for dead letters, it
        selects by the key of the original record.
        """
        settings = settings_for(bootstrap_servers, topic_prefix)
        for one in received(self._model, settings, job=job, since=since, follow=follow, on_error=on_error, stop=stop):
            yield one.event


decisions = Events(Decision)
"""The decision on every snapshot, including "no change", with the reasons."""
snapshots = Events(MetricSnapshot)
"""The measurements of every job in every interval."""
commands = Events(ScalingCommand)
"""The changes ordered by decisions."""
results = Events(ActionResult)
"""The phases of carrying out each command."""
dead_letters = Events(DeadLetter)
"""Records that a service could not read."""


def jobs(bootstrap_servers: str | None = None, *, topic_prefix: str | None = None) -> dict[str, JobSpec]:
    """Return the current spec of every job, by job id."""
    return current_specs(settings_for(bootstrap_servers, topic_prefix))


def current_specs(settings: ServiceSettings) -> dict[str, JobSpec]:
    """Return the current spec of every job, by job id; raises `Unreachable` and `NoSuchTopic`."""
    return {spec.job_id: spec for spec in loaded_specs(settings)}


def loaded_specs(settings: ServiceSettings) -> JobsView:
    """Return what is on the jobs topic now, also what cannot be used; raises `Unreachable` and `NoSuchTopic`."""
    check_reachable(settings, BY_MODEL[JobSpec].named(settings.topic_prefix))
    with closing(JobsView(settings)) as current:
        current.load()
        return current


def settings_for(bootstrap_servers: str | None, topic_prefix: str | None) -> ClientSettings:
    """Return the settings of the environment, with the given ones taking precedence."""
    given = {"bootstrap_servers": bootstrap_servers, "topic_prefix": topic_prefix}
    return ClientSettings(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]


def _instant(since: Since) -> datetime | None:
    if isinstance(since, datetime) and since.tzinfo is None:
        raise ValueError(f"since={since.isoformat()} has no time zone; pass an aware datetime")
    return datetime.now(UTC) - since if isinstance(since, timedelta) else since
