"""The score of a run: how well supply followed demand, how long the lag objective was violated, and the cost.

Elasticity is measured as the SPEC Research Group does (Herbst et al., "BUNGEE", SEAMS 2015), with demand d(t) known
exactly from the twin: the smallest size whose capacity covers the arrivals. Supply s(t) is the size that processes
records at t, so it is 0 during a restart. T is the length of the run.

    under accuracy  aU = 1/T * integral max(d - s, 0) dt        over accuracy  aO = 1/T * integral max(s - d, 0) dt
    under share     tU = time(s < d) / T                        over share     tO = time(s > d) / T
    jitter          j  = (E_S - E_D) / T per minute; E: slots added plus slots removed; above 0: more moves than demand

A job is late while the age of its oldest uncommitted record is above the lag objective. The twin knows every commit and
when each record arrived, so that time is exact, also within a batch. The cost is one number, in slot-seconds of the
job's largest size; `Prices` defines it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tidegate.events.command import CommandKind
from tidegate.events.job import JobSpec
from tidegate.events.result import ActionResult, Phase
from tidegate.events.way import Way
from tidegate.lab.jobs import batch_bound, sizes_of
from tidegate.lab.simulate import JobRecording
from tidegate.twin.model import JobModel
from tidegate.twin.schedule import demand
from tidegate.twin.world import Truth

DEMAND_WINDOW_SECONDS = 60.0
"""Demand follows the mean arrivals of the last minute: no size can follow changes within a batch."""


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices in slot-seconds. All but the first scale with the largest size, so that they fit any job."""

    core_second: float = 1.0
    violated_second: float = 2.0
    """Per second over the lag objective and slot of the largest size: more than always running the largest size, so
    no oracle pays for savings with a lasting violation."""
    restart: float = 30.0
    """Per restart and slot of the largest size, in addition to the slot-seconds and the lag it causes: batches run
    twice, caches are cold, and each restart may fail."""

    handover: float = 10.0
    """Per handover: nothing runs twice and the first driver can go on, but caches are cold."""
    in_place: float = 2.0
    """Per change in place: only new executors are cold."""

    def of(self, way: Way) -> float:
        """Return the price of a change of size, per slot of the largest size."""
        return {Way.RESTART: self.restart, Way.HANDOVER: self.handover, Way.IN_PLACE: self.in_place}[way]

    def parts(self, core_seconds: float, violated_seconds: float, changes: Mapping[Way, int], largest: int) -> Parts:
        """Return the cost of a run in slot-seconds, given how often the size changed in each way."""
        changing = math.fsum(self.of(way) * count for way, count in changes.items())
        return Parts(
            slots=self.core_second * core_seconds,
            lateness=largest * self.violated_second * violated_seconds,
            changes=largest * changing,
        )


@dataclass(frozen=True, slots=True)
class Parts:
    """What a cost consists of."""

    slots: float
    lateness: float
    changes: float

    @property
    def values(self) -> tuple[float, float, float]:
        """The parts in order."""
        return self.slots, self.lateness, self.changes

    @property
    def total(self) -> float:
        """The cost."""
        return self.slots + self.lateness + self.changes

    def over(self, whole: float) -> Parts:
        """Return the parts as multiples of a cost."""
        return Parts(*(value / whole for value in self.values))


@dataclass(frozen=True, slots=True)
class Score:
    """One run in figures."""

    seconds: float
    under_accuracy: float
    over_accuracy: float
    under_share: float
    over_share: float
    jitter: float
    """Per minute."""
    violated_seconds: float
    worst_age_seconds: float
    """Highest age of the oldest uncommitted record."""
    core_seconds: float
    restarts: int
    handovers: int
    in_place: int
    rescales: int
    """Changes of size in any way."""
    demand_changes: int
    lost: bool
    """Whether the job was not running at the end."""
    parts: Parts

    @property
    def cost(self) -> float:
        """The cost in slot-seconds."""
        return self.parts.total

    @property
    def violated_share(self) -> float:
        """Share of time over the lag objective."""
        return self.violated_seconds / self.seconds

    @property
    def decisions_per_change(self) -> float | None:
        """Changes of size per change of demand; None when demand never changed."""
        return self.rescales / self.demand_changes if self.demand_changes else None


@dataclass(frozen=True, slots=True)
class Curve:
    """Demand, supply and age of a run at each tick; times are seconds since its start."""

    at: tuple[float, ...]
    rate: tuple[float, ...]
    """Mean arrivals of the last minute, records/s."""
    demand: tuple[int, ...]
    supply: tuple[int, ...]
    """Slots that process records; 0 while the job is down."""
    held: tuple[int, ...]
    """Slots held, and so paid for."""
    age_seconds: tuple[float, ...]
    """Age of the oldest uncommitted record."""


