"""A decider as a process on real servers: publish what it reads, read what it writes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Self, TypeVar
from urllib.parse import urlsplit, urlunsplit

import redis
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pydantic import SecretStr

from services.decider.settings import DeciderSettings
from tests.support.events import START, overloaded
from tidegate.events.envelope import decode
from tidegate.events.job import JobSpec
from tidegate.events.snapshot import MetricSnapshot
from tidegate.events.topics import BY_MODEL
from tidegate.events.wire import Wire
from tidegate.runtime.consumer import TopicReader
from tidegate.runtime.poll import wait_until
from tidegate.runtime.publisher import Publisher
from tidegate.runtime.settings import KafkaConnection, ServiceSettings
from tidegate.runtime.topics import create_topics, ensure_topics
from tidegate.stack.processes import inherited

ROOT = Path(__file__).parents[2]
W = TypeVar("W", bound=Wire)


def number_now() -> int:
    """Return the number of the ten-second snapshot nearest to now, for the builders in `tests.support.events`."""
    return int((datetime.now(UTC) - START).total_seconds() // 10)


def overloaded_now(job_id: str, *, count: int = 8, pipeline_id: str | None = None) -> list[MetricSnapshot]:
    """Return snapshots, up to now, of a job with 4 slots that gets twice the load it can process."""
    first = number_now() - count + 1
    return overloaded(count, first=first, job_id=job_id, pipeline_id=pipeline_id)


def wait_for(what: str, done: Callable[[], bool], seconds: float = 120.0) -> None:
    """Wait until `done()` is true; otherwise fail and name what did not happen."""
    if not wait_until(done, seconds, 0.05):
        raise TimeoutError(f"{what}: not within {seconds:g} s")


def _never_too_late(spec: JobSpec) -> JobSpec:
    guards = {"fresh": {"max_age_seconds": 3600.0}} | spec.scaling.guards
    return spec.model_copy(update={"scaling": spec.scaling.model_copy(update={"guards": guards})})


class Flow:
    """One separate Tidegate on shared servers: its settings, its topics, a publisher.

    `kafka` is the address of the broker, or how to connect to it. `largest_snapshot` is how many bytes a record of the
    snapshots may have, where the broker's limit will not do.
    """

    def __init__(
        self,
        name: str,
        kafka: str | KafkaConnection,
        redis_url: str,
        *,
        partitions: int = 4,
        replication: int = 1,
        largest_snapshot: int | None = None,
    ) -> None:
        parts = urlsplit(redis_url)
        bare = urlunsplit(parts._replace(netloc=f"{parts.hostname}:{parts.port}"))
        connection = KafkaConnection(bootstrap_servers=kafka) if isinstance(kafka, str) else kafka
        self.settings = DeciderSettings(
            **connection.model_dump(),
            topic_prefix=f"{name}.",
            redis_url=bare,
            redis_password=SecretStr(parts.password or ""),
            redis_prefix=f"{name}:",
            session_timeout_seconds=6,
            redis_retry_seconds=0.5,
            redis_timeout_seconds=5.0,  # a machine that stands still for a second would hold a command back
            replication_factor=replication,
        )
        self._partitions = partitions
        if largest_snapshot is not None:
            # Create the topic with its limit: the broker confirms a later change before it applies it.
            limit = {"max.message.bytes": str(largest_snapshot)}
            topic = NewTopic(self.topic(MetricSnapshot), partitions, 1, config=limit)
            create_topics(AdminClient(self.settings.kafka()), [topic])
        ensure_topics(self.settings, partitions=partitions, replication=replication)
        self.publisher = Publisher(self.settings)
        self.redis = redis.Redis.from_url(redis_url, decode_responses=True, socket_timeout=5)

    def send(self, *events: Wire) -> None:
        """Publish events and wait for the acknowledgements. No snapshot is too old, however slowly a decider starts."""
        for event in events:
            self.publisher.send(_never_too_late(event) if isinstance(event, JobSpec) else event)
        self.publisher.flush()

    def send_raw(
        self, model: type[Wire], records: Sequence[tuple[bytes | None, bytes | None, list[tuple[str, bytes]]]]
    ) -> None:
        """Publish (key, value, headers) unchanged to partition 0 of a model's topic; fail if one does not arrive."""
        refused = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                refused.append(f"{len(message.value() or b'')} bytes under key {message.key()!r}: {error.str()}")

        producer = Producer({**self.settings.kafka(), "partitioner": "murmur2_random", "message.max.bytes": 8_000_000})
        for key, value, headers in records:
            producer.produce(self.topic(model), value, key, headers=headers, partition=0, on_delivery=delivered)
        assert producer.flush(30) == 0
        assert not refused, refused

    def topic(self, model: type[Wire]) -> str:
        """Return the name of a model's topic."""
        return BY_MODEL[model].named(self.settings.topic_prefix)

    def messages(self, model: type[Wire]) -> list[Message]:
        """Return every record of a topic, in the order of offsets within a partition."""
        with closing(TopicReader(self.settings, [self.topic(model)])) as reader:
            return list(reader.read_to_end())

    def read(self, model: type[W]) -> list[W]:
        """Return every event of a topic."""
        return [decode(model, m.value(), m.headers()) for m in self.messages(model)]

    def wait_read(self, model: type[W], count: int, seconds: float = 120.0) -> list[W]:
        """Return the events of a topic once there are at least `count`."""
        deadline, seen = time.monotonic() + seconds, 0
        with closing(TopicReader(self.settings, [self.topic(model)])) as reader:
            while seen < count:
                if reader.poll(0.5) is not None:
                    seen += 1
                elif time.monotonic() > deadline:
                    raise TimeoutError(f"{count} on {self.topic(model)}: not within {seconds:g} s, found {seen}")
        return self.read(model)

    def committed_to_the_end(self, model: type[Wire] = MetricSnapshot) -> bool:
        """Return whether the group has committed every event of a topic."""
        partitions = [TopicPartition(self.topic(model), p) for p in range(self._partitions)]
        for found in self._group.committed(partitions, timeout=10):
            _, high = self._group.get_watermark_offsets(TopicPartition(found.topic, found.partition), timeout=10)
            if max(found.offset, 0) < high:
                return False
        return True

    @cached_property
    def _group(self) -> Consumer:
        """A client that asks for the group's offsets, and never joins it."""
        return Consumer({**self.settings.kafka(), "group.id": self.settings.group})

    def close(self) -> None:
        """Close the connections."""
        self.publisher.flush()
        self.redis.close()
        self._group.close()


