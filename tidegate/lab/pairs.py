"""Three sets of pairs, a kind of job with a load each: to train on, to choose with, and to report.

    train    to develop and tune on; look at everything
    choose   to choose between versions and options; look at the totals
    report   to publish; never look at it while developing or choosing

Sets share no seed, so every parameter of their jobs and shapes differs. Of each trace, a set has a part of its own:

    trace          train               choose           report
    nyc_taxi       first third         second third     last third
    nasa_web       hours 112 to 168    hours 0 to 56    hours 56 to 112
    tweets_amzn    -                   -                all of it

The tunings were trained on `launch_day.csv`, which is part of hours 112 to 168 of `nasa_web`.

A round of a set is 40 pairs: each shape of `loads` twice and twelve windows of traces, in shuffled order, over the
eight kinds of `kinds` in turn, 2 to 4 hours each. More rounds of a set give its figures' spread.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from pathlib import Path

from tidegate.events.way import Way
from tidegate.lab.jobs import SOURCE, one_job
from tidegate.lab.kinds import KINDS, drawn_kind
from tidegate.lab.loads import SHAPES, Draw, drawn
from tidegate.lab.simulate import Scenario, TopicPlan
from tidegate.lab.traces import Playback, played, read_points
from tidegate.twin.load import Load

DATA = Path(__file__).with_name("data")
ROUND = 40
TRACES_PER_ROUND = ROUND - 2 * len(SHAPES)
SHORTEST_HOURS, LONGEST_HOURS = 2.0, 4.0


OBJECTIVE_SECONDS, INTERVAL_SECONDS = 60.0, 10
"""Lag objective and interval of snapshots, unless others are asked for."""


class PairSet(StrEnum):
    """A set of pairs, by what it is for."""

    TRAIN = "train"
    CHOOSE = "choose"
    REPORT = "report"


SEEDS = {PairSet.TRAIN: 10_000, PairSet.CHOOSE: 20_000, PairSet.REPORT: 30_000}
"""The first seed of each set; rounds have a hundred seeds each."""

Window = tuple[float, float]
"""From hour to hour."""

WINDOWS: dict[PairSet, dict[str, Window]] = {
    PairSet.TRAIN: {"nyc_taxi": (0.0, 1720.0), "nasa_web": (112.0, 168.0)},
    PairSet.CHOOSE: {"nyc_taxi": (1720.0, 3440.0), "nasa_web": (0.0, 56.0)},
    PairSet.REPORT: {"nyc_taxi": (3440.0, 5160.0), "nasa_web": (56.0, 112.0), "tweets_amzn": (0.0, 1319.0)},
}
"""The part of each trace that a set may use."""

SPEEDS = {"nyc_taxi": (8.0, 48.0), "nasa_web": (1.0, 5.0), "tweets_amzn": (2.0, 24.0)}
"""How many times faster than recorded: from a few points an hour to a few a minute."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A kind of job with a load, all of it drawn from one seed."""

    set: PairSet
    round: int
    kind: str
    load: str
    """A shape or a trace."""
    seed: int
    objective_seconds: float = OBJECTIVE_SECONDS
    """The lag objective."""
    interval_seconds: int = INTERVAL_SECONDS
    """Time between two snapshots."""
    pulse_seconds: float = 0.0
    """If above 0, all arrivals of each such time come in its first fifth."""

    @property
    def name(self) -> str:
        """A name that no other pair has."""
        return f"{self.set}-{self.seed} {self.kind} {self.load}"

    @property
    def key(self) -> str:
        """What tells the pair's plan from others: the seed, and what is not as usual."""
        usual = (self.objective_seconds, self.interval_seconds) == (OBJECTIVE_SECONDS, INTERVAL_SECONDS)
        key = str(self.seed) if usual else f"{self.seed}-{self.objective_seconds:g}s-every-{self.interval_seconds}s"
        return f"{key}-pulses-{self.pulse_seconds:g}s" if self.pulse_seconds else key

    def scenario(self, ways: tuple[Way, ...]) -> Scenario:
        """Return the pair's scenario; it starts at the right size for its load."""
        draw = Draw(self.seed, "pair")
        kind = drawn_kind(self.kind, self.seed, limited=draw.chance(0.5), ways=ways)
        scaling = kind.spec.scaling.model_copy(update={"lag_objective_seconds": self.objective_seconds})
        every = {"scaling": scaling, "interval_seconds": self.interval_seconds}
        kind = replace(kind, spec=kind.spec.model_copy(update=every))
        seconds = 3600.0 * draw.between(SHORTEST_HOURS, LONGEST_HOURS)
        load = drawn(self.load, self.seed, seconds) if self.load in SHAPES else self._window(draw, seconds)
        share = draw.between(0.7, 1.1)
        # Some peaks are above what the job can do at any size: then being late is part of the best plan too.
        factor = kind.most * share / minute_peak(load)
        load = Load((rate * factor for rate in load.rates), load.step_seconds)
        made = one_job(kind.model, kind.spec, load, shares=kind.shares, seed=self.seed)
        if not self.pulse_seconds:
            return made
        load = load.pulsed(self.pulse_seconds)
        return replace(made, topics={SOURCE: TopicPlan(kind.shares, load)}, seconds=load.seconds)

    def _window(self, draw: Draw, seconds: float) -> Load:
        """Return a window of a trace from the set's part of it, at a drawn speed."""
        begin, end = WINDOWS[self.set][self.load]
        speed = draw.scale(*SPEEDS[self.load])
        hours = seconds / 3600
        since = draw.between(begin, end - hours * speed)
        return played(_trace(self.load), Playback(speed=speed, since_hours=since, hours=hours))


def pairs(chosen: PairSet, rounds: Iterable[int] = (0,)) -> list[Pair]:
    """Return the pairs of rounds of a set."""
    found, traces = [], sorted(WINDOWS[chosen])
    for round_ in rounds:
        first = SEEDS[chosen] + 100 * round_
        loads = [*SHAPES, *SHAPES, *(traces[place % len(traces)] for place in range(TRACES_PER_ROUND))]
        draw, kinds = Draw(first, "round"), list(KINDS)
        keys = [draw.between(0.0, 1.0) for _ in range(ROUND)]
        order = sorted(range(ROUND), key=keys.__getitem__)
        found += [
            Pair(chosen, round_, kinds[place % len(kinds)], loads[order[place]], first + place)
            for place in range(ROUND)
        ]
    return found


def minute_peak(load: Load) -> float:
    """Return the highest mean rate of a minute: real traces have seconds far above it, which no size is meant for."""
    ends = range(60, max(61, int(load.seconds) + 1), 10)
    return max((load.arrived(end) - load.arrived(end - 60)) / 60 for end in ends)


@lru_cache(maxsize=8)
def _trace(name: str) -> tuple[tuple[float, float], ...]:
    return tuple(read_points(DATA / f"{name}.csv"))
