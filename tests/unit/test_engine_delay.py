"""The delay: the age of the oldest record not committed, from end offsets over time."""

from __future__ import annotations

import json
from datetime import timedelta
from itertools import pairwise
from time import process_time

import pytest

from tests.support.cases import decide
from tests.support.events import START, job, snapshot
from tidegate.engine.delay import (
    MOST_KNOTS,
    NO_ARRIVALS,
    Age,
    Arrivals,
    arrivals_from_wire,
    arrivals_to_wire,
    arrived_since,
    offsets_of,
    watched,
)
from tidegate.engine.state import from_wire, to_wire
from tidegate.events.snapshot import ClusterState, MetricSnapshot, SourceOffsets, snapshot_id

ZERO = START.timestamp()
Row = tuple[int | None, ...]


def shot(seconds: float, ends: Row, committed: Row, topic: str = "in") -> MetricSnapshot:
    """Return a snapshot of one topic so many seconds after the start."""
    source = SourceOffsets(topic=topic, end_offsets=ends, committed_offsets=committed)
    at = START + timedelta(seconds=seconds)
    return snapshot(0).model_copy(update={"observed_at": at, "sources": (source,)})


def seen(*shots: MetricSnapshot, before: Arrivals = NO_ARRIVALS) -> tuple[Arrivals, Age | None]:
    """Return arrivals and delay after some snapshots."""
    arrivals, age = before, None
    for each in shots:
        arrivals, age = watched(arrivals, offsets_of(each))
    return arrivals, age


def exactly(seconds: float) -> Age:
    """Return an age that is no lower bound, to the millisecond."""
    return Age(round(seconds, 3))


def test_the_oldest_record_waits_since_its_end_offset_was_passed() -> None:
    """Of 100 records per 10 s, 250 are committed 60 s after the start: the next one arrived 25 s after it."""
    shots = [shot(10 * n, (100 * n,), (0,)) for n in range(6)]
    _, age = seen(*shots, shot(60, (600,), (250,)))
    assert age == exactly(34.95)  # half a record's time after 25 s


def test_a_job_without_lag_has_no_delay() -> None:
    """All committed: 0 s, and nothing but the newest end offsets is remembered."""
    arrivals, age = seen(shot(0, (5, 7), (0, 0)), shot(10, (6, 9), (6, 9)))
    assert age == Age(0.0)
    assert len(arrivals.knots) == 1


def test_a_batch_may_commit_more_than_was_measured() -> None:
    """Committed offsets above the end offsets, which are read earlier, leave nothing to wait for."""
    assert seen(shot(0, (5,), (5,)), shot(10, (8,), (9,)))[1] == Age(0.0)


def test_a_record_that_was_removed_does_not_wait() -> None:
    """Retention has removed the first 300 of 600 records, of which 100 are committed: the oldest is number 301."""
    shots = [shot(10 * n, (100 * n,), (0,)) for n in range(6)]
    gone = SourceOffsets(topic="in", end_offsets=(600,), committed_offsets=(100,), first_offsets=(300,))
    last = shot(60, (600,), (100,)).model_copy(update={"sources": (gone,)})
    assert seen(*shots, last)[1] == exactly(29.95)
    assert (offsets_of(last).done, offsets_of(last).lost) == (300, 200)


def test_the_slowest_partition_counts() -> None:
    """Most records are fresh, but one partition stands still for a minute: the delay is that minute."""
    shots = [shot(10 * n, (100 * n, 10 * n), (100 * n - 50, 10), "in") for n in range(1, 8)]
    _, age = seen(*shots)
    assert age is not None
    assert not age.at_least
    assert age.seconds == pytest.approx(60.0, abs=1.0)


def test_a_record_that_waits_through_a_silence_grows_old() -> None:
    """A single record left in an hour without arrivals is an hour old, however few records that is."""
    shots = [shot(10 * n, (1000,), (999,)) for n in range(1, 361)]
    _, age = seen(shot(0, (999,), (999,)), *shots)
    assert age == exactly(3595.0)


