"""What commands on Spark tell Java's Kafka client; `tests/integration/test_secured_kafka.py` connects with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretStr

from tests.support.secured_kafka import KEY_PASSWORD, write_certificates
from tidegate.cli.problems import Problem
from tidegate.cli.spark import kafka_options
from tidegate.client import ClientSettings


@pytest.fixture
def settings(tmp_path: Path) -> ClientSettings:
    """A client with a certificate, whose key has a password."""
    write_certificates(tmp_path)
    return ClientSettings(
        security_protocol="SSL",
        ssl_ca_file=tmp_path / "ca.pem",
        ssl_certificate_file=tmp_path / "client.pem",
        ssl_key_file=tmp_path / "client-key.pem",
        ssl_key_password=SecretStr(KEY_PASSWORD),
    )


def test_the_private_key_is_told_without_its_password(settings: ClientSettings) -> None:
    """Java 17 cannot open a key with a password as other programs write it."""
    options = kafka_options(settings)
    assert options["kafka.ssl.keystore.key"].startswith("-----BEGIN PRIVATE KEY-----")
    assert options["kafka.ssl.keystore.certificate.chain"].startswith("-----BEGIN CERTIFICATE-----")
    assert not any("password" in name for name in options)


@pytest.mark.parametrize("password", ["wrong", None])
def test_a_key_that_its_password_does_not_open_is_named(settings: ClientSettings, password: str | None) -> None:
    """The error names the file, and the settings to look at."""
    secret = SecretStr(password) if password else None
    with pytest.raises(Problem, match=r"client-key\.pem") as caught:
        kafka_options(settings.model_copy(update={"ssl_key_password": secret}))
    assert "TIDEGATE_SSL_KEY_PASSWORD" in caught.value.hint