def curve(model: JobModel, spec: JobSpec, shares: tuple[float, ...], ticks: Sequence[Truth]) -> Curve:
    """Return a run as curves; `shares` are those of the partitions of the job's sources."""
    bound, sizes = batch_bound(spec), sizes_of(spec)
    rates = _rates(ticks)
    return Curve(
        at=tuple(tick.at for tick in ticks),
        rate=tuple(rates),
        demand=tuple(demand(model, shares, rate, bound, sizes) for rate in rates),
        supply=tuple(tick.slots if tick.running else 0 for tick in ticks),
        held=tuple(tick.slots for tick in ticks),
        age_seconds=tuple(tick.age_seconds for tick in ticks),
    )


class TooShort(ValueError):
    """A run that is too short for a score; the text says how long it must be."""


def score(
    model: JobModel, spec: JobSpec, shares: tuple[float, ...], recording: JobRecording, prices: Prices | None = None
) -> Score:
    """Return the score of one job's recording; `shares` are those of the partitions of its sources."""
    prices = prices or Prices()
    ticks = recording.ticks
    if len(ticks) < 2:
        raise TooShort(
            f"job {spec.job_id}: a score needs at least 2 ticks, found {len(ticks)}: with interval_seconds"
            f" {spec.interval_seconds}, it must last more than {spec.interval_seconds} s"
        )
    line = curve(model, spec, shares, ticks)
    objective = spec.scaling.lag_objective_seconds
    under = over = under_time = over_time = 0.0
    for place in range(1, len(ticks)):
        seconds = line.at[place] - line.at[place - 1]
        gap = line.demand[place] - line.supply[place]
        under += max(gap, 0) * seconds
        over += max(-gap, 0) * seconds
        under_time += seconds if gap > 0 else 0.0
        over_time += seconds if gap < 0 else 0.0
    length, violated = line.at[-1] - line.at[0], late_seconds(recording.commits, objective)
    # The drop to 0 during a restart is not a move of the scaler, so jitter uses the slots held.
    sizes_held = [size for size in line.held if size]
    core_seconds = ticks[-1].core_seconds - ticks[0].core_seconds
    ways = changes_by_way(recording.results)
    rescales = {r.command_id for r in recording.results if r.phase is Phase.ACCEPTED and r.kind is CommandKind.RESCALE}
    return Score(
        seconds=length,
        under_accuracy=under / length,
        over_accuracy=over / length,
        under_share=under_time / length,
        over_share=over_time / length,
        jitter=(_moved(sizes_held) - _moved(line.demand)) / length * 60.0,
        violated_seconds=violated,
        worst_age_seconds=max((0.0, *(at - oldest for at, oldest in recording.commits))),  # below 0: no record waits
        core_seconds=core_seconds,
        restarts=ways[Way.RESTART],
        handovers=ways[Way.HANDOVER],
        in_place=ways[Way.IN_PLACE],
        rescales=len(rescales),
        demand_changes=sum(before != after for before, after in pairwise(line.demand)),
        lost=not ticks[-1].running and ticks[-1].slots == 0,
        parts=prices.parts(core_seconds, violated, ways, spec.scaling.max_parallelism),
    )


def changes_in_words(found: Score) -> str:
    """Return how often the size changed in each way."""
    counts = (
        (found.in_place, "change in place", "changes in place"),
        (found.handovers, "handover", "handovers"),
        (found.restarts, "restart", "restarts"),
    )
    said = [f"{count} {one if count == 1 else more}" for count, one, more in counts if count]
    return ", ".join(said) or "no change of size"


def late_seconds(commits: Sequence[tuple[float, float]], objective: float) -> float:
    """Return how long the oldest uncommitted record was older than the objective, given a recording's commits.

    Between two commits the oldest record stays the same, so it is late from its arrival plus the objective on.
    """
    late = before = 0.0
    for at, oldest in commits:
        late += max(0.0, at - max(before, oldest + objective))
        before = at
    return late


def changes_by_way(results: Iterable[ActionResult]) -> Counter[Way]:
    """Return how many commands changed the size in each way; one that fell back counts by the way it ended in."""
    ways: dict[str, Way] = {}
    for result in results:
        if result.way is not None:
            ways[result.command_id] = result.way
    return Counter(ways.values())


def _moved(sizes: Sequence[int]) -> int:
    """Return the slots added plus the slots removed."""
    return sum(abs(after - before) for before, after in pairwise(sizes))


def _rates(ticks: Sequence[Truth]) -> list[float]:
    """Return the mean arrivals of the window before each tick; the first tick takes the second one's."""
    moments = [tick.at for tick in ticks]
    rates = []
    for place, tick in enumerate(ticks):
        first = bisect_left(moments, tick.at - DEMAND_WINDOW_SECONDS - 1e-9)
        last = place
        if first == last:
            first, last = 0, 1
        rates.append((ticks[last].arrived - ticks[first].arrived) / (moments[last] - moments[first]))
    return rates
