"""The collector assembled: its main loop starts rounds of measuring, and follows the jobs topic and the logs.

Every source and every job proceed on their own; `round.py` says how. Snapshots go to the delivery queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from prometheus_client import CollectorRegistry

from services.collector.delivery import BulkPublisher, DeliveryQueue
from services.collector.metrics import CollectorMetrics
from services.collector.round import DueJob, GroupAnswers, Remembered, Round, Shared
from services.collector.schedule import Schedule
from services.collector.settings import CollectorSettings
from services.collector.snapshots import other_topics, snapshot
from services.collector.sources import ClusterSource, LogSource, OffsetSource, Sources
from services.collector.waiting import waited
from services.collector.worker import WorkerThread
from tidegate.engine.links import upstream_first
from tidegate.events.dead_letter import DeadLetter
from tidegate.events.envelope import Unreadable
from tidegate.events.job import JobSpec
from tidegate.events.snapshot import MetricSnapshot
from tidegate.events.topics import JOBS
from tidegate.remote.files import Files, Place
from tidegate.runtime.clock import Clock
from tidegate.runtime.dead_letters import ConsumedRecord, DeadLetterLimit, send_to_dead_letters
from tidegate.runtime.health import Health
from tidegate.runtime.logs import about
from tidegate.sparklog.application_run import Interval
from tidegate.sparklog.log_directory import LogDirectory

log = logging.getLogger(__name__)

Letter = tuple[DeadLetter, bytes | None]
"""A dead letter and the key of its record."""

LOAD_SECONDS = 90.0
JOBS_SECONDS = 1.0
CLOSE_SECONDS = 5.0


class JobSource(Protocol):
    """The job specs; `tidegate.runtime.jobs.JobsView` is one. Only one thread uses it."""

    def load(self) -> None:
        """Read all jobs."""

    def poll(self) -> list[str]:
        """Apply changes; return the ids of changed jobs."""

    def __iter__(self) -> Iterator[JobSpec]: ...


@dataclass(kw_only=True)
class Collector:
    """Measures until it is stopped."""

    settings: CollectorSettings
    clock: Clock
    jobs: JobSource
    sources: Sources
    deliveries: DeliveryQueue
    metrics: CollectorMetrics
    health: Health
    letters: list[Letter]
    """Of specs that cannot be read; the thread of the jobs topic adds, the main loop takes."""

    def __post_init__(self) -> None:
        self._schedule = Schedule()
        self._limit = DeadLetterLimit(self.settings.dead_letter_limit)
        self._jobs_worker = WorkerThread("jobs")
        self._listed: list[JobSpec] | None = None
        """The specs as they were taken last."""
        self._specs: dict[str, JobSpec] = {}
        self._places: set[str] = set()
        """All that these name: log directories and clusters."""
        self._remembered: dict[str, Remembered] = {}
        """By job; for each one that has a spec."""
        self._rounds: set[asyncio.Task[None]] = set()
        self._measuring: dict[Shared, asyncio.Event] = {}
        """By the sources of jobs: the end of their newest round."""
        self._following: asyncio.Task[None] | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Measure until `stop` is set; raise `TooManyDeadLetters` if nothing on the jobs topic can be read."""
        loading, stopping = asyncio.create_task(self.load()), asyncio.create_task(stop.wait())
        await asyncio.wait([loading, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not loading.done():  # a broker that does not answer must not delay a stop
            loading.cancel()
            return
        loading.result()
        log.info("measuring %d jobs", len(self._specs))
        while not stop.is_set():
            self.turn()
            wait = self._schedule.seconds_to_next(self._specs.values(), self.clock.now())
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), min(wait, self.settings.log_poll_seconds))
        await self.finish(CLOSE_SECONDS)

    async def load(self) -> None:
        """Read all jobs."""
        await self._jobs_worker.call(LOAD_SECONDS, self.jobs.load)
        self._take_jobs(await self._jobs_worker.call(LOAD_SECONDS, lambda: list(self.jobs)))

    def turn(self) -> None:
        """One pass of the main loop: start a round for the jobs that are due, follow jobs and logs. Never waits."""
        due = self._schedule.due(self._specs.values(), self.clock.now())
        self.metrics.overdue.inc(self._schedule.take_skipped())
        if due:
            # a separate task: a round that waits for a dead source must not delay the next one
            task = asyncio.create_task(self.round(due))
            self._rounds.add(task)
            task.add_done_callback(self._round_ended)
        if self._following is None or self._following.done():
            if self._following is not None:
                self._following.result()  # raises errors that must end the service
            self._following = asyncio.create_task(self._follow(logs=not due))
        self.health.beat()

    async def finish(self, timeout_seconds: float) -> None:
        """Wait for all running tasks, for at most `timeout_seconds`."""
        tasks = [*self._rounds, *([self._following] if self._following else [])]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_seconds)

    async def round(self, due: Mapping[str, Interval]) -> None:
        """Measure the due jobs and queue their snapshots for delivery."""
        started = self.clock.monotonic()
        jobs = [
            DueJob(self._specs[job_id], interval, self._remembered[job_id])
            for job_id, interval in due.items()
            if job_id in self._specs  # it may just have been removed
        ]
        groups: dict[Shared, list[DueJob]] = {}
        for job in jobs:
            groups.setdefault(job.shares, []).append(job)
        asked = Round(self.sources, jobs, self._wanted(due))
        await asyncio.gather(*(self._measure(asked, group) for group in groups.values()))
        self.metrics.round_seconds.observe(self.clock.monotonic() - started)

    def close(self) -> None:
        """Deliver what is queued, within a few seconds, and end the threads."""
        self.deliveries.close(CLOSE_SECONDS)
        self.sources.close()
        self._jobs_worker.close()

    def _wanted(self, due: Mapping[str, Interval]) -> dict[str, dict[str, Interval | None]]:
        """Return all jobs by log directory, with the intervals of those that are due."""
        wanted: dict[str, dict[str, Interval | None]] = {}
        for spec in self._specs.values():
            wanted.setdefault(spec.application.event_log_dir, {})[spec.job_id] = due.get(spec.job_id)
        return wanted

    async def _measure(self, asked: Round, group: Sequence[DueJob]) -> None:
        """Queue the snapshots of jobs that share their sources, once those have been heard.

        If the round before has not been answered yet, it comes first: the decider drops an older snapshot.
        """
        shared, ended = group[0].shares, asyncio.Event()
        before, self._measuring[shared] = self._measuring.get(shared), ended
        try:
            answers = await asked.answers(group)
            if before is not None:
                await before.wait()
            made = (self._snapshot(job, answers) for job in group)
            self.deliveries.put([(snapshot, None) for snapshot in made if snapshot is not None])
        finally:
            ended.set()
            if self._measuring.get(shared) is ended:
                del self._measuring[shared]

    def _snapshot(self, job: DueJob, answers: GroupAnswers) -> MetricSnapshot | None:
        """Return a job's snapshot; None, and say so, if none can be made: the other jobs are measured all the same."""
        job_id = job.spec.job_id
        try:
            seen = answers.about(job)
            made = snapshot(job.spec, seen, self.settings.silence_seconds)
        except Exception:
            with about(job_id=job_id):
                log.exception("job %s: no snapshot could be made, so there is a gap", job_id)
            return None
        if job_id in self._specs:  # it may have been removed during the round
            app_id = made.incarnation or self._remembered[job_id].app_id
            others = other_topics(job.spec, seen.logs, seen.others)
            wait = waited(seen.waited, made.observed_at, made.sources)
            self._remembered[job_id] = Remembered(app_id, others, wait, seen.pause)
            self.metrics.made(made)
        return made

    async def _follow(self, *, logs: bool) -> None:
        """Apply changed specs; between rounds also read what was added to the logs."""
        specs = await self.sources.bounded("jobs topic", "", self._jobs_worker.call(JOBS_SECONDS, self._poll_jobs))
        self._take_jobs(specs)
        if logs:
            wanted = self._wanted({})
            due = [where for where, jobs in wanted.items() if self.sources.are_due(where, self._seconds_left(jobs))]
            await asyncio.gather(*(self.sources.logs(where, wanted[where]) for where in due))

    def _seconds_left(self, job_ids: Iterable[str]) -> float:
        """Return the seconds until the next round of one of these jobs."""
        return self._schedule.seconds_to_next((self._specs[job_id] for job_id in job_ids), self.clock.now())

    def _poll_jobs(self) -> list[JobSpec]:
        """Return all specs, whatever changed: an earlier answer may have come too late. Runs in the worker thread."""
        self.jobs.poll()
        return list(self.jobs)

    def _take_jobs(self, specs: list[JobSpec] | None) -> None:
        if specs is not None and specs != self._listed:
            self._listed = specs
            # A round publishes in this order, so the decider sees the jobs of a pipeline upstream first.
            self._specs = {spec.job_id: spec for spec in upstream_first(specs)}
            self._remembered = {job_id: self._remembered.get(job_id, Remembered()) for job_id in self._specs}
            self._schedule.forget(self._specs)
            self.metrics.keep(self._specs)
            applications = [spec.application for spec in specs]
            self._places = {a.event_log_dir for a in applications} | {a.cluster_place or "" for a in applications}
            self._places |= {spec.kafka_cluster or "" for spec in specs}
            self.sources.keep(self._places)
            self._limit.good()
        letters = [self.letters.pop(0) for _ in range(len(self.letters))]
        self.deliveries.put(letters)
        for letter, _ in letters:
            self.metrics.dead_letters.labels(JOBS.suffix, letter.code).inc()
            self._limit.bad()

    def _round_ended(self, task: asyncio.Task[None]) -> None:
        self._rounds.discard(task)
        self.sources.keep(self._places)  # it may have asked places that no job has any more since
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a round of measuring failed, so there is a gap", exc_info=error)


