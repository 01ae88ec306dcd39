"""The window: rates across slices, time inside micro-batches, and what makes it start over."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.support.cases import decide
from tests.support.events import START, batch, job, snapshot, steady
from tidegate.engine.evidence import gather
from tidegate.engine.state import MAX_SLICES, JobState, from_wire, to_wire
from tidegate.engine.window import observe
from tidegate.events.snapshot import ClusterState, MetricSnapshot, Part, SourceOffsets
from tidegate.twin.recorded import lag_of

WINDOW = 600.0


def taken(*snapshots: MetricSnapshot, window: float = WINDOW) -> JobState:
    """Return the state after some snapshots."""
    state = JobState.new()
    for each in snapshots:
        state, _, _ = observe(state, each, window)
    return state


def test_rates_are_those_of_the_offsets() -> None:
    """Arrival and processing rates are the growth of end offsets and committed offsets per second."""
    snapshots = steady(7, rate=1000, capacity=800)
    evidence = gather(taken(*snapshots), snapshots[-1], 4, None)
    assert evidence.arrival_rate == pytest.approx(1000)
    assert evidence.processing_rate == pytest.approx(800)
    assert evidence.lag_trend == pytest.approx(200)
    assert evidence.true_processing_rate == pytest.approx(800)
    assert evidence.utilization == pytest.approx(1.0)
    # 7 intervals, each leaving 2,000 behind: 14,000 records are 17.5 s of work at 800/s.
    assert evidence.lag_records == 14_000
    assert evidence.lag_seconds == pytest.approx(17.5)


def test_merging_slices_changes_no_rate() -> None:
    """A long window is merged to few slices, and rates over it stay exact."""
    snapshots = steady(60, rate=500, capacity=1000)
    state = taken(*snapshots)
    assert len(state.window) <= MAX_SLICES + 2
    evidence = gather(state, snapshots[-1], 4, None)
    assert evidence.arrival_rate == pytest.approx(500)
    assert evidence.utilization == pytest.approx(0.5)
    assert evidence.true_processing_rate == pytest.approx(1000)


def test_old_slices_leave_the_window() -> None:
    """The window forgets what is older than its length."""
    state = taken(*steady(60, rate=500, capacity=1000), window=120.0)
    assert state.window[-1].at - state.window[0].at <= 120.0


@pytest.mark.parametrize("lost", [(), (60,)])
def test_a_window_shorter_than_the_interval_shows_rates_all_the_same(lost: tuple[int, ...]) -> None:
    """With a snapshot every five minutes a window of two has one to compare with, even if the one before was lost."""
    numbers = [number for number in (0, 30, 60, 90) if number not in lost]
    shots = [snapshot(n, arrived=n * 1000, committed=n * 1000) for n in numbers]
    spread = [shot.model_copy(update={"interval_seconds": 300}) for shot in shots]
    evidence = gather(taken(*spread, window=120.0), spread[-1], 4, None)
    assert evidence.arrival_rate == pytest.approx(100.0)
    assert evidence.window_seconds == 600.0


def test_a_batch_longer_than_the_interval_is_busy_time_throughout() -> None:
    """A batch over three intervals makes each of them busy, and is not counted twice when it ends."""
    started = START + timedelta(seconds=10)
    during = [snapshot(n, arrived=n * 1000, current_batch_started_at=started) for n in (2, 3)]
    ended = snapshot(4, arrived=4000, committed=3000, batches=[batch(4, 1, 3000, 30.0)])
    state = taken(snapshot(1, arrived=1000), *during, ended, window=120.0)
    assert [s.busy_seconds for s in state.window[1:]] == pytest.approx([10.0, 10.0, 10.0])


def test_a_long_batch_seen_only_at_its_end_counts_whole() -> None:
    """Where the running batch was not seen, its time is accounted for when it ends."""
    state = taken(snapshot(1), snapshot(2), snapshot(3), snapshot(4, committed=30, batches=[batch(4, 1, 30, 30.0)]))
    assert sum(s.busy_seconds for s in state.window) == pytest.approx(30.0)


def test_overlapping_batches_of_two_queries_are_busy_time_once() -> None:
    """A batch of 8 s is busy time throughout, although short ones of another query ended before it did."""
    short = [batch(2 - (9 - 2 * n) / 10, n, 10, 0.1) for n in range(5)]  # they end 1, 3, 5, 7 and 9 s after the first
    shots = [snapshot(1), snapshot(2, batches=[*short[:4], batch(1.85, 7, 800, 8.0), short[4]])]
    state = taken(*shots)
    assert state.window[-1].busy_seconds == pytest.approx(8.1)
    assert state.last_batch_id == 4


def test_unseen_batches_are_neither_busy_nor_idle() -> None:
    """A gap in batch ids hides time that counts neither as busy nor as idle."""
    first = snapshot(1, batches=[batch(1, 1, 10, 2.0)])
    gap = snapshot(2, batches=[batch(2, 5, 10, 2.0)])
    state = taken(first, gap)
    assert state.window[-1].covered_seconds == 0.0
    assert gather(state, gap, 4, None).utilization is None


def test_batches_of_two_queries_are_not_numbered_in_one_row() -> None:
    """Each query has its own numbers: that they jump from one query to the other hides no time."""
    shots = []
    for n in range(1, 5):
        short = [batch(n - k / 10, 5 * n - k, 10, 0.5) for k in (4, 2)]
        shots.append(snapshot(n, batches=[batch(n - 0.8, 1000 + n, 10, 1.0), *short]))
    state = taken(*shots, window=120.0)
    assert [piece.covered_seconds for piece in state.window] == [10.0] * 4
    assert gather(state, shots[-1], 4, None).utilization == pytest.approx(0.2)


def test_time_that_no_snapshot_saw_is_not_idle() -> None:
    """After a pause of the collector a snapshot without a finished batch does not tell how busy the pause was."""
    busy = [snapshot(n, batches=[batch(n, n, 10, 10.0)]) for n in range(5)]
    state, decision = decide(job(), [*busy, snapshot(35)])
    assert state.window[-1].covered_seconds == 0.0
    assert decision.evidence.utilization in (None, pytest.approx(1.0))
    state, _ = decide(job(), [*busy, snapshot(35, batches=[batch(35, 5, 10, 300.0)])])
    assert state.window[-1].covered_seconds == pytest.approx(310.0), "the numbers say that nothing else ended"


@pytest.mark.parametrize(
    ("second", "why"),
    [
        (snapshot(2, arrived=10, committed=5), "end offsets fell: the topic was recreated"),
        (snapshot(2, arrived=2000, committed=100), "committed offsets fell: they were reset"),
        (snapshot(2, arrived=2000, committed=900, partitions=9), "a partition was added"),
        (snapshot(2, arrived=2000, committed=900, incarnation="app-2"), "another run of the job"),
    ],
)
def test_a_discontinuity_begins_a_new_window(second: MetricSnapshot, why: str) -> None:
    """What breaks continuity gives no rate at all instead of a wild one."""
    state = taken(snapshot(1, arrived=1000, committed=500), second)
    assert len(state.window) == 1, why
    assert gather(state, second, 4, None).arrival_rate is None


@pytest.mark.parametrize(
    ("between", "after"),
    [
        ({"arrived": None, "committed": 1000}, {"arrived": 50, "committed": 1000}),
        ({"arrived": 1100, "committed": None}, {"arrived": 1200, "committed": 20}),
    ],
    ids=["the topic was recreated", "the committed offsets were reset"],
)
def test_a_counter_that_fell_while_it_was_unknown_begins_a_new_window(
    between: dict[str, Any], after: dict[str, Any]
) -> None:
    """Offsets are unknown while a topic is recreated: no rate is negative afterwards."""
    shots = [snapshot(1, arrived=1000, committed=1000), snapshot(2, **between), snapshot(3, **after)]
    evidence = gather(taken(*shots), shots[-1], 4, None)
    assert (evidence.arrival_rate, evidence.processing_rate, evidence.lag_trend) == (None, None, None)


def test_a_recreated_topic_does_not_hide_the_lag_of_another() -> None:
    """Its end offset falls below what is committed, which counts as no lag; the other topic's records wait."""

    def both(number: int, recreated: int, other: int) -> MetricSnapshot:
        rows = (("a", recreated, 5000), ("b", other, 100_000))
        sources = tuple(SourceOffsets(topic=t, end_offsets=(e,), committed_offsets=(c,)) for t, e, c in rows)
        return snapshot(number).model_copy(update={"sources": sources})

    shots = [both(1, 5000, 101_000), both(2, 100, 111_000), both(3, 200, 121_000)]
    evidence = gather(taken(*shots), shots[-1], 4, None)
    assert evidence.lag_records == lag_of(shots[-1]) == 21_000, "`tail`, what-if and calibrate show the same lag"
    assert evidence.arrival_rate == pytest.approx(1010), "from the second snapshot on: not with the fall of the first"


