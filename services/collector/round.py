"""One round of measuring: each source is asked once, and at once, for all jobs that are due.

Each Kafka cluster is asked for all topics together, each Spark cluster once, and each log directory once. Jobs that
share all three have their answers as soon as those have answered or timed out. So a dead cluster or disk delays nobody
else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from services.collector.pauses import Pause
from services.collector.snapshots import SourceAnswers, untold_topics
from services.collector.sources import ClusterAnswer, KafkaAnswer, Sources
from services.collector.waiting import Waited
from tidegate.events.job import JobSpec
from tidegate.sparklog.application_run import Interval
from tidegate.sparklog.events import PartitionOffsets
from tidegate.sparklog.log_directory import JobReading


@dataclass(frozen=True, slots=True)
class Remembered:
    """What earlier snapshots of a job have shown."""

    app_id: str | None = None
    """The newest known run."""
    others: frozenset[str] = frozenset()
    """Topics that the job reads and its spec does not name."""
    waited: Waited | None = None
    """What waited then."""
    pause: Pause | None = None
    """The pause that the job made at the last one."""


class Shared(NamedTuple):
    """The sources of a job, which it may share with other jobs."""

    folder: str
    """Of the event logs."""
    place: str | None
    """Of the Spark cluster."""
    kafka: str | None
    """The name of the Kafka cluster; None for the one with Tidegate's own topics."""


@dataclass(frozen=True, slots=True)
class DueJob:
    """A job whose snapshot is due, as it was known when the round began."""

    spec: JobSpec
    interval: Interval
    remembered: Remembered

    @property
    def sequence(self) -> int:
        """The number of the snapshot: when its interval ends, in seconds since 1970."""
        return int(self.interval.end.timestamp())

    @property
    def shares(self) -> Shared:
        """Its sources."""
        application = self.spec.application
        return Shared(application.event_log_dir, application.cluster_place, self.spec.kafka_cluster)


@dataclass(frozen=True, slots=True)
class GroupAnswers:
    """The sources' answers about jobs that share them."""

    kafka: KafkaAnswer
    cluster: ClusterAnswer | None
    readings: Mapping[str, JobReading]
    """By job id; empty if the directory does not answer."""
    checkpoints: Mapping[str, PartitionOffsets]
    """By location, for those that were asked and have answered."""

    def about(self, job: DueJob) -> SourceAnswers:
        """Return what they say about one job."""
        spec = job.spec
        return SourceAnswers(
            sequence=job.sequence,
            kafka=self.kafka.of(spec),
            logs=self.readings.get(spec.job_id),
            cluster=None if self.cluster is None else self.cluster.of(spec),
            last_app_id=job.remembered.app_id,
            checkpoint=self.checkpoints.get(spec.application.checkpoint_location),
            others=job.remembered.others.difference(spec.sources),
            waited=job.remembered.waited,
            pause_before=job.remembered.pause,
        )


class Round:
    """Asks the sources; `wanted` are all jobs by log directory, with the intervals of those that are due."""

    def __init__(
        self, sources: Sources, due: Sequence[DueJob], wanted: Mapping[str, Mapping[str, Interval | None]]
    ) -> None:
        self._sources = sources
        topics: dict[str | None, tuple[set[str], set[str]]] = {}
        for job in due:
            plain, committed = topics.setdefault(job.shares.kafka, (set(), set()))
            (committed if job.spec.read_committed else plain).update(job.spec.sources, job.remembered.others)
        folders, places = {job.shares.folder for job in due}, {job.shares.place for job in due}
        ask = asyncio.create_task
        self._kafka = {name: ask(sources.kafka(name, *asked)) for name, asked in topics.items()}
        self._clusters = {place: ask(sources.cluster(place)) for place in places if place is not None}
        self._logs = {folder: ask(sources.logs(folder, wanted[folder])) for folder in folders}

    async def answers(self, group: Sequence[DueJob]) -> GroupAnswers:
        """Return the answers about jobs that share them."""
        folder, place, name = group[0].shares
        kafka = await self._kafka[name]
        cluster = await self._clusters[place] if place is not None else None
        readings = await self._logs[folder] or {}
        untold = {
            job.spec.application.checkpoint_location: topics
            for job in group
            if (topics := untold_topics(job.spec, readings.get(job.spec.job_id)))
        }
        checkpoints = await self._sources.checkpoints(folder, untold) if untold else {}
        return GroupAnswers(kafka, cluster, readings, checkpoints)
