"""The health page when whoever connects does not ask, or does not wait for the answer."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress

import httpx
import pytest
from prometheus_client import CollectorRegistry

from tidegate.runtime import health
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.health import Health
from tidegate.runtime.poll import wait_until
from tidegate.stack.ports import free_ports


def answering() -> set[threading.Thread]:
    """Return the threads of servers that wait for a request or answer one; those of other tests may end meanwhile."""
    return {thread for thread in threading.enumerate() if "process_request" in thread.name}


def test_a_client_that_says_nothing_does_not_keep_a_thread_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prober whose machine dies closes no connection: over weeks, threads and files would run out."""
    monkeypatch.setattr(health, "REQUEST_SECONDS", 2.0)  # all five are waited for at the same time
    page = Health(SystemClock(), CollectorRegistry())
    page.serve("127.0.0.1", *free_ports(1))
    before = answering()
    silent = [socket.create_connection(("127.0.0.1", page.port or 0), timeout=30) for _ in range(5)]
    try:
        assert httpx.get(f"http://127.0.0.1:{page.port}/healthz", timeout=30).text == "ok\n"
        assert [connection.recv(1) for connection in silent] == [b""] * 5, "they are closed"
        assert wait_until(lambda: answering() <= before, 30, 0.01)
    finally:
        for connection in silent:
            connection.close()
        page.close()


def test_one_client_cannot_take_all_files_of_a_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any pod of the network reaches the page: however many connections it opens, probes are still answered."""
    monkeypatch.setattr(health, "REQUEST_SECONDS", 600.0)  # only their number may end connections
    page = Health(SystemClock(), CollectorRegistry())
    page.serve("127.0.0.1", *free_ports(1))
    before = answering()
    greedy = [socket.create_connection(("127.0.0.1", page.port or 0)) for _ in range(100)]
    try:
        for connection in greedy:
            with suppress(OSError):  # some are closed already
                connection.sendall(b"GET /")
        assert httpx.get(f"http://127.0.0.1:{page.port}/healthz", timeout=60).text == "ok\n"
        assert wait_until(lambda: len(answering() - before) <= health.MOST_CONNECTIONS, 30, 0.01)
    finally:
        for connection in greedy:
            connection.close()
        page.close()


def test_a_prober_that_does_not_wait_leaves_no_traceback_in_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    """The log is lines of JSON, and a prober whose time is up, as while a service is paused, is no error of ours."""
    page = Health(SystemClock(), CollectorRegistry())
    page.serve("127.0.0.1", *free_ports(1))
    before = answering()
    try:
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", page.port or 0)) as prober:
                prober.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close with a reset
                prober.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert httpx.get(f"http://127.0.0.1:{page.port}/healthz", timeout=30).text == "ok\n"
        assert wait_until(lambda: answering() <= before, 30, 0.01)
    finally:
        page.close()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("host", ["::1", "::"])
def test_it_can_be_served_at_an_address_of_ipv6(host: str) -> None:
    """A pod may have no other."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    page = Health(SystemClock(), CollectorRegistry())
    page.serve(host, *free_ports(1))
    try:
        assert httpx.get(f"http://[::1]:{page.port}/healthz", trust_env=False, timeout=30).text == "ok\n"
    finally:
        page.close()
