"""A Redis that answers but cannot be used: decider and actuator notice it, say what to do, and continue after it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from pydantic import SecretStr
from redis import Redis
from redis.exceptions import RedisError

from services.actuator.fence import probed_keys
from services.decider.reservations import RedisReservations, connect, written_keys
from tests.contract.test_reservations import hold
from tests.support.provider import StackProvider
from tests.support.redis_server import running_redis
from tidegate.engine.reservations import Answer
from tidegate.events.decision import RedisView
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.poll import wait_until
from tidegate.runtime.redis_server import Outage, address_of, in_words, redis_probe
from tidegate.runtime.settings import RedisSettings

RIGHTS = "~tidegate:* +@read +@write +@scripting +@connection -@dangerous +info"


@pytest.fixture
def admin(stack: StackProvider, tmp_path: Path) -> Iterator[Redis]:
    """An administrator's client of a Redis whose user is `service`, with the password `right`."""
    with running_redis(stack.need(redis=True).redis_server, tmp_path) as client:
        client.execute_command("ACL", "SETUSER", "service", "on", ">right", *RIGHTS.split())  # type: ignore[no-untyped-call]
        yield client


BUSY = "busy"
TROUBLES = {
    "full": ("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0", "it is full: raise its maxmemory"),
    "alone": ("CONFIG SET min-replicas-to-write 1", "CONFIG SET min-replicas-to-write 0", "too few replicas follow it"),
    "replica": ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE", "this is a replica; the address must lead to the primary"),
    "rights": ("ACL SETUSER service -@write", f"ACL SETUSER service {RIGHTS}", "give its user the rights in docs/"),
    BUSY: ("PING", "SCRIPT KILL", "another program's script keeps it busy"),
}


@contextmanager
def trouble(admin: Redis, name: str) -> Iterator[None]:
    """Let the server be in trouble for a while."""
    begin, end, _ = TROUBLES[name]
    thread = threading.Thread(target=spin, args=(admin.connection_pool.connection_kwargs["port"],))
    if name == BUSY:
        admin.config_set("lua-time-limit", 50)
        thread.start()
        assert wait_until(lambda: is_busy(admin), 10)
    else:
        admin.execute_command(*begin.split())  # type: ignore[no-untyped-call]
    yield
    admin.execute_command(*end.split())  # type: ignore[no-untyped-call]
    if name == BUSY:
        thread.join(10)


def spin(port: int) -> None:
    """Be another program, whose script runs until it is killed."""
    with Redis(port=port) as other, suppress(RedisError):
        other.eval("while true do end", 0)


def is_busy(admin: Redis) -> bool:
    """Return whether a script has run for too long."""
    try:
        return not admin.ping()
    except RedisError:
        return True


@pytest.mark.parametrize("name", TROUBLES)
def test_a_redis_that_answers_but_takes_no_writes_is_told_of(
    admin: Redis, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A PING, or what only reads, would be answered: no alert, while no job is rescaled (F22)."""
    port = admin.connection_pool.connection_kwargs["port"]
    settings = RedisSettings(
        redis_url=f"redis://127.0.0.1:{port}/0", redis_username="service", redis_password=SecretStr("right")
    )
    client = Redis.from_url(**settings.redis())
    decider = redis_probe(client, written_keys("tidegate:"))
    actuator = redis_probe(client, probed_keys("tidegate:"), Outage(address_of(client), "files decide"))

    async def play() -> None:
        async with connect(settings) as asking:
            reservations = RedisReservations(asking, SystemClock(), prefix="tidegate:", retry_seconds=0.01)
            await reservations.refresh()
            await reservations.restore([])
            assert await reservations.refresh() is RedisView.OK
            with trouble(admin, name):
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
    told = [message for message in caplog.messages if f"redis at 127.0.0.1:{port} cannot be used" in message]
    assert [message.rpartition("; ")[2] for message in told] == ["no job is rescaled until it can", "files decide"]
    assert all(TROUBLES[name][-1] in message for message in told), told
    assert caplog.messages.count("redis answers again") == 2
    assert admin.keys("tidegate:*:") == []


@pytest.mark.parametrize("service", ["decider", "actuator"])
def test_cluster_mode_is_told_of_at_the_start(service: str, stack: StackProvider, tmp_path: Path) -> None:
    """Also if every slot is on the server that is asked, where each key alone could be written."""
    server = stack.need(redis=True).redis_server
    with running_redis(server, tmp_path, "--cluster-enabled", "yes") as admin:
        admin.execute_command("CLUSTER", "ADDSLOTS", *range(16384))  # type: ignore[no-untyped-call]
        assert wait_until(lambda: "cluster_state:ok" in cluster_info(admin), 20)
        keys = written_keys if service == "decider" else probed_keys
        with pytest.raises(RedisError) as refused:
            redis_probe(admin, keys("tidegate:"))()
    assert "it must not be in cluster mode" in in_words(refused.value)


def cluster_info(admin: Redis) -> str:
    """Return what the server says of its cluster, as it says it."""
    return str(admin.eval("return redis.call('CLUSTER', 'INFO')", 0))


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
