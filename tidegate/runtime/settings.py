"""Settings shared by the services. Read once, from `TIDEGATE_…` variables and secret files, then frozen.

A service refuses an unknown variable with our prefix, by name: a typo must not silently mean the default. A command
does not, as an operator's shell may hold the variables of every service. Secrets may be files
(`/run/secrets/tidegate_redis_password`), as container platforms mount them.
"""

from __future__ import annotations

import logging
import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, FilePath, JsonValue, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict
from typing_extensions import override

PREFIX = "TIDEGATE_"
SECRETS_DIR = Path("/run/secrets")
REQUEST_SECONDS = 10.0
"""How long a broker may take to answer a request before the client tries again, by then perhaps at another broker."""
OAUTH = "sasl_oauthbearer_"
OAUTH_NEEDS = tuple(OAUTH + name for name in ("token_endpoint_url", "client_id", "client_secret"))
EXTENSION = r"[A-Za-z]+=[^=,\s]+"
"""One of OAuth's SASL extensions (RFC 7628)."""
SYSTEM_CA = (Path("/etc/ssl/certs/ca-certificates.crt"), Path("/etc/pki/tls/certs/ca-bundle.crt"))
"""The authorities that Debian and Red Hat know. librdkafka's wheels look for the second file only, and no token comes
without it; they do not look in folders, or where `SSL_CERT_FILE` says."""
NOT_SETTINGS = frozenset({"TIDEGATE_CACHE", "TIDEGATE_STACK_DIR", "TIDEGATE_STACK_ID"})
"""Variables of the embedded stack, which services may inherit."""


class UnknownSetting(ValueError):
    """A variable of the environment is none of a service's settings; the text names both."""


def without_login(text: str) -> str:
    """Return a text in which stars replace the user and password of a URL, also one in its query (redis-py)."""
    without = re.sub(r"(?s)(?<=://).*@", "**********@", text)
    return re.sub(r"(?<=[?&]password=)[^&]*", "**********", without)


@dataclass(frozen=True, kw_only=True)
class OAuthClient:
    """Where and as whom a Kafka client gets its access tokens."""

    token_endpoint_url: str
    client_id: str
    client_secret: SecretStr
    scope: str | None
    extensions: Mapping[str, str]
    """What brokers are told in addition to the token, by name."""
    ca_file: Path | None


