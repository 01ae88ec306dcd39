"""Programs without a suitable broker: one line says why, and the exit code is 2."""

from __future__ import annotations

import uuid

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from typer.testing import CliRunner

from tests.support.programs import ended
from tidegate.cli.main import app
from tidegate.client import ClientSettings
from tidegate.events.topics import COMMANDS, JOBS, RESULTS, TOPICS, Topic
from tidegate.runtime.dependencies import kafka_probe
from tidegate.runtime.poll import wait_until
from tidegate.runtime.settings import ServiceSettings
from tidegate.runtime.topics import TopicsDoNotFit, check_topics, ensure_topics


def widen(settings: ServiceSettings) -> None:
    """Create the topics, one of them with more partitions than the others; return when the broker shows it."""
    ensure_topics(settings, partitions=2)
    admin = AdminClient(settings.kafka())
    for future in admin.create_partitions([NewPartitions(RESULTS.named(settings.topic_prefix), 3)]).values():
        future.result(timeout=30)

    def refused() -> bool:
        try:
            check_topics(settings)
        except TopicsDoNotFit:
            return True
        return False

    assert wait_until(refused, 30)


@pytest.mark.parametrize("service", ["collector", "decider", "actuator"])
def test_a_service_does_not_start_on_topics_that_do_not_fit(kafka: str, service: str) -> None:
    """If topics are missing or differ in partitions, the exit code is 2 and one line names them."""
    prefix = f"unfit-{uuid.uuid4().hex[:8]}."
    end = ended("-m", f"services.{service}", bootstrap_servers=kafka, topic_prefix=prefix, log_level="WARNING")
    assert (end.returncode, len(end.stderr.splitlines())) == (2, 1), end.stderr
    assert f"{prefix}snapshots" in end.stderr
    assert "do not exist" in end.stderr
    widen(ServiceSettings(bootstrap_servers=kafka, topic_prefix=prefix))
    end = ended("-m", f"services.{service}", bootstrap_servers=kafka, topic_prefix=prefix, log_level="WARNING")
    assert (end.returncode, len(end.stderr.splitlines())) == (2, 1), end.stderr
    assert "must have the same number of partitions" in end.stderr


@pytest.mark.parametrize(
    ("topic", "means"),
    [
        (JOBS, "this service does not read the new ones"),
        (COMMANDS, "no service starts with that, and a decider may end: docs/own-cluster.md says what to do"),
    ],
)
def test_added_partitions_are_noticed(
    kafka: str, settings: ClientSettings, caplog: pytest.LogCaptureFixture, topic: Topic, means: str
) -> None:
    """A running service says once what they mean for it, and the doctor names the topic."""
    ask, name = kafka_probe(settings), topic.named(settings.topic_prefix)
    for _ in TOPICS:
        ask()
    assert not caplog.messages
    admin = AdminClient(settings.kafka())  # its answers come only while it lives
    for future in admin.create_partitions([NewPartitions(name, 3)]).values():
        future.result(timeout=30)

    def told() -> bool:
        ask()
        return bool(caplog.messages)

    assert wait_until(told, 30)
    for _ in TOPICS:
        ask()
    assert caplog.messages == [f"partitions were added to topic {name}: it had 2 and has 3; {means}"]
    words = ["doctor", "-b", kafka, "--topic-prefix", settings.topic_prefix, "--work-dir", "/nonexistent"]
    shown = CliRunner(env={"COLUMNS": "400"}).invoke(app, words).stdout
    assert f"{name} has 3 partitions, the pipeline topics have 2" in shown or f"'{name}': 3" in shown


def test_topics_cannot_be_created_without_a_broker() -> None:
    """Without a broker the exit code is 2, and one line says so, next to the lines of the Kafka client."""
    end = ended("deploy/kafka/create_topics.py", bootstrap_servers="127.0.0.1:1", log_level="ERROR")
    assert end.returncode == 2
    assert "Traceback" not in end.stderr
    (ours,) = [line for line in end.stderr.splitlines() if "[rdkafka#" not in line]
    assert "topics at 127.0.0.1:1: " in ours
