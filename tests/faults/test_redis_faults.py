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

from services.decider.reservations import RedisReservations, connect
from services.decider.settings import DeciderSettings
from tests.support.decider import DeciderProcess, Flow, number_now, overloaded_now, wait_for
from tests.support.events import codes, job, result
from tests.support.proxy import TcpProxy
from tidegate.engine.reservations import Answer, Hold
from tidegate.events.command import ScalingCommand
from tidegate.events.decision import Decision, RedisView
from tidegate.events.result import Phase
from tidegate.runtime.clock import SystemClock
from tidegate.stack import Stack, down, up

pytestmark = pytest.mark.timeout(240)


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
    with DeciderProcess(flow.settings, tmp_path / "1.log") as decider:
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
    with DeciderProcess(flow.settings, tmp_path / "1.log") as decider:
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
        flow.send(shots[9])
        (command,) = flow.wait_read(ScalingCommand, 1)
        assert command.snapshot_id == shots[9].snapshot_id
        assert flow.redis.get(f"{flow.settings.redis_prefix}cooldown:a")


def test_after_a_failover_the_new_primary_is_asked(own: Stack, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The old primary goes on as a replica, and keeps its connections: it answers, and refuses every write (F22)."""
    folder = tmp_path_factory.mktemp("new-primary")
    new, old = up(folder, kafka=False, spark=False), own.info

    async def play(proxy: TcpProxy) -> list[tuple[RedisView, Answer]]:
        settings = DeciderSettings(
            redis_url=f"redis://127.0.0.1:{proxy.port}/0", redis_password=SecretStr(old.redis_password)
        )
        reservations = RedisReservations(connect(settings), SystemClock(), prefix="x:", retry_seconds=0.1)
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
                redis.Redis(port=old.ports.redis, password=old.redis_password).replicaof("127.0.0.1", new.ports.redis)
                proxy.lead_to(new.ports.redis)
            await asyncio.sleep(0.2)
        return answers

    try:
        client = redis.Redis(port=new.ports.redis, password=new.redis_password)
        client.config_set("requirepass", old.redis_password)
        with TcpProxy(old.ports.redis) as proxy:
            first, refused, *later = asyncio.run(play(proxy))
    finally:
        down(folder)
    assert first == (RedisView.OK, Answer.TAKEN)
    assert refused == (RedisView.OK, Answer.NOT_NOW)
    assert later == [(RedisView.REBUILDING, Answer.TAKEN), (RedisView.OK, Answer.TAKEN)]
