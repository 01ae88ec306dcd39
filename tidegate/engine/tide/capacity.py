"""Capacity of a micro-batch job at each size, learned from its own batches.

A batch takes some time for itself, its *overhead*, and some for each record. With n records on p slots it lasts

    d = a + c(p) · n                          d: seconds, a: overhead in seconds, c: seconds per record

For each of the last four sizes, a straight line through the batches gives a and c. If all batches have about the same
number of records, they hardly show which part is overhead. So the part of a that Spark's events tell (what a batch
lasts besides its work, `addBatch`) counts like a few batches without records, or less where the batches hardly vary.
Older batches count less and less. All of this is kept across restarts.

**Slots that work.** Not every slot makes a batch shorter. T equal tasks run in ceil(T / p) waves, so slots that shorten
no wave add nothing, and a stage of one task never gets shorter (Amdahl's law). e(p) is the number of slots that do
useful work:

    1/e(p) = Σ share · makespan(T, p) / T     share: of the work, per stage; makespan: time until the last of the T
                                              tasks ends, in mean tasks

Where one task is much slower than the others, what counts is when it begins: `makespan` follows the waves around it.
Until tasks have been seen, a single stage with one task per source partition stands for all stages.

**Sizes not seen.** Jobs scale less than linearly. How much less is learned from the sizes seen:

    c(p) = k / e(p)^β,   0.3 ≤ β ≤ 1          β = 1: twice the useful slots do twice the work

β is fitted by weighted least squares of log c over log e, with a prior that pulls it to 1; k is from the present size,
or the nearest one seen. With one size seen, scaling is assumed to be linear through it. If it is in fact sub-linear,
the first step is too small and never too large.

**Capacity** is the rate of the largest allowed batch, in records/s. So it is usually more than the rate of the last
batches, which were smaller. Such a batch lasts at most D seconds (half the lag objective, or less with long trigger
intervals, see `batch_limits`), has at most M records (the record limit), and starts no sooner than T' seconds after the
one before (the trigger interval):

    capacity(p) = n / max(T', a + c(p) · n),   n = min(M, (D - a) / c(p))

For the present size and larger ones, it is at least the rate that the job has kept up with.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from tidegate.engine.batch_sums import NO_BATCHES, BatchSums, line
from tidegate.engine.tide.batch_limits import NO_LIMITS, BatchLimits
from tidegate.engine.total import total
from tidegate.events.snapshot import MicroBatch, StageTasks

DECAY: Final = 0.99
"""Weight of the past after each new batch: about the last hundred batches count."""

SIZES_KEPT: Final = 4
OVERHEAD_BATCHES = 3.0
"""How many batches without records the overhead that the events tell is worth in a fit."""

MIN_BATCHES: Final = 6.0
MIN_SPREAD: Final = 0.08
"""Batches, and their relative spread, that a fit needs where no event has told the overhead."""

PRIOR_WEIGHT: Final = 2.0
"""How many batches the prior of linear scaling is worth."""

WEIGHT_LIMIT: Final = 30.0
"""Most batches that a size counts for, however long it ran."""

PRIOR_BETA: Final = 1.0
BETA_RANGE = (0.3, 1.0)

STAGE_DECAY: Final = 0.8
"""Weight of the past after each snapshot, in the stages' shares of the work."""

OVERHEAD_WEIGHT: Final = 0.1
"""Weight of the newest snapshot in the overhead that the job's events tell."""

STAGES_KEPT: Final = 4
SHARE_GRAIN: Final = 20
"""Shares are rounded to a twentieth."""

UNEQUAL = 1.5
"""From this ratio of a stage's slowest task to the mean one, the tasks are no longer taken as alike."""

RATIO_GRAIN: Final = 8
"""Such ratios are rounded to an eighth."""

NO_PLACE: Final = -1
"""Place of the slowest task where all tasks count as alike."""


class StageWork(NamedTuple):
    """What one stage has shown: decayed sums. Stages with as many tasks and the same place count as one."""

    tasks: int
    busy: float
    """Slot-seconds."""
    slowest: float = 0.0
    """Of them, those of the slowest tasks."""
    place: int = NO_PLACE
    """How many tasks begin before the slowest one."""


