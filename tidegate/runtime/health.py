"""`/healthz` and `/metrics` of a service. A service is healthy while its main loop keeps running."""

from __future__ import annotations

import logging
import socket
import sys
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from typing_extensions import override

from tidegate.runtime import metrics
from tidegate.runtime.clock import Clock

log = logging.getLogger(__name__)

STUCK_AFTER_SECONDS = 30.0
"""How long the main loop may take for one pass."""
REQUEST_SECONDS = 10.0
"""How long whoever has connected may take to ask."""
MOST_CONNECTIONS = 16
"""Each takes a thread, and a file of the service: whoever opens more, as a job's pod may, loses the oldest."""


class _QuietServer(ThreadingHTTPServer):
    """A server that logs what goes wrong with a request, instead of writing a traceback among the lines of JSON."""

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._open: dict[socket.socket, None] = {}
        """The connections, oldest first."""
        self._lock = threading.Lock()
        super().__init__(address, handler)

    @override
    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread."""
        with self._lock:
            while len(self._open) >= MOST_CONNECTIONS:
                oldest = next(iter(self._open))
                del self._open[oldest]
                with suppress(OSError):  # whoever has connected may have hung up
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread sees the end
            self._open[request] = None
        super().process_request(request, client_address)

    @override
    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    @override
    def handle_error(self, request: object, client_address: object) -> None:
        """Log the error; a prober that did not wait for its answer is none of ours."""
        error = sys.exc_info()[1]
        if isinstance(error, ConnectionError):
            log.debug("%s did not wait for its answer: %s", client_address, error)
        else:
            log.error("a request from %s failed", client_address, exc_info=error)


class _QuietServer6(_QuietServer):
    """The same at an address of IPv6; at `::`, IPv4 reaches it as well, where the system says so."""

    address_family = socket.AF_INET6


class Health:
    """The main loop calls `beat` on every pass; without a beat for `STUCK_AFTER_SECONDS`, `/healthz` answers 503."""

    def __init__(self, clock: Clock, registry: CollectorRegistry) -> None:
        self._clock = clock
        self._registry = registry
        self._last = clock.monotonic()
        self._server: ThreadingHTTPServer | None = None
        metrics.LOOP_AGE.gauge(registry).set_function(lambda: self.idle_seconds)

    def beat(self) -> None:
        """Record that the main loop is running."""
        self._last = self._clock.monotonic()

    @property
    def idle_seconds(self) -> float:
        """The time since the last `beat`."""
        return self._clock.monotonic() - self._last

    @property
    def alive(self) -> bool:
        """Whether the main loop has called `beat` recently."""
        return self.idle_seconds <= STUCK_AFTER_SECONDS

    @property
    def port(self) -> int | None:
        """The port that is served; None before `serve` and after port 0."""
        return None if self._server is None else self._server.server_port

    def serve(self, host: str, port: int) -> None:
        """Serve in a daemon thread; port 0 serves nothing."""
        if port == 0:
            return
        health = self

        class HealthRequest(BaseHTTPRequestHandler):
            timeout = REQUEST_SECONDS

            def do_GET(self) -> None:
                if self.path == "/metrics":
                    encode, kind = choose_encoder(self.headers.get("Accept", ""))
                    self._answer(200, encode(health._registry), kind)
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

        server = _QuietServer6 if ":" in host else _QuietServer
        self._server = server((host, port), HealthRequest)
        threading.Thread(target=self._server.serve_forever, name="health", daemon=True).start()

    def close(self) -> None:
        """Stop serving."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
