"""Redis emptied, frozen and killed while a decider runs, on the test's own Redis."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from pydantic import SecretStr

from services.actuator.fence import RedisFence
from services.decider.reservations import RedisReservations, connect
from services.decider.settings import DeciderSettings
from tests.support.decider import Flow, ServiceProcess, number_now, overloaded_now, wait_for
from tests.support.events import codes, job, result
from tests.support.proxy import TcpProxy
from tidegate.engine.reservations import Answer, Hold
from tidegate.events.command import ScalingCommand
from tidegate.events.decision import Decision, RedisView
from tidegate.events.result import Phase
from tidegate.launcher.control.files import Control, Token
from tidegate.remote.redis_client import RedisClient
from tidegate.runtime.clock import SystemClock
from tidegate.stack import Stack, down, up


@pytest.fixture
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A Redis that the test may break."""
    folder = tmp_path_factory.mktemp("own-redis")
    up(folder, kafka=False, spark=False)
    try:
        yield Stack(folder)
    finally:
        down(folder)


@pytest.fixture
def flow(kafka: str, own: Stack) -> Iterator[Flow]:
    """A separate Tidegate with one overloaded job that has a cooldown."""
    info = own.info
    url = info.redis_url.replace("redis://", f"redis://:{info.redis_password}@")
    flow = Flow(f"redis-{uuid.uuid4().hex[:8]}", kafka, url)
    cooldown = {"cooldown": {"up_seconds": 100, "down_seconds": 100, "in_place": 1}, "stabilization": {"seconds": 0}}
    flow.send(job("a", guards=cooldown))
    yield flow
    flow.close()


def held_at(flow: Flow, key: str) -> dict[str, Any]:
    """Return the value of the cooldown key."""
    return dict(json.loads(str(flow.redis.get(key))))


def test_an_emptied_redis_is_rebuilt_from_the_topics(flow: Flow, tmp_path: Path) -> None:
    """F20 (I6): after FLUSHALL the log restores cooldown and slots with their times; no second command within them."""
    key, pool, marker = (f"{flow.settings.redis_prefix}{name}" for name in ("cooldown:a", "pool:default", "view"))
    shots = overloaded_now("a", count=9)
    with ServiceProcess(flow.settings, tmp_path / "1.log") as decider:
        flow.send(*shots[:8])
        (command,) = flow.wait_read(ScalingCommand, 1, 90)
        before = held_at(flow, key)
        assert flow.redis.hget(pool, "a") is not None

        flow.redis.flushall()
        wait_for("the marker is back", lambda: bool(flow.redis.exists(marker)), 30)
        assert held_at(flow, key) == before
        assert json.loads(str(flow.redis.hget(pool, "a")))["decision_id"] == command.command_id
        wait_for("the log says so", lambda: "redis rebuilt from the topics: 1 holds" in decider.text(), 10)

        flow.send(result(command.command_id, Phase.ROLLED_BACK, number_now(), job_id="a", parallelism=4))
        wait_for("the slots are given back", lambda: flow.redis.hget(pool, "a") is None)
        flow.redis.flushall()
        flow.send(*shots[8:])
        decisions = flow.wait_read(Decision, len(shots))
        wait_for("the marker is back", lambda: bool(flow.redis.exists(marker)), 30)
        assert held_at(flow, key) == before
        assert flow.redis.hget(pool, "a") is None
    held = set().union(*(codes(d) for d in decisions[8:]))
    assert held & {"COOLDOWN", "REDIS_REBUILDING", "COMMAND_IN_FLIGHT", "WINDOW_FILLING"}
    assert len(flow.read(ScalingCommand)) == 1


@pytest.mark.parametrize("fault", ["freeze", "kill"])
def test_without_redis_the_decider_goes_on_and_holds(flow: Flow, own: Stack, tmp_path: Path, fault: str) -> None:
    """F19, F21 (I11): without Redis every snapshot is decided in time and held with a reason; then it recovers."""
    shots = overloaded_now("a", count=10)
    settings = flow.settings.model_copy(update={"redis_timeout_seconds": 1.0})
    with ServiceProcess(settings, tmp_path / "1.log") as decider:
        flow.send(*shots[:6])
        flow.wait_read(Decision, 6, 90)
        if fault == "freeze":
            own.redis.pause()
        else:
            own.redis.kill()
        began = time.monotonic()
        flow.send(*shots[6:9])
        decisions = flow.wait_read(Decision, 9)
        assert time.monotonic() - began < 10.0
        assert [d.observed.redis for d in decisions[7:9]] == [RedisView.UNREACHABLE] * 2
        assert "REDIS_UNREACHABLE" in codes(decisions[8])
        assert flow.read(ScalingCommand) == []
        assert decider.process.poll() is None, decider.text()
        if fault == "freeze":
            own.redis.resume()
        else:
            own.redis.start()
        wait_for("redis answers again", lambda: "redis answers again" in decider.text(), 30)
        rebuilds = 2 if fault == "kill" else 1  # one at the start
        wait_for("it can be used", lambda: decider.text().count("redis rebuilt from the topics") == rebuilds, 30)
        flow.send(shots[9])
        (command,) = flow.wait_read(ScalingCommand, 1)
        assert command.snapshot_id == shots[9].snapshot_id
        assert flow.redis.get(f"{flow.settings.redis_prefix}cooldown:a")


