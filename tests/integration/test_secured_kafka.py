"""Everything that connects to Kafka, on a real broker that asks for a client certificate or a password."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from typer.testing import CliRunner

from services.collector.offsets import KafkaOffsets
from tests.support.decider import DeciderProcess, Flow, overloaded_now
from tests.support.events import job
from tests.support.secured_kafka import SecuredKafka, secured_kafka
from tidegate.cli import app
from tidegate.events.command import ScalingCommand
from tidegate.events.decision import Decision
from tidegate.runtime.settings import KafkaConnection
from tidegate.runtime.topics import create_topics

pytestmark = pytest.mark.timeout(180)

WAYS = ("certificate", "PLAIN", "SCRAM-SHA-512")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    """One broker for all tests here."""
    with secured_kafka(tmp_path_factory.mktemp("secured")) as broker:
        yield broker


@pytest.fixture(params=WAYS)
def connection(request: pytest.FixtureRequest, secured: SecuredKafka) -> KafkaConnection:
    """Each way to connect."""
    return secured.by_certificate() if request.param == "certificate" else secured.by_password(request.param)


@pytest.mark.usefixtures("commands_share")
def test_decisions_are_made_and_recomputed(
    connection: KafkaConnection, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Faust reads, librdkafka reads and writes, and Java's client reads for Spark, by the same settings."""
    flow = Flow(f"secured-{uuid.uuid4().hex[:8]}", connection, redis_url)
    try:
        flow.send(job("a"), *overloaded_now("a", count=7))
        with DeciderProcess(flow.settings, tmp_path / "decider.log") as decider:
            flow.wait_read(Decision, 7, 60)
            flow.wait_read(ScalingCommand, 1)
            assert decider.stop() == 0, decider.text()
        for name, value in connection.model_dump(exclude_none=True).items():
            text = value.get_secret_value() if hasattr(value, "get_secret_value") else str(value)
            monkeypatch.setenv(f"TIDEGATE_{name.upper()}", text)
        command = ["replay", "recompute", "--bootstrap-servers", connection.bootstrap_servers]
        ran = CliRunner().invoke(app, [*command, "--topic-prefix", flow.settings.topic_prefix])
        assert ran.exit_code == 0, ran.output
        assert "identical 7/7" in ran.output
    finally:
        flow.close()


def test_end_offsets_are_read(connection: KafkaConnection) -> None:
    """So the collector reaches the Kafka clusters that its setting `kafka_clusters` names."""
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    create_topics(AdminClient(connection.kafka()), [NewTopic(topic, 1, 1)])
    producer = Producer(connection.kafka())
    producer.produce(topic, b"a record")
    assert producer.flush(30) == 0
    assert KafkaOffsets(connection, 10.0).end_offsets([topic]) == {topic: (1,)}


@pytest.mark.parametrize("missing", ["ssl_certificate_file", "ssl_ca_file"])
def test_without_its_certificate_or_authority_a_client_gets_no_answer(secured: SecuredKafka, missing: str) -> None:
    """Otherwise the tests above would show nothing."""
    given: dict[str, Any] = secured.by_certificate().model_dump()
    gone = ("ssl_certificate_file", "ssl_key_file", "ssl_key_password") if "cert" in missing else (missing,)
    lacking = KafkaConnection(**{name: value for name, value in given.items() if name not in gone})
    began = time.monotonic()
    with pytest.raises(KafkaException):
        KafkaOffsets(lacking, 2.0).end_offsets(["orders"])
    assert time.monotonic() - began < 20
