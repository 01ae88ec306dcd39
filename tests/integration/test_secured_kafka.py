"""Everything that connects to Kafka, on a real broker that asks for a client certificate, a password or a token."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pydantic import SecretStr
from typer.testing import CliRunner

from services.collector.offsets import KafkaOffsets
from tests.support.decider import Flow, ServiceProcess, overloaded_now, wait_for
from tests.support.events import job, with_application
from tests.support.secured_kafka import KEY_PASSWORD, SecuredKafka, secured_kafka
from tests.support.token_endpoint import SECRET
from tidegate import client
from tidegate.cli import app
from tidegate.events.command import ScalingCommand
from tidegate.events.decision import Decision
from tidegate.events.snapshot import MetricSnapshot
from tidegate.runtime.dependencies import kafka_probe
from tidegate.runtime.reach import NoLogin
from tidegate.runtime.settings import KafkaConnection, ServiceSettings
from tidegate.runtime.topics import create_topics
from tidegate.stack.processes import inherited

ROOT = Path(__file__).resolve().parents[2]
WAYS = ("certificate", "PLAIN", "SCRAM-SHA-512", "OAUTHBEARER")

WRONG_SECRET = {"sasl_oauthbearer_client_secret": SecretStr("not the secret")}
WRONG_PASSWORD = {"sasl_password": SecretStr("not the secret")}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    """One broker for all tests here."""
    with secured_kafka(tmp_path_factory.mktemp("secured")) as broker:
        yield broker


@pytest.fixture(params=WAYS)
def connection(request: pytest.FixtureRequest, secured: SecuredKafka) -> KafkaConnection:
    """Each way to connect."""
    return connection_by(request.param, secured)


def connection_by(way: str, broker: SecuredKafka) -> KafkaConnection:
    """Return how a client connects in one of the ways."""
    if way == "certificate":
        return broker.by_certificate()
    return broker.by_token() if way == "OAUTHBEARER" else broker.by_password(way)


def settings_of(connection: KafkaConnection) -> dict[str, str]:
    """Return the settings by name, with the passwords."""
    given = connection.model_dump(exclude_none=True).items()
    return {name: each.get_secret_value() if isinstance(each, SecretStr) else str(each) for name, each in given}


def filled(connection: KafkaConnection, topic: str) -> None:
    """Create a topic that holds one record."""
    create_topics(AdminClient(connection.kafka()), [NewTopic(topic, 1, 1)])
    producer = Producer(connection.kafka())
    producer.produce(topic, b"a record")
    assert producer.flush(30) == 0


@pytest.mark.usefixtures("commands_share")
def test_decisions_are_made_and_recomputed(
    connection: KafkaConnection, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Faust reads, librdkafka reads and writes, and Java's client reads for Spark, by the same settings."""
    with closing(Flow(f"secured-{uuid.uuid4().hex[:8]}", connection, redis_url)) as flow:
        flow.send(job("a"), *overloaded_now("a", count=7))
        with ServiceProcess(flow.settings, tmp_path / "decider.log") as decider:
            flow.wait_read(Decision, 7)
            flow.wait_read(ScalingCommand, 1)
            assert decider.stop() == 0, decider.text()
        for name, text in settings_of(connection).items():
            monkeypatch.setenv(f"TIDEGATE_{name.upper()}", text)
        command = ["replay", "recompute", "--bootstrap-servers", connection.bootstrap_servers]
        ran = CliRunner().invoke(app, [*command, "--topic-prefix", flow.settings.topic_prefix])
        assert ran.exit_code == 0, ran.output
        assert "identical 7/7" in ran.output


def test_end_offsets_are_read(connection: KafkaConnection) -> None:
    """So the collector reaches the Kafka clusters that its setting `kafka_clusters` names."""
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    filled(connection, topic)
    assert KafkaOffsets(connection, 10.0).end_offsets([topic]) == {topic: (1,)}


