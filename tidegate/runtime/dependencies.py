"""Kafka and Redis as a service sees them: each is asked something small every few seconds, and the answer is timed.

Asking on purpose, next to what the service does anyway, also tells how they are while the service has nothing to do.

A service reads its passwords and certificates once, at its start. If Kafka no longer accepts them, it ends, so that
whoever starts it again lets it read the new ones. Redis is not worth that: services go on without it.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from itertools import cycle

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from prometheus_client import CollectorRegistry

from tidegate.events.topics import DEAD_LETTERS, JOBS, TOPICS
from tidegate.runtime import metrics
from tidegate.runtime.clock import Clock
from tidegate.runtime.reach import NoLogin, refusal
from tidegate.runtime.service import FAILED
from tidegate.runtime.settings import ServiceSettings

log = logging.getLogger(__name__)

EVERY_SECONDS = 5.0
KAFKA_SECONDS = 5.0

REFUSED_SECONDS = 60.0
"""How long Kafka may refuse the login before the service ends: a broker that has just started may know no passwords."""

UNREAD = "this service does not read the new ones"
UNORDERED = "no service starts with that, and a decider may end: docs/own-cluster.md says what to do"
"""What partitions mean that were added to a topic of the pipelines."""

Probe = Callable[[], object]
"""Asks one server something; returns when it has answered, and raises if it does not."""


def end_at_once() -> None:
    """End the process: its main loop may hang in a question to Kafka. What was not finished is done again."""
    logging.shutdown()
    os._exit(FAILED)


class Dependencies:
    """Asks each server in a daemon thread of its own, so that one that hangs does not hide the others."""

    def __init__(
        self,
        clock: Clock,
        registry: CollectorRegistry,
        probes: Mapping[str, Probe],
        end: Callable[[], None] = end_at_once,
    ) -> None:
        self._clock = clock
        self._probes = probes
        self._end = end
        self._refused_since: dict[str, float] = {}
        """Since when each server has answered only that it does not let this client in."""
        self._up = metrics.DEPENDENCY_UP.gauge(registry)
        self._seconds = metrics.DEPENDENCY_SECONDS.histogram(registry)
        self._errors = metrics.DEPENDENCY_ERRORS.counter(registry)
        self._stopping = threading.Event()

    def start(self) -> None:
        """Start the threads."""
        for name, probe in self._probes.items():
            self._errors.labels(name)
            threading.Thread(target=self._run, args=(name, probe), name=f"ask {name}", daemon=True).start()

    def stop(self) -> None:
        """End the threads after their present question."""
        self._stopping.set()

    def ask(self, name: str, probe: Probe) -> None:
        """Ask once and note the answer."""
        started = self._clock.monotonic()
        try:
            probe()
        except Exception as error:  # noqa: BLE001 - whatever it is, the server did not answer
            log.debug("%s does not answer: %s", name, error)
            self._up.labels(name).set(0)
            self._errors.labels(name).inc()
            if isinstance(error, NoLogin):
                since = self._refused_since.setdefault(name, self._clock.monotonic())
                if self._clock.monotonic() - since >= REFUSED_SECONDS:
                    log.critical("cannot continue: %s", error)
                    self._end()
        else:
            self._refused_since.pop(name, None)
            self._up.labels(name).set(1)
            self._seconds.labels(name).observe(self._clock.monotonic() - started)

    def _run(self, name: str, probe: Probe) -> None:
        while True:
            self.ask(name, probe)
            if self._stopping.wait(EVERY_SECONDS):
                return


def kafka_probe(settings: ServiceSettings) -> Probe:
    """Return a probe that asks the broker for the partitions of one of the topics, and warns if some were added."""
    told: list[KafkaError] = []
    admin = AdminClient({**settings.kafka(), "error_cb": told.append})
    topics, known = cycle(topic for topic in TOPICS if topic is not DEAD_LETTERS), dict[str, int]()

    def ask() -> None:
        asked = next(topics)
        name = asked.named(settings.topic_prefix)
        try:
            found = admin.list_topics(name, timeout=KAFKA_SECONDS)
        except KafkaException:
            admin.poll(0)  # only now librdkafka tells what went wrong before
            if refused := refusal(settings, told):
                raise refused from None
            raise
        finally:
            admin.poll(0)  # hands librdkafka's log lines to Python's logging
            told.clear()
        before, count = known.get(name, 0), len(found.topics[name].partitions)
        if 0 < before < count:
            text = "partitions were added to topic %s: it had %d and has %d; %s"
            log.warning(text, name, before, count, UNREAD if asked is JOBS else UNORDERED)
        known[name] = max(before, count)

    return ask