class ServiceProcess:
    """A service, by default a decider, in its own process group; its log is a file."""

    def __init__(
        self, settings: ServiceSettings, log: Path, *, args: Sequence[str] = ("-m", "services.decider")
    ) -> None:
        environment = inherited()
        for name in type(settings).model_fields:
            value = getattr(settings, name)
            if value is not None:
                secret = hasattr(value, "get_secret_value")
                environment[f"TIDEGATE_{name.upper()}"] = value.get_secret_value() if secret else str(value)
        self.log = log
        with log.open("ab") as sink:
            self.process = subprocess.Popen(
                [sys.executable, *args], cwd=ROOT, env=environment, stdout=sink, stderr=sink, start_new_session=True
            )

    def text(self) -> str:
        """Return the log so far."""
        return self.log.read_text(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process group."""
        os.killpg(self.process.pid, number)

    def wait(self, seconds: float = 30.0) -> int:
        """Return the exit status."""
        return self.process.wait(timeout=seconds)

    def stop(self, seconds: float = 20.0) -> int:
        """End it with SIGTERM and return the exit status."""
        self.signal(signal.SIGTERM)
        return self.wait(seconds)

    def close(self) -> None:
        """Kill it if it still runs."""
        if self.process.poll() is None:
            self.signal(signal.SIGKILL)
            self.process.wait(timeout=10)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
