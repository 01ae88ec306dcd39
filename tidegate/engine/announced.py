"""Announced demand: what the jobs upstream plan to emit, as arrivals of this job, before it arrives.

Every decision on a job that others read says what the job will emit (`tidegate.engine.emission`). The plans of the jobs
upstream, with times from this snapshot on and rates in records/s, add up to

    announced(t) = Σ plan(t) + others         others = max(0, arrivals - Σ emitted), 0 if the plans are complete
    fall(t)      = max(0, announced(0) - announced(t))

and a forecast made from the job's own arrivals becomes

    demand(t)    = max(announced(t), forecast(t) - fall(t))

So a growth upstream counts in full, however late the forecast is. A fall, such as the end of a backlog upstream, is
subtracted from the forecast: if the plan is wrong about the rate, measured arrivals still count. A plan without any
step counts too: a job upstream writes whole micro-batches, which look like bursts and silences from here.

If the plans are *complete*, because every job that writes a source of the job has one, they say how its arrivals will
change. Then the forecast should be a constant, the level of the arrivals: a trend would count a growth twice, once as
announced and once as it arrives.

A plan is ignored

- if the job upstream also reads what this job leads to: in a circle each would raise the other's demand,
- from `SETTLED_SECONDS` after its last step: what it announced has arrived, or never will.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from tidegate.engine.links import downstream_of
from tidegate.engine.total import total
from tidegate.events.decision import Emission, Evidence, Figure, Neighbour

Path = tuple[tuple[float, float], ...]
"""(from seconds, records/s), rising in time; each rate holds until the next one, the last for good."""

NEWS: Final = 0.1
"""Share by which a planned rate must exceed what arrives to be a growth: arrivals vary by about as much."""

GROWTH_SECONDS: Final = 120.0
"""A growth is judged by the mean of so long: not by a short burst, and not long before it begins."""

SETTLED_SECONDS: Final = 120.0
"""How long the last step of a plan counts: by then the job has decided again, or the plan is not followed."""

CAUSE = "{upstream} plans to emit {announced:,rate} records/s from {announced_at}, now {emitted:,rate}"
"""How a reason says it; the values are `Announced.values`."""


class Announced(NamedTuple):
    """The arrivals that the plans upstream add up to."""

    steps: Path
    """The first step is at 0."""
    arriving: float
    """What arrives now, records/s, as far as it is known."""
    is_complete: bool
    """Whether all jobs that write the sources have a plan, so that nothing else is expected to arrive."""
    values: Mapping[str, Figure]
    """The plan that grows most above what its job emits now, for the reason of a growth: `upstream`, `announced`
    (records/s), `announced_at` (UTC) and `emitted` (records/s)."""

    @property
    def highest(self) -> float:
        """The highest rate announced, records/s."""
        return max(rate for _, rate in self.steps)

    def demand(self, start: float, seconds: float, forecast: float) -> float:
        """Return the mean demand from `start` on, given the forecast of the job's own arrivals."""
        first, rate, fall, left = self.steps[0][1], 0.0, 0.0, max(seconds, 1e-9)
        end = start + left
        for place, (since, planned) in enumerate(self.steps):
            until = self.steps[place + 1][0] if place + 1 < len(self.steps) else math.inf
            share = max(0.0, min(until, end) - max(since, start)) / left
            rate += share * planned
            fall += share * max(0.0, first - planned)
        return max(rate, forecast - fall, 0.0)

    def on_grid(self, ends: Iterable[float], forecast: Iterable[float]) -> tuple[float, ...]:
        """Return the mean demand of each segment from now on, given when it ends, in seconds, and its forecast."""
        start, found = 0.0, []
        for end, rate in zip(ends, forecast, strict=True):
            found.append(self.demand(start, end - start, rate))
            start = end
        return tuple(found)

    def path(self, forecast: float) -> Path:
        """Return the demand step by step, given a constant forecast."""
        first = self.steps[0][1]
        return tuple([(since, max(rate, forecast - max(0.0, first - rate), 0.0)) for since, rate in self.steps])

    def grows_above(self, rate: float, start: float) -> bool:
        """Whether more than `rate`, and more than arrives now, is announced for the time from `start` on."""
        return self.demand(start, GROWTH_SECONDS, 0.0) > max(rate, (1.0 + NEWS) * self.arriving)