class KafkaConnection(BaseModel):
    """How to reach one Kafka cluster."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, hide_input_in_errors=True)

    bootstrap_servers: str = Field(default="127.0.0.1:9092", min_length=1)
    """Kafka bootstrap servers, comma-separated."""
    security_protocol: str = Field(default="PLAINTEXT", pattern="^(PLAINTEXT|SSL|SASL_PLAINTEXT|SASL_SSL)$")
    """Also SSL, SASL_PLAINTEXT or SASL_SSL."""
    sasl_mechanism: str | None = Field(default=None, pattern="^(PLAIN|SCRAM-SHA-256|SCRAM-SHA-512|OAUTHBEARER)$")
    """PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512, with sasl_username and sasl_password; or OAUTHBEARER, with
    sasl_oauthbearer_token_endpoint_url, sasl_oauthbearer_client_id and sasl_oauthbearer_client_secret."""
    sasl_username: str | None = None
    """User, for all mechanisms but OAUTHBEARER."""
    sasl_password: SecretStr | None = None
    """The user's password; better a secret file."""
    sasl_oauthbearer_token_endpoint_url: str | None = Field(default=None, pattern="^https?://")
    """Where clients get their access token, by OAuth's client credentials; for example
    `https://keycloak/realms/kafka/protocol/openid-connect/token`."""
    sasl_oauthbearer_client_id: str | None = None
    """The client's id at the token endpoint."""
    sasl_oauthbearer_client_secret: SecretStr | None = None
    """The client's secret at the token endpoint; better a secret file."""
    sasl_oauthbearer_scope: str | None = None
    """Scope to ask the token endpoint for, if it needs one."""
    sasl_oauthbearer_extensions: str | None = Field(default=None, pattern=f"^{EXTENSION}(,{EXTENSION})*$")
    """What brokers want to be told in addition to the token; for example, in Confluent Cloud,
    `logicalCluster=lkc-1,identityPoolId=pool-1`."""
    sasl_oauthbearer_ca_file: FilePath | None = None
    """PEM file with the authority of the token endpoint's certificate, unless the system knows it."""
    ssl_ca_file: FilePath | None = None
    """PEM file with the authority of the brokers' certificates, unless the system knows it."""
    ssl_certificate_file: FilePath | None = None
    """PEM file with the client certificate, where brokers ask for one; needs ssl_key_file."""
    ssl_key_file: FilePath | None = None
    """PEM file with the private key of the client certificate."""
    ssl_key_password: SecretStr | None = None
    """Password of the private key, if it has one; better a secret file."""

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        self._check_login()
        if (self.ssl_certificate_file is None) != (self.ssl_key_file is None):
            raise ValueError("ssl_certificate_file and ssl_key_file must be set together")
        return self

    def _check_login(self) -> None:
        """Raise ValueError unless exactly what the mechanism needs is set."""
        oauth = [name for name in KafkaConnection.model_fields if name.startswith(OAUTH) and getattr(self, name)]
        password = [name for name in ("sasl_username", "sasl_password") if getattr(self, name)]
        if self.sasl_mechanism != "OAUTHBEARER":
            if oauth:
                raise ValueError(f"{oauth[0]} needs sasl_mechanism OAUTHBEARER")
            if len(password) != (2 if self.sasl_mechanism else 0):
                raise ValueError("sasl_mechanism, sasl_username and sasl_password must be set together")
            return
        if password:
            raise ValueError(f"{password[0]} is not for sasl_mechanism OAUTHBEARER, which takes sasl_oauthbearer_…")
        if missing := [name for name in OAUTH_NEEDS if name not in oauth]:
            raise ValueError(f"sasl_mechanism OAUTHBEARER needs {' and '.join(missing)}")
        if not self.security_protocol.startswith("SASL_"):
            raise ValueError("sasl_mechanism OAUTHBEARER needs security_protocol SASL_SSL or SASL_PLAINTEXT")

    def oauth(self) -> OAuthClient | None:
        """Return where and as whom clients get their access tokens; None with another mechanism."""
        url, secret = self.sasl_oauthbearer_token_endpoint_url, self.sasl_oauthbearer_client_secret
        if not (url and self.sasl_oauthbearer_client_id and secret):
            return None
        given = self.sasl_oauthbearer_extensions
        return OAuthClient(
            token_endpoint_url=url,
            client_id=self.sasl_oauthbearer_client_id,
            client_secret=secret,
            scope=self.sasl_oauthbearer_scope,
            extensions=dict(pair.split("=", 1) for pair in given.split(",")) if given else {},
            ca_file=self.sasl_oauthbearer_ca_file,
        )

    def kafka(self) -> dict[str, Any]:
        """Return librdkafka's connection settings; its log lines go through Python's logging, in our format."""
        conf: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap_servers,
            "security.protocol": self.security_protocol,
            "logger": logging.getLogger("librdkafka"),
        }
        if self.sasl_mechanism and self.sasl_username and self.sasl_password:
            conf["sasl.mechanism"] = self.sasl_mechanism
            conf["sasl.username"] = self.sasl_username
            conf["sasl.password"] = self.sasl_password.get_secret_value()
        if oauth := self.oauth():
            given = {
                "token.endpoint.url": oauth.token_endpoint_url,
                "client.id": oauth.client_id,
                "client.secret": oauth.client_secret.get_secret_value(),
                "scope": oauth.scope,
                "extensions": self.sasl_oauthbearer_extensions,
            }
            conf |= {"sasl.mechanism": self.sasl_mechanism, "sasl.oauthbearer.method": "oidc"}
            conf |= {f"sasl.oauthbearer.{name}": value for name, value in given.items() if value}
            if trusted := oauth.ca_file or next((file for file in SYSTEM_CA if file.is_file()), None):
                conf["https.ca.location"] = str(trusted)
        if self.ssl_ca_file:
            conf["ssl.ca.location"] = str(self.ssl_ca_file)
        if self.ssl_certificate_file and self.ssl_key_file:
            conf["ssl.certificate.location"] = str(self.ssl_certificate_file)
            conf["ssl.key.location"] = str(self.ssl_key_file)
        if self.ssl_key_password:
            conf["ssl.key.password"] = self.ssl_key_password.get_secret_value()
        return conf


