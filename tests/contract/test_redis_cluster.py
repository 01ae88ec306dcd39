"""A Redis in cluster mode whose parts fail or move: nothing is granted twice, and everything goes on by itself."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from redis.exceptions import MovedError, RedisError

from services.actuator.fence import RedisFence, probed_keys
from services.decider.reservations import RedisReservations, connect
from tests.support.provider import StackProvider
from tests.support.redis_server import OwnCluster, ask, port_of, running_cluster, running_redis
from tidegate.engine.reservations import Answer, Hold
from tidegate.events.decision import RedisView
from tidegate.launcher.control.files import Control, Token
from tidegate.remote.redis_client import RedisClient, addresses_of
from tidegate.replay.audit.ledger import read_redis
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.ledger import fence_key, view_key
from tidegate.runtime.poll import wait_until
from tidegate.runtime.redis_server import in_words, redis_probe, remedy_of
from tidegate.runtime.settings import RedisSettings

PREFIX = "tidegate:"
SLOT = 13233
"""Of the marker under this prefix, and so of all that the decider keeps: the last primary has it."""


@pytest.fixture
def own(stack: StackProvider, tmp_path: Path) -> Iterator[OwnCluster]:
    """A cluster that the test may break; the last primary has the decider's keys, and a replica."""
    with running_cluster(stack.need(redis=True).redis_server, tmp_path, replica=True) as cluster:
        assert ask(cluster.nodes[2], "CLUSTER", "KEYSLOT", view_key(PREFIX)) == SLOT
        yield cluster


@asynccontextmanager
async def decider_on(url: str, prefix: str = PREFIX) -> AsyncIterator[RedisReservations]:
    """A decider's reservations."""
    async with connect(RedisSettings(redis_url=url, redis_timeout_seconds=5)) as client:
        yield RedisReservations(client, SystemClock(), prefix=prefix, timeout_seconds=5, retry_seconds=0.05)


def most_of_it(job: str) -> Hold:
    """Return what takes eight slots of the pool for a while."""
    until = time.time() + 100.0
    return Hold(job, "blue", f"decision-{job}", 8, until, until)


async def refreshed(reservations: RedisReservations, wanted: RedisView) -> list[RedisView]:
    """Refresh until Redis is found as wanted; return what was found before."""
    until, found = time.monotonic() + 20.0, list[RedisView]()
    while (view := await reservations.refresh()) is not wanted:
        assert time.monotonic() < until, found
        found.append(view)
        await asyncio.sleep(0.1)
    return found


def test_a_replica_that_takes_over_without_the_newest_writes_grants_nothing_before_it_is_rebuilt(
    own: OwnCluster, tmp_path: Path
) -> None:
    """F20 (I6): it has the marker but not the newest hold, and so not all that is promised of the pool.

    The fence that it has goes on to hold between two actuators (I5).
    """
    primary, replica = own.nodes[2:]
    mine, other = (Control.at(tmp_path / owner, "a") for owner in ("one", "two"))

    async def play() -> None:
        async with decider_on(own.url(0)) as one, decider_on(own.url(1)) as two:
            assert await one.refresh() is RedisView.REBUILDING
            assert await one.restore([])
            assert await two.refresh() is RedisView.OK
            with RedisClient(own.url(0)) as client:
                assert RedisFence(client, PREFIX).claim(mine, "a", 7, "one") == Token(7, 1)
            assert wait_until(lambda: ask(replica, "DBSIZE") == 2, 10)
            ask(primary, "ACL", "SETUSER", "default", "-psync", "-sync", "-replconf")
            ask(primary, "CLIENT", "KILL", "TYPE", "replica")
            assert await one.reserve(most_of_it("a"), 10) is Answer.TAKEN
            assert await two.reserve(most_of_it("b"), 10) is Answer.POOL
            assert [ask(node, "DBSIZE") for node in (primary, replica)] == [4, 2]
            own.kill(2)
            assert await two.reserve(most_of_it("b"), 10) is Answer.NOT_NOW
            assert set(await refreshed(two, RedisView.REBUILDING)) <= {RedisView.UNREACHABLE}
            assert await two.reserve(most_of_it("b"), 10) is Answer.NOT_NOW
            assert set(await refreshed(one, RedisView.REBUILDING)) <= {RedisView.UNREACHABLE}
            assert await one.restore([most_of_it("a")])
            assert await refreshed(two, RedisView.OK) == []
            assert await two.reserve(most_of_it("b"), 10) is Answer.POOL

    asyncio.run(play())
    with RedisClient(own.url(1)) as client:
        assert RedisFence(client, PREFIX).claim(other, "a", 6, "two") is None
        assert RedisFence(client, PREFIX).claim(other, "a", 7, "two") == Token(7, 2)
    cooldown, pool = (f"tidegate:{name}{{tidegate:view}}" for name in ("cooldown:a", "pool:blue"))
    assert own.keys(3) == [cooldown, "tidegate:fence:a", pool, "tidegate:view"]


