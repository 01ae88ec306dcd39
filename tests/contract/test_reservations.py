"""What reservations promise, in Redis and in the fake that unit tests use."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from services.decider.ports import Reservations
from services.decider.reservations import RedisReservations
from tests.support.events import command, job
from tests.support.reservations import FakeReservations
from tests.support.set_clock import SetClock
from tidegate.engine.reservations import Answer, Hold, ReservationView, hold_for
from tidegate.events.decision import RedisView
from tidegate.remote.redis_client import AsyncRedisClient

T = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def hold(job: str = "a", decision: str = "d1", *, slots: int = 2, cooldown: float = 60.0) -> Hold:
    """Return a hold taken at T."""
    at = T.timestamp()
    return Hold(job, "blue", decision, slots, at + 300.0, at + cooldown if cooldown else 0.0)


@pytest.fixture(params=["fake", "redis", "cluster"])
def run(request: pytest.FixtureRequest) -> Callable[[Callable[[Reservations, SetClock], Awaitable[None]]], None]:
    """Run a coroutine function with new, empty reservations."""
    url = ""
    if request.param == "redis":
        url = request.getfixturevalue("redis_url")
    elif request.param == "cluster":
        url = request.getfixturevalue("redis_cluster").url(0)

    @asynccontextmanager
    async def opened(clock: SetClock) -> AsyncIterator[Reservations]:
        if request.param == "fake":
            yield FakeReservations(clock)
            return
        client = AsyncRedisClient(url, decode_responses=True)
        reservations = RedisReservations(client, clock, prefix=f"test-{uuid.uuid4()}:", timeout_seconds=5)
        try:
            yield reservations
        finally:
            await client.aclose()

    def runner(body: Callable[[Reservations, SetClock], Awaitable[None]]) -> None:
        async def whole() -> None:
            clock = SetClock()
            async with opened(clock) as reservations:
                await body(reservations, clock)

        asyncio.run(whole())

    return runner


Runner = Callable[[Callable[[Any, SetClock], Awaitable[None]]], None]


class TestReservations:
    """Runs on the fake, on Redis, and on Redis in cluster mode."""

    def test_nothing_is_granted_before_it_was_restored(self, run: Runner) -> None:
        """Empty reservations refuse everything: they do not prove that nothing is held."""

        async def body(reservations: Reservations, clock: SetClock) -> None:
            assert await reservations.view("a", "blue") == ReservationView(RedisView.REBUILDING)
            assert await reservations.reserve(hold(), 10) is Answer.NOT_NOW
            assert await reservations.restore([])
            assert await reservations.view("a", "blue") == ReservationView(RedisView.OK)
            assert await reservations.reserve(hold(), 10) is Answer.TAKEN

        run(body)

    def test_a_cooldown_keeps_other_decisions_out(self, run: Runner) -> None:
        """Until it ends, a cooldown refuses every decision except its own."""

        async def body(reservations: Reservations, clock: SetClock) -> None:
            await reservations.restore([])
            assert await reservations.reserve(hold(decision="d1"), 10) is Answer.TAKEN
            assert await reservations.reserve(hold(decision="d2"), 10) is Answer.COOLDOWN
            assert await reservations.view("a", "blue") == ReservationView(
                RedisView.OK, T + timedelta(seconds=60), "d1", 0
            )
            clock.at = T + timedelta(seconds=61)
            assert await reservations.view("a", "blue") == ReservationView(RedisView.OK)
            late = Hold("a", "blue", "d2", 2, T.timestamp() + 400, T.timestamp() + 121)
            assert await reservations.reserve(late, 10) is Answer.TAKEN

        run(body)

    def test_a_cooldown_may_be_longer_than_any_clock_can_say(self, run: Runner) -> None:
        """Who never wants a second change sets a huge number; it ends in the year 9999, and is read as any other."""

        async def body(reservations: Reservations, clock: SetClock) -> None:
            forever = {"up_seconds": 1e13, "down_seconds": 1e13}
            await reservations.restore([])
            held = hold_for(job("a", guards={"cooldown": forever}), command(), 2)
            assert await reservations.reserve(held, 10) is Answer.TAKEN
            until = (await reservations.view("a", held.pool_id)).cooldown_until
            assert until is not None
            assert until.year == 9999

        run(body)

    def test_the_same_decision_gets_the_same_answer(self, run: Runner) -> None:
        """A decision repeated after a crash is not blocked by its own hold, even in a full pool."""

        async def body(reservations: Reservations, clock: SetClock) -> None:
            await reservations.restore([])
            assert await reservations.reserve(hold(slots=2), 2) is Answer.TAKEN
            assert await reservations.reserve(hold(slots=2), 0) is Answer.TAKEN
            assert (await reservations.view("b", "blue")).pool_reserved == 2

        run(body)

    def test_slots_are_never_reserved_twice(self, run: Runner) -> None:
        """If two jobs ask for the last slots, one gets them; the other is refused and holds nothing."""

        async def body(reservations: Reservations, clock: SetClock) -> None:
            await reservations.restore([])
            answers = await asyncio.gather(
                reservations.reserve(hold("a", "d1", slots=3), 4), reservations.reserve(hold("b", "d2", slots=3), 4)
            )
            assert sorted(answers) == [Answer.POOL, Answer.TAKEN]
            loser = "ab"[answers.index(Answer.POOL)]
            assert (await reservations.view(loser, "blue")).cooldown_until is None
            assert (await reservations.view("c", "blue")).pool_reserved == 3
            assert (await reservations.view("c", "green")).pool_reserved == 0

        run(body)

    def test_a_pool_of_unknown_size_refuses_nothing(self, run: Runner) -> None:
        """Unknown free slots refuse nothing: the engine has already decided what unknown means."""

        async def body(reservations: Reservations, clock: SetClock) -> None:
            await reservations.restore([])
            assert await reservations.reserve(hold(slots=50), None) is Answer.TAKEN

        run(body)

    def test_only_the_owner_adjusts_and_releases(self, run: Runner) -> None:
        """Only the decision that holds slots can change or release them; the cooldown stays."""

        async def body(reservations: Reservations, clock: SetClock) -> None:
            await reservations.restore([])
            await reservations.reserve(hold(slots=2), 10)
            await reservations.release("a", "blue", "other")
            assert (await reservations.view("b", "blue")).pool_reserved == 2
            await reservations.adjust("a", "blue", "d1", 6)
            assert (await reservations.view("b", "blue")).pool_reserved == 6
            await reservations.release("a", "blue", "d1")
            assert (await reservations.view("b", "blue")).pool_reserved == 0
            assert (await reservations.view("a", "blue")).cooldown_owner == "d1"

        run(body)

    def test_slots_expire_by_the_callers_time(self, run: Runner) -> None:
        """Slots that nobody releases expire by our clock, not by a key's time to live."""

        async def body(reservations: Reservations, clock: SetClock) -> None:
            await reservations.restore([])
            await reservations.reserve(hold(slots=2), 2)
            clock.at = T + timedelta(seconds=301)
            assert (await reservations.view("b", "blue")).pool_reserved == 0
            late = Hold("b", "blue", "d9", 2, T.timestamp() + 900, 0.0)
            assert await reservations.reserve(late, 2) is Answer.TAKEN

        run(body)

    def test_a_hold_without_cooldown_ignores_one(self, run: Runner) -> None:
        """A start takes no cooldown and waits for none, so a dead job restarts at once."""

        async def body(reservations: Reservations, clock: SetClock) -> None:
            await reservations.restore([])
            await reservations.reserve(hold(decision="d1"), 10)
            assert await reservations.reserve(hold(decision="d2", cooldown=0), 10) is Answer.TAKEN
            assert (await reservations.view("a", "blue")).cooldown_owner == "d1"

        run(body)

    def test_restoring_brings_back_what_is_held(self, run: Runner) -> None:
        """After a restore cooldowns and slots are as before, and a second restore changes nothing."""

        async def body(reservations: Reservations, clock: SetClock) -> None:
            assert await reservations.restore([hold("a", "d1", slots=2), hold("b", "d2", slots=3, cooldown=0)])
            assert await reservations.view("a", "blue") == ReservationView(
                RedisView.OK, T + timedelta(seconds=60), "d1", 3
            )
            assert await reservations.view("b", "blue") == ReservationView(RedisView.OK, pool_reserved=2)
            assert not await reservations.restore([])
            assert (await reservations.view("c", "blue")).pool_reserved == 5

        run(body)
