"""The ledger on Redis: cooldowns and pool reservations, each change one Lua script, so atomic.

Keys under the prefix: `cooldown:<job>` {decision_id, until}, `pool:<pool>` a hash of job to {slots, decision_id,
until}, and `view`, the marker that the other two are whole. Redis is only a view of the topics: without the marker
nothing is granted until `restore` has written everything anew and the marker last. A key that is not as we write it
removes the marker, so damage is treated like loss.

A glance is what the newest `refresh` saw: enough to say "nothing to do", never enough to order a command.

An outage costs one bounded timeout; then Redis is left alone for `retry_seconds` and every answer is "unreachable".
"""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.commands.core import AsyncScript
from redis.exceptions import RedisError

from services.decider.ports import instant
from tidegate.engine.reservations import Answer, Hold, ReservationView
from tidegate.events.decision import RedisView
from tidegate.runtime.clock import Clock
from tidegate.runtime.settings import RedisSettings

log = logging.getLogger(__name__)

HERE = Path(__file__).parent
GLANCE_SECONDS = 3.0
"""How old a glance may be."""

MOST_CONNECTIONS = 10_000
"""More than there are lanes, each of which may need one: beyond the client's own 100 a lane would see an outage."""

CHUNK = 1000
"""Jobs looked at by one script: no script keeps Redis busy for long."""


class LedgerUnreachable(RuntimeError):
    """Redis did not answer, or not as it must."""


def connect(settings: RedisSettings) -> Redis:
    """Return a client that neither retries nor waits longer than the timeout."""
    password = settings.redis_password.get_secret_value() if settings.redis_password else None
    return Redis.from_url(
        settings.redis_url,
        username=settings.redis_username,
        password=password,
        socket_timeout=settings.redis_timeout_seconds,
        socket_connect_timeout=settings.redis_timeout_seconds,
        retry=Retry(NoBackoff(), 0),
        max_connections=MOST_CONNECTIONS,
        decode_responses=True,
    )


