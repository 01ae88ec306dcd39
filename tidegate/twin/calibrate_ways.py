"""Calibration of the ways to change size: what restarts, handovers and changes in place took in a recording."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

from tidegate.events.command import CommandKind
from tidegate.events.result import ActionResult, Phase
from tidegate.events.snapshot import MetricSnapshot
from tidegate.events.way import Way
from tidegate.twin.model import HandoverCosts, InPlaceCosts
from tidegate.twin.recorded import RecordedChange
from tidegate.twin.samples import Sample

MIN_STARTS = 3
"""With fewer starts than this, the start time is assumed to be the same at every size."""


@dataclass(frozen=True, slots=True)
class Sized:
    """A time that grows with the size being started."""

    seconds: float
    slot_seconds: float = 0.0
    spread_seconds: float = 0.0
    """Range of the residuals, highest less lowest."""

    def at(self, slots: int) -> float:
        """Return the seconds at a size."""
        return self.seconds + self.slot_seconds * slots


@dataclass(frozen=True, slots=True)
class HandoverFit:
    """What handovers took."""

    seen: int
    warm: Sized
    """From the order until the second driver was warm."""
    switch_seconds: float
    """From the first driver's last commit to the second driver's first batch."""
    first_batch: Sized

    def costs(self) -> HandoverCosts:
        """Return the figures of the model."""
        return HandoverCosts(
            warm_seconds=max(0.0, self.warm.seconds),
            warm_slot_seconds=self.warm.slot_seconds,
            switch_seconds=self.switch_seconds,
            first_batch_seconds=max(0.0, self.first_batch.seconds),
        )


@dataclass(frozen=True, slots=True)
class InPlaceFit:
    """What changes in place took; None where there was none of that kind."""

    grown: int
    shrunk: int
    register: Sized | None
    """From the order until new executors had registered."""
    first_batch: Sized | None
    """Extra time of the first batch with new executors."""
    shrink_seconds: float | None
    """The fastest shrink: it had no batch boundary to wait for."""

    def costs(self, base: InPlaceCosts) -> InPlaceCosts:
        """Return the figures of the model; `base` supplies what was not seen."""
        costs = base if self.shrink_seconds is None else replace(base, shrink_seconds=self.shrink_seconds)
        if self.register is not None:
            register, jitter = spread_around(self.register.seconds, self.register.spread_seconds)
            # Executors that have registered are offered tasks at once: what follows is the wait for a batch.
            costs = replace(
                costs,
                register_seconds=register,
                register_jitter_seconds=jitter,
                working_seconds=0.0,
            )
        if self.first_batch is not None:
            costs = replace(costs, first_batch_seconds=max(0.0, self.first_batch.seconds))
        return costs


def restarts_of(
    cold: Sequence[Sample], results: Sequence[ActionResult]
) -> tuple[float | None, list[tuple[int, float]]]:
    """Return the seconds from a commit to the next submission, and (slots, seconds from commit to batch) per start.

    A start without an earlier commit, or of a job that had been stopped before, counts from its submission, as if the
    job had just been stopped.
    """
    submissions = [(r.at.timestamp(), r.kind) for r in results if r.phase is Phase.STARTING]
    starts = []
    for sample in cold:
        submitted, kind = max((each for each in submissions if each[0] <= sample.started_at), default=(None, None))
        before = None if kind is CommandKind.START else sample.committed_before
        starts.append((sample.slots, before, submitted, sample.started_at))
    exits = [sub - before for _, before, sub, _ in starts if sub is not None and before is not None and sub >= before]
    exit_seconds = statistics.median(exits) if exits else None
    found = []
    for slots, before, submitted, at in starts:
        if before is not None:
            found.append((slots, at - before))
        elif submitted is not None:
            found.append((slots, at - submitted + (exit_seconds or 0.0)))
    return exit_seconds, found


def sized(points: Sequence[tuple[int, float]]) -> Sized | None:
    """Return a line through (slots, seconds) if there are enough starts of different sizes, else their median."""
    if not points:
        return None
    sizes, seconds = [float(slots) for slots, _ in points], [each for _, each in points]
    if len(points) >= MIN_STARTS and len(set(sizes)) > 1:
        fit = statistics.linear_regression(sizes, seconds)
        if fit.slope > 0:
            left = [s - fit.slope * n for n, s in zip(sizes, seconds, strict=True)]
            return Sized(fit.intercept, fit.slope, max(left) - min(left))
    return level(seconds)


def level(seconds: Sequence[float]) -> Sized | None:
    """Return the median of a time that does not grow with the size, or has no part per slot in the model."""
    return Sized(statistics.median(seconds), 0.0, max(seconds) - min(seconds)) if seconds else None


def spread_around(middle: float, spread: float) -> tuple[float, float]:
    """Return the least of a time and its jitter, so that its middle stays what it is, and none is below 0."""
    jitter = min(spread, 2.0 * max(0.0, middle))
    return max(0.0, middle - jitter / 2), jitter


def handovers_of(
    changes: Sequence[RecordedChange], samples: Sequence[Sample], first_batch: Sized
) -> HandoverFit | None:
    """Return what the handovers of a recording took; None if it has none."""
    done = [c for c in changes if c.way is Way.HANDOVER and Phase.SWITCHING in c.at]
    gaps = [
        s.started_at - s.committed_before for s in samples if s.cold is Way.HANDOVER and s.committed_before is not None
    ]
    warm = sized([(c.parallelism, c.at[Phase.SWITCHING] - c.ordered_at) for c in done])
    if warm is None or not gaps:
        return None
    return HandoverFit(len(done), warm, max(0.0, statistics.median(gaps)), first_batch)


def in_place_of(
    changes: Sequence[RecordedChange], snapshots: Sequence[MetricSnapshot], first_batch: Sized | None
) -> InPlaceFit | None:
    """Return what the changes in place of a recording took; None if it has none."""
    grown: list[float] = []
    shrunk: list[float] = []
    sizes = [(s.sequence, s.slots_granted) for s in snapshots if s.slots_granted]
    for change in changes:
        place = bisect_right(sizes, change.ordered_at, key=itemgetter(0))
        if change.way is Way.IN_PLACE and place and change.parallelism != (before := sizes[place - 1][1]):
            seconds = change.registered_at - change.ordered_at
            (grown if change.parallelism > before else shrunk).append(seconds)
    if not grown and not shrunk:
        return None
    # Each executor registers by itself, so the time does not grow with the size.
    return InPlaceFit(len(grown), len(shrunk), level(grown), first_batch, min(shrunk, default=None))
