"""The client without a broker: its settings and its errors."""

from __future__ import annotations

import socket
import warnings
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from pydantic import ValidationError
from typer.testing import CliRunner

import tidegate
from tests.support.engine import step
from tests.support.events import job, snapshot, steady
from tests.support.fake_consumer import FakeMessage
from tests.support.token_endpoint import TokenEndpoint, login_by
from tidegate import client
from tidegate.cli import app
from tidegate.cli.expected import problem_of
from tidegate.client import (
    BadRecord,
    ClientSettings,
    Events,
    NoLogin,
    Received,
    Unreachable,
    check_reachable,
    settings_for,
    warn_of,
)
from tidegate.engine.state import JobState
from tidegate.events.decision import Decision, Observed
from tidegate.events.envelope import Unreadable, value_of
from tidegate.events.snapshot import MetricSnapshot
from tidegate.events.topics import TOPICS
from tidegate.events.wire import Wire
from tidegate.runtime import consumer
from tidegate.runtime.consumer import Partition, TopicReader, newest_at
from tidegate.whatif.topics import received_job


def test_arguments_override_variables_and_variables_override_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments take precedence over TIDEGATE_… variables, and these over the defaults."""
    monkeypatch.setenv("TIDEGATE_BOOTSTRAP_SERVERS", "broker:1")
    monkeypatch.setenv("TIDEGATE_TOPIC_PREFIX", "mine.")
    assert settings_for(None, None).bootstrap_servers == "broker:1"
    assert settings_for(None, None).topic_prefix == "mine."
    assert settings_for("other:2", "theirs.").bootstrap_servers == "other:2"
    assert settings_for("other:2", "theirs.").topic_prefix == "theirs."


def test_variables_of_other_services_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client ignores variables of the services that it does not know."""
    monkeypatch.setenv("TIDEGATE_STALL_SECONDS", "5")
    assert settings_for("broker:1", None).bootstrap_servers == "broker:1"


def test_incomplete_credentials_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user name without password and mechanism is an error, not an anonymous connection."""
    monkeypatch.setenv("TIDEGATE_SASL_USERNAME", "me")
    with pytest.raises(ValidationError, match="sasl_password"):
        settings_for("broker:1", None)


def test_a_secret_is_not_printed() -> None:
    """Printed settings show passwords as stars."""
    settings = ClientSettings(redis_password="hunter2")  # type: ignore[arg-type]
    assert "hunter2" not in str(settings.redacted())


def test_each_topic_has_an_iterator() -> None:
    """The package exports an iterator for each of Tidegate's topics."""
    streams = [value for name in tidegate.__all__ if isinstance(value := getattr(tidegate, name), Events)]
    assert len(streams) == len(TOPICS) - 1  # jobs are a table: `tidegate.jobs()` gives it whole


def test_a_time_without_zone_is_rejected() -> None:
    """`since` without a time zone is ambiguous, and rejected before connecting."""
    with pytest.raises(ValueError, match="time zone"):
        next(tidegate.decisions("127.0.0.1:1", since=datetime(2026, 1, 1)))  # noqa: DTZ001


def test_a_timestamp_that_no_calendar_has_ends_no_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka stores any number. Events with one, and those after it, are read, and `why` finds where the topic ends."""
    events = [snapshot(number) for number in range(5)]

    class Snapshots:
        def __init__(self, *_: object, **__: object) -> None:
            self.left = [FakeMessage(0, offset, event) for offset, event in enumerate(events)]
            for message, millis in zip(self.left, (2**62, -(2**62), -1, 253_402_300_800_000), strict=False):
                message.written_millis = millis
            self.close = lambda: None

        def read_to_end(self, *_: float, **__: object) -> list[FakeMessage]:
            return self.left

    monkeypatch.setattr(client, "TopicReader", Snapshots)
    monkeypatch.setattr(client, "check_reachable", lambda *_: None)
    assert list(tidegate.snapshots()) == events
    monkeypatch.setattr(consumer, "TopicReader", Snapshots)
    monkeypatch.setattr(consumer, "offset_ranges", lambda *_: {})
    newest = newest_at(ClientSettings(), "snapshots")
    assert newest is not None
    assert newest > datetime.now(UTC)


def test_a_long_topic_is_read_to_its_end_however_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the hours of 1,000 jobs, a question about one job was given up after a minute, at the first short pause."""
    now, events = [0.0], [snapshot(number) for number in range(5)]

    class Snapshots(TopicReader):
        def __init__(self, *_: object, **__: object) -> None:
            self.answers: list[FakeMessage | None] = []
            for offset, event in enumerate(events):
                self.answers += [None, FakeMessage(0, offset, event)]
            self._unread = {("tidegate.snapshots", 0)}

        at_end = property(lambda self: not self.answers)

        def _unled(self) -> list[Partition]:
            return []

        def poll(self, _seconds: float = 0.0) -> Any:
            now[0] += 25.0
            return self.answers.pop(0)

        def close(self) -> None:
            """Nothing is open."""

    monkeypatch.setattr(client, "TopicReader", Snapshots)
    monkeypatch.setattr(client, "check_reachable", lambda *_: None)
    monkeypatch.setattr("tidegate.runtime.consumer.time.monotonic", lambda: now[0])
    assert list(tidegate.snapshots()) == events
    read = []
    for event in tidegate.snapshots():
        now[0] += 100.0
        read.append(event)
    assert read == events, "whoever takes long over an event is not taken for a topic that is silent"
    monkeypatch.setattr(Snapshots, "poll", lambda _self, _seconds=0.0: now.append(now.pop() + 25.0))
    with pytest.raises(TimeoutError, match=r"snapshots\[0\]: nothing came for 60 s before the end"):
        list(tidegate.snapshots())


