"""A client of Redis, plain or in cluster mode: the one that services and commands use.

It asks the address in the URL. A node of a cluster that does not have the keys names the one that does, and the client
asks that node from then on. Nothing tells it beforehand that there is a cluster, so it needs no setting and no right.

After a failure it begins again with the address in the URL, or with the next one if the URL names several. A name that
leads to several servers, such as the configuration endpoint of a managed cluster, is looked up again.

Keys that are just being moved from one node to another are not followed: for as long as that takes, Redis cannot be
used. A script would find some of its keys on neither side.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Generic, TypeVar

from redis import Redis, RedisCluster
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import ClusterCrossSlotError, MovedError, NoScriptError, RedisClusterException, RedisError
from redis.exceptions import ConnectionError as NoAnswer
from redis.exceptions import TimeoutError as TooSlow
from redis.utils import str_if_bytes

C = TypeVar("C", Redis, AsyncRedis)
T = TypeVar("T")

HOPS = 5
"""How often one command is sent on. Once is enough, unless the nodes do not know yet what has changed."""

FINE = (ClusterCrossSlotError, NoScriptError)
"""What a node answers that does nothing wrong."""


class NoCluster(RedisError):
    """Several servers that are no cluster: two services might each reserve in another one."""


class NoNodes(RedisError):
    """A cluster does not tell which nodes it has."""


class Nodes(Generic[C]):
    """The clients of single servers, and which of them is asked at present."""

    def __init__(self, url: str, opened: Callable[[str], C]) -> None:
        self._addresses = addresses_of(url)
        self._opened: Callable[[str], C] = opened
        self._clients: dict[str, C] = {}
        self._turn = 0
        self.now: C = self._at(self._addresses[0])
        self.servers = len(self._addresses)
        """How many the URL names."""
        self._proven: C | None = None
        """Which server has shown that it is in cluster mode."""

    def follow(self, asked: C, moved: MovedError) -> C:
        """Return the node that has the keys, by what another one said."""
        host = moved.host or asked.connection_pool.connection_kwargs.get("host", "")
        place = f"[{host}]:{moved.port}" if ":" in host else f"{host}:{moved.port}"
        node: C = self._at(_at_place(self._addresses[0], place))
        self.now = node
        return node

    def leave(self, failed: C) -> None:
        """Ask the next server in the URL, unless another one is asked already."""
        if self.now is failed:
            self._turn += 1
            self._proven = None
            self.now = self._at(self._addresses[self._turn % self.servers])

    def must_prove(self, node: C) -> bool:
        """Return whether a server has yet to show that it is in cluster mode."""
        return self.servers > 1 and self._proven is not node

    def prove(self, node: C, greeting: Any) -> None:
        """Raise `NoCluster` if a server's greeting does not say that it is in cluster mode."""
        pairs = greeting if isinstance(greeting, Mapping) else dict(zip(greeting[::2], greeting[1::2], strict=True))
        if {str_if_bytes(name): value for name, value in pairs.items()}.get("mode") not in ("cluster", b"cluster"):
            raise NoCluster("the URL names several servers, and one of them is not in cluster mode")
        self._proven = node

    def url(self) -> str:
        """Return the URL of the server that is asked."""
        return next(url for url, client in self._clients.items() if client is self.now)

    def all(self) -> list[C]:
        """Return the clients of all servers that were asked."""
        return list(self._clients.values())

    def _at(self, url: str) -> C:
        if url not in self._clients:
            self._clients[url] = self._opened(url)
        return self._clients[url]


def addresses_of(url: str) -> list[str]:
    """Return a URL for each of the servers that one URL names, separated by commas."""
    return [_at_place(url, place) for place in _parts(url)[1].split(",")]


def _at_place(url: str, place: str) -> str:
    """Return the URL of the same login, database and options on another server."""
    before, _, after = _parts(url)
    return before + place + after


def _parts(url: str) -> tuple[str, str, str]:
    """Return what is before the servers of a URL, the servers, and what comes after them."""
    found = re.fullmatch(r"(\w+://(?:[^/?#]*@)?)([^/?#]*)(.*)", url, re.DOTALL)
    return (found[1], found[2], found[3]) if found else ("", url, "")


class RedisClient(Redis):
    """For threads; takes what `Redis.from_url` does."""

    def __init__(self, url: str, **options: Any) -> None:
        self.nodes: Nodes[Redis] = Nodes(url, lambda address: Redis.from_url(address, **options))
        self._options = options
        super().__init__(connection_pool=self.nodes.now.connection_pool)

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send a command to the server that has the keys."""
        node: Any = self.nodes.now
        try:
            if self.nodes.must_prove(node):
                self.nodes.prove(node, node.execute_command("HELLO"))
            for _ in range(HOPS):
                try:
                    return node.execute_command(*args, **options)
                except MovedError as moved:
                    node = self.nodes.follow(node, moved)
            return node.execute_command(*args, **options)
        except FINE:
            raise
        except BaseException:
            # After a failover, the old connections lead to a replica, for ever.
            node.connection_pool.disconnect(inuse_connections=False)
            self.nodes.leave(node)
            raise

    def close(self) -> None:
        """Close all connections."""
        for node in self.nodes.all():
            node.close()

    def reach(self, ask: Callable[[], T]) -> T:
        """Ask the servers in the URL until one answers. A service asks the next one the next time; a command ends."""
        for _ in range(self.nodes.servers - 1):
            with suppress(NoAnswer, TooSlow):
                return ask()
        return ask()

    def whole(self, *keys: str) -> Redis | RedisCluster:
        """Return a client that looks through the keys of all nodes, if these keys are on several.

        In a cluster it needs the right +cluster|slots.
        """
        try:
            self.exists(*keys)
        except ClusterCrossSlotError:
            pass
        else:
            return self
        try:
            return RedisCluster.from_url(self.nodes.url(), **self._options)
        except RedisClusterException as error:  # which is no RedisError, and does not tell of rights
            raise NoNodes(f"the nodes of the cluster are not told: {error}") from error


class AsyncRedisClient(AsyncRedis):
    """For one event loop; takes what `Redis.from_url` does."""

    def __init__(self, url: str, **options: Any) -> None:
        self.nodes: Nodes[AsyncRedis] = Nodes(url, lambda address: AsyncRedis.from_url(address, **options))
        super().__init__(connection_pool=self.nodes.now.connection_pool)

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send a command to the server that has the keys."""
        node: Any = self.nodes.now
        try:
            if self.nodes.must_prove(node):
                self.nodes.prove(node, await node.execute_command("HELLO"))
            for _ in range(HOPS):
                try:
                    return await node.execute_command(*args, **options)
                except MovedError as moved:
                    node = self.nodes.follow(node, moved)
            return await node.execute_command(*args, **options)
        except FINE:
            raise
        except BaseException:  # a timeout of the caller's, too
            self.nodes.leave(node)
            await node.connection_pool.disconnect(inuse_connections=False)
            raise

    async def aclose(self, close_connection_pool: bool | None = None) -> None:  # noqa: FBT001 - as in redis-py
        """Close all connections."""
        for node in self.nodes.all():
            await node.aclose(close_connection_pool)
