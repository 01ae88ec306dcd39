"""Whether more slots would be of use: a stuck consumer, a growth that brought nothing, a full job downstream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidegate.engine.case import Case, Verdict
from tidegate.engine.options import option
from tidegate.events.decision import Figure


@dataclass(frozen=True, slots=True)
class StuckConsumerOptions:
    """When a job counts as stuck."""

    snapshots: int = option(
        6, "intervals without a committed offset, while records arrive, after which it is stuck", unit="intervals", ge=2
    )
    batches: float = option(3.0, "time without one, at least, in usual batches", unit="batches", ge=1)


class StuckConsumer:
    """Stops growth of a job whose committed offsets stand still while the lag grows: it is stuck, not too small.

    What is seen is the policy's window; one shorter than the limit never shows a stuck job.
    """

    name: ClassVar[str] = "stuck_consumer"
    Options: ClassVar[type] = StuckConsumerOptions
    waits: ClassVar[bool] = False
    binds_manual: ClassVar[bool] = False
    covers: ClassVar[frozenset[str]] = frozenset({"rescale"})

    def __init__(self, options: StuckConsumerOptions) -> None:
        self.options = options

    def dispose(self, wish: int, case: Case) -> Verdict | None:
        """Look back in the window to where the committed offsets last moved."""
        window = case.state.window
        if wish <= case.current or not window:
            return None
        newest = first = window[-1]
        for piece in reversed(window):
            if piece.committed is None or piece.committed != newest.committed:
                break
            first = piece
        if newest.arrived is None or first.arrived is None or newest.arrived <= first.arrived:
            return None
        age, grown = newest.at - first.at, newest.arrived - first.arrived
        limit = self.options.snapshots * case.snapshot.interval_seconds
        usual = case.evidence.batch_seconds
        if age < limit or (usual is not None and age < self.options.batches * usual):
            return None
        return Verdict(case.current, "CONSUMER_STUCK", {"age_seconds": age, "grown": grown})


@dataclass(frozen=True, slots=True)
class IneffectiveOptions:
    """When a growth counts as ineffective."""

    threshold: float = option(
        0.1, "share of the expected gain under which a growth brought nothing", unit="share", ge=0, le=1
    )
    saturation: float = option(0.9, "busy share of time from which the gain can be told", unit="share", ge=0, le=1)
    forget_seconds: float = option(3600.0, "time after that growth in which no more is added", unit="s", gt=0)


class Ineffective:
    """Stops growth after one that brought nothing, judged once the job is busy all the time again.

        gain = (C - C0) / (C0 · n / n0 - C0)

    C and n: capacity (records/s) and size now; C0 and n0: before the growth. Linear scaling gives a gain of 1.
    """

    name: ClassVar[str] = "ineffective"
    Options: ClassVar[type] = IneffectiveOptions
    waits: ClassVar[bool] = False
    binds_manual: ClassVar[bool] = False
    covers: ClassVar[frozenset[str]] = frozenset({"rescale"})

    def __init__(self, options: IneffectiveOptions) -> None:
        self.options = options

    def dispose(self, wish: int, case: Case) -> Verdict | None:
        """Compare what the last growth was to bring with what it brought."""
        o, e, growth = self.options, case.evidence, case.state.history.growth
        if wish <= case.current or growth is None or growth.after != case.current or not growth.before:
            return None
        if growth.rate is None or e.true_processing_rate is None or case.decided_at - growth.at > o.forget_seconds:
            return None
        if e.utilization is None or e.utilization < o.saturation:
            return None
        expected = growth.rate * growth.after / growth.before
        gain = (e.true_processing_rate - growth.rate) / (expected - growth.rate)
        if gain >= o.threshold:
            return None
        numbers: dict[str, Figure] = {"before": growth.before, "after": growth.after, "gain": gain}
        return Verdict(case.current, "SCALE_UP_INEFFECTIVE", numbers)


@dataclass(frozen=True, slots=True)
class DownstreamOptions:
    """When a job downstream counts as full."""

    lag_seconds: float = option(
        600.0, "lag of that job, in seconds of work, from which nothing is added here", unit="s", gt=0
    )


class Downstream:
    """Stops growth while a job that reads our output is far behind and falling back further.

    Kafka holds what a slow reader leaves, so nothing presses back by itself; more from here would only wait there.
    """

    name: ClassVar[str] = "downstream"
    Options: ClassVar[type] = DownstreamOptions
    waits: ClassVar[bool] = True
    binds_manual: ClassVar[bool] = False
    covers: ClassVar[frozenset[str]] = frozenset({"rescale"})

    def __init__(self, options: DownstreamOptions) -> None:
        self.options = options

    def dispose(self, wish: int, case: Case) -> Verdict | None:
        """Look for a job downstream whose lag is long and grows."""
        if wish <= case.current:
            return None
        for neighbour in case.observed.neighbours:
            seen = neighbour.evidence
            if neighbour.upstream or neighbour.distance is not None:  # only a direct reader of our output
                continue
            if seen is None or seen.lag_seconds is None or seen.lag_trend is None:
                continue
            if seen.lag_seconds >= self.options.lag_seconds and seen.lag_trend > 0:
                numbers: dict[str, Figure] = {"job": neighbour.job_id, "lag_seconds": seen.lag_seconds}
                return Verdict(case.current, "DOWNSTREAM_BEHIND", numbers)
        return None
