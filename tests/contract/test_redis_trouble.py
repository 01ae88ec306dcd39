"""A Redis that answers but cannot be used: decider and actuator notice it, say what to do, and continue after it."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from pydantic import SecretStr
from redis import Redis
from redis.exceptions import RedisError, ResponseError

from services.actuator.fence import RedisFence, probed_keys
from services.decider.reservations import RedisReservations, connect, written_keys
from tests.contract.test_reservations import hold
from tests.support.provider import StackProvider
from tests.support.redis_server import ask, port_of, running_redis
from tidegate.engine.reservations import Answer
from tidegate.events.decision import RedisView
from tidegate.launcher.control.files import Control, Token
from tidegate.remote.redis_client import RedisClient
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.poll import wait_until
from tidegate.runtime.redis_server import Outage, address_of, redis_probe, remedy_of
from tidegate.runtime.settings import RedisSettings

SECURITY = (Path(__file__).parents[2] / "docs" / "how-to" / "security.md").read_text("utf-8")
USERS = re.findall(r"^ {4}ACL SETUSER (\w+) on >SECRET (.+)$", SECURITY, re.MULTILINE)

SECONDS = 20.0
"""How long Redis may take to answer, on a busy machine."""


@pytest.fixture(params=["plain", "cluster"])
def servers(request: pytest.FixtureRequest, stack: StackProvider, tmp_path: Path) -> Iterator[list[Redis]]:
    """Administrators' clients of a Redis, or of all nodes of a cluster, with the users of the documentation.

    The first node of the cluster does not have the decider's keys.
    """
    with ExitStack() as running:
        if request.param == "plain":
            found = [running.enter_context(running_redis(stack.need(redis=True).redis_server, tmp_path))]
        else:
            found = request.getfixturevalue("redis_cluster").nodes
        order(found, "FLUSHALL")  # other tests use the cluster, too
        for name, rights in USERS:
            order(found, f"ACL SETUSER {name} on >right {rights}")
        yield found
        order(found, "FLUSHALL; CONFIG SET lua-time-limit 5000")


def settings_of(servers: list[Redis], user: str) -> RedisSettings:
    """Return the settings of a service with its own user, which names all nodes of a cluster."""
    url = f"redis://{','.join(f'127.0.0.1:{port_of(server)}' for server in servers)}/0"
    return RedisSettings(
        redis_url=url, redis_username=user, redis_password=SecretStr("right"), redis_timeout_seconds=SECONDS
    )


def client_of(servers: list[Redis], user: str) -> RedisClient:
    """Return a client of a service's user."""
    return RedisClient(**settings_of(servers, user).redis())


BUSY = "busy"
REPLICA = "replica"
"""No trouble in a cluster, whose replicas name their primary."""
TROUBLES = {
    "full": ("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0", "it is full: raise its maxmemory"),
    "alone": ("CONFIG SET min-replicas-to-write 1", "CONFIG SET min-replicas-to-write 0", "too few replicas follow it"),
    REPLICA: ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE", "this is a replica; the address must lead to the primary"),
    "rights": (
        "ACL SETUSER decider -@write; ACL SETUSER actuator -@write",
        "ACL SETUSER decider +@write -@dangerous +info; ACL SETUSER actuator +@write -@dangerous",
        "give its user the rights in docs/how-to/security.md#redis",
    ),
    BUSY: (
        "CONFIG SET lua-time-limit 50",
        "SCRIPT KILL",
        "another program's script keeps it busy",
    ),
}


@contextmanager
def trouble(servers: list[Redis], name: str) -> Iterator[None]:
    """Let every server be in trouble for a while."""
    begin, end, _ = TROUBLES[name]
    threads = [threading.Thread(target=spin, args=(port_of(server),)) for server in servers if name == BUSY]
    order(servers, begin)
    for thread in threads:
        thread.start()
    if threads:
        assert wait_until(lambda: all(map(is_busy, servers)), 30)
    yield
    order(servers, end)
    for thread in threads:
        thread.join(30)


def order(servers: list[Redis], commands: str) -> None:
    """Send commands, separated by semicolons, to every server."""
    for server in servers:
        for command in commands.split("; "):
            ask(server, *command.split())


def keys_of(servers: list[Redis]) -> list[str]:
    """Return all keys."""
    return sorted(key for server in servers for key in ask(server, "KEYS", "*"))


def spin(port: int) -> None:
    """Be another program, whose script runs until it is killed."""
    with Redis(port=port) as other, suppress(RedisError):
        other.eval("while true do end", 0)


