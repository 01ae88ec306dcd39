"""Faust's connections are replaced before the broker ends their sessions; the broker here is a few answers."""

from __future__ import annotations

import asyncio
import struct
import types
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka.abc import AbstractTokenProvider
from aiokafka.conn import AIOKafkaConnection
from aiokafka.protocol.admin import ApiVersionRequest

from services.decider.sessions import LOOK_SECONDS, TimelyConnection, replace_connections_in_time

VERSIONS, HANDSHAKE, LOGIN = 18, 17, 36


class Broker:
    """Answers what a client asks before and while it logs in; if asked again for versions, once `answers` is set."""

    def __init__(self, session_ms: int) -> None:
        self._session_ms = session_ms
        self.answers = asyncio.Event()

    @asynccontextmanager
    async def listen(self) -> AsyncIterator[int]:
        """Yield the port."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            yield server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        logged_in = False
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                key, _, number = struct.unpack(">hhi", (await reader.readexactly(size))[:8])
                if key == VERSIONS:
                    if logged_in:
                        await self.answers.wait()
                    supported = [(VERSIONS, 0, 0), (HANDSHAKE, 0, 1), (LOGIN, 0, 1)]
                    answer = struct.pack(">hi", 0, len(supported)) + b"".join(
                        struct.pack(">hhh", *s) for s in supported
                    )
                elif key == HANDSHAKE:
                    answer = struct.pack(">hih", 0, 1, 11) + b"OAUTHBEARER"
                else:
                    logged_in = True
                    answer = struct.pack(">hhiq", 0, -1, 0, self._session_ms)
                writer.write(struct.pack(">ii", len(answer) + 4, number) + answer)
        except asyncio.IncompleteReadError:
            pass
        finally:  # also if the test ends first
            writer.close()


class OneToken(AbstractTokenProvider):  # type: ignore[misc]
    """Has a token."""

    async def token(self) -> str:
        """Return it."""
        return "token"


async def connected_to(port: int) -> TimelyConnection:
    """Return a connection after its login."""
    login = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}
    made = TimelyConnection("127.0.0.1", port, sasl_oauth_token_provider=OneToken(), **login)
    await made.connect()
    return made


async def until(condition: Callable[[], bool]) -> None:
    """Let other tasks run until something is so."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - aiokafka has no event for it
            await asyncio.sleep(0.01)


def test_a_connection_whose_session_is_nearly_over_takes_no_more_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session of 1 s: for 0.85 s it is open; then it waits for the answer that is under way, and closes."""
    slept: set[float] = set()

    async def scene() -> tuple[Any, ...]:
        nearly_over = asyncio.Event()

        async def sleep(seconds: float) -> None:
            slept.add(seconds)
            await (asyncio.sleep(0) if seconds == LOOK_SECONDS else nearly_over.wait())

        stand_in = types.SimpleNamespace(sleep=sleep, get_running_loop=asyncio.get_running_loop)
        monkeypatch.setattr("services.decider.sessions.asyncio", stand_in)
        broker = Broker(1000)
        async with broker.listen() as port:
            connection = await connected_to(port)
            early, asked = connection.connected(), connection.send(ApiVersionRequest())
            nearly_over.set()
            await until(lambda: not connection.connected())
            late = connection._reader is not None
            broker.answers.set()
            answer = await asked
            await until(lambda: connection._reader is None)
            return early, late, answer.error_code

    assert asyncio.run(scene()) == (True, True, 0)
    assert slept == {0.85, LOOK_SECONDS}


def test_a_session_without_an_end_stays() -> None:
    """By default brokers end none: they tell a lifetime of 0."""

    async def scene() -> bool:
        async with Broker(0).listen() as port:
            connection = await connected_to(port)
            await asyncio.sleep(0.2)
            stays = connection.connected()
            await connection.close()
            return stays

    assert asyncio.run(scene())


def test_a_connection_that_closes_early_leaves_nothing_behind() -> None:
    """Neither a task nor a connection."""

    async def scene() -> None:
        async with Broker(60_000).listen() as port:
            connection = await connected_to(port)
            await connection.close()
            await until(lambda: not any("TimelyConnection._leave" in repr(task) for task in asyncio.all_tasks()))

    asyncio.run(scene())


def test_consumers_use_such_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Aiokafka takes the class by this name."""
    monkeypatch.setattr("aiokafka.conn.AIOKafkaConnection", AIOKafkaConnection)

    async def scene() -> type:
        from aiokafka.conn import create_conn  # noqa: PLC0415

        replace_connections_in_time()
        async with Broker(0).listen() as port:
            made = await create_conn("127.0.0.1", port)
            await made.close()
            return type(made)

    assert asyncio.run(scene()) is TimelyConnection
