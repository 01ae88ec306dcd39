"""Fits the twin to a job's past, and checks it: run at the recorded sizes, does it repeat the recorded delay?

The check fits the twin to the first part of the past only, and compares on the rest. The twin that forecasts is then
fitted to all of it. Restarts are not fitted by the gaps between two runs, as `tidegate calibrate` does: who restarts a
job by hand may take hours over it. A start takes from the submission to the first batch.
"""

from __future__ import annotations

import math
import re
import statistics
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tidegate.backtest.delays import Errors, errors, mean_delays, window_seconds
from tidegate.backtest.logs import LogBatch, Run
from tidegate.backtest.past import CannotBacktest, Past, first_after
from tidegate.sparklog.events import PartitionOffsets
from tidegate.twin.calibrate import Calibration, calibrate
from tidegate.twin.calibrate_ways import Sized
from tidegate.twin.model import InPlaceCosts, JobModel, Measurement, StageModel
from tidegate.twin.pool import SlotPool
from tidegate.twin.recorded import CannotCalibrate
from tidegate.twin.topic import TwinTopic
from tidegate.twin.world import World

TRUSTED_ERROR = 0.20
"""Up to this median error of the delay a forecast is trusted."""
SHORT_SECONDS = 1800.0
"""From a past that is shorter, nobody should conclude on a month."""
LOOP_SECONDS = 1.0
"""From the end of an interval until the actuator carries out the decision on it."""
COLD_TASKS = 8
"""After so many tasks an executor is warm."""
JOB = "past"


@dataclass(frozen=True, slots=True)
class Stretch:
    """The twin next to the past from one commit to the end of a run; times are seconds since its begin."""

    begin: float
    seconds: float
    window: float
    real: tuple[float, ...]
    """Mean delay of each window."""
    twin: tuple[float, ...]
    real_batches: tuple[tuple[float, float], ...]
    """(start, seconds)."""
    twin_batches: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Fit:
    """A twin fitted to a past, and how far to trust it."""

    calibration: Calibration
    model: JobModel
    shares: tuple[float, ...]
    split: float
    """Epoch second at which the part begins that the check kept back."""
    stretches: tuple[Stretch, ...]
    delay: Errors | None
    """Of the delay on the part kept back."""
    batch: Errors | None
    """Of the batches' durations there."""
    doubts: tuple[str, ...]
    """Why a forecast cannot be trusted; empty: it can."""
    remarks: tuple[str, ...]
    """What to know of the fit."""


def fit(past: Past, held_out: float = 0.3) -> Fit:
    """Fit the twin to a past, and check it on the last `held_out` share of it. Raises `CannotBacktest`."""
    split = past.end - held_out * past.seconds
    try:
        known = _calibrated(past, split)
        whole = _calibrated(past, past.end)
    except CannotCalibrate as error:
        raise CannotBacktest(str(error)) from None
    model = model_of(past, whole)
    # trigger and batch limit are settings of the job: the check need not find them again
    settings = replace(known, trigger_seconds=whole.trigger_seconds, max_records=whole.max_records)
    stretches = tuple(_stretches(past, model_of(past, settings).without_noise(), split))
    delay = errors([d for s in stretches for d in s.twin], [d for s in stretches for d in s.real])
    pairs = [pair for stretch in stretches for pair in _paired(stretch)]
    batch = errors([twin for twin, _ in pairs], [real for _, real in pairs], floor=1e-3)
    return Fit(
        whole,
        model,
        past.shares,
        split,
        stretches,
        delay,
        batch,
        tuple(_doubts(past, delay, batch)),
        tuple(_remarks(past, whole)),
    )


def model_of(past: Past, found: Calibration) -> JobModel:
    """Return the model of a job: what was fitted, and what its logs say of starts and new executors."""
    base = JobModel(
        job_id=JOB,
        sources=("source",),
        stages=(StageModel("batch", 0.0),),
        measurement=Measurement(delay_seconds=LOOP_SECONDS),
    )
    starts = [(run.query_at or run.batches[0].started_at) - submitted_at(run) for run in past.runs]
    exit_seconds = base.restart.exit_seconds
    started = Sized(exit_seconds + statistics.median(starts), 0.0, max(starts) - min(starts))
    model = replace(found, restart=started, exit_seconds=exit_seconds).model(JOB, base)
    return replace(model, in_place=_in_place(past, found, model.in_place))


def submitted_at(run: Run) -> float:
    """Return when the application was submitted, epoch seconds."""
    text = run.spark.get("spark.app.submitTime", "")
    return min(run.started_at, int(text) / 1000) if re.fullmatch(r"[0-9]{1,15}", text) else run.started_at


def _in_place(past: Past, found: Calibration, base: InPlaceCosts) -> InPlaceCosts:
    """Return what new executors cost: how long the first ones took to register, and how cold they were."""
    register = [
        min(at for at, _, cores in run.executors if cores) - run.driver_at
        for run in past.runs
        if run.executors and run.driver_at is not None
    ]
    cold = [
        found_cold
        for run in past.runs
        for tasks in run.first_tasks.values()
        if (found_cold := cold_seconds(tasks, found.record_cost_seconds)) is not None
    ]
    return replace(
        base,
        register_seconds=statistics.median(register) if register else base.register_seconds,
        first_batch_seconds=statistics.median(cold) if cold else base.first_batch_seconds,
        cold_takes_tasks=True,
    )