def test_lag_before_the_first_snapshot_has_a_lower_bound() -> None:
    """Records that were there when we came are at least as old as we have watched, and the delay says so."""
    shots = [shot(10 * n, (5000 + n,), (100 * n,)) for n in range(4)]
    assert seen(*shots)[1] == Age(30.0, at_least=True)
    _, age = seen(*shots, shot(40, (5005,), (5001,)))
    assert age == exactly(25.0)  # the next record arrived between 10 and 20 s


def test_unknown_offsets_make_an_unknown_delay() -> None:
    """An end or committed offset that is unknown is no zero; the arrivals measured before stay."""
    before = [shot(10 * n, (100 * n, 100 * n), (0, 0)) for n in range(3)]
    assert seen(*before, shot(30, (300, None), (0, 0)))[1] is None
    assert seen(*before, shot(30, (300, 300), (None, 0)))[1] is None
    assert seen(*before, shot(30, (), ()))[1] is None
    _, age = seen(*before, shot(30, (300, None), (0, 0)), shot(40, (400, 400), (100, 100)))
    assert age == exactly(29.95)


def test_a_lost_snapshot_costs_precision_only() -> None:
    """Two minutes without a snapshot: the record is dated by even arrivals between the two around it."""
    _, age = seen(shot(0, (0,), (0,)), shot(120, (1200,), (0,)), shot(130, (1300,), (300,)))
    assert age == exactly(99.95)


def test_a_snapshot_that_goes_back_in_time_is_no_measurement() -> None:
    """A clock set back makes the delay unknown, not wrong, until it has passed the newest knot."""
    assert seen(shot(60, (10,), (0,)), shot(30, (20,), (0,)))[1] is None


def test_an_end_offset_that_falls_starts_over() -> None:
    """A recreated topic: its records are new, so the delay is at least 0 s and grows from there."""
    shots = [shot(10 * n, (100 * n, 100), (0, 0)) for n in range(4)]
    assert seen(*shots, shot(40, (20, 100), (0, 0)))[1] == Age(0.0, at_least=True)
    assert seen(*shots, shot(40, (20, 100), (0, 0)), shot(50, (30, 100), (0, 0)))[1] == Age(10.0, at_least=True)


def test_committed_offsets_that_fall_have_a_lower_bound() -> None:
    """A checkpoint set back to records that were forgotten: at least as old as the first knot kept."""
    assert seen(shot(0, (100,), (100,)), shot(10, (200,), (50,)))[1] == Age(10.0, at_least=True)


def test_added_partitions_were_empty() -> None:
    """Records of a partition that did not exist in the snapshot before arrived after it."""
    _, age = seen(shot(0, (100,), (100,)), shot(10, (200, 40), (200, 0)), shot(20, (300, 80), (300, 20)))
    assert age == exactly(14.875)


def test_partitions_are_added_to_the_first_of_two_topics() -> None:
    """The offsets of the second topic keep their place."""

    def both(seconds: float, first: Row, second: Row) -> MetricSnapshot:
        done = tuple(
            SourceOffsets(topic=t, end_offsets=row, committed_offsets=(0,) * len(row))
            for t, row in (("a", first), ("b", second))
        )
        return shot(seconds, (0,), (0,)).model_copy(update={"sources": done})

    arrivals, age = seen(both(0, (0,), (0,)), both(10, (0,), (5,)), both(20, (0, 3), (9,)))
    assert [knot.ends for knot in arrivals.knots] == [(0, 0, 0), (0, 0, 5), (0, 3, 9)]
    assert age == exactly(19.0)


def test_another_topic_starts_over() -> None:
    """How old the records of a new source are is not known."""
    assert seen(shot(0, (0,), (0,)), shot(10, (9,), (0,), "other"))[1] == Age(0.0, at_least=True)
    assert seen(shot(0, (0, 0), (0, 0)), shot(10, (9,), (0,)))[1] == Age(0.0, at_least=True)


