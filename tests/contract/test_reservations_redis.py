"""What only a real Redis can show: damage, loss, missing permissions, outages, and cached views."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn, cast
from unittest.mock import AsyncMock
from urllib.parse import urlencode, urlsplit

import pytest
from pydantic import SecretStr
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AskError,
    ClusterDownError,
    MovedError,
    RedisError,
    ResponseError,
    TryAgainError,
)

from services.decider.reservations import RedisReservations
from tests.contract.test_reservations import T, hold
from tests.support.events import job
from tests.support.proxy import TcpProxy
from tests.support.secured_kafka import write_certificates
from tests.support.set_clock import SetClock
from tidegate.engine.reservations import Answer, ReservationView
from tidegate.events.decision import RedisView
from tidegate.events.job import JobSpec
from tidegate.remote.redis_client import AsyncRedisClient
from tidegate.runtime.settings import RedisSettings

Body = Callable[[RedisReservations, Redis, str, SetClock], Awaitable[None]]


@pytest.fixture(params=["plain", "cluster"])
def either_url(request: pytest.FixtureRequest) -> str:
    """The URL of a plain Redis and of one in cluster mode, whose first node is unlikely to have the keys."""
    if request.param == "plain":
        return str(request.getfixturevalue("redis_url"))
    return str(request.getfixturevalue("redis_cluster").url(0))


def on_redis(url: str, body: Body) -> None:
    """Run a coroutine function with restored reservations under their own prefix."""

    async def whole() -> None:
        clock = SetClock()
        client = AsyncRedisClient(url, decode_responses=True)
        prefix = f"test-{uuid.uuid4()}:"
        reservations = RedisReservations(client, clock, prefix=prefix, timeout_seconds=5)
        try:
            await reservations.restore([])
            await body(reservations, client, prefix, clock)
        finally:
            await client.aclose()

    asyncio.run(whole())


def named(reservations: RedisReservations, job_id: str, pool_id: str) -> tuple[str, str, str]:
    """Return the names that are in use for a job's cooldown, a pool, and the marker."""
    cooldown, pool, marker = reservations._keys(job_id, pool_id)
    return cooldown + reservations._tag, pool + reservations._tag, marker


def in_pool(job_id: str, pool_id: str) -> JobSpec:
    """Return the spec of a job in a pool."""
    return job(job_id).model_copy(update={"pool_id": pool_id})


def test_redis_is_reached_with_tls(redis_url: str, tmp_path: Path) -> None:
    """By a private authority whose certificates have no key identifier, too, which Python 3.13 refuses by default."""
    write_certificates(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "broker.pem")
    real = urlsplit(redis_url)

    async def answer(**query: str) -> bool:
        settings = RedisSettings(
            redis_url=f"rediss://127.0.0.1:{proxy.port}{real.path}?{urlencode(query)}",
            redis_password=SecretStr(real.password or ""),
        )
        async with Redis.from_url(**settings.redis()) as client:
            return await client.ping()

    with TcpProxy(real.port or 6379, tls=tls) as proxy:
        assert asyncio.run(answer(ssl_ca_certs=str(tmp_path / "ca.pem")))
        with pytest.raises(RedisError, match="certificate verify failed"):
            asyncio.run(answer())


DAMAGED_ENTRIES = {
    "pool garbage": '{"slots": "many"}',
    "pool without end": '{"decision_id": "d", "until": 1e10, "slots": 1e400}',
    "pool text": '{"decision_id": "d", "until": 1e10, "slots": "2"}',
    "pool part": '{"decision_id": "d", "until": 1e10, "slots": 2.5}',
    "pool no date": '{"decision_id": "d", "until": 1772366400000, "slots": 2}',
}


@pytest.mark.parametrize("damage", ["type", "garbage", "shape", "no date", "pool type", *DAMAGED_ENTRIES])
def test_a_damaged_key_denies_until_rebuilt(either_url: str, damage: str) -> None:
    """F24: a key of wrong type or content removes the marker and blocks changes until a rebuild repairs it."""

    async def body(reservations: RedisReservations, client: Redis, prefix: str, clock: SetClock) -> None:
        cooldown, pool, _ = named(reservations, "a", "blue")
        match damage:
            case "type":
                await client.rpush(cooldown, "x")
            case "garbage":
                await client.set(cooldown, "\x00not json")
            case "shape":
                await client.set(cooldown, '{"decision_id": 7, "until": "soon"}')
            case "no date":  # milliseconds, which are in the year 58,000
                await client.set(cooldown, '{"decision_id": "d", "until": 1772366400000}')
            case "pool type":
                await client.set(pool, "x")
            case _:
                await client.hset(pool, "b", DAMAGED_ENTRIES[damage])
        assert await reservations.view("a", "blue") == ReservationView(RedisView.REBUILDING)
        assert not await client.exists(f"{prefix}view")
        assert await reservations.reserve(hold(), 10) is Answer.NOT_NOW
        assert await reservations.restore([hold("a", "d1", slots=2)])
        assert (await reservations.view("a", "blue")).cooldown_owner == "d1"
        assert (await reservations.view("b", "blue")).pool_reserved == 2

    on_redis(either_url, body)