Shape = tuple[tuple[int, float, float, int], ...]
"""(tasks, share of the work, slowest task over the mean one, place of the slowest task) of each stage."""


class Work:
    """Work of a shape: e(p), the number of p slots that do useful work; all of them if no stage is known."""

    def __init__(self, shape: Shape) -> None:
        """Take the shape."""
        self.shape = shape
        self.found: dict[int, float] = {}

    def slots(self, size: int) -> float:
        """Return e(p) of a size."""
        slots = self.found.get(size)
        if slots is None:
            slots = self.found[size] = _useful_slots(self.shape, size)
        return slots


def _useful_slots(shape: Shape, size: int) -> float:
    """Return e(p) of a size, which `Work` remembers."""
    spans = [share * makespan(tasks, size, ratio, place) / tasks for tasks, share, ratio, place in shape]
    return 1.0 / total(spans) if spans else float(size)


def makespan(tasks: int, size: int, ratio: float, place: int) -> float:
    """Return how long a stage lasts on `size` slots, in mean tasks.

    All tasks are alike, but for the one with `place` others before it, which lasts as long as `ratio` mean ones
    (`NO_PLACE`: there is none). Free slots take the tasks in order (Graham, "Bounds for certain multiprocessing
    anomalies", 1966).
    """
    if place == NO_PLACE:
        return float(-(-tasks // size))
    if size == 1 or ratio >= tasks:
        return float(tasks)
    other = (tasks - ratio) / (tasks - 1)
    before = place // size  # waves of the others, after which the slowest one begins
    waves = math.ceil(ratio / other)  # of the others on one slot less, while it runs
    left = tasks - 1 - before * size
    after = left - (size - 1) * waves
    if after <= 0:
        return before * other + max(ratio, -(-left // (size - 1)) * other)
    # Its slot is the first to be free again, and takes the first task of each round; a last round may have only that.
    rounds = -(-after // size)
    return before * other + (ratio + rounds * other if after % size == 1 else (waves + rounds) * other)


@lru_cache(maxsize=4096)
def work_of(shape: Shape) -> Work:
    """Return the work of a shape."""
    return Work(shape)


@lru_cache(maxsize=4096)
def useful_sizes(low: int, high: int, shape: Shape, step: int = 1) -> tuple[int, ...]:
    """Return the sizes in [low, high], multiples of `step`, that do more work than the next smaller one.

    Once each task has its slot, no larger size does. Nothing is remembered of sizes that nobody may ask about again:
    a shape with skew is new with almost every snapshot, and a spec may allow a million slots.
    """
    sizes: list[int] = []
    first, best = -(-low // step) * step, 0.0
    widest = max([tasks for tasks, *_ in shape], default=high)
    for size in range(first, min(high, max(first, widest + step - 1)) + 1, step):
        slots = _useful_slots(shape, size)
        if slots > best * (1 + 1e-9):
            sizes.append(size)
            best = slots
    return tuple(sizes)


def learn_stages(kept: Sequence[StageWork], stages: Sequence[StageTasks]) -> tuple[StageWork, ...]:
    """Return the busiest stages, with those of the newest snapshot added."""
    sums = {(each.tasks, each.place): (each.busy * STAGE_DECAY, each.slowest * STAGE_DECAY) for each in kept}
    for stage in stages:
        slowest, place = stage.slowest_task_seconds * stage.runs, stage.slowest_task_place
        if place is None or slowest * stage.tasks < UNEQUAL * stage.busy_seconds:
            place = NO_PLACE
        place = min(place, stage.tasks - 1)
        busy, longest = sums.get((stage.tasks, place), (0.0, 0.0))
        sums[stage.tasks, place] = busy + stage.busy_seconds, longest + slowest
    found = [StageWork(tasks, *work, place) for (tasks, place), work in sums.items() if work[0] > 0]
    return tuple(sorted(found, key=lambda each: (-each.busy, each.tasks, each.place))[:STAGES_KEPT])


def shape_of(kept: Sequence[StageWork], partitions: int | None) -> Shape:
    """Return the shape of the work: by the stages seen, or one task per partition; () if neither is known."""
    if not kept:
        return ((partitions, 1.0, 1.0, NO_PLACE),) if partitions else ()
    busy = total(each.busy for each in kept)
    grains = [round(SHARE_GRAIN * each.busy / busy) for each in kept]
    whole = sum(grains)
    return tuple(
        (each.tasks, grain / whole, _ratio(each), each.place) for each, grain in zip(kept, grains, strict=True) if grain
    )


def _ratio(stage: StageWork) -> float:
    """Return how many mean tasks the slowest one lasts."""
    if stage.place == NO_PLACE:
        return 1.0
    return round(RATIO_GRAIN * stage.slowest * stage.tasks / stage.busy) / RATIO_GRAIN


def learn_overhead(kept: float | None, batches: Sequence[MicroBatch]) -> float | None:
    """Return the smoothed seconds that a batch lasts besides its work (`addBatch`); None if no event told it."""
    measured = [b.duration_seconds - b.add_batch_seconds for b in batches if b.add_batch_seconds is not None]
    if not measured:
        return kept
    mean = max(0.0, total(measured) / len(measured))
    return mean if kept is None else kept + OVERHEAD_WEIGHT * (mean - kept)


class SizeFit(NamedTuple):
    """What one size has shown: decayed sums over its batches, and the overhead and cost fitted to them."""

    size: int
    sums: BatchSums = NO_BATCHES
    overhead: float = 0.0
    """Seconds per batch."""
    cost: float = 0.0
    """Seconds per record."""

    def lasts(self, records: int) -> float:
        """Return how long a batch of so many records is expected to last, in seconds."""
        return self.overhead + self.cost * records


def learn(
    sizes: tuple[SizeFit, ...], size: int, new: BatchSums, overhead: float = 0.0, noise: float = 1.0
) -> tuple[SizeFit, ...]:
    """Return the fits with new batches of a size added; the sizes seen last are kept.

    `overhead` is what the events tell of it, in seconds per batch; 0 if they tell nothing. `noise` is for `fit`.
    """
    if new.batches == 0 or new.records == 0 or new.seconds <= 0:
        return sizes
    old, others = SizeFit(size), []
    for each in sizes:
        if each.size == size:
            old = each
        else:
            others.append(each)
    sums = old.sums.faded(DECAY**new.batches, new)
    own, cost = fit(sums, overhead, noise)
    return (*others[-SIZES_KEPT + 1 :], SizeFit(size, sums, own, cost))


def fit(sums: BatchSums, overhead: float, noise: float = 1.0) -> tuple[float, float]:
    """Return (overhead, seconds per record) of a size's batches.

    The line of least squares through a few similar or noisy batches may point anywhere. So an overhead that the events
    tell counts like `OVERHEAD_BATCHES` batches without records, or the share `noise` of that. The batches can still
    show more: work on them that does not depend on their records is part of the overhead too, such as the commit of a
    table or the start of many tasks.
    """
    batches, records, seconds, squares, products = sums
    told = OVERHEAD_BATCHES * noise if overhead > 0 else 0.0
    if told or (batches >= MIN_BATCHES and sums.spread > (MIN_SPREAD * records) ** 2):
        own, cost = line(batches + told, records, seconds + told * overhead, squares, products)
        if cost > 0 and own >= overhead:
            return own, cost
    overhead = min(overhead, 0.9 * seconds / batches)
    return overhead, (seconds - overhead * batches) / records


class Scaling(NamedTuple):
    """How the cost of a record depends on the size."""

    work: Work
    beta: float

    def from_to(self, seen: int, size: int) -> float:
        """Return c(size) / c(seen)."""
        ratio: float = (self.work.slots(seen) / self.work.slots(size)) ** self.beta
        return ratio


class CapacityModel:
    """Capacity by size: c(p) = k / e(p)^β through what the present size has shown."""

    def __init__(
        self, present: SizeFit, scaling: Scaling, limits: BatchLimits, objective_seconds: float, floor: float
    ) -> None:
        """Set up the model.

        Args:
            present: the present size, with its overhead and cost.
            scaling: what other sizes cost.
            limits: the limits of a batch besides its work.
            objective_seconds: lag objective, which says how long the batch may last that capacity is calculated for.
            floor: a rate the present size is known to have kept up with, records/s.
        """
        self.size, self.overhead = present.size, present.overhead
        self.costs = {present.size: present.cost}
        """c(p) of the sizes asked about, seconds per record."""
        self.scaling, self.limits, self.floor = scaling, limits, floor
        self.batch_seconds = limits.longest_batch(objective_seconds, present.overhead)
        """D."""
        self.capacities: dict[int, float] = {}
        self.rate = self.capacity(self.size)
        """Capacity of the present size, records/s."""

    def record_seconds(self, size: int) -> float:
        """Return c(p), seconds per record at a size."""
        cost = self.costs.get(size)
        if cost is None:
            cost = self.costs[size] = self.costs[self.size] * self.scaling.from_to(self.size, size)
        return cost

    def capacity(self, size: int) -> float:
        """Return the capacity of a size, records/s."""
        rate = self.capacities.get(size)
        if rate is None:
            rate = self.capacities[size] = self._capacity(size)
        return rate

    def gains(self, size: int) -> bool:
        """Whether a larger size processes more than the present one: with a record limit, it may not."""
        return self._modelled(size) > self._modelled(self.size)

    def _capacity(self, size: int) -> float:
        rate = self._modelled(size)
        return rate if size < self.size or rate > self.floor else self.floor

    def _modelled(self, size: int) -> float:
        """Return the capacity of a size without what the present one has kept up with."""
        cost, limits = self.record_seconds(size), self.limits
        records = max(0.05 * self.batch_seconds, self.batch_seconds - self.overhead) / cost
        if limits.max_records is not None and limits.max_records < records:
            records = float(limits.max_records)
        return records / limits.cycle(self.overhead + cost * records)


def _nearest(sizes: Sequence[SizeFit], size: int) -> SizeFit:
    """Return what the present size has shown, or else the size nearest to it; there must be one."""
    return sizes[-1] if sizes[-1].size == size else min(sizes, key=lambda each: (abs(each.size - size), each.size))


def fit_model(
    sizes: Sequence[SizeFit],
    size: int,
    shape: Shape,
    objective_seconds: float,
    floor: float = 0.0,
    limits: BatchLimits = NO_LIMITS,
) -> CapacityModel | None:
    """Return the model at the present size under a lag objective, or None while nothing was processed at any size.

    `floor` is a rate the present size is known to have kept up with; its capacity is at least that.
    """
    if not sizes:
        return None
    present, scaling = _nearest(sizes, size), fit_scaling(sizes, work_of(shape))
    if present.size != size:
        present = present._replace(size=size, cost=present.cost * scaling.from_to(present.size, size))
    return CapacityModel(present, scaling, limits, objective_seconds, floor)


def fit_scaling(sizes: Sequence[SizeFit], work: Work) -> Scaling:
    """Return the scaling fitted to the sizes seen; linear with only one."""
    if len(sizes) == 1:
        return Scaling(work, PRIOR_BETA)
    weight = xs = ys = squares = products = 0.0  # weighted sums over x = log e, y = -log c
    for each in sizes:
        x, y = math.log(work.slots(each.size)), -math.log(each.cost)
        w: float = min(each.sums.batches, WEIGHT_LIMIT)
        weight += w
        xs += w * x
        ys += w * y
        squares += w * x * x
        products += w * x * y
    spread = PRIOR_WEIGHT + squares - xs * xs / weight
    slope = (PRIOR_WEIGHT * PRIOR_BETA + products - xs * ys / weight) / spread
    return Scaling(work, min(max(slope, BETA_RANGE[0]), BETA_RANGE[1]))