def test_an_unreachable_broker_is_named() -> None:
    """An unreachable broker raises a ConnectionError with the address."""
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1 ") as caught:
        next(tidegate.results("127.0.0.1:1"))
    assert isinstance(caught.value, ConnectionError)


@pytest.mark.parametrize("address", ["broker:²", 70 * "a" + ":9092", "a..b:9092"])
def test_what_is_no_address_is_an_unreachable_broker(address: str) -> None:
    """A digit that is no number, and a name that no DNS can have."""
    with pytest.raises(Unreachable, match="no Kafka broker answers at "):
        next(tidegate.results(address))


def test_a_refused_token_is_not_taken_for_a_broker_that_is_away() -> None:
    """The error names the token endpoint and what it says, the hint names the settings; neither holds the secret."""
    with TokenEndpoint().serve() as url, socket.create_server(("127.0.0.1", 0)) as broker:
        address = f"127.0.0.1:{broker.getsockname()[1]}"
        settings = ClientSettings(bootstrap_servers=address, **login_by(url, "hunter2"))
        with pytest.raises(NoLogin, match=r"^cannot log in to Kafka at 127.*Invalid client credentials") as caught:
            check_reachable(settings)
    problem = problem_of(caught.value)
    assert problem is not None
    assert url in str(problem)
    assert "TIDEGATE_SASL_" in problem.hint
    assert "hunter2" not in str(problem)


def test_a_missing_right_is_told_apart_from_other_errors_of_the_broker() -> None:
    """`tidegate doctor` would not find it: the hint leads to the table of rights."""
    missing = problem_of(KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)))
    away = problem_of(KafkaException(KafkaError(KafkaError._ALL_BROKERS_DOWN)))
    assert missing is not None
    assert away is not None
    assert "rights" in missing.hint
    assert "tidegate doctor" in away.hint


def test_a_skipped_record_is_reported_with_place_and_reason() -> None:
    """The warning names topic, partition, offset and what was wrong."""
    bad = BadRecord("tidegate.decisions", 3, 17, Unreadable("NOT_JSON", "expected value"), b"x")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warn_of(bad)
    assert "tidegate.decisions, partition 3, offset 17: NOT_JSON: expected value" in str(seen[0].message)


def test_of_a_decision_long_ago_nothing_later_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 1,000 jobs, the decisions of the hours since then are millions: `tidegate why --at` stops after it."""
    spec, state, events = job(), JobState.new(), dict[type[Wire], list[Wire]]()
    for shot in steady(200, rate=100, capacity=400):
        state, decision = step(state, shot, spec, Observed(at=shot.observed_at))
        events.setdefault(MetricSnapshot, []).append(shot)
        events.setdefault(Decision, []).append(decision)
    read: Counter[type[Wire]] = Counter()
    asked: list[datetime | None] = []

    def received(
        model: type[Wire], *_: object, since: datetime | None = None, **__: object
    ) -> Iterator[Received[Wire]]:
        asked.append(since)
        for number, event in enumerate(events.get(model, ())):
            read[model] += 1
            yield Received(event, 0, number, datetime(2030, 1, 1, tzinfo=UTC), b"rates")

    monkeypatch.setattr("tidegate.fleet.feed.received", received)
    monkeypatch.setattr("tidegate.whatif.topics.received", received)
    monkeypatch.setattr("tidegate.cli.why.spec_of", lambda _settings, _job: spec)
    old = events[Decision][10]
    assert isinstance(old, Decision)
    ran = CliRunner().invoke(app, ["why", "rates", "--at", str(old.sequence), "--json", "-b", "127.0.0.1:1"])
    assert ran.stdout.encode().strip() == value_of(old)
    assert read[Decision] == 12
    read.clear()
    for missing in (old.sequence + 1, 5, 2**40):
        asked.clear()
        read.clear()
        ran = CliRunner().invoke(app, ["why", "rates", "--at", str(missing), "-b", "127.0.0.1:1"])
        assert f"no decision on rates with sequence {missing}" in ran.stderr
        assert read[Decision] <= 12
        assert None not in asked
    read.clear()
    found = received_job(ClientSettings(), "rates", None, old.sequence)
    assert len(found.decisions) == len(found.snapshots) == 11
    assert read == {MetricSnapshot: 12, Decision: 12}