def is_awaited(neighbours: Sequence[Neighbour]) -> bool:
    """Whether a job upstream has a plan, and records wait for it, or may wait: it is starting, or in a long batch.

    So it will write again. Its plan may be old, because a restart can last longer than expected.
    """
    downstream = downstream_of(neighbours)
    for each in neighbours:
        seen, emits = each.evidence, each.emits
        if not each.upstream or each.job_id in downstream or seen is None or emits is None or not emits.steps:
            continue
        if seen.lag_records != 0 and seen.output_ratio != 0.0 and emits.steps[-1].rate > 0.0:
            return True
    return False


class _Plan(NamedTuple):
    """The plan of one job upstream."""

    neighbour: Neighbour
    path: Path
    emitted: float | None


def announced(
    neighbours: Sequence[Neighbour], sources: Iterable[str], evidence: Evidence, at: float
) -> Announced | None:
    """Return what the jobs upstream announce to a job that reads `sources`, at epoch second `at`; None if nothing."""
    plans = _plans(neighbours, set(sources), evidence, at)
    if not plans:
        return None
    arriving, others = evidence.arrival_rate, 0.0
    planned = {plan.neighbour.job_id for plan in plans}
    told = {topic for plan in plans for topic in plan.neighbour.topics}
    untold = {topic for each in neighbours if each.upstream and each.job_id not in planned for topic in each.topics}
    is_complete = set(sources) <= told - untold
    if not is_complete:
        emitted = [plan.emitted for plan in plans]
        if arriving is None or None in emitted:
            return None
        others = max(0.0, arriving - total(filter(None, emitted)))
    times = sorted({since for plan in plans for since, _ in plan.path})
    steps = tuple([(time, others + math.fsum(rate_at(plan.path, time) for plan in plans)) for time in times])
    return Announced(steps, arriving or 0.0, is_complete, _cause(plans, at))


def _plans(neighbours: Sequence[Neighbour], sources: set[str], evidence: Evidence, at: float) -> list[_Plan]:
    """Return the plans that count."""
    upstream = [each for each in neighbours if each.upstream]
    downstream = downstream_of(neighbours)
    found = []
    for each in upstream:
        emits = each.emits
        if emits is None or not emits.steps or each.job_id in downstream:
            continue
        if at > emits.steps[-1].at.timestamp() + SETTLED_SECONDS:
            continue
        emitted, share = _emitted(each), 1.0
        if emits.topic is None:
            # Of several sinks this job reads some; its arrivals show their share if they have no other source.
            if len(upstream) > 1 or not sources <= set(each.topics) or not emitted or evidence.arrival_rate is None:
                continue
            share, emitted = min(1.0, evidence.arrival_rate / emitted), evidence.arrival_rate
        found.append(_Plan(each, _path(emits, share, at), emitted))
    return found


def _emitted(neighbour: Neighbour) -> float | None:
    """Return what a job has emitted of late, records/s; None if unknown."""
    seen = neighbour.evidence
    if seen is None or seen.processing_rate is None or seen.output_ratio is None:
        return None
    return seen.processing_rate * seen.output_ratio


def _path(emits: Emission, share: float, at: float) -> Path:
    """Return the steps of a plan in seconds from `at`; of those that have started, the last."""
    steps = [(step.at.timestamp() - at, share * step.rate) for step in emits.steps]
    started = [rate for since, rate in steps if since <= 0.0]
    return ((0.0, started[-1] if started else steps[0][1]), *(step for step in steps if step[0] > 0.0))


def rate_at(path: Path, time: float) -> float:
    """Return the rate of a path at a time, records/s."""
    return next(rate for since, rate in reversed(path) if since <= time)


def _cause(plans: Sequence[_Plan], at: float) -> dict[str, Figure]:
    """Return the plan that grows most above what its job emits now."""
    most, values = -math.inf, dict[str, Figure]()
    for neighbour, path, emitted in plans:
        now = path[0][1] if emitted is None else emitted
        since, rate = max(path, key=lambda step: step[1])
        if rate - now > most:
            most = rate - now
            values = {
                "upstream": neighbour.job_id,
                "announced": rate,
                "announced_at": f"{datetime.fromtimestamp(at + since, UTC):%H:%M:%S}",
                "emitted": now,
            }
    return values
