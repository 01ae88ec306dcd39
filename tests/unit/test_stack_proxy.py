"""The proxy of the fault tests does what its settings say."""

import socket
import socketserver
import threading
import time
from collections.abc import Iterator

import pytest

from tests.support.proxy import TcpProxy


class Echo(socketserver.BaseRequestHandler):
    """Echoes its input."""

    def handle(self) -> None:
        """Until the other side ends."""
        try:
            while chunk := self.request.recv(4096):
                self.request.sendall(chunk)
        except ConnectionError:
            pass  # Some tests end connections the hard way.


@pytest.fixture
def proxy() -> Iterator[TcpProxy]:
    """A healthy proxy before an echo server."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        with TcpProxy(server.server_address[1]) as running:
            yield running
        server.shutdown()
        thread.join()


def connect(proxy: TcpProxy) -> socket.socket:
    """A client of the proxy that never waits longer than 5 s."""
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=5)


def echoed(client: socket.socket, text: bytes) -> bytes:
    """Return the echo of `text`."""
    client.sendall(text)
    return client.recv(4096)


def test_a_healthy_proxy_is_transparent(proxy: TcpProxy) -> None:
    """Bytes arrive as they were, for several clients at once."""
    with connect(proxy) as one, connect(proxy) as other:
        assert echoed(one, b"one") == b"one"
        assert echoed(other, b"other") == b"other"
        assert proxy.connections == 2


def test_latency_delays_each_direction(proxy: TcpProxy) -> None:
    """A round trip takes at least twice the latency."""
    proxy.latency(0.1)
    with connect(proxy) as client:
        begin = time.monotonic()
        assert echoed(client, b"late") == b"late"
        assert time.monotonic() - begin >= 0.2


def test_timeout_holds_bytes_back_until_cleared(proxy: TcpProxy) -> None:
    """The connection stays open, silent; nothing is lost."""
    with connect(proxy) as client:
        assert echoed(client, b"before") == b"before"
        proxy.timeout()
        client.sendall(b"held")
        client.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.recv(4096)
        proxy.clear()
        client.settimeout(5)
        assert client.recv(4096) == b"held"


def test_reset_breaks_old_and_new_connections(proxy: TcpProxy) -> None:
    """Clients see ECONNRESET, and a cleared proxy serves again."""
    with connect(proxy) as client:
        assert echoed(client, b"before") == b"before"
        proxy.reset()
        with pytest.raises(ConnectionResetError):
            client.recv(4096)
    with pytest.raises(ConnectionError), connect(proxy) as late:  # the reset may come while it still connects
        assert echoed(late, b"x") != b""
    proxy.clear()
    with connect(proxy) as again:
        assert echoed(again, b"after") == b"after"


def test_down_refuses_and_clear_listens_on_the_same_port(proxy: TcpProxy) -> None:
    """A client that comes back finds the server where it was."""
    port = proxy.port
    with connect(proxy) as client:
        assert echoed(client, b"before") == b"before"
        proxy.down()
        assert client.recv(4096) == b""
    with pytest.raises(ConnectionRefusedError):
        connect(proxy)
    proxy.clear()
    assert proxy.port == port
    with connect(proxy) as again:
        assert echoed(again, b"after") == b"after"
