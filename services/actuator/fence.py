"""The fence of a job: which run of it is the newest, and which actuator may act for it.

To act, an actuator *claims* the job with the next token of its command's epoch. There are two kinds of claims in the
control directory. The fence allows a new run and forbids every older one. An order for a size leaves the run that it
is meant for as it is: its driver may start further queries. Both have tokens of one sequence, and the newest claim of
either kind tells which actuator may act, so one that was overtaken by an order cannot undo it. One that has claimed
nothing, because it has taken a command up half-way or only warms up a driver, may act until another one claims the job.

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
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, cast

import redis

from tidegate.launcher.control.claims import Claims
from tidegate.launcher.control.files import Control, SizeOrder, Token
from tidegate.runtime.ledger import fence_key
from tidegate.runtime.redis_server import in_words

log = logging.getLogger(__name__)

FENCE_SECONDS = 30 * 86_400
"""How long Redis keeps a fence: as long as Kafka keeps the results, from which it could be rebuilt."""

_LUA = (Path(__file__).parent / "fence.lua").read_text(encoding="utf-8")


def probed_keys(prefix: str) -> tuple[str]:
    """Return a key of no fence, by which to find out whether Redis lets the actuator write."""
    return (fence_key(prefix, ""),)


class Fence(Protocol):
    """Gives out tokens, each once."""

    def claim(self, control: Control, job_id: str, epoch: int, owner: str) -> Token | None:
        """Return the next token of `epoch`, which is now this owner's; None if a newer epoch has claimed the job."""


class Outfenced(Exception):
    """A newer command holds the job's fence."""


class Overtaken(Exception):
    """Another actuator carries out the same command."""


@dataclass
class JobFence:
    """One actuator's hold on the fence of one job, for one command."""

    fence: Fence
    control: Control
    job_id: str
    epoch: int
    owner: str
    token: Token | None = field(init=False, default=None)
    """With which this actuator has claimed the job."""
    _found: list[tuple[Token, str] | None] = field(init=False, default_factory=list)
    """The newest claim on the job when this actuator made one, or first looked at it."""

    def take(self) -> Token:
        """Take the fence for the command's next run; raise `Outfenced` or `Overtaken`."""
        return self._claim(lambda token: Claims(self.control).raise_fence(token, self.owner))

    def order(self, for_run: Token, parallelism: int, command_id: str) -> Token:
        """Order a size from the driver of a run; raise `Outfenced` or `Overtaken`."""
        return self._claim(
            lambda token: Claims(self.control).order_size(
                SizeOrder(token, self.owner, for_run, parallelism), command_id
            )
        )

    def hold(self) -> Token:
        """Return the run that this actuator has taken the fence for; take it now if it has not."""
        return self.token if self.token is not None and self.token == self.newest() else self.take()

    def newest(self) -> Token | None:
        """Return the newest run that any actuator has taken the fence for."""
        held = self.control.fence()
        return None if held is None else held[0]

    def check_epoch(self) -> None:
        """Raise `Outfenced` if a newer command has claimed the job; claim nothing."""
        newest = Claims(self.control).newest()
        if newest is not None and newest[0].epoch > self.epoch:
            raise Outfenced

    def lost(self) -> bool:
        """Return whether another actuator has claimed the job since this one did, or took the command up.

        Raises `Outfenced` if there is a claim for a newer command, and this actuator has made none.
        """
        newest = Claims(self.control).newest()
        if self.token is None and newest is not None and newest[0].epoch > self.epoch:
            raise Outfenced
        self._found = self._found or [newest]
        return newest != self._found[0] and (newest is None or newest[1] != self.owner)

    def _claim(self, write: Callable[[Token], bool]) -> Token:
        self.token = None
        token = self.fence.claim(self.control, self.job_id, self.epoch, self.owner)
        if token is None:
            raise Outfenced
        if not write(token):
            self.check_epoch()
            raise Overtaken
        self.token, self._found = token, [(token, self.owner)]
        return token


class RedisFence:
    """Tokens by an atomic compare-and-set in Redis."""

    def __init__(self, client: redis.Redis, prefix: str) -> None:
        self._client = client
        self._prefix = prefix

    def claim(self, control: Control, job_id: str, epoch: int, owner: str) -> Token | None:
        """Return the next token of `epoch`, which is now this owner's; None if a newer epoch has claimed the job."""
        newest = Claims(control).newest()
        if newest is not None and newest[0].epoch > epoch:
            return None
        token = Claims(control).next_token(epoch)
        while (newer := self._ask_redis(job_id, token, owner)) is not None:
            if newer.epoch > epoch:
                return None
            # an actuator took this token in Redis and died before it wrote the control directory
            token = Token(epoch, newer.run + 1)
        return token

    def _ask_redis(self, job_id: str, token: Token, owner: str) -> Token | None:
        """Return the token that forbids `token`; None if there is none, or if Redis does not answer."""
        try:
            args: list[str | int] = [token.epoch, token.run, owner, FENCE_SECONDS]
            # Not by its hash, as each job's fence may be on another node of a cluster, which lacks the script.
            answer = cast(list[int], self._client.eval(_LUA, 1, fence_key(self._prefix, job_id), *args))
        except redis.RedisError as error:
            log.warning(
                "job %s: Redis cannot be used (%s); the log and the control directory decide", job_id, in_words(error)
            )
            return None
        return None if answer[0] else Token(answer[1], answer[2])