def test_a_slot_that_moves_to_another_node_is_rebuilt_there(own: OwnCluster, caplog: pytest.LogCaptureFixture) -> None:
    """While its keys are on both nodes, nothing is granted: a script would miss some of them."""
    new, old = own.nodes[0], own.nodes[2]
    ids = [ask(node, "CLUSTER", "MYID") for node in (new, old)]

    async def play() -> None:
        async with decider_on(own.url(1)) as reservations:
            await reservations.refresh()
            await reservations.restore([])
            assert await reservations.reserve(most_of_it("a"), 10) is Answer.TAKEN
            ask(new, "CLUSTER", "SETSLOT", SLOT, "IMPORTING", ids[1])
            ask(old, "CLUSTER", "SETSLOT", SLOT, "MIGRATING", ids[0])
            for key in ask(old, "CLUSTER", "GETKEYSINSLOT", SLOT, 10):
                ask(old, "MIGRATE", "127.0.0.1", port_of(new), key, 0, 5000)
                await asyncio.sleep(0.06)
                assert (await reservations.view("b", "blue")).redis is RedisView.UNREACHABLE
                assert await reservations.reserve(most_of_it("b"), 10) is Answer.NOT_NOW
            for node in own.nodes[:3]:
                ask(node, "CLUSTER", "SETSLOT", SLOT, "NODE", ids[0])
            await asyncio.sleep(0.06)
            assert await reservations.reserve(most_of_it("b"), 10) is Answer.NOT_NOW
            assert await refreshed(reservations, RedisView.REBUILDING) == []
            assert await reservations.restore([most_of_it("a")])
            assert await reservations.reserve(most_of_it("b"), 10) is Answer.POOL

    asyncio.run(play())
    assert "keys are being moved to another node" in caplog.text


def test_one_of_several_nodes_in_the_url_is_enough(own: OwnCluster, caplog: pytest.LogCaptureFixture) -> None:
    """A service and a command go on without the first one. When most nodes are gone, the log says what is wrong."""

    async def play() -> None:
        async with decider_on(own.url(0, 1)) as reservations:
            await reservations.refresh()
            await reservations.restore([])
            own.kill(0)
            assert await refreshed(reservations, RedisView.OK) == []  # it asks the one that has the keys
            async with decider_on(own.url(0, 1)) as second:
                assert await refreshed(second, RedisView.OK) == [RedisView.UNREACHABLE]
            with RedisClient(**RedisSettings(redis_url=own.url(0, 1)).redis()) as client:
                assert client.reach(client.info)["redis_mode"] == "cluster"
            own.kill(1)
            assert RedisView.OK in await refreshed(reservations, RedisView.UNREACHABLE)

    with caplog.at_level(logging.INFO):
        asyncio.run(play())
    assert "; the cluster is down: it needs most of its primaries" in caplog.text


def test_several_servers_that_are_no_cluster_are_refused(stack: StackProvider, tmp_path: Path) -> None:
    """One decider might reserve in the first one, and another in the second."""
    with running_redis(stack.need(redis=True).redis_server, tmp_path) as server:
        place = f"127.0.0.1:{port_of(server)}"
        with RedisClient(f"redis://{place},{place}/0") as client, pytest.raises(RedisError) as refused:
            redis_probe(client, probed_keys(PREFIX))()
        assert "; name one address that leads to the primary" in in_words(refused.value)
        with RedisClient(f"redis://{place}/0") as client:
            redis_probe(client, probed_keys(PREFIX))()


def test_a_view_under_other_names_does_not_count(redis_url: str) -> None:
    """A decider that was on a cluster, and whose address now leads to a plain Redis, would see nobody's holds there."""

    async def play() -> None:
        async with decider_on(redis_url, "moved:") as native, decider_on(redis_url, "moved:") as moved:
            await native.restore([])
            moved._tag = "{moved:view}"
            assert await native.reserve(most_of_it("a"), 10) is Answer.TAKEN
            assert await moved.reserve(most_of_it("b"), 10) is Answer.NOT_NOW
            assert await moved.refresh() is RedisView.REBUILDING
            assert await moved.restore([most_of_it("a")])
            assert await moved.reserve(most_of_it("b"), 10) is Answer.POOL
            assert await native.reserve(most_of_it("b"), 10) is Answer.POOL

    asyncio.run(play())


