"""Deciders on a Kafka cluster of three brokers, of which one dies or hangs."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from tests.support.brokers import Brokers
from tests.support.decider import Flow, ServiceProcess, number_now
from tests.support.events import job, snapshot
from tidegate.events.decision import Decision
from tidegate.events.snapshot import MetricSnapshot
from tidegate.runtime.publisher import Publisher

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]

JOBS = tuple(f"job-{number}" for number in range(12))


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    """The cluster."""
    with Brokers(tmp_path) as brokers:
        yield brokers


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_a_broker_that_dies_or_hangs_costs_no_decider_and_no_decision(
    brokers: Brokers, redis_url: str, tmp_path: Path, fault: signal.Signals
) -> None:
    """F11, F12 (I1, I11): others lead its partitions after ten seconds, and the same two deciders go on there."""
    flow = Flow(f"cluster-{uuid.uuid4().hex[:8]}", brokers.bootstrap_servers, redis_url, replication=3)
    flow.settings = flow.settings.model_copy(update={"delivery_timeout_seconds": 60.0})
    flow.publisher = Publisher(flow.settings)
    flow.send(*[job(job_id) for job_id in JOBS])
    base = number_now() - 12
    shots = [snapshot(base + n, job_id=name, arrived=n, committed=n) for n in range(12) for name in JOBS]
    half = len(shots) // 2
    with (
        ServiceProcess(flow.settings, tmp_path / "1.log") as first,
        ServiceProcess(flow.settings, tmp_path / "2.log") as second,
    ):
        flow.send(*shots[:half])
        flow.wait_read(Decision, half, 120)
        brokers.signal(brokers.leader(flow.topic(MetricSnapshot), 0), fault)
        flow.send(*shots[half:])
        decisions = flow.wait_read(Decision, len(shots), 120)
        assert first.process.poll() is None, first.text()
        assert second.process.poll() is None, second.text()
    assert {d.snapshot_id for d in decisions} == {shot.snapshot_id for shot in shots}
    assert len({d.decision_id for d in decisions}) == len(shots)
    flow.close()


def test_what_is_acknowledged_is_on_two_brokers(brokers: Brokers, redis_url: str) -> None:
    """With three replicas, a broker must not acknowledge what it alone has: it may be lost with it."""
    flow = Flow(f"cluster-{uuid.uuid4().hex[:8]}", brokers.bootstrap_servers, redis_url, replication=3)
    asked = [ConfigResource(ResourceType.TOPIC, flow.topic(Decision))]
    admin = AdminClient(flow.settings.kafka())  # its answers come only while it lives
    (answer,) = admin.describe_configs(asked).values()
    assert answer.result(timeout=30)["min.insync.replicas"].value == "2"
    flow.close()
