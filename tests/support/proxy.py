"""A TCP proxy that breaks the network on purpose, with toxiproxy's vocabulary: latency, timeout, reset, down."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

_HOST = "127.0.0.1"
_CALL_SECONDS = 10.0
# Do not linger: closing sends RST instead of FIN.
_ABORT = struct.pack("ii", 1, 0)


class TcpProxy:
    """Forwards a loopback port to another one, in its own thread; healthy until a test breaks it.

    Use it as a context manager; `listen_port` 0 takes any free port, which `port` then tells. `tls` is what clients
    connect with; the other port gets plain text.
    """

    def __init__(self, upstream_port: int, listen_port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        self.port = listen_port
        self._tls = tls
        self._upstream_port = upstream_port
        self._latency_seconds = 0.0
        self._flowing = asyncio.Event()
        self._resetting = False
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tcp-proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.clear()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CALL_SECONDS)
        self._loop.close()

    @property
    def connections(self) -> int:
        """The number of connected clients."""
        return len(self._connections)

    def lead_to(self, upstream_port: int) -> None:
        """Forward new connections to another port, as an address does after a failover."""
        self._call(lambda: setattr(self, "_upstream_port", upstream_port))

    def latency(self, seconds: float) -> None:
        """Delay every chunk by `seconds`, in each direction."""
        self._call(lambda: setattr(self, "_latency_seconds", seconds))

    def timeout(self) -> None:
        """Keep connections open but forward nothing until `clear`; the data then arrives."""
        self._call(self._flowing.clear)

    def reset(self) -> None:
        """Reset all connections, and each new one, until `clear`."""
        self._resetting = True
        self._run(self._close_all(abort=True))

    def down(self) -> None:
        """Close all connections and refuse new ones until `clear`."""
        self._run(self._stop())

    def clear(self) -> None:
        """Work normally again, on the same port."""
        self._resetting = False
        self._latency_seconds = 0.0
        self._call(self._flowing.set)
        self._run(self._start())

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_SECONDS)

    def _call(self, action: Callable[[], object]) -> None:
        async def act() -> None:
            action()

        self._run(act())

    async def _start(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, _HOST, self.port, ssl=self._tls)
            self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        await self._close_all(abort=False)

    async def _close_all(self, *, abort: bool) -> None:
        tasks = list(self._connections)
        for task in tasks:
            for writer in self._connections[task]:
                _close(writer, abort=abort)
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._resetting:
            _close(writer, abort=True)
            return
        self._connections[task] = [writer]
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection(_HOST, self._upstream_port)
            self._connections[task].append(upstream_writer)
            await asyncio.gather(self._pump(reader, upstream_writer), self._pump(upstream_reader, writer))
        except (OSError, asyncio.CancelledError):
            pass  # One end broke, by itself or on purpose; the other end is closed below.
        finally:
            for end in self._connections.pop(task):
                _close(end, abort=False)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(65536):
            await asyncio.sleep(self._latency_seconds)
            await self._flowing.wait()
            writer.write(chunk)
            await writer.drain()
        writer.close()


def _close(writer: asyncio.StreamWriter, *, abort: bool) -> None:
    if abort:
        with suppress(OSError):
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
        writer.transport.abort()
    else:
        writer.close()
