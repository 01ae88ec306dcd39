"""The console's server when whoever connects does not ask, or connects too often."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import httpx
import pytest

from tests.support.browser import served
from tests.support.fleets import SimulatedTopics
from tidegate.console import connections
from tidegate.console.settings import ConsoleSettings
from tidegate.runtime.poll import wait_until

HEAD = b"Host: 127.0.0.1\r\n"
UNFINISHED = {
    "nothing": b"",
    "a part of the head": b"GET /healthz HTTP/1.1\r\n" + HEAD,
    "a part of the body": b"POST /sign-in HTTP/1.1\r\nContent-Length: 100\r\n" + HEAD + b"\r\ntoken=",
    "a second request": b"GET /healthz HTTP/1.1\r\n" + HEAD + b"\r\nGET /healthz HTTP/1.1\r\n",
}
STREAM = b"GET /events HTTP/1.1\r\n" + HEAD + b"\r\n"


@pytest.fixture
def address() -> Iterator[tuple[str, int]]:
    """The address of a console."""
    with served(SimulatedTopics(), ConsoleSettings()) as url:
        yield "127.0.0.1", int(url.rpartition(":")[2])


def connected(stack: ExitStack, address: tuple[str, int], asked: bytes) -> socket.socket:
    """Return a connection on which so much of a request was sent."""
    connection = stack.enter_context(socket.create_connection(address, timeout=30))
    with suppress(OSError):  # it may be closed already
        connection.sendall(asked)
    return connection


def opened_stream(stack: ExitStack, address: tuple[str, int]) -> socket.socket:
    """Return the connection of a page's stream, whose request has been taken in."""
    stream = connected(stack, address, STREAM)
    assert stream.recv(1)
    return stream


def is_open(connection: socket.socket) -> bool:
    """Read what has come; return whether more may come."""
    connection.settimeout(0.1)
    with suppress(TimeoutError):
        try:
            while connection.recv(65536):
                pass
        except ConnectionError:
            pass
        return False
    return True


@pytest.mark.parametrize("asked", UNFINISHED)
def test_a_client_that_does_not_finish_its_request_is_not_waited_for(
    address: tuple[str, int], asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However it goes on, byte by byte; a page's stream, which has asked, stays."""
    with ExitStack() as stack:
        stream = opened_stream(stack, address)
        monkeypatch.setattr(connections, "REQUEST_SECONDS", 1.0)
        began = time.monotonic()
        slow = connected(stack, address, UNFINISHED[asked])
        while is_open(slow):
            assert time.monotonic() < began + 30
            with suppress(OSError):
                slow.sendall(b"x" if asked != "nothing" else b"")
        assert time.monotonic() > began + 1.0
        assert is_open(stream)


def test_one_client_cannot_take_all_files_of_the_console(
    address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many connections it opens, others are answered, and their pages' streams go on."""
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 20)
    with ExitStack() as stack:
        stream = opened_stream(stack, address)
        greedy = [connected(stack, address, UNFINISHED["a part of the head"]) for _ in range(100)]
        assert httpx.get(f"http://127.0.0.1:{address[1]}/healthz").status_code == 200
        assert wait_until(lambda: sum(map(is_open, greedy)) < 20, 30)
        assert is_open(stream)


def test_of_too_many_streams_the_oldest_ends(address: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its page connects again, if somebody still looks at it."""
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 20)
    with ExitStack() as stack:
        streams = [opened_stream(stack, address) for _ in range(22)]
        for oldest in streams[:2]:
            assert wait_until(lambda: not is_open(oldest), 30)  # noqa: B023
        assert all(map(is_open, streams[2:]))
