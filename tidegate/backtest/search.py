"""Looks for the options that matter: single changes of an option first, then the best ones together, tried on Spark.

Each trial is a simulation of the first part of the past. What is found is judged on the rest, next to the defaults.
Prices are not searched: they say what is good.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from tidegate import interrupts
from tidegate.backtest.trial import Replica, cost_of
from tidegate.events.wire import Scalar
from tidegate.installed import engine
from tidegate.lab.tune import TunedOption, options_of
from tidegate.lab.tunings import DEFAULTS, Tuning
from tidegate.replay.recompute import ship

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FACTORS = (0.5, 2.0)
TOGETHER = 4
"""The best single changes of which all combinations are tried."""
WORTH = 0.005
"""The least share of the cost by which an option must lower it to count."""
POLL_SECONDS = 0.2

Told = Callable[[int, int], None]
"""Called with how many of how many trials are done."""


@dataclass(frozen=True, slots=True)
class Change:
    """One option set to one value."""

    option: TunedOption
    value: Scalar

    @property
    def name(self) -> str:
        """The option's name, after its guard's if it is a guard's."""
        return f"{self.option.guard}.{self.option.name}" if self.option.guard else self.option.name


@dataclass(frozen=True, slots=True)
class Matter:
    """An option that matters."""

    name: str
    default: Scalar
    best: Scalar
    gain: float
    """Share of the default's cost that it saves alone, on the part searched."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found."""

    tuning: Tuning
    """The cheapest setting on the part searched; the defaults if none is cheaper."""
    matters: tuple[Matter, ...]
    """Largest gain first."""
    trials: int
    gain: float
    """Share of the default's cost that the setting saves on the part searched."""


NOT_SEARCHED = Found(DEFAULTS, (), 0, 0.0)


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """What is searched on: the first `seconds` of a replica's load, spread over Spark."""

    spark: SparkSession
    replica: Replica
    seconds: float
    window: float
    """Of the delays, seconds."""

    def costs(self, tunings: Sequence[Tuning], told: Callable[[int], None]) -> list[float]:
        """Return the cost of each setting, tried on Spark, one task each; `told` is called with how many are done."""
        if not tunings:
            return []
        from pyspark import InheritableThread  # noqa: PLC0415

        context, seconds, window = self.spark.sparkContext, self.seconds, self.window
        ship(context)
        shared = context.broadcast((self.replica, engine().policies))
        done: list[list[float]] = []
        failed: list[BaseException] = []

        def work() -> None:
            try:
                context.setJobGroup(group, "tidegate backtest", interruptOnCancel=True)
                tried = context.parallelize(tunings, len(tunings)).map(
                    lambda tuning: cost_of(shared.value, tuning, seconds, window)
                )
                done.append(tried.collect())
            except BaseException as error:  # noqa: BLE001  (the waiting thread raises it)
                failed.append(error)

        group = f"tidegate-backtest-{id(tunings)}"
        thread = InheritableThread(target=work, daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                thread.join(POLL_SECONDS)
                interrupts.check()
                told(_finished(self.spark, group))
        except BaseException:
            context.cancelJobGroup(group)
            raise
        if failed:
            raise failed[0]
        told(len(tunings))
        shared.destroy()
        return done[0]


def search(space: SearchSpace, trials: int, told: Told = lambda _done, _total: None) -> Found:
    """Search the options of the spec's policy, and of the guards that pace it, with up to so many trials."""
    singles = list(_singles(space.replica.spec.scaling.policy))[: max(0, trials - 1)]
    first = [DEFAULTS, *(_together([single]) for single in singles)]
    most = max(0, trials - len(first))
    default, *costs = space.costs(first, lambda done: told(done, len(first) + most))
    gains = sorted(zip(singles, (_gain(cost, default) for cost in costs), strict=True), key=lambda pair: -pair[1])
    best: dict[str, tuple[Change, float]] = {}
    for change, gain in gains:
        if gain > WORTH:
            best.setdefault(change.name, (change, gain))
    second = [_together(some) for some in _combinations([change for change, _ in best.values()])][:most]
    second_costs = space.costs(second, lambda done: told(len(first) + done, len(first) + len(second)))
    costed = [*zip(first, (default, *costs), strict=True), *zip(second, second_costs, strict=True)]
    tuning, cost = min(costed, key=lambda pair: pair[1])
    matters = tuple(Matter(name, change.option.default, change.value, gain) for name, (change, gain) in best.items())
    return Found(tuning, matters, len(costed), _gain(cost, default))


def _gain(cost: float, default: float) -> float:
    """Return the share that is saved; of nothing, as of a job that holds no slot without records, none."""
    return 1.0 - cost / default if default else 0.0


def _finished(spark: SparkSession, group: str) -> int:
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
    return sum(stage.numCompletedTasks for stage in stages if stage is not None)


def _singles(policy: str) -> Iterator[Change]:
    """Yield the changes of one option: half and double its default, or its other values."""
    for option in options_of(policy):
        if option.meta.get("unit") == "slot-seconds":
            continue
        if isinstance(option.default, bool):
            yield Change(option, not option.default)
        elif option.meta.get("choices"):
            yield from (Change(option, choice) for choice in option.meta["choices"] if choice != option.default)
        else:
            values = (option.within(option.default * factor) for factor in FACTORS)
            yield from (Change(option, value) for value in values if value is not None and value != option.default)


def _combinations(changes: Sequence[Change]) -> Iterator[Sequence[Change]]:
    """Yield the best changes together: all at once, then each choice among the best few."""
    for count in range(len(changes), TOGETHER, -1):
        yield changes[:count]
    for count in range(min(TOGETHER, len(changes)), 1, -1):
        yield from combinations(changes[:TOGETHER], count)


def _together(changes: Sequence[Change]) -> Tuning:
    tuning = DEFAULTS
    for change in changes:
        tuning = change.option.put(tuning, change.value)
    return tuning