class ServiceSettings(KafkaConnection, BaseSettings):
    """Base of every service's settings; the connection is that of Tidegate's own topics."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        hide_input_in_errors=True,  # it may hold passwords
        secrets_dir=SECRETS_DIR if SECRETS_DIR.is_dir() else None,
    )

    topic_prefix: str = Field(default="tidegate.", pattern=r"^[A-Za-z0-9._-]{0,100}$")
    """Prefix of every Tidegate topic. Several Tidegates may share a broker, each with its own prefix; then also set
    redis_prefix and actuator_group."""
    delivery_timeout_seconds: float = Field(default=30.0, ge=0.1, le=86_400)
    """How long the broker may take to acknowledge an event before the service gives up."""
    dead_letter_limit: int = Field(default=1000, ge=1)
    """After more unreadable records in a row than this, the service stops instead of draining the topic."""
    health_port: int = Field(default=0, ge=0, le=65535)
    """Port of `/healthz` and `/metrics` on health_host; 0 turns both off."""
    health_host: str = "127.0.0.1"
    """Address for the health port; 0.0.0.0 for all, or `::` with IPv6. There is no password."""
    otlp_endpoint: str | None = Field(default=None, pattern="^https?://")
    """Traces go to this OpenTelemetry collector, over HTTP; for example `http://tempo:4318`. Unset, there are none."""
    files: dict[str, dict[str, JsonValue]] = Field(default_factory=dict)
    """How to reach file systems other than this machine's, as JSON: options by scheme, or by scheme and authority. For
    example `{"hdfs": {"url": "http://namenode:9870"}}`. Without it, `hdfs://namenode:8020` is read through port 9870 of
    that host."""
    log_level: str = Field(default="INFO", pattern="^(DEBUG|INFO|WARNING|ERROR)$")
    """DEBUG, INFO, WARNING or ERROR."""

    @classmethod
    def refuse_unknown(cls) -> None:
        """Raise `UnknownSetting` if a variable with our prefix is none of these settings."""
        known = {PREFIX + name.upper() for name in cls.model_fields}
        unknown = sorted(v for v in os.environ if v.startswith(PREFIX) and v not in known and v not in NOT_SETTINGS)
        if unknown:
            text = f"unknown setting {', '.join(unknown)}; {cls.__name__} knows {', '.join(sorted(known))}"
            raise UnknownSetting(text)

    def redacted(self) -> dict[str, str]:
        """Return the settings for printing, with stars for secrets."""
        shown = {name: without_login(str(getattr(self, name))) for name in type(self).model_fields}
        options = (f"{place} ({', '.join(sorted(given))})" for place, given in sorted(self.files.items()))
        return shown | {"files": "; ".join(map(without_login, options))}  # their values may be secrets

    @override
    def kafka(self) -> dict[str, Any]:
        """Return librdkafka's connection settings for Tidegate's own topics."""
        # A broker that hangs is found out by this alone. By default it takes a minute, and what was sent to it is given
        # up before it can be sent to the new leader.
        seconds = min(REQUEST_SECONDS, self.delivery_timeout_seconds / 3)
        return {**super().kafka(), "socket.timeout.ms": max(1000, int(seconds * 1000))}


class RedisSettings(ServiceSettings):
    """Settings of a service that also uses Redis."""

    redis_url: str = Field(default="redis://127.0.0.1:6379/0", pattern=r"^(rediss?|unix)://")
    """With `rediss://` for TLS, and without the password, which belongs in `redis_password`. Several nodes of a cluster
    may be named, separated by commas."""
    redis_username: str | None = None
    """User of Redis' access rules; without one, the default user."""
    redis_password: SecretStr | None = None
    """Better a secret file."""
    redis_timeout_seconds: float = Field(default=1.0, gt=0, le=60)
    """Longest wait for Redis. After that the service continues without Redis and logs it."""
    redis_prefix: str = Field(default="tidegate:", pattern=r"^[A-Za-z0-9:._-]{0,100}$")
    """Prefix of every key; the same for decider and actuator, and another one for each Tidegate on this Redis."""

    def redis(self) -> dict[str, Any]:
        """Return the arguments of `Redis.from_url` for a client that waits no longer than the timeout."""
        return {
            "url": self.redis_url,
            "username": self.redis_username,
            "password": self.redis_password.get_secret_value() if self.redis_password else None,
            "socket_timeout": self.redis_timeout_seconds,
            "socket_connect_timeout": self.redis_timeout_seconds,
            # Since Python 3.13 certificates without an Authority Key Identifier are refused, if nobody says otherwise.
            **({"ssl_exclude_verify_flags": [ssl.VERIFY_X509_STRICT]} if self.redis_url.startswith("rediss:") else {}),
        }
