"""Settings: wrong ones are named, and secrets are never printed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from services.actuator.settings import ActuatorSettings
from services.collector.settings import CollectorSettings

ROOT = Path(__file__).resolve().parents[2]
SECRETS = {"TIDEGATE_REDIS_PASSWORD": "hunter2", "TIDEGATE_SASL_PASSWORD": "hunter2"}


@pytest.mark.parametrize(
    "program",
    [
        ("-m", "services.actuator"),
        ("-m", "services.collector"),
        ("-m", "services.decider"),
        ("deploy/kafka/create_topics.py",),
    ],
)
def test_wrong_settings_are_named_without_their_secrets(program: tuple[str, ...]) -> None:
    """With a misspelt variable and a password, the exit code is 2 and one line names only the variable."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}
    environment = {**inherited, **SECRETS, "PYTHONPATH": str(ROOT), "TIDEGATE_LOG_LEVLE": "DEBUG"}
    ended = subprocess.run(
        [sys.executable, *program], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 2
    assert "TIDEGATE_LOG_LEVLE" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    assert "hunter2" not in ended.stderr


@pytest.mark.parametrize(
    "program", [("-m", "services.collector"), ("-c", "from tidegate.cli import main; main()", "jobs")]
)
def test_a_setting_that_is_no_json_is_named(program: tuple[str, ...]) -> None:
    """Two of the settings are JSON: an error in one says where it is, without a traceback."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}
    broken = {"TIDEGATE_FILES": '{"hdfs": {"token": "hunter2"', "TIDEGATE_BOOTSTRAP_SERVERS": "127.0.0.1:1"}
    environment = {**inherited, **broken, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [sys.executable, *program], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 2
    assert "files" in ended.stderr
    assert "line 1 column" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "hunter2" not in ended.stderr


def test_no_error_of_settings_shows_what_was_given() -> None:
    """Even an error printed unchanged, by a program or in a traceback, shows no values."""
    with pytest.raises(ValidationError) as caught:
        ActuatorSettings(sasl_password=SecretStr("hunter2"), redis_url="http://bob:hunter2@redis")
    assert "hunter2" not in str(caught.value)


def test_a_password_in_the_url_is_not_shown() -> None:
    """The settings are logged at the start; stars replace a password in a URL."""
    settings = ActuatorSettings(redis_url="rediss://bob:hunter2@redis:6379/0")
    assert settings.redacted()["redis_url"] == "rediss://**********@redis:6379/0"
    assert "hunter2" not in str(settings.redacted())


def test_options_of_file_systems_are_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be tokens or passwords: only their names are shown."""
    monkeypatch.setenv("TIDEGATE_FILES", '{"hdfs": {"url": "http://nn:9870", "token": "s3cret"}, "s3a": {}}')
    settings = ActuatorSettings()
    assert settings.files["hdfs"]["url"] == "http://nn:9870"
    assert settings.redacted()["files"] == "hdfs (token, url); s3a ()"
    assert "s3cret" not in str(settings.redacted())


def test_other_kafka_clusters_are_read_and_their_passwords_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has its own security settings; the log at the start shows names and addresses only."""
    sasl = '"sasl_mechanism": "PLAIN", "sasl_username": "me", "sasl_password": "hunter2"'
    payments = f'{{"bootstrap_servers": "p:9092", "security_protocol": "SASL_SSL", {sasl}}}'
    monkeypatch.setenv("TIDEGATE_KAFKA_CLUSTERS", f'{{"payments": {payments}, "old": {{}}}}')
    settings = CollectorSettings()
    assert settings.kafka_clusters["payments"].kafka()["sasl.password"] == "hunter2"
    assert settings.redacted()["kafka_clusters"] == "old (127.0.0.1:9092); payments (p:9092)"
    assert "hunter2" not in str(settings.redacted())


@pytest.mark.parametrize(
    ("payments", "named"),
    [
        ('{"bootstrap_server": "p:9092"}', "payments.bootstrap_server"),
        ('{"sasl_username": "me"}', "must be set together"),
        ('{"ssl_ca_file": "/no/such.pem"}', "payments.ssl_ca_file"),
        ('{"ssl_key_file": "/dev/null"}', "payments"),
    ],
)
def test_a_wrong_setting_of_another_kafka_cluster_is_named(
    payments: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A misspelt field or a file that is not there stops the collector at its start."""
    monkeypatch.setenv("TIDEGATE_KAFKA_CLUSTERS", f'{{"payments": {payments}}}')
    with pytest.raises(ValidationError, match=named):
        CollectorSettings()
