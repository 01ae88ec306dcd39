"""What clients may take of the console's server: uvicorn waits for requests, and takes in clients, without a limit."""

from __future__ import annotations

import asyncio

import h11
from typing_extensions import override
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_SECONDS = 10.0
"""How long a request may take to come: from the connection, or from its first byte on one that is kept, to its end."""
MOST_CONNECTIONS = 256
"""Each takes a file, of which a process may have 1,024. An open page takes one, or a few while it loads."""


class LimitedProtocol(H11Protocol):
    """A connection that ends if its request does not come, or if there are too many.

    Then the oldest one without a request ends or, if all have sent theirs, the oldest of all: a page connects again.
    """

    since = 0.0
    """When it was opened, by the clock of its loop."""
    _deadline: asyncio.TimerHandle | None = None

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.since = self.loop.time()
        self._watch()
        others = [each for each in self.connections if isinstance(each, LimitedProtocol) and each is not self]
        alive = [each for each in others if not each.transport.is_closing()]
        if len(alive) >= MOST_CONNECTIONS:
            min(alive, key=lambda each: (not each.is_waiting, each.since)).transport.abort()

    @override
    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._forget()

    @property
    def is_waiting(self) -> bool:
        """Whether the request, or the rest of it, is still to come."""
        return self.conn.their_state in {h11.IDLE, h11.SEND_BODY}

    def _watch(self) -> None:
        if not self.is_waiting:
            self._forget()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(REQUEST_SECONDS, self.transport.abort)

    def _forget(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
