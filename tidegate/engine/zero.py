"""Scaling to zero: what is remembered of a job with `min_parallelism: 0`, and when a stopped one starts again.

Kafka knows the end offsets whether the job runs or not. So the records that wait are known while it is stopped:

    waiting  =  Σ over partitions (end offset - committed offset, or the first that there still is)
    rate     =  growth of the end offsets since the last snapshot, records/s

A stopped job starts once records wait, with the smallest size that keeps up and catches up within the lag objective T:

    capacity(size)  >=  rate + (waiting + rate · D) / T             D: longest of the last three starts, s

The capacity of a size is the last one measured at it; between and beyond those sizes it is linear in the slots. If none
is known, the job starts with the size it had before.

If nobody can say whether records wait, that is no reason to stay stopped: after `UNKNOWN_SECONDS` the job starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from tidegate.engine.case import Case, Proposal
from tidegate.engine.reasons import Reason
from tidegate.engine.state import JobState, ZeroMemory
from tidegate.events.command import CommandKind
from tidegate.events.decision import Evidence, Expectation
from tidegate.events.job import JobSpec
from tidegate.events.result import ActionResult, Phase
from tidegate.events.snapshot import ALIVE, MetricSnapshot, SourceOffsets

GAPS_KEPT: Final = 12
"""Silences remembered."""
SIZES_KEPT: Final = 6
"""Sizes whose capacity is remembered."""
STARTS_KEPT: Final = 3
SHORTEST_GAP_SECONDS: Final = 60.0
"""A shorter time without arrivals is no silence: a producer that writes in batches has many of them."""
ASSUMED_START_SECONDS: Final = 30.0
"""Time from the order of a start to its first work, until one was measured."""
UNKNOWN_SECONDS: Final = 300.0
"""How long a job stays stopped while nobody can say whether records wait."""

ZERO_REASONS: Mapping[str, Reason] = {
    "SCALED_TO_ZERO": Reason("nothing has arrived for {silent}, and the job starts at the first record that waits"),
    "STOPPED_BY_REQUEST": Reason("an operator asked for 0 slots, and the job starts at the first record that waits"),
    "RECORDS_WAIT": Reason("{waiting} records wait after {silent} without a slot, which calls for a size of {size}"),
    "WAITING_UNKNOWN": Reason(
        "the offsets have been unknown for {unknown_seconds:.0f} s, so nobody can say whether records wait",
        "check that Kafka answers the collector, and that the job's topics exist",
    ),
    "STARTS_UNKNOWN": Reason(
        "the offsets have been unknown for {unknown_seconds:.0f} s, so the job starts in case records wait",
        "check that Kafka answers the collector, and that the job's topics exist",
    ),
    "JUST_STOPPED": Reason("the job has just been stopped, and the snapshot shows it before"),
}


class Waiting(NamedTuple):
    """The records that wait for a job; None where it is not known."""

    arrived: int | None
    """Sum of the end offsets."""
    records: int | None


def observe_zero(state: JobState, snapshot: MetricSnapshot, spec: JobSpec) -> JobState:
    """Return the state with the arrivals of a snapshot; only a job that may be scaled to zero has such a memory."""
    zero = state.zero
    if spec.scaling.min_parallelism > 0:
        return state if zero is None else state._replace(zero=None)
    zero = zero or ZeroMemory()
    at, arrived = snapshot.observed_at.timestamp(), _waiting(snapshot.sources, zero).arrived
    if not spec.running or _runs_again(state, snapshot):
        zero = zero._replace(stopped_at=None)
    if arrived is None:
        return state._replace(zero=zero._replace(unknown_since=zero.unknown_since or at))
    if zero.seen_at is not None and arrived == zero.arrived:
        return state._replace(zero=zero._replace(seen_at=at, rate=0.0, unknown_since=None))
    rate, gaps = None, zero.gaps
    if zero.seen_at is not None and at > zero.seen_at and arrived > zero.arrived:
        rate = round((arrived - zero.arrived) / (at - zero.seen_at), 3)
        # The first of the new records came after the last snapshot.
        if zero.seen_at - zero.silent_since >= SHORTEST_GAP_SECONDS:
            gaps = (*gaps, int(zero.seen_at - zero.silent_since))[-GAPS_KEPT:]
    zero = zero._replace(seen_at=at, arrived=arrived, silent_since=at, rate=rate, gaps=gaps, unknown_since=None)
    return state._replace(zero=zero)


def _runs_again(state: JobState, snapshot: MetricSnapshot) -> bool:
    """Whether a snapshot shows another run than the one that was stopped."""
    zero = state.zero
    if zero is None or zero.stopped_at is None or snapshot.incarnation is None:
        return False
    return snapshot.state in ALIVE and snapshot.incarnation != zero.stopped_run


def note_capacity(state: JobState, evidence: Evidence, current: int) -> JobState:
    """Return the state with the measured capacity of the present size."""
    zero, rate = state.zero, evidence.true_processing_rate
    if zero is None or not current or not rate:
        return state
    others = [each for each in zero.sizes if each[0] != current]
    return state._replace(zero=zero._replace(sizes=(*others, (current, float(f"{rate:.4g}")))[-SIZES_KEPT:]))


def note_stop(state: JobState, case: Case) -> JobState:
    """Return the state after the order to stop a job for want of records."""
    zero = state.zero or ZeroMemory()
    committed = case.state.window[-1].committed if case.state.window else None
    by_request = True if case.manual is not None else None
    stopped = zero._replace(
        stopped_at=case.decided_at, stopped_run=state.incarnation, committed=committed, by_request=by_request
    )
    return state._replace(zero=stopped)


def note_result(state: JobState, result: ActionResult) -> JobState:
    """Return the state after the end of a start, or of a stop that scaling ordered."""
    zero = state.zero
    if zero is None:
        return state
    if result.kind is CommandKind.STOP and result.phase is not Phase.VERIFIED:
        return state._replace(zero=zero._replace(stopped_at=None))
    if result.kind is CommandKind.START and result.phase in (Phase.VERIFIED, Phase.ROLLED_BACK):
        starts = zero.starts
        if result.delay_seconds is not None and result.phase is Phase.VERIFIED:
            starts = (*starts, round(result.delay_seconds, 1))[-STARTS_KEPT:]
        return state._replace(zero=zero._replace(stopped_at=None, starts=starts))
    return state


def note_lost(state: JobState, kind: str) -> JobState:
    """Return the state after a command was given up that nobody has ended: its stop counts no longer."""
    if state.zero is None or kind != CommandKind.STOP:
        return state
    return state._replace(zero=state.zero._replace(stopped_at=None))


def is_at_zero(state: JobState) -> bool:
    """Whether scaling has ordered the job to stop, and nothing has started it since."""
    return state.zero is not None and state.zero.stopped_at is not None


def waiting_records(case: Case) -> int | None:
    """Return how many records wait for the job; None if that is not known."""
    return _waiting(case.snapshot.sources, case.state.zero or ZeroMemory()).records


def _waiting(sources: tuple[SourceOffsets, ...], zero: ZeroMemory) -> Waiting:
    """Return what waits. Without the committed offsets of a stopped job, those it was stopped at are a lower bound.

    A partition that nothing was committed of is new, and all its records wait. One whose end offset fell was created
    again, and all its records wait as well. Records that were removed do not wait.
    """
    arrived = waiting = 0
    known = True
    for source in sources:
        seen = any(offset is not None for offset in source.committed_offsets)
        known = known and seen
        firsts = source.first_offsets or (0,) * len(source.end_offsets)
        for end, done, first in zip(source.end_offsets, source.next_offsets, firsts, strict=True):
            if end is None:
                return Waiting(None, None)
            arrived += end
            waiting += end - (done if done is not None and done <= end else min(first or 0, end))
        if not source.end_offsets:
            return Waiting(None, None)
    if not sources:
        return Waiting(None, None)
    if known:
        return Waiting(arrived, waiting)
    if zero.stopped_at is None or zero.committed is None:
        return Waiting(arrived, None)
    return Waiting(arrived, max(0, arrived - zero.committed))


def evidence_at_zero(case: Case) -> Evidence:
    """Return the evidence of a job without a slot: what waits, and what arrives."""
    waiting, zero = waiting_records(case), case.state.zero
    seconds = 0.0 if waiting == 0 else None
    rate = None if zero is None else zero.rate
    return replace(case.evidence, lag_records=waiting, lag_seconds=seconds, arrival_rate=rate)


def start_seconds(zero: ZeroMemory) -> float:
    """Return how long a start takes, from its order to its first work."""
    return max(zero.starts, default=ASSUMED_START_SECONDS)


def wake(case: Case) -> Proposal[Any]:
    """Return whether a job that was scaled to zero starts again, and with which size."""
    zero = case.state.zero or ZeroMemory()
    waiting = waiting_records(case)
    silent = duration(case.measured_at - zero.silent_since) if zero.seen_at is not None else "some time"
    if waiting is None:
        unknown = case.measured_at - (zero.unknown_since or case.measured_at)
        values = {"unknown_seconds": unknown}
        if unknown < UNKNOWN_SECONDS:
            return Proposal(0, "WAITING_UNKNOWN", values)
        return Proposal(_usual_size(case), "STARTS_UNKNOWN", values)
    if waiting == 0:
        code = "STOPPED_BY_REQUEST" if zero.by_request else "SCALED_TO_ZERO"
        return Proposal(0, code, {"silent": silent, "waiting": 0})
    size, expectation = _wake_size(case, zero, waiting)
    stopped = duration(case.decided_at - (zero.stopped_at or case.decided_at))
    values_of = {"waiting": waiting, "rate": zero.rate, "size": size, "silent": stopped}
    return Proposal(size, "RECORDS_WAIT", values_of, expectation)


def _wake_size(case: Case, zero: ZeroMemory, waiting: int) -> tuple[int, Expectation | None]:
    """Return the size for the records that wait, and what it will do; the size before the stop without a capacity."""
    if not zero.sizes:
        return _usual_size(case), None
    scaling, cores = case.spec.scaling, case.spec.application.executor_cores
    delay, rate = start_seconds(zero), zero.rate or 0.0
    then = waiting + rate * delay
    need = rate + then / scaling.lag_objective_seconds
    # More slots than partitions have nothing to read.
    partitions = sum(count for _, count in case.state.topics) or scaling.max_parallelism
    most = min(scaling.max_parallelism, max(-(-partitions // cores) * cores, case.spec.smallest_size))
    size = case.spec.smallest_size
    while size < most and capacity_of(zero.sizes, size) < need:
        size += cores
    capacity = capacity_of(zero.sizes, size)
    spare = capacity - rate
    expectation = Expectation(
        processing_rate=capacity,
        lag_seconds=then / capacity,
        catch_up_seconds=then / spare if spare > 0 else None,
        restart_seconds=delay,
        outage_seconds=delay,
        delay_seconds=delay,
    )
    return size, expectation


def capacity_of(sizes: tuple[tuple[int, float], ...], size: int) -> float:
    """Return the capacity of a size, records/s: that of the closest known size, in proportion to the slots."""
    known, rate = min(sizes, key=lambda each: (abs(each[0] - size), each[0]))
    return rate * size / known


def _usual_size(case: Case) -> int:
    before = case.state.parallelism or case.spec.scaling.initial_parallelism or 0
    return max(before, case.spec.smallest_size)


def duration(seconds: float) -> str:
    """Return a length of time in words, such as `15 min`."""
    for unit, length in (("days", 172_800.0), ("h", 7200.0), ("min", 120.0)):
        if seconds >= length:
            whole = {"days": 86_400.0, "h": 3600.0, "min": 60.0}[unit]
            return f"{seconds / whole:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
