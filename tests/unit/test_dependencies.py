"""What a service does about a Kafka that answers, but not to it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from prometheus_client import CollectorRegistry

from tests.support.set_clock import SetClock
from tidegate.runtime import dependencies
from tidegate.runtime.dependencies import EVERY_SECONDS, Dependencies, kafka_probe
from tidegate.runtime.settings import ServiceSettings

REFUSED = KafkaError(KafkaError._AUTHENTICATION, "SASL authentication error: Invalid username or password")


class Admin:
    """A client whose connections a test breaks; as librdkafka does, it tells why only when it is polled."""

    def __init__(self, conf: dict[str, Any]) -> None:
        self._tell: Callable[[KafkaError], None] = conf.get("error_cb", lambda _error: None)
        self.refused = self.silent = False

    def poll(self, _seconds: float) -> None:
        """Tell that the login was refused."""
        if self.refused:
            self._tell(REFUSED)

    def list_topics(self, topic: str, timeout: float) -> object:
        """Answer, unless no broker lets it in."""
        del timeout
        if self.refused or self.silent:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT, "Failed to get metadata"))
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions=[0])})


@pytest.mark.expects_errors("the service says why it ends")
@pytest.mark.parametrize(
    ("answers", "ends_after"), [("refused", 60.0), ("silent", None), ("refused for a moment", None)]
)
def test_a_service_that_kafka_no_longer_lets_in_ends(
    answers: str, ends_after: float | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It has read its password at its start; a new process reads the new one. Outages are waited out."""
    made: list[Admin] = []

    def admin(conf: dict[str, Any]) -> Admin:
        made.append(Admin(conf))
        return made[0]

    monkeypatch.setattr(dependencies, "AdminClient", admin)
    clock, ends = SetClock(), list[float]()
    settings = ServiceSettings(bootstrap_servers="kafka:9092")
    watched = Dependencies(clock, CollectorRegistry(), {}, end=lambda: ends.append(clock.monotonic()))
    probe = kafka_probe(settings)
    watched.ask("kafka", probe)
    made[0].refused, made[0].silent = answers.startswith("refused"), answers == "silent"
    began = clock.monotonic()
    with caplog.at_level(logging.CRITICAL):
        while clock.monotonic() < began + 200 and not ends:
            watched.ask("kafka", probe)
            clock.at += timedelta(seconds=EVERY_SECONDS)
            if answers == "refused for a moment":
                made[0].refused = (clock.monotonic() - began) % 60 < 40
    assert [at - began for at in ends] == ([] if ends_after is None else [ends_after])
    said = "cannot continue: cannot log in to Kafka at kafka:9092: SASL authentication error"
    assert any(line.startswith(said) for line in caplog.messages) is bool(ends)
