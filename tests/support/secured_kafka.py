"""A broker with encrypted listeners: for client certificates, for passwords, and for OAuth's access tokens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from pydantic import SecretStr
from typing_extensions import override

from tests.support.token_endpoint import CLIENT, SCOPE, SECRET, TokenEndpoint
from tidegate.runtime.settings import KafkaConnection
from tidegate.stack import down, up
from tidegate.stack.info import StackInfo
from tidegate.stack.kafka import Kafka
from tidegate.stack.ports import free_ports

USER, PASSWORD = "tidegate", 'a "quoted" \\ password'
KEY_PASSWORD = "of the key"

SESSION_SECONDS = 10
"""How long OAuth's clients may stay connected before they must show a token again."""

LISTENERS = """\
listeners=PLAINTEXT://127.0.0.1:{plain},CERTIFICATE://127.0.0.1:{certificate},LOGIN://127.0.0.1:{login},\
OAUTH://127.0.0.1:{oauth},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{plain},CERTIFICATE://127.0.0.1:{certificate},LOGIN://127.0.0.1:{login},\
OAUTH://127.0.0.1:{oauth}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CERTIFICATE:SSL,LOGIN:SASL_SSL,OAUTH:SASL_SSL,CONTROLLER:PLAINTEXT
ssl.keystore.type=PEM
ssl.keystore.location={folder}/broker.pem
ssl.truststore.type=PEM
ssl.truststore.location={folder}/ca.pem
listener.name.certificate.ssl.client.auth=required
listener.name.login.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512
listener.name.login.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
user_{user}="{password}";
listener.name.login.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.oauth.sasl.enabled.mechanisms=OAUTHBEARER
listener.name.oauth.oauthbearer.sasl.jaas.config=\
org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;
listener.name.oauth.oauthbearer.sasl.server.callback.handler.class=\
org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler
listener.name.oauth.oauthbearer.connections.max.reauth.ms={session_ms}
listener.name.oauth.sasl.oauthbearer.jwks.endpoint.url={keys}
listener.name.oauth.sasl.oauthbearer.clock.skew.seconds=0
"""


class SecuredKafka(Kafka):
    """The embedded broker with three more listeners; the certificates are in its folder.

    Its `tokens` are those of a token endpoint, which the broker need not reach.
    """

    def __init__(self, work_dir: Path, tokens: TokenEndpoint) -> None:
        super().__init__(work_dir)
        self.certificate_port, self.login_port, self.oauth_port = free_ports(3)
        self.folder = work_dir / "certificates"
        self.tokens, self.token_url = tokens, ""

    @override
    def write_settings(self, info: StackInfo) -> Path:
        settings = super().write_settings(info)
        listeners = LISTENERS.format(
            plain=info.ports.kafka,
            controller=info.ports.kafka_controller,
            certificate=self.certificate_port,
            login=self.login_port,
            oauth=self.oauth_port,
            keys=self._keys.as_uri(),
            session_ms=SESSION_SECONDS * 1000,
            folder=self.folder,
            user=USER,
            # once for the settings file, and once for the quotes in the login configuration
            password=PASSWORD.replace("\\", "\\\\").replace('"', '\\"').replace("\\", "\\\\"),
        )
        with settings.open("a", encoding="utf-8") as file:
            file.write(listeners)  # of a name that is there twice, the last one counts
        return settings

    @property
    def _keys(self) -> Path:
        return self.folder / "keys.json"

    @override
    def _java(self, info: StackInfo) -> list[str]:
        java, *options = super()._java(info)
        return [java, f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self._keys.as_uri()}", *options]

    def by_certificate(self) -> KafkaConnection:
        """Return how a client with a certificate of its own connects."""
        return KafkaConnection(
            bootstrap_servers=f"127.0.0.1:{self.certificate_port}",
            security_protocol="SSL",
            ssl_ca_file=self.folder / "ca.pem",
            ssl_certificate_file=self.folder / "client.pem",
            ssl_key_file=self.folder / "client-key.pem",
            ssl_key_password=SecretStr(KEY_PASSWORD),
        )

    def by_password(self, mechanism: str) -> KafkaConnection:
        """Return how a client with a user and a password connects."""
        return KafkaConnection(
            bootstrap_servers=f"127.0.0.1:{self.login_port}",
            security_protocol="SASL_SSL",
            ssl_ca_file=self.folder / "ca.pem",
            sasl_mechanism=mechanism,
            sasl_username=USER,
            sasl_password=SecretStr(PASSWORD),
        )

    def by_token(self) -> KafkaConnection:
        """Return how a client with OAuth's client credentials connects."""
        return KafkaConnection(
            bootstrap_servers=f"127.0.0.1:{self.oauth_port}",
            security_protocol="SASL_SSL",
            ssl_ca_file=self.folder / "ca.pem",
            sasl_mechanism="OAUTHBEARER",
            sasl_oauthbearer_token_endpoint_url=self.token_url,
            sasl_oauthbearer_client_id=CLIENT,
            sasl_oauthbearer_client_secret=SecretStr(SECRET),
            sasl_oauthbearer_scope=SCOPE,
            sasl_oauthbearer_extensions="logicalCluster=lkc-1,identityPoolId=pool-1",
            sasl_oauthbearer_ca_file=self.folder / "ca.pem",
        )


@contextmanager
def secured_kafka(work_dir: Path) -> Iterator[SecuredKafka]:
    """Yield a running broker and its token endpoint, which end with the block."""
    up(work_dir, kafka=False, redis=False, spark=False, tied=True)
    try:
        broker = SecuredKafka(work_dir, TokenEndpoint())
        write_certificates(broker.folder)
        (broker.folder / "keys.json").write_text(broker.tokens.key_set())
        with broker.tokens.serve(broker.folder / "broker.pem") as broker.token_url:
            broker.start()
            _add_user(broker.info.bootstrap_servers)
            yield broker
    finally:
        down(work_dir)


def write_certificates(folder: Path) -> None:
    """Write an authority, the broker's certificate and key in one file, the client's in two, all as PEM."""
    folder.mkdir(parents=True, exist_ok=True)
    authority = _issued("authority", None)
    broker, client = _issued("broker", authority), _issued("client", authority)
    (folder / "ca.pem").write_bytes(authority.pem)
    (folder / "broker.pem").write_bytes(_key_pem(broker.key, None) + broker.pem)
    (folder / "client.pem").write_bytes(client.pem)
    (folder / "client-key.pem").write_bytes(_key_pem(client.key, KEY_PASSWORD))


class _Issued(NamedTuple):
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)


def _issued(name: str, by: _Issued | None) -> _Issued:
    """Return a certificate for 127.0.0.1, issued by an authority; without one, an authority's own."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(by.certificate.subject if by else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=2))
        .add_extension(x509.BasicConstraints(ca=by is None, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(by.key if by else key, hashes.SHA256())
    )
    return _Issued(made, key)


def _key_pem(key: ec.EllipticCurvePrivateKey, password: str | None) -> bytes:
    locked = serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked)


def _add_user(bootstrap_servers: str) -> None:
    """Create the user for SCRAM; for PLAIN it is in the broker's settings."""
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    change = UserScramCredentialUpsertion(USER, info, PASSWORD.encode())
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})  # its answers go with it
    for future in admin.alter_user_scram_credentials([change]).values():
        future.result(timeout=30)