@pytest.mark.parametrize("kind", ["plain", "cluster"])
def test_the_fence_lets_one_actuator_act_for_each_run(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    """I5: also if they do not see each other's control directory, and wherever a cluster keeps a job's fence."""
    if kind == "plain":
        urls = [request.getfixturevalue("redis_url")] * 2
    else:
        urls = [request.getfixturevalue("redis_cluster").url(number) for number in range(2)]
    jobs = [f"job-{number}" for number in range(8)]
    with RedisClient(urls[0]) as first, RedisClient(urls[1]) as second:
        one, two = RedisFence(first, "fences:"), RedisFence(second, "fences:")
        for job in jobs:
            mine, other = (Control.at(tmp_path / owner, job) for owner in ("one", "two"))
            assert one.claim(mine, job, 7, "one") == Token(7, 1)
            assert two.claim(other, job, 7, "two") == Token(7, 2)
            assert two.claim(other, job, 6, "two") is None
            assert one.claim(mine, job, 8, "one") == Token(8, 1)
        names = [fence_key("fences:", job) for job in jobs]
        assert {first.hget(name, "owner") for name in names} == {b"one"}
        assert len({first.hget(name, "owner") and first.nodes.url() for name in names}) == (1 if kind == "plain" else 3)
        for name in names:
            first.delete(name)


def test_an_audit_reads_what_every_node_has(redis_cluster: OwnCluster, tmp_path: Path) -> None:
    """Fences are on all nodes, and the names of cooldowns and slots have the tag."""
    until = float(int(time.time())) + 100
    held = Hold("a", "blue", "decision-a", 8, until, until)

    async def play() -> None:
        async with decider_on(redis_cluster.url(0), "audited:") as reservations:
            await reservations.restore([])
            assert await reservations.reserve(held, 10) is Answer.TAKEN

    asyncio.run(play())
    with RedisClient(redis_cluster.url(0), decode_responses=True) as client:
        for number in range(8):
            RedisFence(client, "audited:").claim(Control.at(tmp_path, f"{number}"), f"{number}", 7, "one")
        contents = read_redis(client.whole("audited:view", "audited:fence:"), "audited:", datetime.now(UTC))
    assert contents.complete
    assert list(contents.cooldowns) == ["a"]
    assert dict(contents.slots) == {("blue", "a"): ("decision-a", until, 8)}
    assert contents.fences == {f"{number}": 7 for number in range(8)}
    assert contents.tag == "{audited:view}"


def test_an_audit_that_may_not_ask_for_the_nodes_says_which_right_it_lacks(redis_cluster: OwnCluster) -> None:
    """What the client says, that it is no cluster, would mislead."""
    for node in redis_cluster.nodes:
        ask(node, "ACL", "SETUSER", "auditor", "on", ">right", "~tidegate:*", "+@read", "+@connection")
    with RedisClient(redis_cluster.url(0), username="auditor", password="right") as client:
        with pytest.raises(RedisError) as refused:
            client.whole(view_key(PREFIX), fence_key(PREFIX, ""))
        assert remedy_of(refused.value) == "give its user the right +cluster|slots on every node"
        for node in redis_cluster.nodes:
            ask(node, "ACL", "SETUSER", "auditor", "+cluster|slots")
        assert list(client.whole(view_key(PREFIX), fence_key(PREFIX, "")).scan_iter(f"{PREFIX}*")) == []


@pytest.mark.parametrize(
    ("url", "addresses", "moved"),
    [
        ("redis://one/0", ["redis://one/0"], "redis://10.0.0.9:7/0"),
        ("rediss://me:a,b@one:1,two:2/0?ssl_ca_certs=/a,b", None, "rediss://me:a,b@10.0.0.9:7/0?ssl_ca_certs=/a,b"),
        ("redis://one?password=a,b@c", ["redis://one?password=a,b@c"], "redis://10.0.0.9:7?password=a,b@c"),
        ("unix:///run/redis,1?db=0", ["unix:///run/redis,1?db=0"], None),
    ],
)
def test_another_node_is_asked_with_the_same_login_and_options(
    url: str, addresses: list[str] | None, moved: str | None
) -> None:
    """TLS, the user, the password and the database are those of the URL."""
    two = [f"rediss://me:a,b@{place}/0?ssl_ca_certs=/a,b" for place in ("one:1", "two:2")]
    assert addresses_of(url) == (addresses or two)
    if moved:
        with RedisClient(url) as client:
            client.nodes.follow(client.nodes.now, MovedError("5 10.0.0.9:7"))
            assert client.nodes.url() == moved
            client.nodes.follow(client.nodes.now, MovedError("5 :8"))
            assert client.nodes.url() == moved.replace(":7", ":8")
            client.nodes.follow(client.nodes.now, MovedError("5 fd00::1:9"))
            assert "@[fd00::1]:9" in client.nodes.url() or "//[fd00::1]:9" in client.nodes.url()
