"""What commands that run on Spark share: Java, the Kafka connector, the session."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import SecretStr

from tidegate.cli.problems import Problem
from tidegate.client import ClientSettings
from tidegate.replay.source import spark_said, start_session, stop_session
from tidegate.runtime.settings import OAuthClient
from tidegate.stack.class_data import class_data, with_archive
from tidegate.stack.jars import ensure_jars, spark_kafka
from tidegate.stack.java import ensure_java
from tidegate.terminal import stderr

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Master = Annotated[str, typer.Option("--master", help="Spark master to run on.")]
LOCAL = "local[2]"
SECURITY = "org.apache.kafka.common.security"


@contextmanager
def session(master: str, *, with_kafka: bool = False) -> Iterator[SparkSession]:
    """Yield a Spark session that ends with the block; with Spark's Kafka connector if asked for.

    An error of Spark's becomes a `Problem` with its first line.
    """
    prepare_java()
    spark = start_session(master, connector_jars() if with_kafka else ())
    try:
        yield spark
    except Exception as error:
        if type(error).__module__.partition(".")[0] in {"pyspark", "py4j"}:
            raise Problem(f"Spark: {spark_said(error)}") from None
        raise
    finally:
        stop_session(spark)


def connector_jars() -> list[Path]:
    """Return the jars of Spark's Kafka connector; fetch them if they are missing."""
    return ensure_jars(spark_kafka(), ensure_java(_say), _say)


def prepare_java() -> None:
    """Set JAVA_HOME for Spark, which would otherwise take the first Java on PATH; its JVM maps the archive, if made."""
    os.environ["JAVA_HOME"] = str(ensure_java(_say).home)
    if class_data().exists():
        os.environ.setdefault("SPARK_SUBMIT_OPTS", with_archive())


def kafka_options(settings: ClientSettings) -> dict[str, str]:
    """Return the connection settings under the names of Java's Kafka client, for Spark."""
    if settings.security_protocol == "PLAINTEXT":
        return {}
    options = {"kafka.security.protocol": settings.security_protocol}
    if settings.ssl_ca_file is not None:
        options |= {"kafka.ssl.truststore.type": "PEM", "kafka.ssl.truststore.location": str(settings.ssl_ca_file)}
    if settings.ssl_certificate_file is not None and settings.ssl_key_file is not None:
        options["kafka.ssl.keystore.type"] = "PEM"
        options["kafka.ssl.keystore.certificate.chain"] = settings.ssl_certificate_file.read_text("utf-8", "replace")
        options["kafka.ssl.keystore.key"] = _private_key(settings.ssl_key_file, settings.ssl_key_password)
    if oauth := settings.oauth():
        options |= _oauth(oauth)
    elif settings.sasl_mechanism and settings.sasl_username and settings.sasl_password:
        module = "scram.ScramLoginModule" if settings.sasl_mechanism.startswith("SCRAM") else "plain.PlainLoginModule"
        login = {"username": settings.sasl_username, "password": settings.sasl_password.get_secret_value()}
        options |= {"kafka.sasl.mechanism": settings.sasl_mechanism, "kafka.sasl.jaas.config": _jaas(module, login)}
    return options


def _oauth(client: OAuthClient) -> dict[str, str]:
    """Return what Java's client needs to get access tokens itself, under the names of Kafka 3.4 and later."""
    login = {"clientId": client.client_id, "clientSecret": client.client_secret.get_secret_value()}
    if client.scope:
        login["scope"] = client.scope
    if client.ca_file:
        login |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(client.ca_file)}
    return {
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.login.callback.handler.class": f"{SECURITY}.oauthbearer.OAuthBearerLoginCallbackHandler",
        "kafka.sasl.oauthbearer.token.endpoint.url": client.token_endpoint_url,
        "kafka.sasl.jaas.config": _jaas(
            "oauthbearer.OAuthBearerLoginModule",
            login | {f"extension_{name}": value for name, value in client.extensions.items()},
        ),
    }


def _jaas(module: str, options: dict[str, str]) -> str:
    """Return the login configuration of Java for one module."""
    quoted = {name: value.replace("\\", "\\\\").replace('"', '\\"') for name, value in options.items()}
    return " ".join([f"{SECURITY}.{module} required", *(f'{name}="{value}"' for name, value in quoted.items())]) + ";"


def _private_key(path: Path, password: SecretStr | None) -> str:
    """Return a private key in the one form that Java's client reads on every Java: PKCS #8 without a password."""
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415  (only in the extra `replay`)

    opened = password.get_secret_value().encode() if password is not None else None
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), opened)
    except (TypeError, ValueError) as error:  # a password that is missing, or not needed; no key
        raise Problem(f"{path}: {error}", "check TIDEGATE_SSL_KEY_FILE and TIDEGATE_SSL_KEY_PASSWORD") from None
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(encoding, form, serialization.NoEncryption()).decode("ascii")


def _say(text: str) -> None:
    stderr().print(text)