def kept_from(first: int, of: MetricSnapshot) -> MetricSnapshot:
    """Return a snapshot of one partition with the first offset that Kafka still has."""
    return of.model_copy(update={"sources": (of.sources[0].model_copy(update={"first_offsets": (first,)}),)})


def test_records_that_were_removed_are_neither_lag_nor_processed() -> None:
    """Retention removes 5,000 records that were not read: lag falls, and the rates start over instead of jumping."""
    shots = [
        snapshot(1, arrived=9000, committed=1000, partitions=1),
        kept_from(6000, snapshot(2, arrived=10_000, committed=1000, partitions=1)),
        kept_from(6000, snapshot(3, arrived=11_000, committed=1000, partitions=1)),
        snapshot(4, arrived=12_000, committed=6500, partitions=1),
    ]
    state = taken(*shots[:2])
    evidence = gather(state, shots[1], 4, None)
    assert (evidence.lag_records, evidence.lost_records, evidence.processing_rate) == (4000, 5000, None)
    assert from_wire(to_wire(state)).lost == 5000
    evidence = gather(taken(*shots), shots[3], 4, None)
    assert (evidence.lag_records, evidence.lost_records) == (5500, None)
    assert evidence.processing_rate == pytest.approx(25), "500 records in 20 s"
    assert evidence.arrival_rate == pytest.approx(100)


