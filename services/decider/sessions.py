"""Has aiokafka replace a connection before the broker ends its session.

A broker may end sessions with their tokens, or after a time (`connections.max.reauth.ms`, for all mechanisms of SASL).
librdkafka then logs in again on the same connection (KIP-368). aiokafka cannot: the broker closes the connection, and
the requests under way fail. Here a connection whose session is nearly over gets no more requests: aiokafka opens
another one for the next request, and this one closes after its last answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import aiokafka.conn
from aiokafka.protocol.admin import SaslAuthenticateRequest
from typing_extensions import override

REPLACED_AT = 0.85
"""The share of a session's lifetime after which its connection is replaced."""
LOOK_SECONDS = 0.05


def replace_connections_in_time() -> None:
    """Have every consumer of aiokafka in this process use such connections."""
    aiokafka.conn.AIOKafkaConnection = TimelyConnection


class TimelyConnection(aiokafka.conn.AIOKafkaConnection):  # type: ignore[misc]
    """A connection that says it is closed when its session is nearly over, and closes after its last answer."""

    _leaving: asyncio.Task[None] | None = None
    _nearly_over = False

    @override
    def connected(self) -> bool:
        """Return whether there may be more requests."""
        return super().connected() and not self._nearly_over

    @override
    def send(self, request: Any, expect_response: bool = True) -> Awaitable[Any]:
        """Send a request; the broker's answer to a login tells how long the session is."""
        sent: Awaitable[Any] = super().send(request, expect_response)
        return self._logged_in(sent) if isinstance(request, SaslAuthenticateRequest) else sent

    @override
    def close(self, reason: Any = None, exc: BaseException | None = None) -> Any:
        """Close at once."""
        if self._leaving is not None:
            self._leaving.cancel()
        return super().close(reason, exc)

    async def _logged_in(self, sent: Awaitable[Any]) -> Any:
        answer = await sent
        if seconds := getattr(answer, "session_lifetime_ms", 0) / 1000:
            self._leaving = asyncio.get_running_loop().create_task(self._leave(REPLACED_AT * seconds))
        return answer

    async def _leave(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._nearly_over = True
        while self._requests:  # noqa: ASYNC110  (aiokafka has no event for the last one)
            await asyncio.sleep(LOOK_SECONDS)
        self.close()
