"""Whether more slots would help: a stuck consumer, a scale-up without effect, a job downstream that is behind."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import ClassVar

from tidegate.engine.case import Case
from tidegate.engine.guard import Guard, Verdict
from tidegate.engine.links import best_reader, in_circle
from tidegate.engine.options import option
from tidegate.engine.reasons import Reason
from tidegate.events.snapshot import WarningCode


@dataclass(frozen=True, slots=True)
class StuckConsumer(Guard):
    """Stops growth of a job whose committed offsets stand still while the lag grows: it is stuck, not too small.

    A long batch commits nothing either, but its tasks go on finishing: the time counts from the last one. It sees the
    policy's window; a window shorter than the limit never shows a stuck job. Nor does a job grow that takes no batch
    because its source holds records back.
    """

    name: ClassVar = "stuck_consumer"
    judges_worth: ClassVar = True
    reasons: ClassVar[Mapping[str, Reason]] = {
        "CONSUMER_STUCK": Reason(
            "no offset was committed for {age_seconds:.0f} s while {grown} records arrived, "
            "so the job is stuck rather than too small",
            "check the driver's log for a batch that hangs or is retried over and over (a poison record, a dead sink)",
        ),
        "SOURCE_HOLDS_BACK": Reason(
            "the job takes no batch although {lag} records wait: its source holds them back, and no size changes that",
            "give a job with `minOffsetsPerTrigger` an objective above its `maxTriggerDelay`, or set `read_committed`",
        ),
    }

    snapshots: int = option(
        6,
        "intervals without a committed offset, while records arrive, after which the job counts as stuck",
        unit="intervals",
        ge=2,
    )
    batches: float = option(3.0, "least time without a commit, in typical batches", unit="batches", ge=1)

    def dispose(self, size: int, case: Case) -> Verdict | None:
        """Look back in the window to where the committed offsets last moved, but not beyond an empty queue."""
        window = case.state.window
        if size <= case.current or not window:
            return None
        if any(each.code is WarningCode.SOURCE_WAITS for each in case.snapshot.warnings or ()):
            return Verdict(case.current, "SOURCE_HOLDS_BACK", {"lag": case.evidence.lag_records})
        newest = window[-1]
        standing = [*takewhile(lambda piece: piece.committed == newest.committed, reversed(window))]
        # While nothing waited, there was nothing to commit: the time counts from then on.
        first = next((piece for piece in standing if piece.lag == 0), standing[-1])
        if newest.committed is None or newest.arrived is None or first.arrived is None:
            return None
        if newest.arrived <= first.arrived:
            return None
        since = max(first.at, case.state.task_at or 0.0)
        age, grown = newest.at - since, newest.arrived - first.arrived
        limit = self.snapshots * case.snapshot.interval_seconds
        typical = case.evidence.batch_seconds
        if age < limit or (typical is not None and age < self.batches * typical):
            return None
        return Verdict(case.current, "CONSUMER_STUCK", {"age_seconds": age, "grown": grown})


@dataclass(frozen=True, slots=True)
class Ineffective(Guard):
    """Stops growth after two scale-ups in a row that had no effect, judged once the job is busy all the time again.

        gain = (C - C0) / (C0 · n / n0 - C0)

    C and n: capacity (records/s) and size now; C0 and n0: before the scale-up. Linear scaling gives a gain of 1.
    A job often grows because its records have become dearer. Its capacity falls meanwhile, so the scale-up seems
    to have had no effect. Only a second one tells. A scale-up that once brought half of the gain has worked, whatever
    comes later. A small step is not judged: its gain is within the noise of a window's capacity.
    """

    name: ClassVar = "ineffective"
    judges_worth: ClassVar = True
    reasons: ClassVar[Mapping[str, Reason]] = {
        "SCALE_UP_INEFFECTIVE": Reason(
            "two scale-ups in a row had no effect: the last one, from {before} to {after} slots, "
            "brought {gain:.0%} of the expected gain, so no more slots are added",
            "look for another bottleneck: the sink, skew, one slow stage; a manual size resets this",
        ),
    }

    threshold: float = option(
        0.1, "share of the expected gain below which a scale-up had no effect", unit="share", ge=0, le=1
    )
    step: float = option(
        0.25, "share of the size that the last scale-up must have added to be judged", unit="share", ge=0
    )
    saturation: float = option(0.9, "busy share of time from which the gain can be judged", unit="share", ge=0, le=1)
    forget_seconds: float = option(3600.0, "time after the last one in which no more is added", unit="s", gt=0)

    def dispose(self, size: int, case: Case) -> Verdict | None:
        """Compare what the last scale-up has brought with what it should have, if the one before had not worked."""
        e, growth = case.evidence, case.state.history.growth
        if size <= case.current or growth is None or growth.worked or not growth.repeated:
            return None
        if case.decided_at - growth.at > self.forget_seconds or growth.after < (1.0 + self.step) * growth.before:
            return None
        if e.utilization is None or e.utilization < self.saturation:
            return None
        gain = growth.gain(case.current, e.true_processing_rate)
        if gain is None or gain >= self.threshold:
            return None
        return Verdict(
            case.current, "SCALE_UP_INEFFECTIVE", {"before": growth.before, "after": growth.after, "gain": gain}
        )


@dataclass(frozen=True, slots=True)
class Downstream(Guard):
    """Stops growth where no job downstream could process the additional output.

    Kafka holds what a slow reader leaves, so there is no back pressure; more output would only wait there. Growth stops
    while a reader is far behind and falling further behind. It ends at the size whose output is what the readers can
    process at most (`tidegate.engine.links.ceiling_of`):

        limit = n · max(ceilings) / (r · C)        n: slots, r: output ratio, C: capacity, records/s

    One reader that can follow is enough. Where a ceiling, the ratio or the capacity is not known, nothing is limited.
    Nor is a job in a circle: each would wait for another, and none would ever grow.
    """

    name: ClassVar = "downstream"
    judges_worth: ClassVar = True
    waits: ClassVar = True
    reasons: ClassVar[Mapping[str, Reason]] = {
        "DOWNSTREAM_BEHIND": Reason(
            "{job} downstream is {lag_seconds:.0f} s behind and falling further behind, "
            "so more output would only wait there",
            "scale {job} first",
        ),
        "DOWNSTREAM_FULL": Reason(
            "{job} downstream can process at most {rate:rate} records/s, "
            "so the output of more than {limit} slots would only wait there",
            "raise the `max_parallelism` of {job}, or give its pool more slots",
        ),
    }

    lag_seconds: float = option(
        600.0, "lag of that job, in seconds of work, from which nothing is added here", unit="s", gt=0
    )

    def dispose(self, size: int, case: Case) -> Verdict | None:
        """Look for a reader whose lag is long and growing, then for what all of them can process."""
        if size <= case.current or in_circle(case.observed.neighbours):
            return None
        for neighbour in case.observed.neighbours:
            seen = neighbour.evidence
            if neighbour.upstream or neighbour.distance is not None:  # only a direct reader of our output
                continue
            if seen is None or seen.lag_seconds is None or seen.lag_trend is None:
                continue
            if seen.lag_seconds >= self.lag_seconds and seen.lag_trend > 0:
                return Verdict(
                    case.current, "DOWNSTREAM_BEHIND", {"job": neighbour.job_id, "lag_seconds": seen.lag_seconds}
                )
        return _limited(size, case)


def _limited(size: int, case: Case) -> Verdict | None:
    """Limit the size to what the reader that can process most can follow."""
    ratio, capacity = case.evidence.output_ratio, case.evidence.true_processing_rate
    best = best_reader(case.observed.neighbours, case.spec)
    if best is None or best.ceiling is None or not ratio or not capacity:
        return None
    limit = max(case.current, math.ceil(case.current * best.ceiling / (ratio * capacity)))
    if size <= limit:
        return None
    return Verdict(limit, "DOWNSTREAM_FULL", {"job": best.job_id, "rate": best.ceiling, "limit": limit})
