"""Programs on a broker that does not fit, or on none: one line that says why, and the exit code of what cannot be."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from tidegate.events.topics import RESULTS
from tidegate.runtime.kafka import TopicsDoNotFit, check_topics, ensure_topics
from tidegate.runtime.settings import ServiceSettings

ROOT = Path(__file__).resolve().parents[2]


def ended(*program: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Return how a program ended with these settings."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}
    ours = {f"TIDEGATE_{name.upper()}": value for name, value in settings.items()}
    return subprocess.run(
        [sys.executable, *program],
        cwd=ROOT,
        env={**inherited, **ours, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def widen(settings: ServiceSettings) -> None:
    """Create the topics, one of them with more partitions than the others; return when that can be seen."""
    ensure_topics(settings, partitions=2)
    admin = AdminClient(settings.kafka())
    for future in admin.create_partitions([NewPartitions(RESULTS.named(settings.topic_prefix), 3)]).values():
        future.result(timeout=30)
    deadline = time.monotonic() + 30
    with suppress(TopicsDoNotFit):
        while time.monotonic() < deadline:
            check_topics(settings)


@pytest.mark.parametrize("service", ["collector", "decider", "actuator"])
def test_a_service_does_not_start_on_topics_that_do_not_fit(kafka: str, service: str) -> None:
    """Topics that are absent, or whose partition counts differ: exit code 2 and one line that names them."""
    prefix = f"unfit-{uuid.uuid4().hex[:8]}."
    end = ended("-m", f"services.{service}", bootstrap_servers=kafka, topic_prefix=prefix, log_level="WARNING")
    assert (end.returncode, len(end.stderr.splitlines())) == (2, 1), end.stderr
    assert f"{prefix}snapshots" in end.stderr
    assert "do not exist" in end.stderr
    widen(ServiceSettings(bootstrap_servers=kafka, topic_prefix=prefix))
    end = ended("-m", f"services.{service}", bootstrap_servers=kafka, topic_prefix=prefix, log_level="WARNING")
    assert (end.returncode, len(end.stderr.splitlines())) == (2, 1), end.stderr
    assert "must have the same number of partitions" in end.stderr


def test_topics_cannot_be_created_without_a_broker() -> None:
    """Nobody listens: exit code 2, and beside what the Kafka client logs, before and after, one line that says so."""
    end = ended("deploy/kafka/create_topics.py", bootstrap_servers="127.0.0.1:1")
    assert end.returncode == 2
    assert "Traceback" not in end.stderr
    (ours,) = [line for line in end.stderr.splitlines() if "|rdkafka#" not in line]
    assert ours.startswith("topics at 127.0.0.1:1: ")