def test_a_rebuild_deletes_only_our_own_keys(either_url: str) -> None:
    """A rebuild deletes the cooldowns and pools of its prefix and nothing else in the database."""

    async def body(reservations: RedisReservations, client: Redis, prefix: str, clock: SetClock) -> None:
        cooldown, _, marker = named(reservations, "a", "blue")
        other, others = cooldown.replace("cooldown:a", "other"), f"other-{cooldown}"
        await client.set(other, "kept")
        await client.set(others, "kept")
        await reservations.reserve(hold(), 10)
        await client.delete(marker)
        assert await reservations.restore([], [in_pool("a", "blue")])
        assert await client.get(other) == "kept"
        assert await client.get(others) == "kept"
        assert set(await client.keys(f"{prefix}*")) == {other, marker}
        await client.delete(others)

    on_redis(either_url, body)


def test_a_rebuild_repairs_what_is_kept_of_every_job(either_url: str) -> None:
    """Also of one that this decider was never asked about: another decider found its key damaged."""

    async def body(reservations: RedisReservations, client: Redis, prefix: str, clock: SetClock) -> None:
        other = RedisReservations(client, clock, prefix=prefix, timeout_seconds=5)
        for key in named(reservations, "b", "green")[:2]:
            await client.set(key, "damaged")
        assert (await other.view("b", "green")).redis is RedisView.REBUILDING
        assert await reservations.restore([], [in_pool("b", "green")])
        assert await other.view("b", "green") == ReservationView(RedisView.OK)

    on_redis(either_url, body)


def test_a_rebuild_makes_no_other_client_wait(redis_url: str) -> None:
    """One may share Redis with programs that have millions of keys: no script looks through them to find ours."""
    second = urlsplit(redis_url)._replace(path="/1").geturl()

    async def body(reservations: RedisReservations, client: Redis, prefix: str, clock: SetClock) -> None:
        try:
            for part in range(10):
                await client.eval("for i = 1, 5000 do redis.call('SET', ARGV[1] .. i, '') end", 0, f"else-{part}-")
            await reservations.reserve(hold(), 10)
            await client.delete(f"{prefix}view")
            await client.config_resetstat()
            assert await reservations.restore([], [in_pool("a", "blue")])
            ran = await client.info("commandstats")
            assert ran["cmdstat_evalsha"]["usec"] < 100_000
            assert "cmdstat_scan" not in ran  # which would take as long, though others would not have to wait
            assert await client.keys(f"{prefix}*") == [f"{prefix}view"]
        finally:
            await client.flushdb()

    on_redis(second, body)


def test_of_two_rebuilds_the_first_counts(either_url: str) -> None:
    """A slower rebuild never overwrites what was reserved after a faster one."""

    async def body(reservations: RedisReservations, client: Redis, prefix: str, clock: SetClock) -> None:
        slow = RedisReservations(client, clock, prefix=prefix, timeout_seconds=5)
        await client.delete(f"{prefix}view")
        assert await reservations.restore([])
        assert await reservations.reserve(hold(), 10) is Answer.TAKEN
        assert not await slow.restore([])
        assert (await slow.view("a", "blue")).cooldown_owner == "d1"

    on_redis(either_url, body)


@pytest.mark.parametrize("lost", ["release", "answer"])
def test_what_an_outage_hides_from_redis_is_released_after_it(either_url: str, lost: str) -> None:
    """A command has ended, or was never sent, as its reservation got no answer: nobody else could have its slots."""

    async def body(reservations: RedisReservations, client: Redis, prefix: str, clock: SetClock) -> None:
        async def unanswered(**asked: Any) -> NoReturn:
            if lost == "answer":
                await reserve(**asked)
            raise RedisError("connection lost")

        reserve = reservations._scripts["reserve"]
        with pytest.MonkeyPatch.context() as patch:
            if lost == "answer":
                patch.setitem(cast(Any, reservations._scripts), "reserve", unanswered)
                assert await reservations.reserve(hold(), 10) is Answer.NOT_NOW
            else:
                assert await reservations.reserve(hold(), 10) is Answer.TAKEN
                patch.setitem(cast(Any, reservations._scripts), "adjust", unanswered)
                await reservations.release("a", "blue", "d1")
            assert await reservations.refresh() is RedisView.UNREACHABLE
        clock.at = T + timedelta(seconds=5)
        assert (await reservations.view("b", "blue")).pool_reserved == 2
        assert await reservations.refresh() is RedisView.OK
        assert (await reservations.view("b", "blue")).pool_reserved == 0
        assert reservations._owed == {}

    on_redis(either_url, body)