class RedisLedger:
    """The `Ledger` on a Redis server. One event loop uses it."""

    def __init__(
        self, redis: Redis, clock: Clock, *, prefix: str, timeout_seconds: float = 1.0, retry_seconds: float = 2.0
    ) -> None:
        self._redis = redis
        self._clock = clock
        self._prefix = prefix
        self._timeout = timeout_seconds
        self._retry = retry_seconds
        self._leave_alone_until = 0.0
        self._failing = False
        self._asked: dict[str, None] = {}
        self._asked_pools: set[str] = set()
        self._condition = RedisView.UNREACHABLE
        self._cooldowns: dict[str, dict[str, Any]] = {}
        self._pools: dict[str, dict[str, dict[str, Any]]] = {}
        self._looked_for: frozenset[str] = frozenset()
        self._looked_at = float("-inf")
        common = (HERE / "common.lua").read_text()
        self._scripts: dict[str, AsyncScript] = {
            name: redis.register_script(common + (HERE / f"{name}.lua").read_text())
            for name in ("view", "glance", "reserve", "settle", "restore")
        }

    async def view(self, job_id: str, pool_id: str) -> ReservationView:
        """Return what is held now by the job, and by others in the pool."""
        self._asked[job_id] = None
        self._asked_pools.add(pool_id)
        try:
            answer = await self._run("view", self._keys(job_id, pool_id), self._now(), job_id)
        except LedgerUnreachable:
            return ReservationView(RedisView.UNREACHABLE)
        if answer[0] != "ok":
            return ReservationView(RedisView.REBUILDING)
        _, owner, until, others = answer
        if not owner:
            return ReservationView(RedisView.OK, pool_reserved=int(others))
        return ReservationView(RedisView.OK, instant(float(until)), owner, int(others))

    async def reserve(self, hold: Hold, free: int | None) -> Answer:
        """Take a hold whole or not at all; `free` is the pool's free slots as measured, None where unknown."""
        try:
            (answer,) = await self._run(
                "reserve",
                self._keys(hold.job_id, hold.pool_id),
                self._now(),
                hold.job_id,
                hold.decision_id,
                repr(hold.cooldown_until),
                hold.slots,
                repr(hold.slots_until),
                -1 if free is None else free,
            )
        except LedgerUnreachable:
            return Answer.NOT_NOW
        return Answer.NOT_NOW if answer == "rebuilding" else Answer(answer)

    async def settle(self, job_id: str, pool_id: str, decision_id: str, slots: int | None) -> None:
        """Set the slots of a hold, or (None) give them back; nothing if the decision does not own them."""
        keys = self._keys(job_id, pool_id)[1:]
        try:
            await self._run("settle", keys, self._now(), job_id, decision_id, -1 if slots is None else slots)
        except LedgerUnreachable:
            # The promise lapses by itself at its `until`, and the job's next hold replaces it.
            log.debug("slots of %s not settled: redis is unreachable", job_id)

    async def restore(self, holds: list[Hold]) -> bool:
        """Replace everything by `holds` and be readable again; False if it already was, or cannot be reached."""
        # An empty array needs care: Lua reads `[]` as an empty table, which is what is wanted.
        everything = json.dumps([asdict(hold) for hold in holds])
        try:
            (answer,) = await self._run("restore", [f"{self._prefix}view"], self._now(), self._prefix, everything)
        except LedgerUnreachable:
            return False
        return bool(answer == "restored")

    def glance(self, job_id: str, pool_id: str) -> ReservationView | None:
        """Return what `refresh` saw for the job, without asking again; None if it did not look, or too long ago."""
        if self._clock.monotonic() - self._looked_at > GLANCE_SECONDS:
            return None
        if self._condition is not RedisView.OK:
            return ReservationView(self._condition)
        entries = self._pools.get(pool_id)
        if entries is None or job_id not in self._looked_for:
            return None
        now = self._clock.now().timestamp()
        reserved = sum(e["slots"] for job, e in entries.items() if job != job_id and e["until"] > now) if entries else 0
        cooldown = self._cooldowns.get(job_id)
        if cooldown is None or cooldown["until"] <= now:
            return ReservationView(RedisView.OK, pool_reserved=reserved)
        return ReservationView(RedisView.OK, instant(cooldown["until"]), cooldown["decision_id"], reserved)

    async def refresh(self) -> RedisView:
        """Look at all jobs that have been asked for; return whether the ledger can be read at all."""
        jobs, pools = list(self._asked), sorted(self._asked_pools)
        cooldowns: dict[str, dict[str, Any]] = {}
        found: dict[str, dict[str, dict[str, Any]]] = {}
        condition = RedisView.OK
        for first in range(0, max(1, len(jobs)), CHUNK):
            chunk = json.dumps(jobs[first : first + CHUNK])
            try:
                answer = await self._run("glance", [f"{self._prefix}view"], self._prefix, chunk, json.dumps(pools))
            except LedgerUnreachable:
                condition = RedisView.UNREACHABLE
                break
            if answer[0] != "ok":
                condition = RedisView.REBUILDING
                break
            seen = json.loads(answer[1])
            cooldowns |= seen["cooldowns"]
            found = seen["pools"]
        self._condition, self._cooldowns, self._pools = condition, cooldowns, found
        self._looked_for, self._looked_at = frozenset(jobs), self._clock.monotonic()
        return condition

    async def close(self) -> None:
        """Give the connection back."""
        await self._redis.aclose()

    def _now(self) -> str:
        return repr(self._clock.now().timestamp())

    def _keys(self, job_id: str, pool_id: str) -> list[str]:
        return [f"{self._prefix}cooldown:{job_id}", f"{self._prefix}pool:{pool_id}", f"{self._prefix}view"]

    async def _run(self, name: str, keys: list[str], *args: str | int) -> list[Any]:
        """Run a script within the timeout, or raise `LedgerUnreachable`; after a failure, for a while at once."""
        if self._clock.monotonic() < self._leave_alone_until:
            raise LedgerUnreachable("left alone after a failure")
        try:
            async with asyncio.timeout(self._timeout):
                answer = await self._scripts[name](keys=keys, args=list(args))
        except (RedisError, OSError, TimeoutError) as error:
            self._leave_alone_until = self._clock.monotonic() + self._retry
            if not self._failing:
                log.warning("redis does not answer (%s: %s): every change is held", type(error).__name__, error)
            self._failing = True
            raise LedgerUnreachable(str(error)) from error
        if self._failing:
            log.info("redis answers again")
        self._failing = False
        if not isinstance(answer, list) or not answer:
            raise LedgerUnreachable(f"script {name} answered {answer!r}")
        return answer
