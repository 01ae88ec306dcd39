"""A Redis of a test's own, which it may break."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from redis import ConnectionError as NoAnswer
from redis import Redis

from tidegate.runtime.poll import retry
from tidegate.stack.ports import free_ports


@contextmanager
def running_redis(server: Path, folder: Path, *options: str) -> Iterator[Redis]:
    """Run a server on a free port and yield a client of its administrator, which decodes answers."""
    (port,) = free_ports(1)
    words = [str(server), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", "", *options]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(words, stdout=quiet, stderr=quiet, start_new_session=True)
    try:
        with Redis("127.0.0.1", port, socket_timeout=10, decode_responses=True) as client:
            retry(client.ping, NoAnswer, timeout_seconds=20, every=0.05)
            yield client
    finally:
        process.kill()
        process.wait(10)
