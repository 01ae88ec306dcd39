"""A token endpoint on loopback: signed access tokens for one client, by OAuth's client credentials."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from pydantic import SecretStr
from typing_extensions import override

CLIENT, SECRET = "tidegate-client", 'a "quoted" \\ secret'
SCOPE = "kafka"
KEY_ID = "of the test"


def login_by(url: str, secret: str = SECRET) -> dict[str, Any]:
    """Return the settings of a connection to Kafka whose tokens are from this endpoint."""
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauthbearer_token_endpoint_url": url,
        "sasl_oauthbearer_client_id": CLIENT,
        "sasl_oauthbearer_client_secret": SecretStr(secret),
        "sasl_oauthbearer_scope": SCOPE,
    }


class TokenEndpoint:
    """Gives a token to whoever knows the secret and asks for the scope, and keeps what it answered.

    `lifetime_seconds` is that of the next tokens. As many answers as `failures` are errors of the server, and as many
    as `cut_off` break off. Answers name a `location` if it is set.
    """

    def __init__(self) -> None:
        self.lifetime_seconds = 300
        self.failures = 0
        self.cut_off = 0
        self.answered: list[int] = []
        self.location: str | None = None
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)

    def key_set(self) -> str:
        """Return the public key, as a JSON Web Key Set."""
        numbers = self._key.public_key().public_numbers()
        key = {"kty": "RSA", "alg": "RS256", "use": "sig", "kid": KEY_ID}
        return json.dumps({"keys": [key | {"n": _number(numbers.n), "e": _number(numbers.e)}]})

    def token(self) -> str:
        """Return a token of this moment."""
        now = int(time.time())
        claims = {"sub": CLIENT, "iat": now, "exp": now + self.lifetime_seconds, "scope": SCOPE}
        signed = f"{_part({'alg': 'RS256', 'typ': 'JWT', 'kid': KEY_ID})}.{_part(claims)}"
        return f"{signed}.{_coded(self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256()))}"

    def answer(self, login: str, asked: str) -> tuple[int, dict[str, Any]]:
        """Return the status and the content for an Authorization header and a form."""
        if self.failures > 0:
            self.failures -= 1
            return HTTPStatus.SERVICE_UNAVAILABLE, {"error": "temporarily_unavailable"}
        if login != f"Basic {base64.b64encode(f'{CLIENT}:{SECRET}'.encode()).decode()}":
            why = "Invalid client or Invalid client credentials"
            return HTTPStatus.UNAUTHORIZED, {"error": "invalid_client", "error_description": why}
        if parse_qs(asked) != {"grant_type": ["client_credentials"], "scope": [SCOPE]}:
            return HTTPStatus.BAD_REQUEST, {"error": "invalid_scope"}
        given = {"access_token": self.token(), "token_type": "Bearer", "expires_in": self.lifetime_seconds}
        return HTTPStatus.OK, given | {"scope": SCOPE}

    @contextmanager
    def serve(self, certificate: Path | None = None) -> Iterator[str]:
        """Yield the URL of the endpoint, which answers until the block ends; with certificate and key, by HTTPS."""
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            timeout = 10

            def do_POST(self) -> None:
                asked = self.rfile.read(int(self.headers["Content-Length"])).decode()
                status, content = endpoint.answer(self.headers.get("Authorization", ""), asked)
                endpoint.answered.append(status)
                body = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                if endpoint.location is not None:
                    self.send_header("Location", endpoint.location)
                self.end_headers()
                self.wfile.write(body[:-1] if endpoint.cut_off > 0 else body)
                endpoint.cut_off -= 1

            @override
            def log_message(self, format: str, *args: Any) -> None: ...

        server = _Server(("127.0.0.1", 0), Handler)
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http{'' if certificate is None else 's'}://127.0.0.1:{server.server_port}/token"
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


class _Server(ThreadingHTTPServer):
    @override
    def handle_error(self, request: Any, client_address: Any) -> None: ...  # a client that does not trust it


def _part(values: dict[str, Any]) -> str:
    return _coded(json.dumps(values).encode())


def _number(value: int) -> str:
    return _coded(value.to_bytes((value.bit_length() + 7) // 8, "big"))


def _coded(text: bytes) -> str:
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()