def cold_seconds(tasks: Sequence[tuple[float, int]], record_cost: float) -> float | None:
    """Return how much longer an executor's first tasks took than its later ones; None: there were too few.

    `tasks` are (seconds, records). A task's usual overhead is the median of what the later ones took beyond their
    records.
    """
    beyond = [seconds - records * record_cost for seconds, records in tasks]
    if len(beyond) < 2 * COLD_TASKS:
        return None
    usual = statistics.median(beyond[COLD_TASKS:])
    return max(0.0, sum(each - usual for each in beyond[:COLD_TASKS]))


def _calibrated(past: Past, until: float) -> Calibration:
    found = calibrate(past.snapshots(past.runs[0].started_at, until))
    return replace(found, max_records=largest_batch(list(past.batches(end=until))))


def largest_batch(batches: Sequence[LogBatch]) -> int | None:
    """Return how many records the source puts into a batch at most; None: no batch left any behind."""
    full = [batch.input_records for batch in batches if _records(batch.latest) > _records(batch.end)]
    return max(full) if len(full) > 1 else None


def _records(offsets: PartitionOffsets) -> int:
    return sum(sum(partitions.values()) for partitions in offsets.values())


def _stretches(past: Past, model: JobModel, split: float) -> Iterator[Stretch]:
    """Yield each run's part after the split, with at least one whole window."""
    for run in past.runs:
        begin = first_after(past, max(split, run.batches[0].ended_at))
        end = min(past.end, run.batches[-1].ended_at)
        window = window_seconds([batch.seconds for batch in run.batches])
        if end - begin >= window and past.slots.size(begin):
            yield follow(past, model, begin, end, window)


def follow(past: Past, model: JobModel, begin: float, end: float, window: float) -> Stretch:
    """Run the twin at the recorded sizes and under the recorded load, from a commit on.

    The world starts when the oldest record arrived that was not committed then, so that what waits has its true age.
    """
    waited = begin - past.oldest_at(begin)
    epoch = math.floor(begin - waited)
    topic = TwinTopic("source", past.shares, past.load(begin - waited, end))
    world = World([model], [topic], [SlotPool(model.pool_id, past.slots.most)], sizes={}, epoch=epoch)
    world.advance(epoch + waited)
    job = world.job(JOB)
    job.start(waited, past.slots.size(begin), warm=True)
    for at, size in past.slots.changes:
        if begin < at < end and size:
            world.advance(epoch + waited + at - begin)
            job.resize(waited + at - begin, size)
    world.advance(epoch + waited + end - begin)
    seconds = end - begin
    commits = [(at - waited, oldest - waited) for at, oldest in job.commits]
    return Stretch(
        begin,
        seconds,
        window,
        tuple(mean_delays(past.recording(begin, end).commits, seconds, window)),
        tuple(mean_delays([*commits, (seconds, job.oldest_at() - waited)], seconds, window)),
        tuple((batch.started_at - begin, batch.seconds) for batch in past.batches(begin, end)),
        tuple((batch.started_at - waited, batch.ends_at - batch.started_at) for batch in job.finished),
    )


def _paired(stretch: Stretch) -> Iterator[tuple[float, float]]:
    """Yield (twin's, recorded) seconds of each recorded batch and the twin's that started nearest to it."""
    made = stretch.twin_batches
    for at, seconds in stretch.real_batches:
        place = bisect_left(made, (at,))
        near = made[max(0, place - 1) : place + 1]
        if near:
            yield min(near, key=lambda batch: abs(batch[0] - at))[1], seconds


def _doubts(past: Past, delay: Errors | None, batch: Errors | None) -> Iterator[str]:
    if delay is None and (batch is None or batch.median > TRUSTED_ERROR):
        yield "the part kept back shows no delay of a second or more, and batches are not as long as the twin's"
    if delay is not None and delay.median > TRUSTED_ERROR:
        yield (
            f"on the part kept back, the twin's delay is off by {delay.median:.0%} in the median, and "
            f"{TRUSTED_ERROR:.0%} is the most to be trusted"
        )
    queries = max(len({batch.query_id for batch in run.batches}) for run in past.runs)
    if queries > 1:
        yield f"{queries} queries share the slots, and the twin has only one"


def _remarks(past: Past, found: Calibration) -> Iterator[str]:
    batches = list(past.batches())
    yield from past.remarks
    if past.seconds < SHORT_SECONDS:
        yield (
            f"the logs cover only {past.seconds / 60:.0f} min, so the figures of a month say little: let the job run "
            "for some hours in which its load changes"
        )
    sizes = sorted({size for _, size in past.slots.changes if size})
    if len(sizes) == 1:
        yield f"only one size was seen ({sizes[0]} slots): how fast others are follows from the spread over partitions"
    if found.max_records is not None:
        full = sum(batch.input_records >= 0.98 * found.max_records for batch in batches) / len(batches)
        yield f"{full:.0%} of the batches were as large as the source allows, about {found.max_records:,} records"
    if found.trigger_seconds is None:
        yield "nearly no batch had to wait for its trigger, so the trigger interval is not known, and taken as none"
    longest, trigger = max(batch.seconds for batch in batches), found.trigger_seconds
    if trigger and longest < trigger:
        yield (
            f"no backlog was ever seen: the longest batch took {longest:.1f} s, and one starts every {trigger:g} s, so "
            "the capacity is extrapolated from smaller batches, and may be higher"
        )
    if any(run.compacted for run in past.runs):
        yield "a log was compacted: executors that were gone by then are missing, so sizes may be too small before that"
