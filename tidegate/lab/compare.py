"""Policies on the pairs of a set: what each costs as a multiple of the attainable plan's cost, and where it goes.

The cost of a run has three parts: slots, lateness and changes of size. All are divided by the whole cost of the
attainable plan on the same pair, so the parts of a policy add up to its multiple. A pair that changes size in place is
also divided by the plan that must restart.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidegate.engine.plan import UnknownPolicy
from tidegate.events.way import Way
from tidegate.events.wire import Scalar
from tidegate.installed import engine
from tidegate.lab.attain import CACHE, attainable
from tidegate.lab.bill import MONTH_SECONDS
from tidegate.lab.jobs import lab_model, spec_for
from tidegate.lab.pairs import Pair
from tidegate.lab.score import Parts, score
from tidegate.lab.simulate import simulate
from tidegate.lab.suite import UnknownName, spread
from tidegate.lab.tunings import DEFAULTS, Setting, Tuning, tunings, with_constants

QUICK_FLIP = Tuning(
    {"metrics_window_seconds": 180.0, "stabilization_interval_seconds": 30.0}, {"stabilization": {"seconds": 30.0}}
)
"""Flink's rule with a short window and little stabilization: the best simple rule on many loads."""

SLOT_HOUR = 0.05
"""Price of a slot for an hour, in any currency; lateness and changes cost in proportion."""

VARIANTS = {"flip271 (180 s)": Setting("flip271 (180 s)", "flip271", QUICK_FLIP)}


@dataclass(frozen=True, slots=True)
class PairRun:
    """One policy on one pair."""

    pair: Pair
    setting: Setting
    ways: tuple[Way, ...]
    folder: Path = CACHE


@dataclass(frozen=True, slots=True)
class PairCost:
    """What a run cost; parts as multiples of the attainable plan's cost."""

    pair: Pair
    label: str
    parts: Parts
    late_seconds: float
    changes: int
    best: Parts
    best_late_seconds: float
    best_changes: int
    over_restarting: float
    """Cost as a multiple of that of the plan that must restart; the same as `ratio` if all changes are restarts."""
    slots_per_second: float
    """Cost in slots: that many slots held all the time would cost as much."""

    @property
    def ratio(self) -> float:
        """The cost as a multiple of the attainable plan's."""
        return self.parts.total


def setting_of(text: str) -> Setting:
    """Return the setting that a text names: a policy, a variant, or `policy:option=value,guard.option=value`.

    `(tuned)` after a policy's name takes its tuning. Raises `UnknownName`, also for an option that the engine refuses.
    """
    if text in VARIANTS:
        return VARIANTS[text]
    policy, _, rest = text.partition(":")
    name = policy.removesuffix("(tuned)").strip()
    try:
        engine().policy_type(name)
    except UnknownPolicy as error:
        raise UnknownName(f"{error}, {', '.join(VARIANTS)}") from None
    base = tunings().get(name, DEFAULTS) if name != policy else DEFAULTS
    options: dict[str, Scalar] = dict(base.options)
    guards: dict[str, dict[str, Scalar]] = {guard: dict(raw) for guard, raw in base.guards.items()}
    for part in filter(None, rest.split(",")):
        option, _, value = part.partition("=")
        guard, _, inner = option.strip().rpartition(".")
        (guards.setdefault(guard, {}) if guard else options)[inner] = _scalar(value)
    spec = spec_for(lab_model())
    changes = {"policy": name, "policy_options": options, "guards": guards}
    problems = engine().check(spec.model_copy(update={"scaling": spec.scaling.model_copy(update=changes)}))
    if problems:
        raise UnknownName(f"{text}: {'; '.join(problems)}")
    return Setting(text, name, Tuning(options, guards))


def _scalar(text: str) -> Scalar:
    if text.lower() in {"true", "false"}:
        return text.lower() == "true"
    try:
        number = float(text)
    except ValueError:
        return text
    return int(number) if text.lstrip("-").isdigit() else number


