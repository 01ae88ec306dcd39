"""The inputs of a decision with one of them altered, and all others as recorded. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from tidegate.engine.batch_sums import BatchSums
from tidegate.engine.delay import Arrivals, Knot
from tidegate.engine.memory import Recorded, UnreadableMemory, read_memory
from tidegate.engine.state import JobState, Slice
from tidegate.engine.tide.capacity import SizeFit
from tidegate.engine.tide.memory import TideMemory
from tidegate.events.decision import Observed
from tidegate.events.job import JobSpec
from tidegate.events.snapshot import MetricSnapshot, MicroBatch, SourceOffsets


@dataclass(frozen=True, slots=True)
class DecisionInputs:
    """Everything that a decision was made from."""

    state: JobState
    """Before the decision."""
    snapshot: MetricSnapshot
    spec: JobSpec
    observed: Observed

    def of_spec(self, **changes: Any) -> DecisionInputs:
        """Return the inputs with other values in the spec's `scaling`."""
        scaling = self.spec.scaling.model_copy(update=changes)
        return replace(self, spec=self.spec.model_copy(update={"scaling": scaling}))


def _rows(snapshot: MetricSnapshot) -> tuple[list[int], list[int]]:
    """Return the end offsets and the committed ones of all sources, one after another."""
    ends = [end or 0 for source in snapshot.sources for end in source.end_offsets]
    return ends, [done or 0 for source in snapshot.sources for done in source.next_offsets]


def _with_rows(snapshot: MetricSnapshot, ends: list[int], committed: list[int]) -> MetricSnapshot:
    sources: list[SourceOffsets] = []
    place = 0
    for source in snapshot.sources:
        past = place + len(source.end_offsets)
        update = {
            "end_offsets": tuple(ends[place:past]),
            "committed_offsets": tuple(committed[place:past]),
            "first_offsets": None,
        }
        sources.append(source.model_copy(update=update))
        place = past
    return snapshot.model_copy(update={"sources": tuple(sources)})


def arriving(at: DecisionInputs, before: tuple[int, ...], factor: float, utilization: float | None) -> DecisionInputs:
    """Return the inputs with arrivals `factor` times as many, in the window and in the newest interval.

    The job processes them at the capacity that it has shown: its batches have more records and take longer, until it is
    busy all the time. The rest waits. Counters keep their value at the newest slice of the state, so that what a policy
    remembers of them holds.
    """
    work = min(factor, max(1.0, 1.0 / utilization if utilization else 1.0))
    ends, committed = _rows(at.snapshot)
    lags = [end - done for end, done in zip(ends, committed, strict=True)]
    ends = [first + round(factor * (end - first)) for first, end in zip(before, ends, strict=True)]
    window = at.state.window
    last = window[-1] if window else None
    lag = sum(lags)
    if last is not None and last.committed is not None:
        lag = max(0, sum(ends) - last.committed - round(work * (sum(committed) - last.committed)))
    state = at.state._replace(
        window=tuple(piece if last is None else _busier(piece, last, factor, work) for piece in window),
        arrivals=_faster(at.state.arrivals, factor),
    )
    snapshot = _with_rows(at.snapshot, ends, _waiting(ends, lags, lag))
    batches = tuple(_larger(batch, work) for batch in at.snapshot.batches)
    return replace(at, state=state, snapshot=snapshot.model_copy(update={"batches": batches}))


def _waiting(ends: list[int], lags: list[int], lag: int) -> list[int]:
    """Return committed offsets such that `lag` records wait, spread like those that waited, or evenly."""
    shares = lags if sum(lags) > 0 else [1] * len(ends)
    whole, left, committed = sum(shares), lag, []
    for place, (end, share) in enumerate(zip(ends, shares, strict=True)):
        part = left if place == len(ends) - 1 else round(lag * share / whole)
        left -= part
        committed.append(end - part)
    return committed


def _busier(piece: Slice, last: Slice, factor: float, work: float) -> Slice:
    batches, records, seconds, squares, products = piece.sums
    arrived, committed = piece.arrived, piece.committed
    if arrived is not None and last.arrived is not None:
        arrived = last.arrived - round(factor * (last.arrived - arrived))
    if committed is not None and last.committed is not None:
        committed = _not_above(last.committed - round(work * (last.committed - committed)), arrived)
    return piece._replace(
        arrived=arrived,
        committed=committed,
        busy_seconds=min(piece.covered_seconds, work * piece.busy_seconds),
        sums=BatchSums(batches, work * records, work * seconds, work * work * squares, work * work * products),
        outputs=None if piece.outputs is None else round(work * piece.outputs),
    )


def _larger(batch: MicroBatch, work: float) -> MicroBatch:
    """Return a batch with `work` times the records and the time; one with records keeps at least one of them."""
    outputs = None if batch.output_records is None else round(work * batch.output_records)
    records = max(min(1, batch.input_records), round(work * batch.input_records))
    return _lasting(batch, work).model_copy(update={"input_records": records, "output_records": outputs})


