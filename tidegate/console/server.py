"""Runs the console: reads the topics, listens, and says who can do what."""

from __future__ import annotations

import logging
import secrets
import socket
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from types import FrameType

import uvicorn
from starlette.applications import Starlette
from typing_extensions import override

from tidegate.console.access import Access
from tidegate.console.app import build
from tidegate.console.connections import LimitedProtocol
from tidegate.console.settings import ConsoleSettings
from tidegate.console.topics import KafkaTopics
from tidegate.runtime.clock import SystemClock

log = logging.getLogger("console")

BACKLOG = 128
"""How many clients are taken in at once, before any of them can be refused."""


class ConsoleServer(uvicorn.Server):
    """Ends the streams to the browsers first: they would keep the server waiting."""

    def __init__(self, app: Starlette) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=LimitedProtocol,
                backlog=BACKLOG,
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=3,
            )
        )
        self._ending = app.state.ending

    def end(self) -> None:
        """End the streams and then the server."""
        self._ending.set()
        self.should_exit = True

    @override
    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._ending.set()
        super().handle_exit(sig, frame)


def serve(settings: ConsoleSettings, say: Callable[[str], None] = log.info) -> int:
    """Serve the console until a signal ends it; return the exit code.

    Raises `Unreachable` or `NoSuchTopic` without topics to read, and `OSError` if the port is taken.
    """
    access = Access(settings)
    topics = KafkaTopics(settings, timedelta(hours=settings.console_history_hours), on_demand=True)
    listener = socket.create_server(
        (settings.console_host, settings.console_port),
        family=socket.AF_INET6 if ":" in settings.console_host else socket.AF_INET,
    )
    with closing(listener), closing(topics):
        topics.start()
        for line in introduction(settings, access, listener.getsockname()[1]):
            say(line)
        app = build(settings, topics, access, secrets.token_urlsafe(32), SystemClock().now)
        ConsoleServer(app).run(sockets=[listener])
    return 0


def introduction(settings: ConsoleSettings, access: Access, port: int) -> list[str]:
    """Return what whoever starts the console must know."""
    host = f"[{settings.console_host}]" if ":" in settings.console_host else settings.console_host
    lines = [f"The console is at http://{host}:{port}"]
    if access.start_token is not None:
        lines.append(f"To pause, resume or scale jobs, sign in with this token: {access.start_token}")
    elif not access.changes_are_possible:
        lines.append("Changes are off: it listens beyond this machine, and TIDEGATE_CONSOLE_OPERATORS has no token.")
    if access.reading_is_open and not settings.on_loopback:
        lines.append("Everybody who reaches it can read everything: TIDEGATE_CONSOLE_VIEWERS has no token.")
    if not settings.on_loopback and not settings.console_https:
        lines.append("Put a proxy that speaks HTTPS in front of it, and set TIDEGATE_CONSOLE_HTTPS=true.")
    return lines