def run_one(run: PairRun) -> PairCost:
    """Run a policy on a pair."""
    best = attainable(run.pair, run.ways, run.folder)
    restarting = best if run.ways == (Way.RESTART,) else attainable(run.pair, (Way.RESTART,), run.folder)
    scenario = run.pair.scenario(run.ways)
    scenario = scenario.with_policy(run.setting.policy, run.setting.tuning.options, run.setting.tuning.guards)
    model, spec = scenario.models[0], scenario.specs[0]
    with with_constants(run.setting.tuning.constants):
        recording = simulate(scenario)[spec.job_id]
    found = score(model, spec, scenario.topics[model.sources[0]].shares, recording)
    whole = best.parts.total
    return PairCost(
        pair=run.pair,
        label=run.setting.label,
        parts=found.parts.over(whole),
        late_seconds=found.violated_seconds,
        changes=found.rescales,
        best=best.parts.over(whole),
        best_late_seconds=best.late_seconds,
        best_changes=best.changes,
        over_restarting=found.parts.total / restarting.parts.total,
        slots_per_second=found.parts.total / found.seconds,
    )


def compare(
    pairs: Sequence[Pair],
    settings: Sequence[Setting],
    ways: tuple[Way, ...],
    *,
    folder: Path = CACHE,
    processes: int | None = None,
) -> Iterator[PairCost]:
    """Yield the outcome of each policy on each pair as it finishes."""
    # The plans first: two policies on one pair would otherwise both look for its plan.
    jobs = [(pair, each, folder) for pair in pairs for each in dict.fromkeys((ways, (Way.RESTART,)))]
    for _ in spread(_attain, jobs, processes=processes):
        pass
    yield from spread(
        run_one, [PairRun(pair, setting, ways, folder) for pair in pairs for setting in settings], processes=processes
    )


def _attain(job: tuple[Pair, tuple[Way, ...], Path]) -> None:
    attainable(*job)


@dataclass(frozen=True, slots=True)
class Summary:
    """The outcomes of one policy on many pairs."""

    label: str
    pairs: int
    ratio: float
    error: float
    """Standard error of the mean over pairs; 0 for one pair."""
    rounds: tuple[float, ...]
    """The mean of each round."""
    worst: float
    parts: Parts
    late_seconds: float
    changes: int
    over_restarting: float
    month: float
    """What a job costs in 30 days, at `SLOT_HOUR` a slot and hour."""


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of the mean of some values; 0 for one."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def summary_of(label: str, outcomes: Iterable[PairCost]) -> Summary:
    """Return the means of a policy's outcomes, of which there is at least one."""
    found = list(outcomes)
    ratios = [each.ratio for each in found]
    count = len(found)
    rounds = sorted({each.pair.round for each in found})
    return Summary(
        label=label,
        pairs=count,
        ratio=statistics.fmean(ratios),
        error=standard_error(ratios),
        rounds=tuple(statistics.fmean(each.ratio for each in found if each.pair.round == r) for r in rounds),
        worst=max(ratios),
        parts=Parts(*(statistics.fmean(values) for values in zip(*(each.parts.values for each in found), strict=True))),
        late_seconds=sum(each.late_seconds for each in found),
        changes=sum(each.changes for each in found),
        over_restarting=statistics.fmean(each.over_restarting for each in found),
        month=statistics.fmean(each.slots_per_second for each in found) * SLOT_HOUR / 3600 * MONTH_SECONDS,
    )


def summaries(outcomes: Iterable[PairCost]) -> list[Summary]:
    """Return the summary of each policy, the cheapest first."""
    groups: dict[str, list[PairCost]] = {}
    for each in outcomes:
        groups.setdefault(each.label, []).append(each)
    return sorted((summary_of(label, group) for label, group in groups.items()), key=lambda found: found.ratio)
