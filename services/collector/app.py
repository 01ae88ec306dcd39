"""The collector put together: rounds of measuring, each source on its own, each job as soon as its sources answered.

A round asks every source once for all jobs that are due: Kafka for all topics, each master once, each log directory
once. Jobs that share master and directory are put together and handed to the outbox as soon as *their* sources have
answered or run out of time, so a dead master or disk delays nobody else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from prometheus_client import CollectorRegistry

from services.collector.log_directory import LogDirectory
from services.collector.metrics import Metrics
from services.collector.outbox import Event, Outbox, Publishes
from services.collector.owner import OwnerThread
from services.collector.run import Interval
from services.collector.schedule import Schedule
from services.collector.settings import CollectorSettings
from services.collector.snapshots import Observed, snapshot
from services.collector.sources import Logs, Master, Offsets, Sources
from tidegate.events.dead_letter import DeadLetter
from tidegate.events.envelope import Unreadable
from tidegate.events.job import JobSpec
from tidegate.events.snapshot import MetricSnapshot
from tidegate.runtime.clock import Clock
from tidegate.runtime.dead_letters import DeadLetterLimit, dead_letter
from tidegate.runtime.health import Health
from tidegate.runtime.kafka import headers_of

log = logging.getLogger(__name__)

JOBS_SECONDS = 1.0
CLOSE_SECONDS = 5.0


class Jobs(Protocol):
    """Which jobs there are; `tidegate.runtime.jobs.JobsView` is one. Touched by one thread only."""

    def load(self) -> None:
        """Read all jobs."""
        ...

    def poll(self) -> list[str]:
        """Take in what changed."""
        ...

    def __iter__(self) -> Iterator[JobSpec]: ...


class Collector:
    """Measures until it is stopped."""

    def __init__(
        self,
        settings: CollectorSettings,
        *,
        clock: Clock,
        jobs: Jobs,
        sources: Sources,
        outbox: Outbox,
        metrics: Metrics,
        health: Health,
        buried: list[DeadLetter],
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._jobs = jobs
        self._sources = sources
        self._outbox = outbox
        self._metrics = metrics
        self._health = health
        self._buried = buried
        self._schedule = Schedule()
        self._limit = DeadLetterLimit(settings.dead_letter_limit)
        self._jobs_owner = OwnerThread("jobs")
        self._specs: dict[str, JobSpec] = {}
        self._app_ids: dict[str, str] = {}
        self._rounds: set[asyncio.Task[None]] = set()
        self._following: asyncio.Task[None] | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Measure until `stop` is set; raise `TooManyDeadLetters` when nothing on the jobs topic can be read."""
        await self.load()
        log.info("measuring %d jobs", len(self._specs))
        while not stop.is_set():
            self.turn()
            wait = self._schedule.seconds_to_next(self._specs.values(), self._clock.now())
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), min(wait, self._settings.log_poll_seconds))
        await self.settled(5.0)

    async def load(self) -> None:
        """Read all jobs."""
        await self._jobs_owner.call(90.0, self._jobs.load)
        self._take_jobs(await self._jobs_owner.call(5.0, lambda: list(self._jobs)))

    def turn(self) -> None:
        """Come round once: begin a round for what is due, follow jobs and logs. Nothing is waited for here."""
        due = self._schedule.due(self._specs.values(), self._clock.now())
        self._metrics.skipped.set(self._schedule.skipped)
        if due:
            # on its own: a round that waits for a dead source must not make the next one late
            task = asyncio.create_task(self.round(due))
            self._rounds.add(task)
            task.add_done_callback(self._round_ended)
        if self._following is None or self._following.done():
            if self._following is not None:
                self._following.result()  # raises what must end the service
            self._following = asyncio.create_task(self._follow(logs=not due))
        self._health.beat()

    async def settled(self, timeout_seconds: float) -> None:
        """Wait until everything begun has ended, for at most `timeout_seconds`."""
        tasks = [*self._rounds, *([self._following] if self._following else [])]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_seconds)

    async def round(self, due: Mapping[str, tuple[int, Interval]]) -> None:
        """Measure the due jobs and hand their snapshots to the outbox."""
        begun = self._clock.monotonic()
        groups: dict[tuple[str, str | None], list[JobSpec]] = {}
        for job_id in due:
            spec = self._specs[job_id]
            application = spec.application
            groups.setdefault((application.event_log_dir, application.master_ui_url), []).append(spec)

        topics = {topic for specs in groups.values() for spec in specs for topic in spec.sources}
        intervals = {job_id: interval for job_id, (_, interval) in due.items()}
        kafka = asyncio.create_task(self._sources.kafka(topics))
        masters = {url: asyncio.create_task(self._sources.master(url)) for _, url in groups if url is not None}
        logs = {
            where: asyncio.create_task(self._sources.logs(where, self._wanted(where, intervals)))
            for where in {where for where, _ in groups}
        }

        async def put_together(where: str, url: str | None, specs: list[JobSpec]) -> None:
            ends, observed_at = await kafka
            master = await masters[url] if url is not None else None
            readings = await logs[where]
            made: list[Event] = []
            for spec in specs:
                reading = readings.get(spec.job_id) if readings is not None else None
                sequence = due[spec.job_id][0]
                seen = Observed(sequence, observed_at, ends, reading, master, self._app_ids.get(spec.job_id))
                made.append((self._made(spec, seen), None))
            self._outbox.put(made)

        await asyncio.gather(*(put_together(where, url, specs) for (where, url), specs in groups.items()))
        self._metrics.round_seconds.observe(self._clock.monotonic() - begun)

    def close(self) -> None:
        """End the threads and deliver what waits, for some seconds."""
        self._outbox.close(CLOSE_SECONDS)
        self._sources.close()
        self._jobs_owner.close()

    def _wanted(self, where: str, due: Mapping[str, Interval]) -> dict[str, Interval | None]:
        return {
            spec.job_id: due.get(spec.job_id)
            for spec in self._specs.values()
            if spec.application.event_log_dir == where
        }

    def _made(self, spec: JobSpec, seen: Observed) -> MetricSnapshot:
        made = snapshot(spec, seen, self._settings.silence_seconds)
        if made.incarnation is not None:
            self._app_ids[spec.job_id] = made.incarnation
        self._metrics.snapshots.inc()
        for part in made.missing:
            self._metrics.missing.labels(part).inc()
        return made

    async def _follow(self, *, logs: bool) -> None:
        """Take in new jobs; between rounds also read what the logs have grown by."""
        specs = await self._sources.bounded("jobs topic", self._jobs_owner.call(JOBS_SECONDS, self._poll_jobs))
        self._take_jobs(specs)
        if logs:
            places = {spec.application.event_log_dir for spec in self._specs.values()}
            await asyncio.gather(*(self._sources.logs(where, self._wanted(where, {})) for where in places))

    def _poll_jobs(self) -> list[JobSpec] | None:
        """Return all specs if some changed; runs in the thread that owns them."""
        return list(self._jobs) if self._jobs.poll() else None

    def _take_jobs(self, specs: list[JobSpec] | None) -> None:
        if specs is not None:
            self._specs = {spec.job_id: spec for spec in specs}
            self._app_ids = {job_id: app for job_id, app in self._app_ids.items() if job_id in self._specs}
            self._schedule.forget(self._specs)
            self._metrics.jobs.set(len(specs))
            self._limit.good()
        letters = [self._buried.pop(0) for _ in range(len(self._buried))]
        self._outbox.put([(letter, letter.key) for letter in letters])
        self._metrics.unreadable_specs.inc(len(letters))
        for _ in letters:
            self._limit.bad()

    def _round_ended(self, task: asyncio.Task[None]) -> None:
        self._rounds.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a round of measuring failed, so a gap", exc_info=error)


