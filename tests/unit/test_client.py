"""The client without a broker: whom it asks, what it refuses, what it says of what is not there."""

from __future__ import annotations

import warnings
from datetime import datetime

import pytest
from pydantic import ValidationError

import tidegate
from tidegate.client import BadRecord, ClientSettings, Events, Unreachable, settings_for, warn_of
from tidegate.events.envelope import Unreadable
from tidegate.events.topics import TOPICS


def test_arguments_win_over_variables_and_variables_over_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """An argument holds before TIDEGATE_… variables, and these before the defaults."""
    monkeypatch.setenv("TIDEGATE_BOOTSTRAP_SERVERS", "broker:1")
    monkeypatch.setenv("TIDEGATE_TOPIC_PREFIX", "mine.")
    assert settings_for(None, None).bootstrap_servers == "broker:1"
    assert settings_for(None, None).topic_prefix == "mine."
    assert settings_for("other:2", "theirs.").bootstrap_servers == "other:2"
    assert settings_for("other:2", "theirs.").topic_prefix == "theirs."


def test_variables_of_other_services_do_not_disturb_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell that holds the settings of every service can be used to read events."""
    monkeypatch.setenv("TIDEGATE_STALL_SECONDS", "5")
    assert settings_for("broker:1", None).bootstrap_servers == "broker:1"


def test_a_half_given_login_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user name without password and mechanism is an error, not an anonymous connection."""
    monkeypatch.setenv("TIDEGATE_SASL_USERNAME", "me")
    with pytest.raises(ValidationError, match="sasl_password"):
        settings_for("broker:1", None)


def test_a_secret_is_not_printed() -> None:
    """Settings can be printed: passwords are stars."""
    settings = ClientSettings(redis_password="hunter2")  # type: ignore[arg-type]
    assert "hunter2" not in str(settings.redacted())


def test_there_is_a_stream_for_each_topic_of_events() -> None:
    """Whatever Tidegate writes can be iterated over from the package itself."""
    streams = [value for name in tidegate.__all__ if isinstance(value := getattr(tidegate, name), Events)]
    assert len(streams) == len(TOPICS) - 1  # jobs are a table: `tidegate.jobs()` gives it whole


def test_a_time_without_zone_is_refused() -> None:
    """`since` without a time zone could mean any of 24 hours and is refused before a broker is asked."""
    with pytest.raises(ValueError, match="time zone"):
        next(tidegate.decisions("127.0.0.1:1", since=datetime(2026, 1, 1)))  # noqa: DTZ001


def test_a_broker_that_is_not_there_is_named() -> None:
    """The error of an unreachable broker is a ConnectionError with its address."""
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1 ") as caught:
        next(tidegate.results("127.0.0.1:1"))
    assert isinstance(caught.value, ConnectionError)


def test_a_skipped_record_is_told_by_place_and_reason() -> None:
    """The warning names topic, partition, offset and what was wrong."""
    bad = BadRecord("tidegate.decisions", 3, 17, Unreadable("NOT_JSON", "expected value"), b"x")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warn_of(bad)
    assert "tidegate.decisions, partition 3, offset 17: NOT_JSON: expected value" in str(seen[0].message)
