"""The operator on a real broker: it and the `tidegate` command read what the other writes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from typer.testing import CliRunner

from services.operator.app import Operator, TopicRequests
from tests.support.fake_streaming_jobs import FIELDS, FakeStreamingJobs
from tests.support.fleets import decision
from tidegate.cli import app
from tidegate.client import ClientSettings, current_specs
from tidegate.fleet.feed import Feed
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.health import Health
from tidegate.runtime.poll import wait_until
from tidegate.runtime.publisher import Publisher


@pytest.fixture
def cluster() -> FakeStreamingJobs:
    """The objects."""
    return FakeStreamingJobs()


@pytest.fixture
def operator(settings: ClientSettings, cluster: FakeStreamingJobs) -> Iterator[Operator]:
    """An operator that has read the topics."""
    feed, clock = Feed(settings, timedelta(minutes=10)), SystemClock()
    feed.start()
    assert wait_until(lambda: feed.state == "live", 30)
    yield Operator(
        namespace="jobs",
        poll_seconds=1.0,
        clock=clock,
        cluster=cluster,
        jobs=feed,
        requests=TopicRequests(settings),
        health=Health(clock, CollectorRegistry()),
    )
    feed.close()


def status_of(operator: Operator, cluster: FakeStreamingJobs, **wanted: object) -> dict[str, Any]:
    """Let the operator go round until the status of `rates` has these fields; return it."""

    def look() -> dict[str, Any] | None:
        operator.turn()
        found: dict[str, Any] = cluster.objects["rates"].get("status", {})
        return found if wanted.items() <= found.items() else None

    found = wait_until(look, 30, 0.2)
    assert found is not None, cluster.objects["rates"]
    return found


def test_an_object_and_the_command_are_two_ways_to_the_same_job(
    operator: Operator, cluster: FakeStreamingJobs, settings: ClientSettings
) -> None:
    """Applied, scaled, paused by command, decided on and deleted: topic and status agree at every step."""
    where = ["--bootstrap-servers", settings.bootstrap_servers, "--topic-prefix", settings.topic_prefix]
    cluster.apply("rates", FIELDS)
    status_of(operator, cluster, version=1)
    cluster.scale("rates", 6)
    status_of(operator, cluster, version=2, appliedSlots=6)
    spec = current_specs(settings)["rates"]
    assert spec.manual is not None
    assert (spec.version, spec.manual.parallelism) == (2, 6)
    done = CliRunner().invoke(app, ["pause", "rates", "--reason", "lunch", *where])
    assert done.exit_code == 0, done.output
    status = status_of(operator, cluster, version=3)
    assert [each["status"] for each in status["conditions"] if each["type"] == "InSync"] == ["False"]
    made = decision(current_specs(settings)["rates"], datetime.now(UTC))
    Publisher(settings).publish(made)
    assert status_of(operator, cluster, slots=4)["why"] == made.sentence
    cluster.delete("rates")
    operator.turn()
    assert cluster.objects == {}
    assert current_specs(settings) == {}