def build(
    settings: CollectorSettings,
    *,
    clock: Clock,
    publisher: Publishes,
    jobs: Callable[[Callable[[Any, Unreadable], None]], Jobs],
    offsets: Offsets,
    master: Master,
    logs: Callable[[Path], Logs] | None = None,
    registry: CollectorRegistry | None = None,
) -> tuple[Collector, Health]:
    """Return the collector and its health, wired. `jobs` is given the function that buries an unreadable spec."""
    registry = registry or CollectorRegistry()
    metrics = Metrics(registry)
    health = Health(clock, registry)
    buried: list[DeadLetter] = []

    def bury(message: Any, error: Unreadable) -> None:
        buried.append(
            dead_letter(
                error,
                consumer="collector",
                topic=message.topic(),
                partition=message.partition(),
                offset=message.offset(),
                key=message.key(),
                value=message.value(),
                headers=headers_of(message),
                seen_at=clock.now(),
            )
        )

    def delivered(arrived: int, lost: int) -> None:
        metrics.delivered.inc(arrived)
        metrics.undelivered.inc(lost)

    def open_logs(path: Path) -> Logs:
        return LogDirectory(path, limit_bytes=settings.log_bytes_per_poll, on_broken=metrics.broken_lines.inc)

    collector = Collector(
        settings,
        clock=clock,
        jobs=jobs(bury),
        sources=Sources(settings, clock=clock, offsets=offsets, master=master, logs=logs or open_logs, metrics=metrics),
        outbox=Outbox(publisher, settings.publish_backlog, delivered),
        metrics=metrics,
        health=health,
        buried=buried,
    )
    return collector, health
