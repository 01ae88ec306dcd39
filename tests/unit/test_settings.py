"""Settings: wrong ones are named, and secrets are never printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from services.actuator.settings import ActuatorSettings
from services.collector.settings import CollectorSettings
from services.keda.settings import KedaSettings
from services.operator.settings import OperatorSettings
from tests.support.programs import ended
from tidegate.client import ClientSettings
from tidegate.events.invalid import in_words
from tidegate.runtime.settings import SYSTEM_CA, KafkaConnection, ServiceSettings

ROOT = Path(__file__).resolve().parents[2]


SERVICES = ("actuator", "collector", "console", "decider", "keda", "operator")


@pytest.mark.parametrize(
    "program", [*(("-m", f"services.{name}") for name in SERVICES), ("deploy/kafka/create_topics.py",)]
)
def test_wrong_settings_are_named_without_their_secrets(program: tuple[str, ...]) -> None:
    """With a misspelt variable and a password, the exit code is 2 and one line names only the variable."""
    end = ended(*program, redis_password="hunter2", sasl_password="hunter2", log_levle="DEBUG")
    assert end.returncode == 2
    assert "TIDEGATE_LOG_LEVLE" in end.stderr
    assert len(end.stderr.splitlines()) == 1
    assert "hunter2" not in end.stderr


@pytest.mark.parametrize("settings", [ActuatorSettings, KedaSettings, OperatorSettings])
def test_a_service_logs_what_its_kafka_client_says(settings: type[ServiceSettings]) -> None:
    """Only a command keeps that off the terminal: a service that cannot reach a broker must not be silent."""
    assert "log_level" not in settings().kafka()
    assert ClientSettings().kafka()["log_level"] == "0"


@pytest.mark.parametrize(
    ("service", "setting", "told"),
    [
        ("collector", {"log_poll_seconds": "0"}, "log_poll_seconds: Input should be greater than 0"),
        ("decider", {"stall_seconds": "-1"}, "stall_seconds"),
    ],
)
def test_a_setting_out_of_range_is_named(service: str, setting: dict[str, str], told: str) -> None:
    """It ends the start before anything happens, without a traceback."""
    end = ended("-m", f"services.{service}", **setting)
    assert end.returncode == 2
    assert told in end.stderr
    assert "Traceback" not in end.stderr


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bootstrap_servers", ""),
        ("delivery_timeout_seconds", "0.0004"),
        ("delivery_timeout_seconds", "4294968"),
        ("delivery_timeout_seconds", "inf"),
        ("redis_timeout_seconds", "inf"),
        ("session_timeout_seconds", "inf"),
    ],
)
def test_what_no_client_can_keep_to_is_refused(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka's client counts 32 bits of milliseconds: it would wait for ever, or less than a second, or not start."""
    monkeypatch.setenv(f"TIDEGATE_{name.upper()}", value)
    with pytest.raises(ValidationError, match=name):
        ActuatorSettings()


@pytest.mark.parametrize(
    "program", [("-m", "services.collector"), ("-c", "from tidegate.cli import main; main()", "jobs")]
)
def test_a_setting_that_is_no_json_is_named(program: tuple[str, ...]) -> None:
    """Two of the settings are JSON: an error in one says where it is, without a traceback."""
    end = ended(*program, files='{"hdfs": {"token": "hunter2"', bootstrap_servers="127.0.0.1:1")
    assert end.returncode == 2
    assert "files" in end.stderr
    assert "line 1 column" in end.stderr
    assert "Traceback" not in end.stderr
    assert "hunter2" not in end.stderr


def test_no_error_of_settings_shows_what_was_given() -> None:
    """Even an error printed unchanged, by a program or in a traceback, shows no values."""
    with pytest.raises(ValidationError) as caught:
        ActuatorSettings(sasl_password=SecretStr("hunter2"), redis_url="http://bob:hunter2@redis")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("rediss://bob:hunter2@redis:6379/0", "rediss://**********@redis:6379/0"),
        ("redis://bob:my hunter2@redis", "redis://**********@redis"),
        ("unix:///run/redis.sock?password=hunter2&db=1", "unix:///run/redis.sock?password=**********&db=1"),
    ],
)
def test_a_password_in_the_url_is_not_shown(url: str, shown: str) -> None:
    """The settings are logged at the start; stars replace a password in a URL, wherever Redis' client takes it from."""
    settings = ActuatorSettings(redis_url=url)
    assert settings.redacted()["redis_url"] == shown
    assert "hunter2" not in str(settings.redacted())