@pytest.mark.parametrize("partitions", [1, 7, 50, 500])
def test_arrivals_survive_the_wire(partitions: int) -> None:
    """Knots come back exactly, however many partitions there are and however large their offsets."""
    ends = [2**40 + 977 * p for p in range(partitions)]
    arrivals = NO_ARRIVALS
    for n in range(100):
        ends = [end + (p * 7919 + n * 31) % 1013 for p, end in enumerate(ends)]
        arrivals, _ = seen(shot(10.25 * n, tuple(ends), (2**40,) * partitions), before=arrivals)
        assert arrivals_from_wire(json.loads(json.dumps(arrivals_to_wire(arrivals)))) == arrivals
    assert len(arrivals.knots) <= MOST_KNOTS


def test_writing_arrivals_takes_time_in_proportion_to_the_partitions() -> None:
    """Eight times the partitions take about eight times as long; the square of it would be 64 times."""

    def seconds(partitions: int) -> float:
        rows = [tuple(2**40 + n * (p * 7919 % 1013) for p in range(partitions)) for n in range(3)]
        arrivals, _ = seen(*[shot(10 * n, row, (2**40,) * partitions) for n, row in enumerate(rows)])
        taken = []
        for _ in range(3):
            started = process_time()
            assert arrivals_from_wire(arrivals_to_wire(arrivals)) == arrivals
            taken.append(process_time() - started)
        return min(taken)

    assert seconds(80_000) < 30 * seconds(10_000)


def test_long_lag_keeps_few_knots_and_relative_precision() -> None:
    """Lag of ten hours in 50 partitions: few knots, and no gap above half its age."""
    arrivals = NO_ARRIVALS
    for n in range(3600):
        arrivals, _ = seen(shot(10 * n, (100 * n,) * 50, (0,) * 50), before=arrivals)
    times = [knot.at / 1000 - ZERO for knot in arrivals.knots]
    assert len(times) <= MOST_KNOTS
    gaps = [(b - a) / (times[-1] - a) for a, b in pairwise(times[:-2])]
    assert max(gaps) <= 0.5
    assert len(json.dumps(arrivals_to_wire(arrivals))) < 1000


def test_a_state_of_an_older_engine_has_no_arrivals() -> None:
    """Engines before the seventh wrote none: the delay starts as that of a job never seen, with a lower bound."""
    spec, shots = job(), [shot(10 * n, (100 * n,), (0,)) for n in range(1, 4)]
    shots = [
        shot.model_copy(update={"sequence": n, "snapshot_id": snapshot_id("rates", n)}) for n, shot in enumerate(shots)
    ]
    state, _ = decide(spec, shots[:2])
    old = {name: value for name, value in to_wire(state).items() if name != "arrivals"} | {"engine_version": "6"}
    state, decision = decide(spec, shots[2:], state=from_wire(old))
    assert (decision.evidence.delay_seconds, decision.evidence.delay_at_least) == (0.0, True)
    assert from_wire(to_wire(state)).arrivals == state.arrivals != NO_ARRIVALS


def test_the_delay_goes_on_while_the_job_does_not_run() -> None:
    """Records wait through a restart: the window starts over, the delay does not."""
    shots = [
        snapshot(n, arrived=8000 * n, committed=0 if n < 5 else 8000, state=state, incarnation=run)
        for n, (state, run) in enumerate(
            [(ClusterState.RUNNING, "app-1")] * 2
            + [(ClusterState.STOPPED, "app-1")]
            + [(ClusterState.RUNNING, "app-2")] * 3
        )
    ]
    _, decision = decide(job(), shots)
    assert decision.evidence.delay_seconds == pytest.approx(40, abs=0.1)
    assert decision.evidence.delay_at_least is None


def test_what_has_arrived_of_late() -> None:
    """Arrivals between two snapshots are evenly spaced."""
    arrivals, _ = seen(shot(0, (0,), (0,)), shot(10, (100,), (0,)), shot(20, (100,), (0,)), shot(30, (400,), (0,)))
    assert arrived_since(arrivals, 0) == 0
    assert arrived_since(arrivals, 5) == 150
    assert arrived_since(arrivals, 25) == 350
    assert arrived_since(arrivals, 31) is None
    assert arrived_since(NO_ARRIVALS, 0) is None
