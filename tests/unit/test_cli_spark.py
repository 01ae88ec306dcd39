"""What commands on Spark tell Java's Kafka client; `tests/integration/test_secured_kafka.py` connects with it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pydantic import SecretStr

from tests.support.secured_kafka import KEY_PASSWORD, write_certificates
from tidegate.cli import spark
from tidegate.cli.problems import Problem
from tidegate.cli.spark import kafka_options, prepare_java
from tidegate.client import ClientSettings
from tidegate.stack.class_data import class_data, with_archive
from tidegate.stack.java import Java


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


def test_a_certificate_may_have_text_around_it(settings: ClientSettings) -> None:
    """`openssl pkcs12` writes names in front of it, in any language, and bytes that are no UTF-8."""
    assert settings.ssl_certificate_file is not None
    plain = settings.ssl_certificate_file.read_bytes()
    settings.ssl_certificate_file.write_bytes("friendlyName: Jörg\n".encode() + b"\xff\n" + plain)
    assert kafka_options(settings)["kafka.ssl.keystore.certificate.chain"].endswith(plain.decode())


@pytest.mark.parametrize("password", ["wrong", None])
def test_a_key_that_its_password_does_not_open_is_named(settings: ClientSettings, password: str | None) -> None:
    """The error names the file, and the settings to look at."""
    secret = SecretStr(password) if password else None
    with pytest.raises(Problem, match=r"client-key\.pem") as caught:
        kafka_options(settings.model_copy(update={"ssl_key_password": secret}))
    assert "TIDEGATE_SSL_KEY_PASSWORD" in caught.value.hint


def test_javas_client_gets_the_settings_of_oauth(tmp_path: Path) -> None:
    """Quotes and backslashes of a secret stay what they are in the quotes of Java's login configuration."""
    (tmp_path / "idp.pem").touch()
    settings = ClientSettings(
        security_protocol="SASL_SSL",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauthbearer_token_endpoint_url="https://idp/token",
        sasl_oauthbearer_client_id="me",
        sasl_oauthbearer_client_secret=SecretStr('a "b" \\'),
        sasl_oauthbearer_scope="kafka",
        sasl_oauthbearer_extensions="logicalCluster=lkc-1",
        sasl_oauthbearer_ca_file=tmp_path / "idp.pem",
    )
    security = "org.apache.kafka.common.security.oauthbearer"
    assert kafka_options(settings) == {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.login.callback.handler.class": f"{security}.OAuthBearerLoginCallbackHandler",
        "kafka.sasl.oauthbearer.token.endpoint.url": "https://idp/token",
        "kafka.sasl.jaas.config": f'{security}.OAuthBearerLoginModule required clientId="me"'
        ' clientSecret="a \\"b\\" \\\\" scope="kafka" ssl.truststore.type="PEM"'
        f' ssl.truststore.location="{tmp_path / "idp.pem"}" extension_logicalCluster="lkc-1";',
    }


def test_jvms_of_commands_map_the_archive_if_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an archive a JVM has no option for it, and options that somebody has set stay."""
    monkeypatch.setenv("TIDEGATE_CACHE", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", "/other")
    monkeypatch.setattr(spark, "ensure_java", lambda _say: Java(tmp_path / "java", "17.0.1"))
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "")  # so that it is as before after the test
    for made, given, told in ((False, None, None), (True, None, with_archive()), (True, "-Xmx1g", "-Xmx1g")):
        if made:
            class_data().parent.mkdir(exist_ok=True)
            class_data().touch()
        monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)
        if given is not None:
            monkeypatch.setenv("SPARK_SUBMIT_OPTS", given)
        prepare_java()
        assert os.environ["JAVA_HOME"] == str(tmp_path / "java")
        assert os.environ.get("SPARK_SUBMIT_OPTS") == told
