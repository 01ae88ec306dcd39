"""Free loopback ports that stay free for servers."""

from __future__ import annotations

import random
import socket
from pathlib import Path

from tidegate.stack.errors import StackError

LOWEST = 15000


def free_ports(count: int) -> list[int]:
    """Return `count` distinct ports on which nothing listens, below the kernel's range for outgoing connections.

    Inside that range, any client could take the port of a killed server before it restarts.
    """
    try:
        first_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    except OSError:
        first_ephemeral = 32768
    highest = first_ephemeral - 1 if first_ephemeral > LOWEST + 1000 else 65535
    candidates = random.sample(range(LOWEST, highest + 1), k=min(1000, highest - LOWEST))
    found = [port for port in candidates[: count * 10] if is_free(port)][:count]
    if len(found) < count:
        raise StackError(f"only {len(found)} of {count} loopback ports between {LOWEST} and {highest} are free")
    return found


def is_free(port: int) -> bool:
    """Whether nothing listens on a loopback port."""
    with socket.socket() as probe:
        # Servers set this too; without it, a connection that ended a minute ago would look like a listener.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
