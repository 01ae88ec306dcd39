"""Adding a snapshot to the window: sums of offsets, time inside micro-batches, and what breaks continuity.

A counter that fell, a topic with another number of partitions, records that were removed before they were read, or
another run of the job is a *discontinuity*. The difference across it means nothing, so the window starts over instead
of giving a wild rate. A gap in the sequence is not one: counters survive it, and only the time it hides counts neither
as busy nor as idle.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import ceil
from operator import attrgetter
from typing import Final

from tidegate.engine.batch_sums import BatchSums, micro
from tidegate.engine.delay import Age, Offsets, has_fallen, offsets_of, watched
from tidegate.engine.state import MAX_SLICES, JobState, Slice
from tidegate.engine.total import total
from tidegate.events.snapshot import ALIVE, ClusterState, MetricSnapshot, MicroBatch, Part, StageTasks

LEAST_INTERVALS: Final = 2.5
"""A window is at least this long. Rates are differences, so it must hold an earlier snapshot, even if one was lost."""


WIDE_SHARE: Final = 0.1
"""A stage with less of the work is not worth a slot: however many it got, a batch would be a tenth shorter at most."""


def observe(
    state: JobState, snapshot: MetricSnapshot, window_seconds: float
) -> tuple[JobState, Slice | None, Age | None]:
    """Return the state with the snapshot in a window of `window_seconds`, the snapshot alone as a slice, and the delay.

    The window is longer where `LEAST_INTERVALS` are. A job that is not running has no window, and its snapshot is no
    slice. Its records wait all the same.
    """
    offsets = offsets_of(snapshot)
    at, topics = offsets.at, offsets.topics
    if has_fallen(state.arrivals, offsets) or offsets.lost > (state.lost or 0):
        state = state._replace(window=())
    if offsets.done is not None and offsets.lost != (state.lost or 0):
        state = state._replace(lost=offsets.lost or None)
    arrivals, delay = watched(state.arrivals, offsets)
    alive = snapshot.state in ALIVE  # a dead job still names its last run
    if alive and snapshot.incarnation is not None and snapshot.incarnation != state.incarnation:
        began = snapshot.incarnation_started_at
        state = state._replace(
            incarnation=snapshot.incarnation,
            run_since=began.timestamp() if began else at,
            window=(),
            busy_until=0.0,
            last_batch_id=None,
            parallelism=None if state.in_flight is None else state.in_flight.to_parallelism,
        )
    if topics and topics != state.topics:
        state = state._replace(topics=topics, window=())
    if snapshot.stages and (widest := _widest(snapshot.stages)) != state.widest_stage:
        state = state._replace(widest_stage=widest)
    finished = sum([batch.tasks_finished for batch in snapshot.running]) if snapshot.running else None
    if finished != state.tasks_finished:
        state = state._replace(tasks_finished=finished, task_at=at if finished else None)
    if snapshot.state is not ClusterState.RUNNING:
        return state._replace(window=(), arrivals=arrivals, busy_until=0.0, last_batch_id=None), None, delay
    piece, busy_until, last_batch_id = _slice(state, snapshot, offsets)
    window, since = _extended(state, piece, window_seconds, snapshot.interval_seconds)
    state = state._replace(
        window=window, window_since=since, arrivals=arrivals, busy_until=busy_until, last_batch_id=last_batch_id
    )
    return state, piece, delay


def _widest(stages: Sequence[StageTasks]) -> int:
    """Return the tasks of the widest stage that does at least `WIDE_SHARE` of the work."""
    least = WIDE_SHARE * total([stage.busy_seconds for stage in stages])
    return max([stage.tasks for stage in stages if stage.busy_seconds >= least])


def _extended(
    state: JobState, piece: Slice, window_seconds: float, interval_seconds: float
) -> tuple[tuple[Slice, ...], float | None]:
    """Return the window with a new slice, and since when it has been whole."""
    window, since, at = state.window, state.window_since, piece.at
    if _broken(window, piece):
        window = ()
    if not window:
        since = at
    if len(window) > 1 and at - window[-2].at <= slice_seconds(window_seconds, interval_seconds) + 1e-6:
        window = (*window[:-1], _merged(window[-1], piece))
    else:
        window = (*window, piece)
    horizon = at - max(window_seconds, LEAST_INTERVALS * interval_seconds) - 1e-6
    first = 0
    while window[first].at < horizon:
        first += 1
    return window[first:] if first else window, since


@lru_cache(maxsize=1024)
def slice_seconds(window_seconds: float, interval_seconds: float) -> float:
    """Return how long a slice is at most, in whole intervals, so that slices never outnumber the limit."""
    return ceil(window_seconds / MAX_SLICES / interval_seconds) * interval_seconds


def _slice(state: JobState, snapshot: MetricSnapshot, offsets: Offsets) -> tuple[Slice, float, int | None]:
    """Return the snapshot as a slice, with the marks up to which batches are now accounted for."""
    at = offsets.at
    previous = state.window[-1].at if state.window else at - snapshot.interval_seconds
    busy_until = max(state.busy_until, previous if not state.window else 0.0)
    last_batch_id = state.last_batch_id
    busy = duration = products = 0.0
    records = squares = outputs = 0
    outputs_known = True
    # Batches that nobody saw finish hide time: it may have been busy or idle.
    batches = snapshot.batches
    whole = Part.PROGRESS not in snapshot.missing and not snapshot.batches_left_out
    if whole and batches and last_batch_id is not None and _are_of_one_query(batches):
        whole = batches[0].batch_id <= last_batch_id + 1
    elif whole:  # no batch ids that could tell
        whole = state.last_sequence < 0 or snapshot.sequence - state.last_sequence <= snapshot.interval_seconds
    # Batches of several queries overlap, and stand in the order in which they ended.
    for batch in sorted(batches, key=attrgetter("started_at")):
        start, seconds = batch.started_at.timestamp(), batch.duration_seconds
        taken, written, end = batch.input_records, batch.output_records, start + seconds
        if end > busy_until:
            busy += end - max(start, busy_until)
            busy_until = end
        duration += seconds
        records += taken
        squares += taken * taken
        products += taken * seconds
        if written is None:
            outputs_known = False
        else:
            outputs += written
    if batches:
        last_batch_id = batches[-1].batch_id
    if snapshot.current_batch_started_at is not None:
        busy += max(0.0, at - max(snapshot.current_batch_started_at.timestamp(), busy_until))
        busy_until = max(busy_until, at)
    covered, busy = (micro(max(0.0, at - previous)), micro(busy)) if whole else (0.0, 0.0)
    sums = BatchSums(len(batches), records, micro(duration), squares, micro(products))
    known = outputs if outputs_known and batches else None
    return Slice(at, offsets.arrived, offsets.done, covered, busy, sums, known), busy_until, last_batch_id


def _are_of_one_query(batches: Sequence[MicroBatch]) -> bool:
    """Whether batches, in the order in which they ended, are numbered without a gap: each query has its own numbers."""
    first = batches[0].batch_id
    for place, batch in enumerate(batches):  # noqa: SIM110  (a generator has to be made for `all`)
        if batch.batch_id != first + place:
            return False
    return True


def _broken(window: Sequence[Slice], new: Slice) -> bool:
    """Whether a counter fell below its last known value: the topic was recreated, or the offsets were reset.

    While a topic is recreated its offsets are unknown, so the last slice alone may not show it.
    """
    arrived, committed = new.arrived, new.committed
    for piece in reversed(window):
        if arrived is not None and piece.arrived is not None:
            if arrived < piece.arrived:
                return True
            arrived = None
        if committed is not None and piece.committed is not None:
            if committed < piece.committed:
                return True
            committed = None
        if arrived is None and committed is None:
            return False
    return False


def _merged(first: Slice, second: Slice) -> Slice:
    """Return one slice for two neighbours: the counters of the later, the sums of both."""
    outputs = None if second.outputs is None and first.outputs is None else (first.outputs or 0) + (second.outputs or 0)
    covered = micro(first.covered_seconds + second.covered_seconds)
    busy = micro(first.busy_seconds + second.busy_seconds)
    sums = first.sums.add(second.sums).rounded()
    # A counter of the earlier one was not measured at the later one's time: unknown stays unknown.
    return Slice(second.at, second.arrived, second.committed, covered, busy, sums, outputs)
