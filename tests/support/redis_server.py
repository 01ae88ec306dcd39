"""A Redis of a test's own, which it may break."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from redis import ConnectionError as NoAnswer
from redis import Redis

from tidegate.runtime.poll import retry


@contextmanager
def running_redis(server: Path, folder: Path, *options: str) -> Iterator[Redis]:
    """Run a server on a free port and yield a client of its administrator, which decodes answers."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [str(server), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", "", *options]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with Redis("127.0.0.1", port, socket_timeout=10, decode_responses=True) as client:
            retry(client.ping, NoAnswer, timeout_seconds=20, every=0.05)
            yield client
    finally:
        process.kill()
        process.wait(10)
