"""The delay against a queue per partition that remembers when each record arrived."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.events import START, snapshot
from tidegate.engine.delay import (
    LEAST_MARKED,
    MARKED_OFFSETS,
    MOST_KNOTS,
    NO_ARRIVALS,
    arrivals_from_wire,
    arrivals_to_wire,
    offsets_of,
    watched,
)
from tidegate.events.snapshot import MetricSnapshot, SourceOffsets

SLACK = 0.001
"""Times are kept in milliseconds."""


class Queues:
    """Records of each partition by their time of arrival, committed oldest first."""

    def __init__(self, partitions: int) -> None:
        self.arrived: list[list[float]] = [[] for _ in range(partitions)]
        self.committed = [0] * partitions
        self.now = 0.0

    def pass_time(self, seconds: float, arrivals: Sequence[tuple[int, float]], commits: Sequence[float]) -> None:
        """Let (records, when, as a share of the time) arrive and then commit a share of what waits, per partition."""
        for queue, (records, when) in zip(self.arrived, arrivals, strict=True):
            queue.extend([self.now + seconds * (when + (1 - when) * (n + 1) / records) for n in range(records)])
        self.now += seconds
        for p, share in enumerate(commits):
            self.committed[p] += int(share * (len(self.arrived[p]) - self.committed[p]))

    @property
    def delay(self) -> float:
        """Age of the oldest record not committed."""
        waiting = [queue[done] for queue, done in zip(self.arrived, self.committed, strict=True) if done < len(queue)]
        return self.now - min(waiting, default=self.now)

    def snapshot(self) -> MetricSnapshot:
        """Return what is measured."""
        ends = tuple(map(len, self.arrived))
        source = SourceOffsets(topic="in", end_offsets=ends, committed_offsets=tuple(self.committed))
        at = START + timedelta(seconds=self.now)
        return snapshot(0).model_copy(update={"observed_at": at, "sources": (source,)})


def lists(of: st.SearchStrategy[float], length: int) -> st.SearchStrategy[list[float]]:
    """Return lists of one length."""
    return st.lists(of, min_size=length, max_size=length)


@settings(max_examples=100)
@given(st.data(), st.integers(1, 5), st.integers(1, 40))
def test_the_delay_is_that_of_a_queue_per_partition(data: st.DataObject, partitions: int, steps: int) -> None:
    """Whatever arrives and is committed when, the error is below the time between the knots around the oldest record.

    As long as no knot has been dropped, this is the time between two snapshots.
    """
    queues, arrivals = Queues(partitions), NO_ARRIVALS
    record = st.tuples(st.integers(0, 60), st.floats(0, 0.9))
    for _ in range(steps):
        seconds = data.draw(st.sampled_from([1.0, 10.0, 10.5, 60.0, 3600.0]))
        arrived = data.draw(st.lists(record, min_size=partitions, max_size=partitions))
        queues.pass_time(seconds, arrived, data.draw(lists(st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]), partitions)))
        shot = queues.snapshot()
        arrivals, age = watched(arrivals, offsets_of(shot))
        true = queues.delay
        assert age is not None
        if age.at_least:
            assert age.seconds <= true + SLACK
            continue
        marked = [knot.at / 1000 - START.timestamp() for knot in arrivals.knots if knot.ends is not None]
        edges = [queues.now - at for at in marked]
        gap = next((a - b for a, b in pairwise(edges) if a + SLACK >= age.seconds > b), 0.0)
        assert abs(age.seconds - true) <= gap + SLACK
        assert len(arrivals.knots) <= MOST_KNOTS
        assert len(marked) <= max(LEAST_MARKED, MARKED_OFFSETS // partitions)
        assert arrivals_from_wire(json.loads(json.dumps(arrivals_to_wire(arrivals)))) == arrivals


@settings(max_examples=20)
@given(st.integers(30, 200), st.integers(0, 40), st.integers(1, 50), st.floats(0.3, 3.0))
def test_long_lag_keeps_the_relative_precision(steps: int, burst: int, partitions: int, share: float) -> None:
    """Steady arrivals with one burst, any number of partitions: the delay is right within an eighth of it."""
    queues, arrivals = Queues(partitions), NO_ARRIVALS
    for step in range(steps):
        records = 20 * (10 if step == burst else 1)
        queues.pass_time(10.0, [(records, 0.0)] * partitions, [0.0] * partitions)
        # Batches of a fixed size lag more and more behind, or catch up, all partitions alike.
        taken = min(int(20 * share * (step + 1)), len(queues.arrived[0])) if step > 5 else 0
        queues.committed = [taken] * partitions
        shot = queues.snapshot()
        arrivals, age = watched(arrivals, offsets_of(shot))
        assert age is not None
        if not age.at_least:
            assert abs(age.seconds - queues.delay) <= max(2.0, queues.delay / 8)