@pytest.mark.parametrize("way", ["certificate", "OAUTHBEARER"])
def test_the_collector_measures_jobs_on_another_kafka_cluster(
    way: str, secured: SecuredKafka, kafka: str, redis_url: str, tmp_path: Path
) -> None:
    """Both clusters have a topic of that name, with one record here and none there; each job gets its own offsets."""
    flow = Flow(f"apart-{uuid.uuid4().hex[:8]}", kafka, redis_url)
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    there = connection_by(way, secured)
    create_topics(AdminClient(flow.settings.kafka()), [NewTopic(topic, 2, 1)])
    filled(there, topic)
    at_home = with_application(job("home").model_copy(update={"sources": (topic,)}), event_log_dir=str(tmp_path))
    away = at_home.model_copy(update={"job_id": "away", "pipeline_id": "away", "kafka_cluster": "payments"})
    flow.send(at_home, away)
    environment = inherited() | {
        "TIDEGATE_BOOTSTRAP_SERVERS": kafka,
        "TIDEGATE_TOPIC_PREFIX": flow.settings.topic_prefix,
        "TIDEGATE_KAFKA_CLUSTERS": json.dumps({"payments": settings_of(there)}),
    }
    with (tmp_path / "collector.log").open("ab") as log:
        collector = subprocess.Popen(
            [sys.executable, "-m", "services.collector"], cwd=ROOT, env=environment, stderr=log, start_new_session=True
        )
    try:
        shots = flow.wait_read(MetricSnapshot, 2)
        assert {shot.job_id: shot.sources[0].end_offsets for shot in shots} == {"home": (0, 0), "away": (1,)}
    finally:
        os.killpg(collector.pid, signal.SIGTERM)
        assert collector.wait(20) == 0
        flow.close()
    assert not any(secret in (tmp_path / "collector.log").read_text() for secret in (KEY_PASSWORD, SECRET))


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


def test_tokens_are_renewed_while_a_decider_runs(secured: SecuredKafka, redis_url: str, tmp_path: Path) -> None:
    """The broker ends every session with its token, here after 10 s; a decider decides on, and its log has no error.

    librdkafka shows a new token on its open connections. Faust's consumer replaces them in time.
    """
    flow = Flow(f"renewed-{uuid.uuid4().hex[:8]}", secured.by_token(), redis_url)
    secured.tokens.lifetime_seconds = 10
    try:
        flow.send(job("a"), *overloaded_now("a", count=7))
        with ServiceProcess(flow.settings, tmp_path / "decider.log") as decider:
            flow.wait_read(Decision, 7)
            for count in (8, 9):
                time.sleep(12)
                flow.send(*overloaded_now("a", count=1))
                flow.wait_read(Decision, count)
            assert decider.stop() == 0, decider.text()
        log = decider.text()
        assert not any(word in log for word in ("ERROR", "CRITICAL", SECRET)), log
    finally:
        secured.tokens.lifetime_seconds = 300
        flow.close()


def test_a_service_logs_why_it_gets_no_token(secured: SecuredKafka, tmp_path: Path) -> None:
    """With what the token endpoint says, and without the secret."""
    settings = ServiceSettings(**secured.by_token().model_dump() | WRONG_SECRET)
    log = tmp_path / "actuator.log"
    with ServiceProcess(settings, log, args=("-m", "services.actuator")) as service:
        wait_for("the reason in the log", lambda: "invalid_client" in service.text())
        service.stop()
    assert secured.token_url in service.text()
    assert "not the secret" not in service.text()


@pytest.mark.parametrize(
    ("way", "wrong", "said"),
    [("OAUTHBEARER", WRONG_SECRET, "invalid_client"), ("PLAIN", WRONG_PASSWORD, "Invalid username or password")],
)
def test_a_command_says_why_the_login_failed(
    way: str, wrong: dict[str, Any], said: str, secured: SecuredKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only that no broker answers."""
    monkeypatch.setattr(client, "REACH_SECONDS", 3.0)
    for name, text in settings_of(connection_by(way, secured).model_copy(update=wrong)).items():
        monkeypatch.setenv(f"TIDEGATE_{name.upper()}", text)
    ran = CliRunner().invoke(app, ["jobs"])
    assert ran.exit_code != 0
    assert said in " ".join(ran.output.split())
    assert "not the secret" not in ran.output


def test_a_service_that_runs_notices_that_its_login_is_refused(secured: SecuredKafka) -> None:
    """Its probe tells that from a broker that does not answer: with another password, a new process may get in."""
    settings = ServiceSettings(**connection_by("PLAIN", secured).model_dump() | WRONG_PASSWORD)
    probe, refused = kafka_probe(settings), list[NoLogin]()

    def is_refused() -> bool:
        try:
            probe()
        except NoLogin as error:
            refused.append(error)
        except KafkaException:
            pass  # between two tries to connect
        return bool(refused)

    wait_for("the refusal", is_refused)
    assert "Invalid username or password" in str(refused[0])
