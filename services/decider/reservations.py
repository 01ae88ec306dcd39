"""Cooldowns and pool reservations in Redis. One Lua script makes each change, so changes are atomic.

`tidegate.runtime.ledger` has the keys. The marker `view` says that the others are complete. Redis only caches what the
topics say. Without the marker nothing is granted until `restore` has rewritten everything, and the marker last. A
damaged key removes the marker, so damage is handled like loss. So does a server that is not the one the marker names:
a replica that took over, or a server that was restarted, may lack the newest writes.

A cached view comes from the newest `refresh`. It is enough to decide that there is nothing to do, and never enough to
send a command.

A Redis in cluster mode refuses a script whose keys are in several slots. The decider then uses names with a tag, which
are all in one. Each rebuild begins without the tag again, and the marker says under which names it was made: a view
under other names, as another decider might have, does not count. So no two deciders can use different names for long,
and neither grants anything before it has rebuilt what the other one holds.

An outage costs one timeout. For the next `retry_seconds` every answer is "unreachable" without asking Redis. What was
to be released meanwhile is released by the first `refresh` after it. Otherwise nobody else could have these slots until
they lapse, which may take an hour.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.commands.core import AsyncScript
from redis.exceptions import ClusterCrossSlotError, RedisError

from tidegate.engine.reservations import Answer, Hold, ReservationView
from tidegate.events.decision import RedisView
from tidegate.events.job import JobSpec
from tidegate.remote.redis_client import AsyncRedisClient
from tidegate.runtime.clock import Clock
from tidegate.runtime.ledger import cooldown_key, pool_key, slot_tag, view_key
from tidegate.runtime.redis_server import Outage, address_of
from tidegate.runtime.settings import RedisSettings

log = logging.getLogger(__name__)

HERE = Path(__file__).parent
CACHE_SECONDS = 3.0
"""How old a cached view may be."""

MOST_CONNECTIONS = 10_000
"""More than there are lanes, each of which may need one. At the client's default of 100, further lanes would fail."""

RELEASE = -1
"""To `adjust.lua`: release all slots."""

CHUNK = 1000
"""Jobs per refresh script, so that no script blocks Redis for long."""


class RedisUnreachable(RuntimeError):
    """Redis did not answer, or its answer makes no sense."""


def written_keys(prefix: str) -> tuple[str, str]:
    """Return keys, of no job and no pool, by which to find out whether Redis lets the decider write.

    They have the tag, so that a cluster is asked where it keeps all others.
    """
    return cooldown_key(prefix, "") + slot_tag(prefix), pool_key(prefix, "") + slot_tag(prefix)


def connect(settings: RedisSettings) -> AsyncRedisClient:
    """Return a client that does not retry and waits no longer than the timeout."""
    retry = Retry(NoBackoff(), 0)
    return AsyncRedisClient(**settings.redis(), retry=retry, max_connections=MOST_CONNECTIONS, decode_responses=True)