def is_busy(server: Redis) -> bool:
    """Return whether a script has run for too long."""
    try:
        return not server.ping()
    except RedisError:
        return True


@pytest.mark.parametrize(
    ("servers", "name"),
    [(kind, name) for kind in ("plain", "cluster") for name in TROUBLES if (kind, name) != ("cluster", REPLICA)],
    indirect=["servers"],
)
def test_a_redis_that_answers_but_takes_no_writes_is_told_of(
    servers: list[Redis], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A PING, or what only reads, would be answered: no alert, while no job is rescaled (F22)."""
    outage = Outage(address_of(servers[0]), "files decide")
    decider = redis_probe(client_of(servers, "decider"), written_keys("tidegate:"))
    actuator = redis_probe(client_of(servers, "actuator"), probed_keys("tidegate:"), outage)

    async def play() -> None:
        async with connect(settings_of(servers, "decider")) as asking:
            reservations = RedisReservations(
                asking, SystemClock(), prefix="tidegate:", timeout_seconds=SECONDS, retry_seconds=0.01
            )
            await reservations.refresh()
            await reservations.restore([])
            assert await reservations.refresh() is RedisView.OK
            with trouble(servers, name):
                for _ in range(3):
                    assert await reservations.refresh() is RedisView.UNREACHABLE
                    await asyncio.sleep(0.05)
                for probe in (decider, actuator, actuator):
                    with pytest.raises(RedisError):
                        probe()
            decider()
            actuator()
            await asyncio.sleep(0.05)
            if await reservations.refresh() is RedisView.REBUILDING:
                await reservations.restore([])
            assert await reservations.refresh() is RedisView.OK
            assert await reservations.reserve(hold(), 10) is Answer.TAKEN

    with caplog.at_level(logging.INFO):
        asyncio.run(play())
    told = [message for message in caplog.messages if " cannot be used " in message]
    assert all(message.startswith(f"redis at {address_of(servers[0])} cannot") for message in told)
    assert [message.rpartition("; ")[2] for message in told] == ["no job is rescaled until it can", "files decide"]
    assert all(TROUBLES[name][-1] in message for message in told), told
    assert caplog.messages.count("redis answers again") == 2
    assert [key for key in keys_of(servers) if re.search(r":(\{|$)", key)] == []


def test_users_with_the_documented_rights_can_do_their_work(
    servers: list[Redis], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No more is needed, and the decider has what it needs to notice that another server took over."""

    async def decide() -> Answer:
        async with connect(settings_of(servers, "decider")) as client:
            reservations = RedisReservations(client, SystemClock(), prefix="tidegate:", timeout_seconds=SECONDS)
            assert await reservations.refresh() is RedisView.REBUILDING
            assert await reservations.restore([])
            assert (await reservations.view("a", "blue")).redis is RedisView.OK
            answer = await reservations.reserve(hold(), 10)
            await reservations.release("a", "blue", "d1")
            assert await reservations.refresh() is RedisView.OK
            return answer

    assert asyncio.run(decide()) is Answer.TAKEN
    fence = RedisFence(client_of(servers, "actuator"), "tidegate:")
    assert fence.claim(Control.at(tmp_path, "rates"), "rates", 7, "a") == Token(7, 1)
    assert keys_of(servers) == ["tidegate:fence:rates", "tidegate:view"]
    assert client_of(servers, "monitor").info()["role"] == "master"
    assert caplog.messages == []


SAID = {
    "6.2": "The user executing the script can't run this command or subcommand",
    "7.0": "ACL failure in script: The user executing the script can't run this command or subcommand",
    "8.0 and Valkey": "ACL failure in script: User decider has no permissions to run the 'setrange' command",
}


@pytest.mark.parametrize("version", SAID)
def test_a_lack_of_rights_is_understood_whichever_version_says_so(version: str) -> None:
    """Within a script it is no NOPERM."""
    assert "give its user the rights" in remedy_of(ResponseError(SAID[version]))


def test_every_kind_of_error_is_told_once_in_an_outage(caplog: pytest.LogCaptureFixture) -> None:
    """Redis is away, comes back, and then refuses the password: the first error would mislead."""
    outage = Outage("redis:6379", "nothing changes")
    away, refused = ConnectionRefusedError("refused"), RedisError("WRONGPASS")
    with caplog.at_level(logging.INFO):
        for error in (away, away, refused, away, refused):
            outage.add(error)
        outage.end()
        outage.end()
        outage.add(away)
    assert [message.split()[0:2] for message in caplog.messages] == [
        ["redis", "at"],
        ["redis", "at"],
        ["redis", "answers"],
        ["redis", "at"],
    ]
