"""`/healthz` and `/metrics` of a service: alive means that the main loop has come round lately."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from tidegate.runtime.clock import Clock


class Health:
    """The heart of a service: `beat` in the main loop; `/healthz` answers 503 when it has not beaten for `patience`."""

    def __init__(self, clock: Clock, registry: CollectorRegistry, patience_seconds: float = 30.0) -> None:
        self._clock = clock
        self._registry = registry
        self._patience = patience_seconds
        self._last = clock.monotonic()
        self._server: ThreadingHTTPServer | None = None

    def beat(self) -> None:
        """Say that the main loop came round."""
        self._last = self._clock.monotonic()

    @property
    def alive(self) -> bool:
        """Whether the loop has come round within the patience."""
        return self._clock.monotonic() - self._last <= self._patience

    def serve(self, host: str, port: int) -> int:
        """Serve in a daemon thread; port 0 serves nothing. Return the port."""
        if port == 0:
            return 0
        health = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == "/metrics":
                    self._answer(200, generate_latest(health._registry), CONTENT_TYPE_LATEST)
                elif self.path == "/healthz":
                    self._answer(200, b"ok\n") if health.alive else self._answer(503, b"the main loop is stuck\n")
                else:
                    self._answer(404, b"/healthz or /metrics\n")

            def _answer(self, code: int, body: bytes, kind: str = "text/plain") -> None:
                self.send_response(code)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Keep health checks out of the log."""

        self._server = ThreadingHTTPServer((host, port), Handler)
        threading.Thread(target=self._server.serve_forever, name="health", daemon=True).start()
        return port

    def close(self) -> None:
        """Stop serving."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
