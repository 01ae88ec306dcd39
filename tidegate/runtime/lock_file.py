"""A lock file: one process at a time does something, and the kernel releases the lock whenever that process ends."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LOOK_SECONDS = 0.02


@contextmanager
def lock_file(path: Path, wait_seconds: float, held: Exception) -> Iterator[None]:
    """Hold a lock file; raise `held` if another process still holds it after `wait_seconds`."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + wait_seconds
    try:
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            if time.monotonic() >= deadline:
                raise held
            time.sleep(LOOK_SECONDS)
        yield
    finally:
        os.close(descriptor)
