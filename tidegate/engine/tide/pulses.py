"""Arrivals in pulses are measured over whole cycles.

A topic that another micro-batch job fills gets its records all at once, say every 30 s. Rates measured every 10 s are
then zero or far too high, and neither tells what the job must keep up with. The mean over a whole cycle does:

    pulse    begins with an interval whose rate is above the mean of the last cycle, and above `CONTRAST` times the
             lowest rate since the last pulse began
    cycle    from the start of a pulse to the start of the next one
    regular  a cycle as long as the one before it, within `TOLERANCE` intervals

After `MIN_CYCLES` regular cycles, there is one rate per cycle, known when the cycle has ended. Cycles longer than the
lag objective (and two intervals) are not averaged: a job that can only process the mean would be late in every one of
them. When the next pulse does not come, or the load no longer pauses, every interval gives a rate again.

Source: demand that is often zero is measured from one demand to the next (Croston, "Forecasting and stock control for
intermittent demands", 1972).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tidegate.engine.state import Slice

MIN_CYCLES = 3
"""Regular cycles before arrivals count as pulsed."""

CONTRAST: Final = 4.0
"""How many times the lowest rate of a cycle a pulse has at least: noise has less."""

TOLERANCE: Final = 1.5
"""Intervals by which a regular cycle may differ from the one before: its ends are seen up to an interval late."""

SPARE_INTERVALS: Final = 2.0
"""Intervals by which a cycle may be longer than the lag objective."""


class Rate(NamedTuple):
    """A measured rate of arrivals."""

    at: float
    """When the time ends that it was measured over, epoch seconds."""
    arrived: int
    """Sum of the broker's end offsets then."""
    rate: float
    """Records/s."""


class Pulses(NamedTuple):
    """What is remembered of the present cycle, and of those before it."""

    at: float = 0.0
    """When the present cycle began, epoch seconds."""
    arrived: int | None = None
    """Sum of the broker's end offsets then; None before the first rate."""
    rate: float = 0.0
    """Mean rate of the last cycle, records/s; 0 before the first one."""
    seconds: float = 0.0
    """How long the last regular cycle was; 0 before the first one."""
    lowest: float | None = None
    """Lowest rate since the present cycle began, records/s."""
    regular: int = -1
    """Regular cycles less irregular ones; -1 while the start of the first cycle has not been seen."""

    @property
    def are_seen(self) -> bool:
        """Whether arrivals come in pulses."""
        return self.regular >= MIN_CYCLES

    def after(self, newest: Rate, before: Slice, objective_seconds: float, interval_seconds: float) -> Pulses:
        """Return the pulses after the newest rate, which was measured from `before` on."""
        if self.arrived is None or before.arrived is None:
            return Pulses(newest.at, newest.arrived)
        seconds, records = newest.at - self.at, newest.arrived - self.arrived
        if seconds <= 0.0 or records < 0:  # the topic was made again
            return Pulses(newest.at, newest.arrived)
        longest, mean = objective_seconds + SPARE_INTERVALS * interval_seconds, records / seconds
        usual = self.rate or mean
        # Where the snapshot with the start of a pulse is lost, two cycles look like one at the usual rate.
        two = seconds <= 2.0 * self.seconds + interval_seconds and 0.5 * usual <= mean <= 2.0 * usual
        if seconds > longest and not two:
            return Pulses(newest.at, newest.arrived)
        lowest = self.lowest
        if lowest is None or newest.rate <= max(usual, CONTRAST * lowest):
            return self if lowest is not None and lowest <= newest.rate else self._replace(lowest=newest.rate)
        return self._next_cycle(before.at, before.arrived, TOLERANCE * interval_seconds)

    def _next_cycle(self, at: float, arrived: int, tolerance: float) -> Pulses:
        """Return the pulses at the start of the next cycle."""
        seconds = at - self.at
        rate = (arrived - (self.arrived or 0)) / seconds if seconds > 0.0 else 0.0
        if self.regular < 0:
            return Pulses(at, arrived, rate, regular=0)
        is_regular = not self.seconds or abs(seconds - self.seconds) <= tolerance
        regular = min(self.regular + 1, MIN_CYCLES + 1) if is_regular else max(self.regular - 1, 0)
        return Pulses(at, arrived, rate, seconds if is_regular or not regular else self.seconds, regular=regular)

    def rate_since(self, earlier: Pulses, newest: Rate) -> Rate | None:
        """Return the rate that was measured since `earlier`: the newest one, or that of a cycle that has ended."""
        if not self.are_seen:
            return newest
        return None if self.at == earlier.at else Rate(self.at, self.arrived or 0, self.rate)


NO_PULSES = Pulses()
"""For a job whose arrivals were not measured yet."""


def newest_rate(window: tuple[Slice, ...]) -> Rate | None:
    """Return the arrival rate of the newest slice of the window."""
    if len(window) < 2 or window[-1].arrived is None or window[-2].arrived is None:
        return None
    gap, arrived = window[-1].at - window[-2].at, window[-1].arrived
    return Rate(window[-1].at, arrived, (arrived - window[-2].arrived) / gap) if gap > 0 else None