def test_a_command_that_ends_during_a_rebuild_holds_nothing_after_it(either_url: str) -> None:
    """The rebuild may have read the topics before the command's last result was there."""

    async def body(reservations: RedisReservations, client: Redis, prefix: str, clock: SetClock) -> None:
        await reservations.reserve(hold(), 10)
        await client.delete(f"{prefix}view")
        await reservations.release("a", "blue", "d1")
        assert await reservations.refresh() is RedisView.REBUILDING
        assert await reservations.restore([hold()])
        assert await reservations.refresh() is RedisView.OK
        assert (await reservations.view("b", "blue")).pool_reserved == 0
        assert (await reservations.view("a", "blue")).cooldown_owner == "d1"

    on_redis(either_url, body)


def test_a_hold_that_is_taken_after_all_is_not_released(either_url: str) -> None:
    """A decision asks again in the same round, and its command goes out."""

    async def body(reservations: RedisReservations, client: Redis, prefix: str, clock: SetClock) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(cast(Any, reservations._scripts), "reserve", AsyncMock(side_effect=RedisError("lost")))
            assert await reservations.reserve(hold(), 10) is Answer.NOT_NOW
        clock.at = T + timedelta(seconds=5)
        assert await reservations.reserve(hold(), 10) is Answer.TAKEN
        assert await reservations.refresh() is RedisView.OK
        assert (await reservations.view("b", "blue")).pool_reserved == 2

    on_redis(either_url, body)


def test_a_cached_view_equals_a_fresh_view(either_url: str) -> None:
    """The cache covers jobs that were viewed before, with the same answer; for other jobs it has none."""

    async def body(reservations: RedisReservations, client: Redis, prefix: str, clock: SetClock) -> None:
        await reservations.reserve(hold("a", "d1", slots=2), 10)
        await reservations.reserve(hold("b", "d2", slots=3, cooldown=0), 10)
        views = {name: await reservations.view(name, "blue") for name in ("a", "b", "c")}
        assert reservations.cached_view("a", "blue") is None
        assert await reservations.refresh() is RedisView.OK
        assert {name: reservations.cached_view(name, "blue") for name in views} == views
        assert views["a"].cooldown_owner == "d1"
        assert reservations.cached_view("d", "blue") is None
        clock.at = T + timedelta(seconds=10)
        assert reservations.cached_view("a", "blue") is None
        await client.delete(f"{prefix}view")
        assert await reservations.refresh() is RedisView.REBUILDING
        assert reservations.cached_view("a", "blue") == ReservationView(RedisView.REBUILDING)

    on_redis(either_url, body)


def test_a_forgotten_job_is_read_no_more(either_url: str) -> None:
    """A removed job, and its pool, are not asked for for ever; a new view brings them back."""

    async def body(reservations: RedisReservations, client: Redis, prefix: str, clock: SetClock) -> None:
        for name in ("a", "b"):
            await reservations.view(name, f"pool-{name}")
        reservations.forget("a")
        reservations.forget("unknown")
        await reservations.refresh()
        assert reservations.cached_view("a", "pool-a") is None
        assert reservations.cached_view("b", "pool-b") is not None
        await reservations.view("a", "pool-a")
        await reservations.refresh()
        assert reservations.cached_view("a", "pool-a") is not None

    on_redis(either_url, body)


def test_a_user_without_the_right_to_write_is_refused(redis_url: str) -> None:
    """F22: NOPERM on a reservation answers "not now", never yes."""

    async def body(reservations: RedisReservations, client: Redis, prefix: str, clock: SetClock) -> None:
        user = prefix.strip(":")
        await client.acl_setuser(
            user, enabled=True, passwords=["+secret"], keys=[f"{prefix}*"], categories=["+@read", "+@scripting"]
        )
        url = client.connection_pool.connection_kwargs
        reader = Redis(host=url["host"], port=url["port"], username=user, password="secret", decode_responses=True)
        weak = RedisReservations(reader, clock, prefix=prefix, timeout_seconds=5)
        try:
            assert (await weak.view("a", "blue")).redis is RedisView.OK
            assert await weak.reserve(hold(), 10) is Answer.NOT_NOW
            assert (await weak.view("a", "blue")).redis is RedisView.UNREACHABLE
            assert (await reservations.view("a", "blue")).cooldown_until is None
        finally:
            await reader.aclose()
            await client.acl_deluser(user)

    on_redis(redis_url, body)


