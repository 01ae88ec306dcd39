"""Redis as a service or a command finds it: whether it can be used and, if not, what to do about it."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redis import Redis  # not every image has it

    from tidegate.runtime.dependencies import Probe

log = logging.getLogger(__name__)

WRITES = "for _, key in ipairs(KEYS) do redis.call('SETRANGE', key, 0, '') end return 1"
"""A script that writes nothing to its keys. Redis refuses it whenever it would refuse to write: what only reads, or a
PING, is answered by a replica too, by a server without free memory, and to a user without rights."""

REMEDIES = (
    (
        "CLUSTERDOWN|^ClusterDown|Hash slot not served",
        "the cluster is down: it needs most of its primaries, and one for every slot; CLUSTER NODES shows which lack",
    ),
    (
        "TRYAGAIN|^TryAgain|^AskError|non local key",
        "keys are being moved to another node; wait, and end a move that was broken off with redis-cli --cluster fix",
    ),
    ("^MovedError", "its nodes do not agree on which of them has the keys; wait, and compare their CLUSTER NODES"),
    ("^NoCluster", "name one address that leads to the primary; only nodes of one cluster may be named together"),
    ("^NoNodes", "give its user the right +cluster|slots on every node"),
    ("SELECT is not allowed", "a cluster has only database 0: let the URL end with /0"),
    (
        "^Auth",
        "check user and password; a service reads them once, so restart it when they have changed",
    ),
    (
        "NoPerm|NOPERM|user executing the script|no permissions to",
        "give its user the rights in docs/how-to/security.md#redis",
    ),
    ("ReadOnly|READONLY", "this is a replica; the address must lead to the primary"),
    ("OutOfMemory|OOM", "it is full: raise its maxmemory, or remove what other programs keep in it"),
    ("MISCONF", "it cannot save to its disk; its log says why"),
    ("Loading", "it has started and reads its data; wait"),
    ("BUSY", "another program's script keeps it busy; SCRIPT KILL ends that"),
    ("NOREPLICAS", "too few replicas follow it for its min-replicas-to-write"),
    ("max number of clients", "raise its maxclients, or find out who has so many connections open"),
    ("DB index", "name a database that it has at the end of the URL"),
    ("^TimeoutError", "it did not answer in time: look at its load, and at the network"),
    (
        "(Hostname|IP address) mismatch",
        "ask it by a name that its certificate has; the nodes of a cluster must announce such names",
    ),
    ("certificate", "name its authority in the URL: rediss://…?ssl_ca_certs=FILE"),
)
"""By what an error is called, or says."""


def remedy_of(error: Exception) -> str:
    """Return what to do about an error; an empty text if one cannot tell."""
    said = f"{type(error).__name__}: {error}"
    return next((remedy for pattern, remedy in REMEDIES if re.search(pattern, said)), "")


def in_words(error: Exception) -> str:
    """Return what is wrong with Redis and, if one can tell, what to do about it."""
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return "; ".join(filter(None, (said, remedy_of(error))))


def address_of(client: Any) -> str:
    """Return the host and port, or the path, that a client of either kind asks."""
    at = client.connection_pool.connection_kwargs
    return str(at["path"]) if "path" in at else f"{at.get('host')}:{at.get('port')}"


@dataclass
class Outage:
    """Tells of an outage in the log: of each kind of error once, as the first is rarely the last."""

    server: str
    consequence: str
    _told: set[type[Exception]] = field(init=False, default_factory=set)

    def add(self, error: Exception) -> None:
        """Tell of an error, unless it was told of since Redis answered last."""
        if type(error) not in self._told:
            log.warning("redis at %s cannot be used (%s); %s", self.server, in_words(error), self.consequence)
        self._told.add(type(error))

    def end(self) -> None:
        """Tell that Redis can be used, if it could not."""
        if self._told:
            log.info("redis answers again")
        self._told.clear()


def redis_probe(client: Redis, keys: Sequence[str], outage: Outage | None = None) -> Probe:
    """Return a probe that asks for what the service's scripts need: to write to keys such as these."""

    def ask() -> None:
        try:
            client.eval(WRITES, len(keys), *keys)
        except Exception as error:
            if outage is not None:
                outage.add(error)
            raise
        if outage is not None:
            outage.end()

    return ask
