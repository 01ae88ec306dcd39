"""The fence of a job: which run of it is the newest, and which actuator may act for it.

Three places hold it, the most authoritative first:

1. The *command log*, rebuilt from the results topic: a command whose epoch is not newer is refused first of all.
2. The *control directory*: the driver reads it just before its first write, so a run that was submitted by an actuator
   that has been overtaken ends without touching the checkpoint.
3. *Redis*: an atomic compare-and-set between two actuators that both believe a job is theirs.

If Redis is unreachable, 1 and 2 decide. That is enough: no command of a partition is carried out before the log has
been read to its end, and the consumer group gives each partition to one actuator. If Redis was emptied, the next
`take` writes the fence again, for a command that the log has already admitted.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Protocol, cast

import redis

from tidegate.launcher.control import Control, Token

log = logging.getLogger(__name__)

FENCE_SECONDS = 30 * 86_400
"""How long Redis keeps a fence: as long as Kafka keeps the results, from which it could be rebuilt."""

_TRIES = 3
_LUA = (Path(__file__).parent / "fence.lua").read_text(encoding="utf-8")


class Fence(Protocol):
    """Makes a run the newest of its job."""

    def take(self, control: Control, job_id: str, epoch: int, owner: str) -> Token | None:
        """Make the next run of `epoch` the newest; return its token, or None if a newer epoch holds the fence."""
        ...


class Outfenced(Exception):
    """A newer command holds the job's fence."""


class JobFence:
    """One actuator's hold on the fence of one job, for one command."""

    def __init__(self, fence: Fence, control: Control, job_id: str, epoch: int, owner: str) -> None:
        self._fence = fence
        self._control = control
        self._job_id = job_id
        self._epoch = epoch
        self._owner = owner
        self.token: Token | None = None
        """The run that this actuator has taken the fence for."""

    def take(self) -> Token:
        """Take the fence for the command's next run; raise `Outfenced` if a newer command holds it."""
        self.token = None
        self.token = self._fence.take(self._control, self._job_id, self._epoch, self._owner)
        if self.token is None:
            raise Outfenced
        return self.token

    def hold(self) -> Token:
        """Return the run that this actuator has taken the fence for; take it now if it has not."""
        return self.token or self.take()

    def newest(self) -> Token | None:
        """Return the newest run that any actuator has taken the fence for."""
        held = self._control.fence()
        return None if held is None else held[0]

    def check_epoch(self) -> None:
        """Raise `Outfenced` if a newer command holds the fence; take nothing."""
        newest = self.newest()
        if newest is not None and newest.epoch > self._epoch:
            raise Outfenced

    def lost(self) -> bool:
        """Return whether another actuator holds the fence that this one has taken."""
        return self.token is not None and self._control.fence() != (self.token, self._owner)


class RedisFence:
    """The fence in Redis and in the control directory."""

    def __init__(self, client: redis.Redis, prefix: str) -> None:
        self._prefix = prefix
        self._script = client.register_script(_LUA)

    def take(self, control: Control, job_id: str, epoch: int, owner: str) -> Token | None:
        """Make the next run of `epoch` the newest; return its token, or None if a newer epoch holds the fence."""
        held = control.fence()
        known = [token.run for token in control.runs() if token.epoch == epoch]
        if held is not None:
            if held[0].epoch > epoch:
                return None
            known += [held[0].run] if held[0].epoch == epoch else []
        token = Token(epoch, max(known, default=0) + 1)
        for _ in range(_TRIES):
            newer = self._ask_redis(job_id, token, owner)
            if newer is None:
                return token if control.raise_fence(token, owner) else None
            if newer.epoch > epoch:
                return None
            # an actuator took this run in Redis and died before it wrote the control directory
            token = Token(epoch, newer.run + 1)
        return None

    def _ask_redis(self, job_id: str, token: Token, owner: str) -> Token | None:
        """Return the run that forbids `token`; None if there is none, or if Redis does not answer."""
        try:
            args: list[str | int] = [token.epoch, token.run, owner, FENCE_SECONDS]
            answer = cast(list[int], self._script(keys=[f"{self._prefix}fence:{job_id}"], args=args))
        except redis.RedisError as error:
            log.warning("job %s: Redis does not answer (%s); the log and the control directory decide", job_id, error)
            return None
        return None if answer[0] else Token(answer[1], answer[2])