def build(
    settings: CollectorSettings,
    *,
    clock: Clock,
    publisher: BulkPublisher,
    jobs: Callable[[Callable[[ConsumedRecord, Unreadable], None]], JobSource],
    offsets: Mapping[str | None, OffsetSource],
    clusters: ClusterSource,
    registry: CollectorRegistry,
    logs: Callable[[Place], LogSource] | None = None,
) -> Collector:
    """Return the collector. `jobs` is given the function that handles unreadable specs."""
    metrics = CollectorMetrics(registry)
    letters: list[Letter] = []

    def unreadable(record: ConsumedRecord, error: Unreadable) -> None:
        send_to_dead_letters(keep, record, error, consumer="collector", seen_at=clock.now())

    def keep(event: DeadLetter, *, key: bytes | None) -> None:
        letters.append((event, key))

    def delivered(arrived: int, lost: int) -> None:
        metrics.delivered.inc(arrived)
        metrics.undelivered.inc(lost)

    def open_logs(path: Place) -> LogSource:
        return LogDirectory(path, limit_bytes=settings.log_bytes_per_poll, on_broken=metrics.broken_lines.inc)

    return Collector(
        settings=settings,
        clock=clock,
        jobs=jobs(unreadable),
        sources=Sources(
            settings=settings,
            clock=clock,
            offsets=offsets,
            clusters=clusters,
            open_logs=logs or open_logs,
            metrics=metrics,
            files=Files(settings.files),
        ),
        deliveries=DeliveryQueue(publisher, settings.publish_backlog, delivered),
        metrics=metrics,
        health=Health(clock, registry),
        letters=letters,
    )