def test_a_user_that_may_not_ask_for_the_server_is_told_of(redis_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """It reserves as before, but writes that are lost in a failover would go unnoticed."""

    async def body(reservations: RedisReservations, client: Redis, prefix: str, clock: SetClock) -> None:
        user = prefix.strip(":")
        rights = ["+@read", "+@write", "+@scripting", "-@dangerous"]
        await client.acl_setuser(user, enabled=True, passwords=["+secret"], keys=[f"{prefix}*"], categories=rights)
        at = client.connection_pool.connection_kwargs
        limited = Redis(host=at["host"], port=at["port"], username=user, password="secret", decode_responses=True)
        unsure = RedisReservations(limited, clock, prefix=prefix, timeout_seconds=5)
        try:
            assert [await reservations.refresh(), await unsure.refresh(), await unsure.refresh()] == [RedisView.OK] * 3
            assert await unsure.reserve(hold(), 10) is Answer.TAKEN
        finally:
            await limited.aclose()
            await client.acl_deluser(user)

    with caplog.at_level(logging.WARNING):
        on_redis(redis_url, body)
    assert ["+info" in message for message in caplog.messages] == [True]


def test_an_outage_costs_one_timeout(caplog: pytest.LogCaptureFixture) -> None:
    """F21: a Redis that never answers costs one bounded wait; then there is a pause, then another try."""
    silent, asked = socket.create_server(("127.0.0.1", 0)), list[socket.socket]()
    silent.setblocking(False)

    def times_asked() -> int:
        with suppress(BlockingIOError):
            while True:
                asked.append(silent.accept()[0])
        return len(asked)

    async def whole() -> None:
        clock = SetClock()
        client = Redis(
            host="127.0.0.1",
            port=silent.getsockname()[1],
            socket_timeout=60,
            socket_connect_timeout=60,
            retry=Retry(NoBackoff(), 0),
        )
        reservations = RedisReservations(client, clock, prefix="x:", timeout_seconds=0.2, retry_seconds=2.0)
        loop = asyncio.get_running_loop()
        started = loop.time()
        assert (await reservations.view("a", "blue")).redis is RedisView.UNREACHABLE
        assert loop.time() - started < 20.0
        for _ in range(1000):
            assert (await reservations.view("a", "blue")).redis is RedisView.UNREACHABLE
        assert await reservations.reserve(hold(), 10) is Answer.NOT_NOW
        assert await reservations.refresh() is RedisView.UNREACHABLE
        assert reservations.cached_view("a", "blue") == ReservationView(RedisView.UNREACHABLE)
        assert times_asked() == 1, "a thousand more messages did not wait for the timeout"
        clock.at = T + timedelta(seconds=3)
        assert (await reservations.view("a", "blue")).redis is RedisView.UNREACHABLE
        assert times_asked() == 2
        await client.aclose()

    with caplog.at_level(logging.WARNING):
        asyncio.run(whole())
    for each in (silent, *asked):
        each.close()
    assert len([r for r in caplog.records if "cannot be used" in r.message]) == 1


CLUSTER_TROUBLES = {
    "the cluster is down": ClusterDownError("CLUSTERDOWN The cluster is down"),
    "keys are being moved to another node": TryAgainError("TRYAGAIN Multiple keys request during rehashing of slot"),
    "keys are being moved to": AskError("5 127.0.0.1:1"),
    "its nodes do not agree": MovedError("5 127.0.0.1:1"),
    "keys are being moved": ResponseError("Script attempted to access a non local key in a cluster node"),
}


@pytest.mark.parametrize("remedy", CLUSTER_TROUBLES)
def test_the_troubles_of_a_cluster_are_named(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, remedy: str
) -> None:
    """Nothing is granted, and the log says what to look at. Who only reads of no answer looks for an outage."""

    async def whole() -> ReservationView:
        async with Redis() as client:
            monkeypatch.setattr(client, "evalsha", AsyncMock(side_effect=CLUSTER_TROUBLES[remedy]))
            return await RedisReservations(client, SetClock(), prefix="x:").view("a", "blue")

    assert asyncio.run(whole()).redis is RedisView.UNREACHABLE
    assert f"; {remedy}" in caplog.text
