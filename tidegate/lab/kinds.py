"""Kinds of job: what makes one job hard to scale where another is easy. Each figure is drawn by seed within its range.

linear        twice the slots do twice the work
sub-linear    slots get in each other's way: contention and coherency of the universal scalability law
serial        one stage of a single task: above some size, more slots bring nothing
skewed        one partition has several times its share: its task bounds every batch
few           fewer partitions than the largest size has slots
tiny          microseconds a record and seconds a batch: only large batches are efficient
state         gigabytes of state: a restart takes 60 to 100 s
noisy         batches of the same records take very different times, and measurements get lost

All have a stage per source partition; most have a second one of fixed tasks, as an aggregation has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tidegate.events.job import JobSpec
from tidegate.events.way import ALL_WAYS, Way
from tidegate.lab.jobs import SOURCE, batch_bound, sizes_of, spec_for
from tidegate.lab.loads import Draw
from tidegate.twin.model import InPlaceCosts, JobModel, Measurement, RestartCosts, StageModel, State
from tidegate.twin.schedule import capacity
from tidegate.twin.topic import even, skewed

TTL_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class DrawnJob:
    """A job drawn from a kind."""

    model: JobModel
    spec: JobSpec
    shares: tuple[float, ...]
    """Of the partitions of its source."""

    @property
    def most(self) -> float:
        """The arrival rate that the job can keep up with at its best size, records/s."""
        bound = batch_bound(self.spec)
        return max(capacity(self.model, self.shares, size, bound) for size in sizes_of(self.spec))


def _linear(draw: Draw, kind: DrawnJob) -> DrawnJob:
    del draw
    return kind


def _sub_linear(draw: Draw, kind: DrawnJob) -> DrawnJob:
    model = replace(kind.model, contention=draw.between(0.02, 0.07), coherency=draw.between(0.0, 0.001))
    return replace(kind, model=model)


def _serial(draw: Draw, kind: DrawnJob) -> DrawnJob:
    cost, largest = kind.model.stages[0].record_cost_seconds, kind.spec.scaling.max_parallelism
    # The serial stage takes as long as the parallel one does on 40 to 100 % of the largest size.
    serial = StageModel("global", cost / (largest * draw.between(0.4, 1.0)), tasks=1)
    return replace(kind, model=replace(kind.model, stages=(*kind.model.stages, serial)))


def _skewed(draw: Draw, kind: DrawnJob) -> DrawnJob:
    heavy, *others = skewed(draw.whole(24, 48), draw.between(2.5, 6.0))
    # Any partition may be the heavy one, so its task may begin in any wave.
    place = draw.whole(0, len(others))
    return replace(kind, shares=(*others[:place], heavy, *others[place:]))


def _few(draw: Draw, kind: DrawnJob) -> DrawnJob:
    return replace(kind, shares=even(draw.whole(4, 10)))


def _tiny(draw: Draw, kind: DrawnJob) -> DrawnJob:
    stages = (StageModel("read", draw.scale(5e-6, 4e-5)),)
    return replace(kind, model=replace(kind.model, stages=stages, overhead_seconds=draw.between(2.5, 7.0)))


def _state(draw: Draw, kind: DrawnJob) -> DrawnJob:
    held, start = draw.between(4e9, 9e9), draw.between(20.0, 35.0)
    # What arrives in a lifetime at a bit over half of the load that the largest size can take.
    arrived = 0.4 * kind.most * TTL_SECONDS
    restart = RestartCosts(
        start_seconds=start,
        start_jitter_seconds=draw.between(0.0, 10.0),
        first_batch_seconds=draw.between(4.0, 10.0),
        load_bytes_per_second=held / (draw.between(60.0, 90.0) - start),
    )
    state = State(partitions=48, bytes_per_record=held / arrived, ttl_seconds=TTL_SECONDS, initial_bytes=held)
    return replace(kind, model=replace(kind.model, state=state, restart=restart, memory_bytes_per_slot=8e9))


def _noisy(draw: Draw, kind: DrawnJob) -> DrawnJob:
    lossy = Measurement(
        lost_share=draw.between(0.0, 0.06),
        missing_share=draw.between(0.0, 0.1),
        delay_jitter_seconds=draw.between(0.0, 14.0),
    )
    return replace(kind, model=replace(kind.model, noise_share=draw.between(0.15, 0.35), measurement=lossy))


KINDS: dict[str, Callable[[Draw, DrawnJob], DrawnJob]] = {
    "linear": _linear,
    "sub-linear": _sub_linear,
    "serial": _serial,
    "skewed": _skewed,
    "few": _few,
    "tiny": _tiny,
    "state": _state,
    "noisy": _noisy,
}
"""Every kind by name: what it changes in a job drawn for all kinds."""


def drawn_kind(name: str, seed: int, *, limited: bool, ways: tuple[Way, ...] = ALL_WAYS) -> DrawnJob:
    """Return a job of a kind with its figures drawn; `limited`: its batches have a limit (`maxOffsetsPerTrigger`)."""
    draw = Draw(seed, f"kind {name}")
    cost = draw.scale(2e-4, 4e-3)
    stages: tuple[StageModel, ...] = (StageModel("read", cost),)
    if draw.chance(0.6):
        stages = (
            *stages,
            StageModel("aggregate", cost * draw.between(0.1, 0.5), tasks=48, skew=draw.between(1.0, 1.3)),
        )
    model = JobModel(
        job_id=f"job-{name}",
        sources=(SOURCE,),
        stages=stages,
        overhead_seconds=draw.between(0.6, 2.0),
        trigger_interval_seconds=0.0 if draw.chance(0.2) else float(draw.whole(2, 10)),
        contention=draw.between(0.0, 0.008),
        noise_share=draw.between(0.02, 0.08),
        measurement=Measurement(lost_share=draw.between(0.0, 0.01), delay_jitter_seconds=draw.between(0.0, 3.0)),
        restart=RestartCosts(
            exit_seconds=draw.between(1.0, 4.0),
            start_seconds=draw.between(10.0, 35.0),
            start_jitter_seconds=draw.between(0.0, 12.0),
            first_batch_seconds=draw.between(1.0, 12.0),
        ),
        in_place=InPlaceCosts(register_seconds=draw.between(3.0, 8.0), register_jitter_seconds=draw.between(0.0, 8.0)),
        ways=ways,
    )
    kind = DrawnJob(model, spec_for(model, maximum=draw.whole(12, 24)), even(draw.whole(30, 60)))
    kind = KINDS[name](draw, kind)
    # Batches of some seconds at the highest load: a batch at the limit is efficient, and backlogs take several.
    limit = round(kind.most * draw.between(6.0, 20.0))
    return replace(kind, model=replace(kind.model, max_records_per_trigger=limit)) if limited else kind