@pytest.mark.parametrize("how", ["failover", "restart"])
def test_a_server_that_lacks_the_newest_writes_grants_nothing_before_it_is_rebuilt(
    own: Stack, new: redis.Redis, how: str
) -> None:
    """F20: a replica that took over, or a copy from an hour ago, has the marker but not the newest holds."""
    password = SecretStr(own.info.redis_password)

    async def play(proxy: TcpProxy) -> None:
        settings = DeciderSettings(redis_url=f"redis://127.0.0.1:{proxy.port}/0", redis_password=password)
        async with connect(settings) as client:
            reservations = RedisReservations(client, SystemClock(), prefix="x:", retry_seconds=0.1)
            await reservations.refresh()
            await reservations.restore([])
            marker = str(await client.get("x:view"))
            until = time.time() + 100.0
            holds = [Hold(job, "default", f"decision-{job}", 8, until, until) for job in ("a", "b")]
            assert await reservations.reserve(holds[0], 10) is Answer.TAKEN
            if how == "failover":
                new.set("x:view", marker)
                proxy.lead_to(new.connection_pool.connection_kwargs["port"])
            else:
                await client.delete("x:pool:default", "x:cooldown:a")
                own.redis.kill()
                own.redis.start()
            await client.connection_pool.disconnect()
            assert await reservations.reserve(holds[1], 10) is Answer.NOT_NOW
            await asyncio.sleep(0.2)
            assert await reservations.refresh() is RedisView.REBUILDING
            assert await reservations.restore([holds[0]])
            assert await reservations.reserve(holds[1], 10) is Answer.POOL

    with TcpProxy(own.info.ports.redis) as proxy:
        asyncio.run(play(proxy))


@pytest.fixture
def new(own: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[redis.Redis]:
    """Another Redis, with the same password."""
    folder = tmp_path_factory.mktemp("new-primary")
    info = up(folder, kafka=False, spark=False)
    try:
        with redis.Redis(port=info.ports.redis, password=info.redis_password) as client:
            client.config_set("requirepass", own.info.redis_password)
        with redis.Redis(port=info.ports.redis, password=own.info.redis_password) as client:
            yield client
    finally:
        down(folder)


def fail_over(own: Stack, new: redis.Redis, proxy: TcpProxy) -> None:
    """Have the address lead to the new Redis. The old one is its replica, and keeps its connections."""
    port = new.connection_pool.connection_kwargs["port"]
    with redis.Redis(port=own.info.ports.redis, password=own.info.redis_password) as client:
        client.replicaof("127.0.0.1", port)
    proxy.lead_to(port)


def test_after_a_failover_the_decider_asks_the_new_primary(own: Stack, new: redis.Redis) -> None:
    """A replica goes on to answer, and refuses every write (F22)."""

    async def play(proxy: TcpProxy) -> list[tuple[RedisView, Answer]]:
        settings = DeciderSettings(
            redis_url=f"redis://127.0.0.1:{proxy.port}/0", redis_password=SecretStr(own.info.redis_password)
        )
        async with connect(settings) as client:
            reservations = RedisReservations(client, SystemClock(), prefix="x:", retry_seconds=0.1)
            await reservations.refresh()
            await reservations.restore([])
            until = time.time() + 100.0
            answers = []
            for number in range(4):
                seen = await reservations.refresh()
                if seen is RedisView.REBUILDING:
                    await reservations.restore([])
                hold = Hold(f"job-{number}", "default", f"decision-{number}", 1, until, until)
                answers.append((seen, await reservations.reserve(hold, 100)))
                if number == 0:
                    fail_over(own, new, proxy)
                await asyncio.sleep(0.2)
        return answers

    with TcpProxy(own.info.ports.redis) as proxy:
        first, refused, *later = asyncio.run(play(proxy))
    assert first == (RedisView.OK, Answer.TAKEN)
    assert refused == (RedisView.UNREACHABLE, Answer.NOT_NOW)  # before anything is to be reserved
    assert later == [(RedisView.REBUILDING, Answer.TAKEN), (RedisView.OK, Answer.TAKEN)]


def test_after_a_failover_the_actuators_ask_the_new_primary(own: Stack, new: redis.Redis, tmp_path: Path) -> None:
    """While Redis refuses, the control directory decides; after that, Redis decides between two actuators again."""
    password = own.info.redis_password
    with TcpProxy(own.info.ports.redis) as proxy, RedisClient(f"redis://:{password}@127.0.0.1:{proxy.port}") as client:
        fence = RedisFence(client, "x:")
        control = Control.at(tmp_path, "rates")
        assert fence.claim(control, "rates", 7, "a") == Token(7, 1)
        fail_over(own, new, proxy)
        assert fence.claim(control, "rates", 7, "a") == Token(7, 1)
        assert new.hgetall("x:fence:rates") == {}
        assert fence.claim(control, "rates", 7, "a") == Token(7, 1)
        assert new.hgetall("x:fence:rates") == {b"epoch": b"7", b"run": b"1", b"owner": b"a"}