def test_a_missing_snapshot_is_a_gap_not_a_zero() -> None:
    """Counters survive a gap: the rate across it is the true one."""
    state = taken(snapshot(1, arrived=1000, committed=1000), snapshot(5, arrived=5000, committed=5000))
    evidence = gather(state, snapshot(5), 4, None)
    assert evidence.arrival_rate == pytest.approx(100.0)


def test_unknown_offsets_stay_unknown() -> None:
    """One unknown partition makes the sum unknown, and lag and rate with it."""
    partial = SourceOffsets(topic="in", end_offsets=(5, None), committed_offsets=(1, 1))
    shot = snapshot(1).model_copy(update={"sources": (partial,)})
    evidence = gather(taken(shot), shot, 4, None)
    assert evidence.lag_records is None
    assert evidence.arrival_rate is None


@pytest.mark.parametrize("window", [120.0, 600.0])
def test_offsets_stay_unknown_in_a_merged_slice(window: float) -> None:
    """Where slices are merged, an offset that is unknown now is not the one of the snapshot before."""
    shots = [snapshot(n, arrived=1000 + 1000 * n, committed=500 + 1000 * n) for n in range(3)]
    shots.append(snapshot(3, arrived=None, committed=3500, missing=[Part.END_OFFSETS]))
    evidence = gather(taken(*shots, window=window), shots[-1], 4, None)
    assert evidence.lag_records is None
    assert evidence.arrival_rate in (None, pytest.approx(100.0))


def test_missing_progress_is_not_idleness() -> None:
    """Without progress the time is not covered, so utilization is unknown rather than zero."""
    shots = [snapshot(n, arrived=n * 10, missing=[Part.PROGRESS]) for n in range(4)]
    assert gather(taken(*shots), shots[-1], 4, None).utilization is None


def test_an_idle_job_is_known_to_be_idle() -> None:
    """A running job without batches has utilization zero: silence of an alive query is a measurement."""
    shots = [snapshot(n, arrived=100, committed=100) for n in range(4)]
    assert gather(taken(*shots), shots[-1], 4, None).utilization == 0.0


def test_a_dead_job_has_no_window() -> None:
    """Nothing measured before a stop is carried into what follows."""
    state = taken(*steady(5, rate=10, capacity=20), snapshot(6, state=ClusterState.STOPPED, incarnation=None))
    assert state.window == ()


def test_overhead_and_cost_are_told_apart() -> None:
    """Batches of different sizes show the fixed overhead and the cost per record."""
    sizes = [100, 400, 200, 800, 300, 600, 500, 700]
    # duration = 0.5 s + records * 1 ms
    shots = [snapshot(n, batches=[batch(n, n, size, 0.5 + size / 1000)]) for n, size in enumerate(sizes)]
    evidence = gather(taken(*shots), shots[-1], 4, None)
    assert evidence.batch_overhead_seconds == pytest.approx(0.5)
    assert evidence.record_cost_seconds == pytest.approx(4 * 0.001)


def test_state_survives_the_wire() -> None:
    """The state survives JSON exactly."""
    state = taken(*steady(40, rate=777, capacity=801))
    assert from_wire(to_wire(state)) == state