class RedisReservations:
    """The `Reservations` on a Redis server, for one event loop."""

    def __init__(
        self, redis: Redis, clock: Clock, *, prefix: str, timeout_seconds: float = 1.0, retry_seconds: float = 2.0
    ) -> None:
        self._redis = redis
        self._clock = clock
        self._prefix = prefix
        self._tag = ""
        """How the names of cooldowns and pools end."""
        self._timeout = timeout_seconds
        self._retry = retry_seconds
        self._paused_until = 0.0
        self._outage = Outage(address_of(redis), "no job is rescaled until it can")
        self._warned = False
        self._asked: dict[str, str] = {}
        """The pool of each job that was asked for."""
        self._owed: dict[tuple[str, str], tuple[str, int]] = {}
        """By job and decision, what Redis has not confirmed yet: the pool, and how many slots are to be held in it."""
        self._condition = RedisView.UNREACHABLE
        self._cooldowns: dict[str, dict[str, Any]] = {}
        self._pools: dict[str, dict[str, dict[str, Any]]] = {}
        self._cached_jobs: frozenset[str] = frozenset()
        self._cached_at = float("-inf")
        common = (HERE / "common.lua").read_text()
        self._scripts: dict[str, AsyncScript] = {
            name: redis.register_script(common + (HERE / f"{name}.lua").read_text())
            for name in ("view", "refresh", "reserve", "adjust", "restore")
        }

    async def view(self, job_id: str, pool_id: str) -> ReservationView:
        """Return what the job holds now, and what others hold in the pool."""
        self._asked[job_id] = pool_id
        try:
            answer = await self._run("view", self._keys(job_id, pool_id), self._now(), job_id)
        except RedisUnreachable:
            return ReservationView(RedisView.UNREACHABLE)
        if answer[0] != "ok":
            return ReservationView(RedisView.REBUILDING)
        _, owner, until, others = answer
        if not owner:
            return ReservationView(RedisView.OK, pool_reserved=int(others))
        return ReservationView(RedisView.OK, datetime.fromtimestamp(float(until), UTC), owner, int(others))

    async def reserve(self, hold: Hold, free: int | None) -> Answer:
        """Take a hold completely or not at all; `free` is the pool's measured free slots, None if unknown."""
        keys, whole = self._keys(hold.job_id, hold.pool_id), json.dumps(asdict(hold))
        try:
            (answer,) = await self._run("reserve", keys, self._now(), whole, -1 if free is None else free)
        except RedisUnreachable:  # it may have been taken all the same
            self._owed[hold.job_id, hold.decision_id] = hold.pool_id, RELEASE
            return Answer.NOT_NOW
        self._owed.pop((hold.job_id, hold.decision_id), None)
        return Answer.NOT_NOW if answer == "rebuilding" else Answer(answer)

    async def adjust(self, job_id: str, pool_id: str, decision_id: str, slots: int) -> None:
        """Change the slots of a hold, if the decision owns it."""
        keys = self._keys(job_id, pool_id)[1:]
        owed = self._owed[job_id, decision_id] = pool_id, slots
        try:
            (answer,) = await self._run("adjust", keys, self._now(), job_id, decision_id, slots)
        except RedisUnreachable:
            log.debug("slots of %s not adjusted: redis is unreachable", job_id)
            return
        # Whoever rebuilds may have read the topics before the result that asks for this was there.
        if answer != "rebuilding" and self._owed.get((job_id, decision_id)) is owed:
            del self._owed[job_id, decision_id]

    async def release(self, job_id: str, pool_id: str, decision_id: str) -> None:
        """Release the slots of a hold, if the decision owns it; the cooldown stays."""
        await self.adjust(job_id, pool_id, decision_id, RELEASE)

    async def restore(self, holds: list[Hold], specs: Iterable[JobSpec] = ()) -> bool:
        """Replace everything with `holds`; return False if nothing needed it or Redis is unreachable.

        `specs` are those of all jobs. What Redis has of any other job lapses by itself: to find it, one would have to
        go through all keys, and others may have millions on the same Redis.
        """
        pools = self._asked | {spec.job_id: spec.pool_id for spec in specs}
        pools |= {hold.job_id: hold.pool_id for hold in holds}
        theirs = {key for job, pool in pools.items() for key in self._keys(job, pool)[:2]}
        everything = json.dumps([asdict(hold) for hold in holds])
        self._tag = ""
        try:
            keys = [view_key(self._prefix), *self._keys("", "")[:2], *theirs]
            (answer,) = await self._run("restore", keys, self._now(), self._prefix, everything)
        except RedisUnreachable:
            return False
        return bool(answer == "restored")

    def cached_view(self, job_id: str, pool_id: str) -> ReservationView | None:
        """Return the view from the newest `refresh`; None if that is too old or did not cover the job."""
        if self._clock.monotonic() - self._cached_at > CACHE_SECONDS:
            return None
        if self._condition is not RedisView.OK:
            return ReservationView(self._condition)
        entries = self._pools.get(pool_id)
        if entries is None or job_id not in self._cached_jobs:
            return None
        now = self._clock.now().timestamp()
        reserved = sum(e["slots"] for job, e in entries.items() if job != job_id and e["until"] > now) if entries else 0
        cooldown = self._cooldowns.get(job_id)
        if cooldown is None or cooldown["until"] <= now:
            return ReservationView(RedisView.OK, pool_reserved=reserved)
        until = datetime.fromtimestamp(cooldown["until"], UTC)
        return ReservationView(RedisView.OK, until, cooldown["decision_id"], reserved)

    async def refresh(self) -> RedisView:
        """Read the reservations of all known jobs into the cache; return whether Redis can be used."""
        for (job_id, decision_id), owed in list(self._owed.items()):
            if self._owed.get((job_id, decision_id)) is owed:
                await self.adjust(job_id, owed[0], decision_id, owed[1])
        jobs, pools = list(self._asked), sorted(set(self._asked.values()))
        cooldowns: dict[str, dict[str, Any]] = {}
        found: dict[str, dict[str, dict[str, Any]]] = {}
        keys = [view_key(self._prefix), *self._keys("", "")[:2]]
        condition = RedisView.OK
        for first in range(0, max(1, len(jobs)), CHUNK):
            chunk = json.dumps(jobs[first : first + CHUNK])
            try:
                answer = await self._run("refresh", keys, self._prefix, chunk, json.dumps(pools))
            except RedisUnreachable:
                condition = RedisView.UNREACHABLE
                break
            if answer[0] != "ok":
                condition = RedisView.REBUILDING
                break
            seen = json.loads(answer[1])
            self._warn_of(seen["server"])
            cooldowns |= seen["cooldowns"]
            found = seen["pools"]
        self._condition, self._cooldowns, self._pools = condition, cooldowns, found
        self._cached_jobs, self._cached_at = frozenset(jobs), self._clock.monotonic()
        return condition

    def _warn_of(self, server: str) -> None:
        """Warn, once, that nobody can tell one server from another."""
        if not server and not self._warned:
            log.warning(
                "redis does not let the decider use INFO, so writes that were lost in a failover or a restart go "
                "unnoticed, and two jobs may count on the same slots; give its user the right +info"
            )
            self._warned = True

    def forget(self, job_id: str) -> None:
        """Read a job's reservations no more, until its next view. What it holds ends by itself."""
        self._asked.pop(job_id, None)

    def _now(self) -> str:
        return repr(self._clock.now().timestamp())

    def _keys(self, job_id: str, pool_id: str) -> list[str]:
        return [cooldown_key(self._prefix, job_id), pool_key(self._prefix, pool_id), view_key(self._prefix)]

    async def _run(self, name: str, keys: Sequence[str], *args: str | int) -> list[Any]:
        """Run a script within the timeout, or raise `RedisUnreachable`; after a failure raise at once for a while."""
        if self._clock.monotonic() < self._paused_until:
            raise RedisUnreachable("pausing after a failure")
        try:
            async with asyncio.timeout(self._timeout):
                answer = await self._ask(name, keys, args)
        except (RedisError, OSError, TimeoutError) as error:
            self._paused_until = self._clock.monotonic() + self._retry
            self._outage.add(error)
            raise RedisUnreachable(str(error)) from error
        self._outage.end()
        if not isinstance(answer, list) or not answer:
            raise RedisUnreachable(f"script {name} answered {answer!r}")
        return answer

    async def _ask(self, name: str, keys: Sequence[str], args: Sequence[str | int]) -> Any:
        """Run a script, under the names that this Redis takes."""
        script, tag = self._scripts[name], slot_tag(self._prefix)
        if not self._tag:
            try:
                return await script(keys=list(keys), args=list(args))
            except ClusterCrossSlotError:
                self._tag = tag
        marker = view_key(self._prefix)
        return await script(keys=[key if key == marker else key + tag for key in keys], args=list(args))