def _lasting(batch: MicroBatch, factor: float) -> MicroBatch:
    """Return a batch that takes `factor` times as long, and ends when it did."""
    took, added = batch.duration_seconds * factor, batch.add_batch_seconds
    since = batch.started_at - timedelta(seconds=took - batch.duration_seconds)
    added = None if added is None else added * factor
    return batch.model_copy(update={"started_at": since, "duration_seconds": took, "add_batch_seconds": added})


def _faster(arrivals: Arrivals, factor: float) -> Arrivals:
    newest, knots = arrivals.knots[-1], []
    for knot in arrivals.knots:
        total, ends = newest.total - round(factor * (newest.total - knot.total)), knot.ends
        if ends is not None and newest.ends is not None:
            ends = tuple(last - round(factor * (last - end)) for end, last in zip(ends, newest.ends, strict=True))
            total = sum(ends)
        knots.append(Knot(knot.at, total, ends))
    return arrivals._replace(knots=tuple(knots))


def lagging(at: DecisionInputs, lag: int, value: int, rate: float) -> DecisionInputs:
    """Return the inputs with another lag; if it is larger, by records that arrived earlier."""
    ends, committed = _rows(at.snapshot)
    more = value - lag
    committed = _waiting(ends, [end - done for end, done in zip(ends, committed, strict=True)], value)
    window = tuple(
        piece if (done := piece.committed) is None else piece._replace(committed=_not_above(done - more, piece.arrived))
        for piece in at.state.window
    )
    state = at.state._replace(window=window, arrivals=_longer(at.state.arrivals, more, rate))
    return replace(at, state=state, snapshot=_with_rows(at.snapshot, ends, committed))


def _not_above(value: int, most: int | None) -> int:
    return value if most is None else min(value, most)


def _longer(arrivals: Arrivals, records: int, rate: float) -> Arrivals:
    """Return the arrivals with those before the first knot, at a constant rate, as far back as `records` need."""
    if records <= 0 or rate <= 0 or not arrivals.knots or arrivals.knots[0].ends is None:
        return arrivals
    first, ends = arrivals.knots[0], arrivals.knots[0].ends
    each = -(-records // len(ends))
    earlier = tuple(end - each for end in ends)
    knot = Knot(first.at - round(1000 * each * len(ends) / rate), sum(earlier), earlier)
    return arrivals._replace(knots=(knot, *arrivals.knots))


def slower(at: DecisionInputs, factor: float) -> DecisionInputs:
    """Return the inputs with batches that take `factor` times as long, and end when they did."""

    def longer(piece: Slice) -> Slice:
        busy = min(piece.covered_seconds, piece.busy_seconds * factor)
        return piece._replace(busy_seconds=busy, sums=_slower_sums(piece.sums, factor))

    state = at.state._replace(window=tuple(map(longer, at.state.window)), memory=_slower_memory(at, factor))
    snapshot = at.snapshot.model_copy(
        update={"batches": tuple(_lasting(batch, factor) for batch in at.snapshot.batches)}
    )
    return replace(at, state=state, snapshot=snapshot)


def _slower_sums(sums: BatchSums, factor: float) -> BatchSums:
    return sums._replace(seconds=sums.seconds * factor, products=sums.products * factor)


def _slower_memory(at: DecisionInputs, factor: float) -> object:
    """Return what `tide` has learned of batch durations, `factor` times as long; other memories as they are."""
    memory = at.state.memory
    if at.spec.scaling.policy == "tide" and isinstance(memory, Recorded):
        try:
            memory = read_memory(TideMemory, memory.values)
        except UnreadableMemory:
            return memory
    if not isinstance(memory, TideMemory):
        return memory

    def slower(fit: SizeFit) -> SizeFit:
        sums = _slower_sums(fit.sums, factor)
        return fit._replace(sums=sums, overhead=fit.overhead * factor, cost=fit.cost * factor)

    overhead = None if memory.overhead is None else memory.overhead * factor
    return memory._replace(sizes=tuple(map(slower, memory.sizes)), overhead=overhead)


def earlier(at: DecisionInputs, seconds: float) -> DecisionInputs:
    """Return the inputs with the last change `seconds` earlier."""
    state, until = at.state, at.observed.cooldown_until
    changes = state.changes
    if changes.resized_at:
        changes = changes._replace(resized_at=changes.resized_at - seconds)
    last = None if state.last_action_at is None else state.last_action_at - seconds
    observed = at.observed
    if until is not None:
        observed = replace(observed, cooldown_until=until - timedelta(seconds=seconds))
    return replace(at, state=state._replace(last_action_at=last, changes=changes), observed=observed)
