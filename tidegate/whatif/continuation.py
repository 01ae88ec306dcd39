"""The job on the calibrated twin from a recorded instant on: what would have been measured after another change.

From that instant the recorded snapshots tell the truth only about what does not depend on the job's size: what arrived,
the state, the work per task, the slots that other jobs held. The twin says the rest: what is committed when, the
micro-batches, the slots, and the results of commands. Each recorded snapshot is filled with it, so that an engine whose
window begins with recorded snapshots goes on without a break. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tidegate.events.command import ScalingCommand
from tidegate.events.job import JobSpec
from tidegate.events.result import ActionResult
from tidegate.events.snapshot import ClusterState, MetricSnapshot, MicroBatch, Part, Pool, SourceOffsets
from tidegate.twin.calibrate import Calibration
from tidegate.twin.model import JobModel, StageModel
from tidegate.twin.pool import SlotPool
from tidegate.twin.recorded import load_of
from tidegate.twin.rerun import first_lag
from tidegate.twin.topic import TwinTopic
from tidegate.twin.world import World

NOT_THE_JOBS = (Part.END_OFFSETS, Part.CAPACITY)
"""Parts of a snapshot that stay missing if they were: the twin cannot know them."""


def model_for(spec: JobSpec, found: Calibration) -> JobModel:
    """Return the model of a job, fitted to its recording, that changes its size in the ways its spec allows."""
    base = JobModel(spec.job_id, sources=("source",), stages=(StageModel("batch", 0.001),))
    return found.model(spec.job_id, base.as_specified(spec))


class Continuation:
    """One job that goes on from the first of some recorded snapshots. All its sources together are one topic."""

    def __init__(
        self,
        recorded: Sequence[MetricSnapshot],
        model: JobModel,
        shares: tuple[float, ...],
        *,
        size: int,
        most: int,
        last_batch: int,
        seed: int,
    ) -> None:
        """Start where the first recorded snapshot found the job.

        Args:
            recorded: the snapshots from that one on; raises `CannotCalibrate` if they tell nothing about the arrivals.
            model: the job.
            shares: share of the arrivals on each partition, over all sources.
            size: slots of the job; 0 if it does not run.
            most: the most slots that it may ask for.
            last_batch: id of the last micro-batch before.
            seed: seed of the noise.
        """
        first = recorded[0]
        load = load_of(recorded)
        topic = TwinTopic("source", shares, load)
        waiting, since = first_lag(recorded, load), _batch_seconds(first) if size else 0.0
        topic.written = max(0, waiting - round(since * load.rate(0.0)))
        self._world = World(
            [replace(model, job_id=first.job_id, pipeline_id=first.pipeline_id)],
            [topic],
            [SlotPool(model.pool_id, 2 * max(size, most, 1))],  # a handover holds two sizes
            sizes={},
            seed=seed,
            epoch=first.sequence,
        )
        if size:
            # The batch that was at work took what had arrived when it began.
            job = self._world.job(first.job_id)
            job.start(-since, size, warm=True)
            job.act(-since)
            topic.write(waiting - topic.written, 0.0)
        self._first = first
        self._offset = last_batch + 1
        self._runs: dict[str | None, str | None] = {None: first.incarnation}
        if size:
            self._runs[f"app-{first.job_id}-0001"] = first.incarnation
        self._ends = [end or 0 for source in first.sources for end in source.end_offsets]
        self._committed = [done or 0 for source in first.sources for done in source.next_offsets]

    def order(self, command: ScalingCommand) -> None:
        """Carry out a command, from now on."""
        self._world.order(command)

    def advance(self, recorded: MetricSnapshot) -> tuple[MetricSnapshot, tuple[ActionResult, ...]]:
        """Go on to the next recorded snapshot; return it as it would have been, and the results until then."""
        results = self._world.advance(recorded.sequence)
        found = self._world.snapshot(recorded.job_id, recorded.sequence, recorded.interval_seconds)
        if found is None:
            raise AssertionError("the model of a continuation loses no snapshots")
        return self._filled(recorded, found), tuple(map(self._of_run, results))

    def _of_run(self, result: ActionResult) -> ActionResult:
        return result.model_copy(update={"incarnation": self._runs.get(result.incarnation, result.incarnation)})

    def _filled(self, recorded: MetricSnapshot, found: MetricSnapshot) -> MetricSnapshot:
        """Return a recorded snapshot with what the twin measured in place of what depended on the size."""
        ours = found.incarnation not in self._runs
        missing = tuple(part for part in recorded.missing if part in NOT_THE_JOBS)
        running = found.running and tuple(
            b.model_copy(update={"batch_id": self._id(b.batch_id)}) for b in found.running
        )
        return recorded.model_copy(
            update={
                "state": found.state,
                "incarnation": self._runs.get(found.incarnation, found.incarnation),
                "incarnation_started_at": found.incarnation_started_at if ours else self._first.incarnation_started_at,
                "sources": self._sources(recorded, found),
                "batches": tuple(map(self._batch, found.batches)),
                "batches_left_out": found.batches_left_out,
                "current_batch_started_at": found.current_batch_started_at,
                "running": running,
                "stages": recorded.stages if found.state is ClusterState.RUNNING else (),
                "slots_granted": None if Part.CAPACITY in missing else found.slots_granted,
                "pool": self._pool(recorded, found.slots_granted or 0),
                "missing": missing,
            }
        )

    def _batch(self, batch: MicroBatch) -> MicroBatch:
        return batch.model_copy(update={"batch_id": self._id(batch.batch_id)})

    def _id(self, batch_id: int) -> int:
        return batch_id + self._offset

    def _sources(self, recorded: MetricSnapshot, found: MetricSnapshot) -> tuple[SourceOffsets, ...]:
        """Return the recorded end offsets, and as many records less committed as wait on the twin's partitions.

        The twin spreads the arrivals by their mean shares, the recorded ones vary: so the records that wait are
        taken over, and a committed offset never falls.
        """
        ends = [end for source in recorded.sources for end in source.end_offsets]
        twin = found.sources[0]
        if len(ends) == len(self._ends) == len(twin.end_offsets) and None not in ends:
            self._ends = [end or 0 for end in ends]
            waiting = [(e or 0) - (c or 0) for e, c in zip(twin.end_offsets, twin.committed_offsets, strict=True)]
            self._committed = [
                max(before, end - wait) for before, end, wait in zip(self._committed, self._ends, waiting, strict=True)
            ]
        made, left = [], list(self._committed)
        for source in recorded.sources:
            count = len(source.end_offsets)
            made.append(source.model_copy(update={"committed_offsets": tuple(left[:count]), "first_offsets": None}))
            left = left[count:]
        return tuple(made)

    def _pool(self, recorded: MetricSnapshot, slots: int) -> Pool | None:
        """Return the recorded pool with this job's slots instead of those it really had."""
        pool = recorded.pool
        if pool is None:
            return None
        used = pool.slots_used - (recorded.slots_granted or 0) + slots
        return pool.model_copy(update={"slots_used": min(max(0, used), pool.slots_total)})


def _batch_seconds(snapshot: MetricSnapshot) -> float:
    """Return for how long the running batch had been at work; 0 if there was none."""
    began = snapshot.current_batch_started_at
    return 0.0 if began is None else max(0.0, snapshot.sequence - began.timestamp())
