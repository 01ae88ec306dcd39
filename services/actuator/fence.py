"""The fence of a job: which run of it is the newest, and which actuator speaks for it.

Three hold it, from the truth to the convenience:

1. the *ledger*, rebuilt from the results topic: a command whose epoch was passed is refused before anything else;
2. the *control directory*: the driver itself reads it in the instant before its first write, so that a run submitted
   by an actuator that was paused meanwhile ends without touching the checkpoint;
3. *Redis*: an atomic compare-and-set between two actuators that believe at the same time to own a job.

Redis unreachable: 1 and 2 decide, and we go on. They can: the ledger is read to its end before a partition's
first command is carried out (until then nothing is: fail closed), and the group gives a partition to one actuator.
Redis emptied: the next raise writes the fence anew, from a command the ledger has already admitted.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Protocol, cast

import redis

from tidegate.launcher.control import Control, Token

log = logging.getLogger(__name__)

FENCE_SECONDS = 30 * 86_400
"""Life of a fence in Redis: that of the results topic, which is the truth behind it."""

_TRIES = 3
_LUA = (Path(__file__).parent / "fence.lua").read_text(encoding="utf-8")


class Fence(Protocol):
    """Where a run is made the newest of its job."""

    def take(self, control: Control, job_id: str, epoch: int, owner: str, above: int = 0) -> Token | None:
        """Make a run of `epoch`, its number over `above` and every one before, the newest; None: outfenced."""
        ...


class RedisFence:
    """The fence in Redis and in the control directory."""

    def __init__(self, client: redis.Redis, prefix: str) -> None:
        self._client = client
        self._prefix = prefix
        self._script = client.register_script(_LUA)

    def take(self, control: Control, job_id: str, epoch: int, owner: str, above: int = 0) -> Token | None:
        """Make a run of `epoch`, its number over `above` and every one before, the newest; None: outfenced."""
        held = control.fence()
        known = [token.run for token in control.runs() if token.epoch == epoch]
        if held is not None:
            if held[0].epoch > epoch:
                return None
            known += [held[0].run] if held[0].epoch == epoch else []
        token = Token(epoch, max([above, *known]) + 1)
        for _ in range(_TRIES):
            passed = self._ask_redis(job_id, token, owner)
            if passed is None:
                return token if control.raise_fence(token, owner) else None
            if passed.epoch > epoch:
                return None
            token = Token(epoch, passed.run + 1)  # one who took it there and died before the control directory knew
        return None

    def _ask_redis(self, job_id: str, token: Token, owner: str) -> Token | None:
        """Return the run that forbids `token`; None if none does, or if Redis does not say."""
        try:
            args: list[str | int] = [token.epoch, token.run, owner, FENCE_SECONDS]
            answer = cast(list[int], self._script(keys=[f"{self._prefix}fence:{job_id}"], args=args))
        except redis.RedisError as error:
            log.warning("job %s: Redis cannot be asked (%s); ledger and control directory decide", job_id, error)
            return None
        return None if answer[0] else Token(answer[1], answer[2])