def test_options_of_file_systems_are_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be tokens or passwords: only their names are shown."""
    hdfs = '"hdfs": {"url": "http://nn:9870", "token": "s3cret"}'
    monkeypatch.setenv("TIDEGATE_FILES", f'{{{hdfs}, "s3a": {{}}, "a://b:s3cret@c": {{}}}}')
    settings = ActuatorSettings()
    assert settings.files["hdfs"]["url"] == "http://nn:9870"
    assert settings.redacted()["files"] == "a://**********@c (); hdfs (token, url); s3a ()"
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
        ('{"sasl_mechanism": "GSSAPI"}', "payments.sasl_mechanism"),
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


OAUTH = {
    "security_protocol": "SASL_SSL",
    "sasl_mechanism": "OAUTHBEARER",
    "sasl_oauthbearer_token_endpoint_url": "https://idp/token",
    "sasl_oauthbearer_client_id": "me",
    "sasl_oauthbearer_client_secret": "hunter2",
}


def test_librdkafka_gets_the_settings_of_oauth() -> None:
    """Its own names differ by dots. It is told which authorities the system knows, as it does not find Debian's."""
    given = OAUTH | {"sasl_oauthbearer_scope": "kafka", "sasl_oauthbearer_extensions": "logicalCluster=lkc-1,pool=p"}
    connection = KafkaConnection.model_validate(given)
    conf = connection.kafka()
    assert {name: value for name, value in conf.items() if name.startswith("sasl")} == {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": "https://idp/token",
        "sasl.oauthbearer.client.id": "me",
        "sasl.oauthbearer.client.secret": "hunter2",
        "sasl.oauthbearer.scope": "kafka",
        "sasl.oauthbearer.extensions": "logicalCluster=lkc-1,pool=p",
    }
    client = connection.oauth()
    assert client is not None
    assert client.extensions == {"logicalCluster": "lkc-1", "pool": "p"}
    assert conf.get("https.ca.location") in {*map(str, SYSTEM_CA), None}


def test_the_authority_of_the_token_endpoint_may_be_given(tmp_path: Path) -> None:
    """It need not be that of the brokers."""
    for name in ("brokers.pem", "idp.pem"):
        (tmp_path / name).touch()
    files = {"ssl_ca_file": tmp_path / "brokers.pem", "sasl_oauthbearer_ca_file": tmp_path / "idp.pem"}
    conf = KafkaConnection.model_validate(OAUTH | files).kafka()
    assert conf["https.ca.location"] == str(tmp_path / "idp.pem")
    assert conf["ssl.ca.location"] == str(tmp_path / "brokers.pem")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"sasl_oauthbearer_client_id": None}, "needs sasl_oauthbearer_client_id$"),
        ({"sasl_oauthbearer_client_secret": None}, "needs sasl_oauthbearer_client_secret$"),
        (
            {"sasl_oauthbearer_token_endpoint_url": None, "sasl_oauthbearer_client_id": ""},
            "needs sasl_oauthbearer_token_endpoint_url and sasl_oauthbearer_client_id$",
        ),
        ({"sasl_oauthbearer_token_endpoint_url": "idp:8080/token"}, "sasl_oauthbearer_token_endpoint_url"),
        ({"sasl_oauthbearer_extensions": "lkc-1"}, "sasl_oauthbearer_extensions"),
        ({"sasl_oauthbearer_ca_file": "/no/such.pem"}, "sasl_oauthbearer_ca_file"),
        ({"sasl_username": "me"}, "sasl_username is not for sasl_mechanism OAUTHBEARER"),
        ({"sasl_password": "hunter2"}, "sasl_password is not for sasl_mechanism OAUTHBEARER"),
        ({"sasl_mechanism": None}, "sasl_oauthbearer_token_endpoint_url needs sasl_mechanism OAUTHBEARER"),
        ({"security_protocol": "SSL"}, "OAUTHBEARER needs security_protocol SASL_SSL or SASL_PLAINTEXT"),
        (
            {"sasl_mechanism": "PLAIN", "sasl_username": "me", "sasl_password": "x"},
            "sasl_oauthbearer_token_endpoint_url needs sasl_mechanism OAUTHBEARER",
        ),
    ],
)
def test_settings_of_oauth_that_are_missing_or_contradict_others_are_named(
    change: dict[str, str | None], named: str
) -> None:
    """The error names the field, and shows no secret."""
    with pytest.raises(ValidationError) as caught:
        KafkaConnection.model_validate(OAUTH | change)
    problems = [in_words(problem, "settings") for problem in caught.value.errors(include_input=False)]
    assert re.search(named, "\n".join(problems)), problems
    assert "hunter2" not in str(caught.value)


def test_the_client_secret_may_be_a_file_and_is_not_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the password of the other mechanisms."""
    (tmp_path / "tidegate_sasl_oauthbearer_client_secret").write_text("hunter2\n")
    for name, value in OAUTH.items():
        if "secret" not in name:
            monkeypatch.setenv(f"TIDEGATE_{name.upper()}", value)
    settings = ActuatorSettings(_secrets_dir=tmp_path)  # type: ignore[call-arg]
    assert settings.kafka()["sasl.oauthbearer.client.secret"] == "hunter2"
    assert "hunter2" not in str(settings.redacted())
