"""Evidence: what the window of micro-batches says about the job. What it does not say stays None.

arrival rate          Δ end offsets / Δt                                  (broker's view, not Spark's)
processing rate       Δ committed offsets / Δt
true processing rate  Σ records / Σ batch duration: the rate at 100 % utilization, DS2's "true rate" for
                      micro-batches (Kalavri et al., OSDI 2018, section 3.2)
utilization           time inside micro-batches / time covered: the micro-batch counterpart of busy time
lag trend             least-squares slope of the lag over the window, records/s
lag in seconds        lag in records / true processing rate: work, not waiting time
delay                 age of the oldest record not committed, see `delay`
overhead, cost        duration = overhead + cost · records, least squares over the batches of the window
running               what the finished tasks of a batch longer than an interval say before it ends, see `running`
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from tidegate.engine.batch_sums import NO_BATCHES, BatchSums
from tidegate.engine.delay import Age
from tidegate.engine.running import long_work
from tidegate.engine.state import JobState, Slice
from tidegate.events.decision import Evidence
from tidegate.events.snapshot import MetricSnapshot, StageTasks

UNSEEN = (Slice(0.0, None, None),)
"""Stands for a window without a snapshot, about which nothing is known."""

ARRIVED, COMMITTED = Slice._fields.index("arrived"), Slice._fields.index("committed")
FIT_MIN_BATCHES: Final = 6
FIT_MIN_SPREAD: Final = 0.05
"""Batches of nearly one size allow no fit: their relative standard deviation must be at least this."""


def gather(state: JobState, snapshot: MetricSnapshot, current: int, delay: Age | None) -> Evidence:
    """Return the evidence of a state whose window already holds `snapshot`, at which the delay is known or not."""
    window = state.window or UNSEEN
    partitions = sum([count for _, count in state.topics]) or None
    skew, single = _stage_figures(snapshot.stages, snapshot.slots_granted or current)
    operators = snapshot.state_operators
    state_bytes = sum(s.memory_bytes for s in operators) if operators else None
    state_partitions = min(s.partitions for s in operators) if operators else None
    missing = tuple(part.value for part in snapshot.missing) if snapshot.missing else ()
    # The first slice is the baseline of the counters; only its lag counts, and as the origin of times.
    first, last = window[0], window[-1]
    origin, behind = first.at, first.lag
    batches, records, duration, squares, products = NO_BATCHES
    busy = covered = input_of_outputs = 0.0
    outputs = 0
    points, lags = (0, 0) if behind is None else (1, behind)
    times = times_squared = times_lags = 0.0
    for piece in window[1:]:
        at, arrived, committed, seconds, inside, sums, output = piece
        count, taken, lasted, squared, product = sums
        covered += seconds
        busy += inside
        batches += count
        records += taken
        duration += lasted
        squares += squared
        products += product
        if output is not None:
            outputs += output
            input_of_outputs += taken
        if arrived is not None and committed is not None:
            t = at - origin
            behind = arrived - committed
            points += 1
            lags += behind
            times += t
            times_squared += t * t
            times_lags += t * behind
    true_rate = records / duration if records and duration > 0 else None
    overhead, cost = _fit(BatchSums(batches, records, duration, squares, products))
    spread = points * times_squared - times * times
    lag = last.lag
    found = Evidence(
        window_seconds=last.at - origin,
        snapshots=len(state.window),
        arrival_rate=_growth(window, ARRIVED),
        processing_rate=_growth(window, COMMITTED),
        true_processing_rate=true_rate,
        utilization=min(1.0, busy / covered) if covered > 0 else None,
        lag_records=lag,
        lag_trend=(points * times_lags - times * lags) / spread if points > 1 and spread > 0 else None,
        lag_seconds=0.0 if lag is not None and lag <= 0 else lag / true_rate if lag is not None and true_rate else None,
        batch_seconds=duration / batches if batches else None,
        batch_overhead_seconds=overhead,
        record_cost_seconds=None if cost is None else cost * (snapshot.slots_granted or current),
        output_ratio=outputs / input_of_outputs if input_of_outputs else None,
        partitions=partitions,
        slots_granted=snapshot.slots_granted,
        task_skew=skew,
        single_task_share=single,
        state_bytes=state_bytes,
        state_partitions=state_partitions,
        gc_ratio=snapshot.gc_ratio,
        missing=missing,
        delay_seconds=None if delay is None else delay.seconds,
        delay_at_least=True if delay is not None and delay.at_least else None,
        lost_records=state.lost,
    )
    return found if snapshot.running is None else _with_running(found, snapshot, len(state.topics), current)


def _with_running(found: Evidence, snapshot: MetricSnapshot, topics: int, current: int) -> Evidence:
    """Return the evidence with what the running batches say, if they are long and say something."""
    work, slots = long_work(snapshot, topics), snapshot.slots_granted or current
    if work is None or not slots:
        return found
    return replace(
        found,
        task_skew=work.skew if found.task_skew is None else found.task_skew,
        running_tasks=work.tasks,
        running_tasks_finished=work.tasks_finished,
        running_rate=min(slots, work.tasks) / work.record_seconds,
        running_left_seconds=None if work.slot_seconds_left is None else work.slot_seconds_left / slots,
    )


def _growth(window: Sequence[Slice], counter: int) -> float | None:
    """Return the growth per second between the first and the last known value of a counter, given by its place."""
    first, last = window[0], window[-1]
    if first[counter] is None or last[counter] is None:
        known = [piece for piece in window if piece[counter] is not None]
        if not known:
            return None
        first, last = known[0], known[-1]
    gap = last.at - first.at
    return float(last[counter] - first[counter]) / gap if gap > 0 else None  # type: ignore[operator]


def _fit(sums: BatchSums) -> tuple[float | None, float | None]:
    """Return (overhead seconds, seconds per record) of the batches, or (None, None) when they do not show them."""
    if sums.batches < FIT_MIN_BATCHES or sums.records <= 0:
        return None, None
    if sums.spread < FIT_MIN_SPREAD**2 * sums.records * sums.records:
        return None, None
    overhead, cost = sums.fit()
    return (overhead, cost) if cost > 0 and overhead >= 0 else (None, None)


def _stage_figures(stages: Sequence[StageTasks], slots: int) -> tuple[float | None, float | None]:
    """Return (skew of the busiest stage, share of stage time spent in stages of one task)."""
    if not stages:
        return None, None
    busiest = max(stages, key=lambda stage: (stage.busy_seconds, stage.name))
    skew = busiest.slowest_task_seconds / busiest.median_task_seconds if busiest.median_task_seconds > 0 else None
    wall = single = 0.0
    for stage in stages:
        # A stage lasts at least as long as its slowest task, and as its work spread over all slots.
        seconds = max(stage.slowest_task_seconds * stage.runs, stage.busy_seconds / max(1, min(slots, stage.tasks)))
        wall += seconds
        if stage.tasks == 1:
            single += seconds
    return skew, single / wall if wall > 0 else None
