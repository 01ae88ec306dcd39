"""What similar jobs have shown, taken from their states, and as what a new job's memory starts from.

A prior is part of the spec, so a decision that used it can be recomputed like any other. For each size it has the line
through the batches,

    d = a + c · n                             d: seconds, n: records, a: overhead in seconds, c: seconds per record

and how many batches B that is worth, with the mean m and the deviation s of their records. From these come the sums
that `capacity` works with: Σn = B·m, Σn² = B·(m² + s²), Σd = B·a + c·Σn, Σnd = a·Σn + c·Σn². The job's own batches are
added to them. As older batches count less and less, the prior fades.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from statistics import median
from typing import Final

from tidegate.engine.batch_sums import NO_BATCHES, BatchSums
from tidegate.engine.state import JobState
from tidegate.engine.tide.capacity import SIZES_KEPT, SizeFit, fit
from tidegate.engine.tide.memory import TideMemory
from tidegate.engine.total import total
from tidegate.events.job import Prior, PriorSize, PriorWay
from tidegate.events.way import ALL_WAYS

WORTH: Final = 10.0
"""Most batches that a size of a prior counts for: a job's own soon outweigh them."""

DIGITS: Final = 6
"""Significant digits of a prior's figures, so that people can read them."""


def seeds(prior: Prior | None) -> tuple[SizeFit, ...]:
    """Return what a new job's memory holds of the sizes in its prior; nothing without one."""
    return () if prior is None else tuple([_seed(size) for size in prior.sizes[-SIZES_KEPT:]])


def _seed(size: PriorSize) -> SizeFit:
    batches, overhead, cost = size.batches, size.overhead_seconds, size.record_seconds
    records = batches * size.batch_records
    squares = batches * (size.batch_records**2 + size.batch_deviation**2)
    sums = BatchSums(
        batches, records, batches * overhead + cost * records, squares, overhead * records + cost * squares
    )
    return SizeFit(size.slots, sums, overhead, cost)


def learn_prior(states: Mapping[str, tuple[JobState, TideMemory]], until: datetime) -> Prior:
    """Return what jobs have shown together: batches of equal sizes are added up, costs of changes are medians.

    Args:
        states: of each job the engine's state and what `tide` remembers; at least one job.
        until: instant of the newest of them.
    """
    by_size: dict[int, list[BatchSums]] = {}
    for _, memory in states.values():
        for each in memory.sizes:
            by_size.setdefault(each.size, []).append(each.sums)
    known = sorted([(total([s.batches for s in sums]), size) for size, sums in by_size.items()])[-SIZES_KEPT:]
    sizes = [_size(size, by_size[size], [m for _, m in states.values()]) for _, size in known]
    ways = []
    for way in ALL_WAYS:
        costs = [cost for state, _ in states.values() for cost in state.changes.costs if cost.way is way]
        if costs:
            outage, delay = median([cost.outage for cost in costs]), median([cost.delay for cost in costs])
            ways.append(
                PriorWay(way=way, outage_seconds=_short(outage), delay_seconds=_short(delay), changes=len(costs))
            )
    return Prior(
        learned_from=tuple(sorted(states)),
        until=until,
        sizes=tuple([size for size in sizes if size is not None]),
        ways=tuple(ways),
    )


def _size(slots: int, sums: Sequence[BatchSums], memories: Sequence[TideMemory]) -> PriorSize | None:
    """Return what the jobs have shown at one size; None if that is less than a batch, or takes no time."""
    together = NO_BATCHES
    for each in sums:
        together = together.add(each)
    told = [memory.overhead for memory in memories if memory.overhead is not None]
    overhead, cost = fit(together, median(told) if told else 0.0)
    mean = together.records / together.batches
    if together.batches < 1 or cost <= 0:
        return None
    return PriorSize(
        slots=slots,
        overhead_seconds=_short(overhead),
        record_seconds=_short(cost),
        batches=_short(min(together.batches, WORTH)),
        batch_records=_short(mean),
        batch_deviation=_short(math.sqrt(max(0.0, together.spread)) / together.batches),
    )


def _short(figure: float) -> float:
    return float(f"{figure:.{DIGITS}g}")
