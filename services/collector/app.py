"""The collector assembled: rounds of measuring, in which every source and every job proceed on their own.

A round asks each source once for all jobs that are due: Kafka for all topics, each cluster once, each log directory
once. Jobs that share a cluster and a directory are assembled as soon as their sources have answered or timed out, and
go to the delivery queue. So a dead cluster or disk delays nobody else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from prometheus_client import CollectorRegistry

from services.collector.delivery import BulkPublisher, DeliveryQueue, Outgoing
from services.collector.metrics import CollectorMetrics
from services.collector.schedule import Schedule
from services.collector.settings import CollectorSettings
from services.collector.snapshots import SourceAnswers, other_topics, snapshot, untold_topics
from services.collector.sources import ClusterSource, LogSource, OffsetSource, Sources
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
    letters: list[Outgoing]

    def __post_init__(self) -> None:
        self._schedule = Schedule()
        self._limit = DeadLetterLimit(self.settings.dead_letter_limit)
        self._jobs_worker = WorkerThread("jobs")
        self._listed: list[JobSpec] | None = None
        """The specs as they were taken last."""
        self._specs: dict[str, JobSpec] = {}
        self._app_ids: dict[str, str] = {}
        self._others: dict[str, frozenset[str]] = {}
        """Topics by job that it reads and its spec does not name."""
        self._rounds: set[asyncio.Task[None]] = set()
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

    async def round(self, due: Mapping[str, tuple[int, Interval]]) -> None:
        """Measure the due jobs and queue their snapshots for delivery."""
        started = self.clock.monotonic()
        present = [self._specs[job_id] for job_id in due if job_id in self._specs]  # one may just have been removed
        others = {spec.job_id: self._others.get(spec.job_id, frozenset()) for spec in present}
        groups: dict[tuple[str, str | None], list[JobSpec]] = {}
        plain: set[str] = set()
        committed: set[str] = set()
        for spec in present:
            groups.setdefault((spec.application.event_log_dir, spec.application.cluster_place), []).append(spec)
            (committed if spec.read_committed else plain).update(spec.sources, others[spec.job_id])
        intervals = {job_id: interval for job_id, (_, interval) in due.items()}
        kafka = asyncio.create_task(self.sources.kafka(plain, committed))
        clusters = {url: asyncio.create_task(self.sources.cluster(url)) for _, url in groups if url is not None}
        logs = {
            where: asyncio.create_task(self.sources.logs(where, self._wanted(where, intervals)))
            for where in {where for where, _ in groups}
        }

        async def assemble(where: str, url: str | None, specs: list[JobSpec]) -> None:
            offsets = await kafka
            cluster = await clusters[url] if url is not None else None
            readings = await logs[where] or {}
            untold = {
                spec.application.checkpoint_location: named
                for spec in specs
                if (named := untold_topics(spec, readings.get(spec.job_id)))
            }
            checkpoints = (await self.sources.checkpoints(where, untold) if untold else None) or {}
            made: list[Outgoing] = []
            for spec in specs:
                reading = readings.get(spec.job_id)
                checkpoint = checkpoints.get(spec.application.checkpoint_location)
                app_id, more = self._app_ids.get(spec.job_id), others[spec.job_id] - {*spec.sources}
                sequence, _ = due[spec.job_id]
                try:
                    view = None if cluster is None else cluster.of(spec)
                    seen = SourceAnswers(sequence, offsets.of(spec), reading, view, app_id, checkpoint, more)
                    made.append((self._made(spec, seen), None))
                except Exception:  # whatever is wrong with one job, the others are measured
                    with about(job_id=spec.job_id):
                        log.exception("job %s: no snapshot could be made, so there is a gap", spec.job_id)
            self.deliveries.put(made)

        await asyncio.gather(*(assemble(where, url, specs) for (where, url), specs in groups.items()))
        self.metrics.round_seconds.observe(self.clock.monotonic() - started)

    def close(self) -> None:
        """Deliver what is queued, within a few seconds, and end the threads."""
        self.deliveries.close(CLOSE_SECONDS)
        self.sources.close()
        self._jobs_worker.close()

    def _wanted(self, where: str, due: Mapping[str, Interval]) -> dict[str, Interval | None]:
        return {
            spec.job_id: due.get(spec.job_id)
            for spec in self._specs.values()
            if spec.application.event_log_dir == where
        }

    def _made(self, spec: JobSpec, seen: SourceAnswers) -> MetricSnapshot:
        made = snapshot(spec, seen, self.settings.silence_seconds)
        if made.incarnation is not None:
            self._app_ids[spec.job_id] = made.incarnation
        if spec.job_id in self._specs:  # it may have been removed during the round
            self._others[spec.job_id] = other_topics(spec, seen.logs, seen.others)
            self.metrics.made(made)
        return made

    async def _follow(self, *, logs: bool) -> None:
        """Apply changed specs; between rounds also read what was added to the logs."""
        specs = await self.sources.bounded("jobs topic", "", self._jobs_worker.call(JOBS_SECONDS, self._poll_jobs))
        self._take_jobs(specs)
        if logs:
            places = {spec.application.event_log_dir for spec in self._specs.values()}
            await asyncio.gather(*(self.sources.logs(where, self._wanted(where, {})) for where in places))

    def _poll_jobs(self) -> list[JobSpec]:
        """Return all specs, whatever changed: an earlier answer may have come too late. Runs in the worker thread."""
        self.jobs.poll()
        return list(self.jobs)

    def _take_jobs(self, specs: list[JobSpec] | None) -> None:
        if specs is not None and specs != self._listed:
            self._listed = specs
            # A round publishes in this order, so the decider sees the jobs of a pipeline upstream first.
            self._specs = {spec.job_id: spec for spec in upstream_first(specs)}
            self._app_ids = {job_id: app for job_id, app in self._app_ids.items() if job_id in self._specs}
            self._others = {job_id: others for job_id, others in self._others.items() if job_id in self._specs}
            self._schedule.forget(self._specs)
            self.metrics.keep(self._specs)
            applications = [spec.application for spec in specs]
            self.sources.keep({a.event_log_dir for a in applications} | {a.cluster_place or "" for a in applications})
            self._limit.good()
        letters = [self.letters.pop(0) for _ in range(len(self.letters))]
        self.deliveries.put(letters)
        for letter, _ in letters:
            if isinstance(letter, DeadLetter):
                self.metrics.dead_letters.labels(JOBS.suffix, letter.code).inc()
            self._limit.bad()

    def _round_ended(self, task: asyncio.Task[None]) -> None:
        self._rounds.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a round of measuring failed, so there is a gap", exc_info=error)


def build(
    settings: CollectorSettings,
    *,
    clock: Clock,
    publisher: BulkPublisher,
    jobs: Callable[[Callable[[ConsumedRecord, Unreadable], None]], JobSource],
    offsets: OffsetSource,
    clusters: ClusterSource,
    registry: CollectorRegistry,
    logs: Callable[[Place], LogSource] | None = None,
) -> Collector:
    """Return the collector. `jobs` is given the function that handles unreadable specs."""
    metrics = CollectorMetrics(registry)
    letters: list[Outgoing] = []

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
