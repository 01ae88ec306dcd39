"""Hindsight: what would have come of it had a growth not been made.

From the order of a growth on, the size p it left is played on as a *shadow* of the job, with what really arrives and
the capacity C(p) that was learned for it:

    shadow lag  =  max(0, shadow lag + arrivals - C(p) · Δt)

What would be seen of it is up to twice as much, since the records of a batch count until it is committed. If that is
late, the growth was needed. If the lag was worked off without ever having been late, and the job is back at p slots or
fewer, the growth was *in vain*: the load would have turned before lag became too long. After `TIMES` such growths on
end the job is calm: it grows no further than p as long as neither arrivals nor lag are above what p would have come
through, with `SLACK`. So a load that comes and goes, such as a batch that arrives every hour, is not followed for ever.
The first growth that was needed ends the calm.

Source: regret against the best action in hindsight (Hannan, 1957; Cesa-Bianchi & Lugosi, "Prediction, Learning, and
Games", 2006, chapter 4), here of one action at a time.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from tidegate.engine.tide.capacity import CapacityModel

TIMES = 2
SLACK = 1.1
FORGOTTEN_SECONDS = 7200.0
"""After so long without such a load, it has to be learned anew."""

KEPT = 4


class Shadow(NamedTuple):
    """A size that was left by a growth, played on."""

    size: int
    at: float
    """Epoch seconds up to which it was played."""
    arrived: int
    """Sum of the broker's end offsets then."""
    lag: float
    """Records that had arrived and were not processed."""
    most_lag: float
    """Largest lag that would have been seen so far: records count until their batch is committed."""
    most_rate: float
    """Largest arrival rate so far, records/s."""

    def played(self, at: float, arrived: int, capacity: float, batch: float) -> Shadow | None:
        """Return the shadow played up to `at`, in batches of at most `batch` records.

        None if time or offsets went backwards.
        """
        came, seconds = arrived - self.arrived, at - self.at
        if came < 0 or seconds <= 0:
            return None
        lag = max(0.0, self.lag + came - capacity * seconds)
        seen = lag + min(lag, batch)
        return Shadow(self.size, at, arrived, lag, max(self.most_lag, seen), max(self.most_rate, came / seconds))


class Vain(NamedTuple):
    """Growths from a size that were in vain."""

    size: int
    times: int
    lag: float
    """Records of lag the size would have come through."""
    rate: float
    """Arrivals it would have come through, records/s."""
    at: float
    """When such a load was last seen, epoch seconds."""


class Hindsight(NamedTuple):
    """The shadows of a job, and what they have shown."""

    shadows: tuple[Shadow, ...] = ()
    vain: tuple[Vain, ...] = ()

    def grown(self, size: int, at: float, arrived: int | None, lag: float) -> Hindsight:
        """Return the hindsight with the size that a growth leaves as a shadow, if it is none yet."""
        if arrived is None or any(shadow.size == size for shadow in self.shadows):
            return self
        return self._replace(shadows=(*self.shadows, Shadow(size, at, arrived, lag, lag, 0.0))[-KEPT:])

    def watched(
        self, at: float, arrived: int | None, known: CapacityModel, *, late_seconds: float, done_seconds: float
    ) -> Hindsight:
        """Return the hindsight after all shadows were played up to `at`.

        A shadow is late with more than `late_seconds` of work waiting, and done with no more than `done_seconds`.
        """
        if not self.shadows or arrived is None:
            return self
        shadows, vain = [], self.vain
        for before in self.shadows:
            capacity = known.capacity(before.size)
            shadow = before.played(at, arrived, capacity, known.pace.records or math.inf)
            if shadow is None:
                continue
            if shadow.most_lag > late_seconds * capacity:
                vain = tuple(found for found in vain if found.size != shadow.size)
            elif known.size <= shadow.size and shadow.lag <= done_seconds * capacity:
                vain = _with(vain, shadow)
            else:
                shadows.append(shadow)
        return Hindsight(tuple(shadows), vain)

    def calm(self, sizes: range, at: float, lag: float, rate: float, restart_seconds: float) -> Vain | None:
        """Return the smallest of `sizes`, from the present one on, beyond which growth would be in vain, or None."""
        found = [
            vain
            for vain in self.vain
            if vain.size in sizes
            and vain.times >= TIMES
            and at - vain.at <= FORGOTTEN_SECONDS
            and rate <= SLACK * vain.rate
            and lag + (rate * restart_seconds if vain.size > sizes.start else 0.0) <= SLACK * vain.lag
        ]
        return min(found, default=None)

    def seen(self, found: Vain, at: float) -> Hindsight:
        """Return the hindsight after a load of the same kind was seen."""
        return self._replace(vain=tuple(found._replace(at=at) if old is found else old for old in self.vain))


def _with(vain: tuple[Vain, ...], done: Shadow) -> tuple[Vain, ...]:
    """Return what was in vain with one more growth; of the loads one size came through, the largest counts."""
    size, at, _, _, lag, rate = done
    times, others = 1, []
    for old in vain:
        if old.size == size:
            times, lag, rate = old.times + 1, max(old.lag, lag), max(old.rate, rate)
        else:
            others.append(old)
    return (*others[-KEPT + 1 :], Vain(size, times, lag, rate, at))


NO_HINDSIGHT = Hindsight()
"""Of a job that has not grown yet."""
