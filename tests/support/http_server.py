"""An HTTP server of a test, in a thread of its own."""

from __future__ import annotations

import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest


class QuietHandler(BaseHTTPRequestHandler):
    """Answers requests and prints nothing about them."""

    def log_message(self, *_: object) -> None:
        """Print nothing."""


class AnswersOk(QuietHandler):
    """Answers every GET with 200."""

    body = b""

    def do_GET(self) -> None:
        """Answer."""
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.body)


def set_dead_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set a proxy in the environment on which nothing listens: who asks it gets no answer."""
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing if a client has gone."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def serving(
    handler: type[QuietHandler], host: str = "127.0.0.1", tls: ssl.SSLContext | None = None, port: int = 0
) -> Iterator[_Server]:
    """Serve on a port, 0 for a free one, until the end."""
    with _Server((host, port), handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(10)
