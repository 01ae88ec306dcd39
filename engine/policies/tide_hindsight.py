"""Hindsight: what would have come of it had a growth not been made.

From the order of a growth on, the size p it left is played on as a *shadow* of the job, with what really arrives and
the capacity C(p) that was learned for it:

    shadow lag  =  max(0, shadow lag + arrivals - C(p) · Δt)

If the shadow is late, the growth was needed. If it has worked off its lag without ever having been late, and the job
is back at p slots or fewer, the growth was *in vain*: the load would have turned before lag became too long. After
`TIMES` such growths on end the job is calm: it stays at p as long as neither arrivals nor lag are above what p would
have come through, with `SLACK`. So a load that comes and goes, such as a batch that arrives every hour, is not
followed for ever. The first growth that was needed ends the calm.

Source: regret against the best action in hindsight (Hannan, 1957; Cesa-Bianchi & Lugosi, "Prediction, Learning, and
Games", 2006, chapter 4), here of one action at a time.
"""

from __future__ import annotations

from typing import NamedTuple

from engine.policies.tide_capacity import CapacityModel

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
    """Records."""
    most_lag: float
    most_rate: float
    """Largest arrival rate so far, records/s."""


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
        for size, since, before, lag, most_lag, most_rate in self.shadows:
            came, seconds, capacity = arrived - before, at - since, known.capacity(size)
            if came < 0 or seconds <= 0:  # offsets were reset
                continue
            lag = max(0.0, lag + came - capacity * seconds)
            most_lag, most_rate = max(most_lag, lag), max(most_rate, came / seconds)
            if lag > late_seconds * capacity:
                vain = tuple(found for found in vain if found.size != size)
            elif known.size <= size and lag <= done_seconds * capacity:
                vain = _with(vain, size, most_lag, most_rate, at)
            else:
                shadows.append(Shadow(size, at, arrived, lag, most_lag, most_rate))
        return Hindsight(tuple(shadows), vain)

    def calm(self, size: int, at: float, lag: float, rate: float) -> Vain | None:
        """Return why a growth from `size` would be in vain once more, or None."""
        for found in self.vain:
            if found.size == size and found.times >= TIMES and at - found.at <= FORGOTTEN_SECONDS:
                return found if lag <= SLACK * found.lag and rate <= SLACK * found.rate else None
        return None

    def seen(self, found: Vain, at: float) -> Hindsight:
        """Return the hindsight after a load of the same kind was seen."""
        return self._replace(vain=tuple(found._replace(at=at) if old is found else old for old in self.vain))


def _with(vain: tuple[Vain, ...], size: int, lag: float, rate: float, at: float) -> tuple[Vain, ...]:
    """Return what was in vain with one more growth; of the loads one size came through, the largest counts."""
    for old in vain:
        if old.size == size:
            new = Vain(size, old.times + 1, max(old.lag, lag), max(old.rate, rate), at)
            return tuple(new if found is old else found for found in vain)
    return (*vain, Vain(size, 1, lag, rate, at))[-KEPT:]


NO_HINDSIGHT = Hindsight()
"""Of a job that has not grown yet."""
