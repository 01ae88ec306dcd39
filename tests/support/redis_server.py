"""A Redis of a test's own, or a cluster of them, which it may break."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis import ConnectionError as NoAnswer
from redis import Redis

from tidegate.runtime.poll import retry, wait_until
from tidegate.stack.ports import free_ports, is_free

SLOTS = 16384
BUS = 10_000
"""How far above its port a node listens for the other nodes."""


@contextmanager
def running_redis(server: Path, folder: Path, *options: str) -> Iterator[Redis]:
    """Run a server on a free port and yield a client of its administrator, which decodes answers."""
    with _running(server, folder, *options) as (client, _):
        yield client


@contextmanager
def _running(
    server: Path, folder: Path, *options: str, port: int | None = None
) -> Iterator[tuple[Redis, subprocess.Popen[bytes]]]:
    port = port or free_ports(1)[0]
    words = [str(server), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", "", *options]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(words, stdout=quiet, stderr=quiet, start_new_session=True)
    try:
        with Redis("127.0.0.1", port, socket_timeout=10, decode_responses=True) as client:
            retry(client.ping, NoAnswer, timeout_seconds=20, every=0.05)
            yield client, process
    finally:
        process.kill()
        process.wait(10)


@dataclass(frozen=True)
class OwnCluster:
    """Three primaries, each with a third of the slots, and perhaps a replica of the last one."""

    nodes: list[Redis]
    """Clients of the administrator, each of one node."""
    processes: list[subprocess.Popen[bytes]]

    def url(self, *nodes: int) -> str:
        """Return a URL that names these nodes."""
        return f"redis://{','.join(f'127.0.0.1:{port_of(self.nodes[number])}' for number in nodes)}/0"

    def keys(self, number: int) -> list[str]:
        """Return the keys on one node."""
        return sorted(ask(self.nodes[number], "KEYS", "*"))

    def kill(self, number: int) -> None:
        """Let a node die."""
        self.processes[number].kill()
        self.processes[number].wait(10)


@contextmanager
def running_cluster(server: Path, folder: Path, *, replica: bool = False) -> Iterator[OwnCluster]:
    """Run a cluster on free ports."""
    count = 3 + replica
    ports = [port for port in free_ports(count * 4) if is_free(port + BUS)][:count]
    options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--cluster-require-full-coverage", "no")
    with ExitStack() as running:
        found = []
        for port in ports:
            (folder / str(port)).mkdir()
            found.append(running.enter_context(_running(server, folder / str(port), *options, port=port)))
        cluster = OwnCluster([client for client, _ in found], [process for _, process in found])
        for number, node in enumerate(cluster.nodes[:3]):
            ask(node, "CLUSTER", "ADDSLOTS", *range(number * SLOTS // 3, (number + 1) * SLOTS // 3))
        for port in ports[1:]:
            ask(cluster.nodes[0], "CLUSTER", "MEET", "127.0.0.1", port)
        assert wait_until(lambda: all(knows(node, count) for node in cluster.nodes), 20, 0.05)
        if replica:
            ask(cluster.nodes[3], "CLUSTER", "REPLICATE", ask(cluster.nodes[2], "CLUSTER", "MYID"))
            assert wait_until(lambda: cluster.nodes[3].info().get("master_link_status") == "up", 20, 0.05)
        yield cluster


def knows(node: Redis, count: int) -> bool:
    """Return whether a node of a cluster knows so many, and can be used."""
    told = ask(node, "CLUSTER INFO")
    return (told["cluster_state"], int(told["cluster_known_nodes"])) == ("ok", count)


def port_of(node: Redis) -> int:
    """Return the port of a client's server."""
    return int(node.connection_pool.connection_kwargs["port"])


def ask(node: Redis, *command: Any) -> Any:
    """Send a command to one node."""
    return node.execute_command(*command)  # type: ignore[no-untyped-call]
