"""The decider assembled: `DeciderApp` takes every dependency, `run` creates them from settings and runs until a signal.

    jobs ──thread──> specs ─┐
    snapshots, results ──agent──> Lanes ──> Handler ──> decisions, commands, dead letters, states
                                               └──> Redis, which a task rebuilds after a loss

One agent reads snapshots and results and passes them to lanes, one per partition number. A lane handles one record at
a time. If the handler fails, the process exits without acknowledging the record. Its supervisor restarts it, and the
same record gives the same ids again.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import faust
from confluent_kafka import KafkaException

from services.decider.faust_app import RAW, drop, new_app, prepare_topics, still_assigned
from services.decider.handler import Handler
from services.decider.lanes import Lanes
from services.decider.metrics import DeciderMetrics
from services.decider.outbox import KafkaOutbox
from services.decider.ports import Outbox, Reservations, Specs
from services.decider.rebuild import read_holds
from services.decider.reservations import RedisReservations, connect, written_keys
from services.decider.settings import DeciderSettings
from services.decider.specs import CurrentSpecs
from services.decider.watchdog import Watchdog
from tidegate.events.decision import RedisView
from tidegate.events.topics import JOBS, RESULTS, SNAPSHOTS
from tidegate.installed import engine_name
from tidegate.remote.redis_client import RedisClient
from tidegate.runtime.clock import Clock, SystemClock
from tidegate.runtime.consumer import Partition
from tidegate.runtime.dead_letters import ConsumedRecord, DeadLetterLimit
from tidegate.runtime.dependencies import Dependencies, kafka_probe
from tidegate.runtime.health import Health
from tidegate.runtime.logs import log_stopped
from tidegate.runtime.meanwhile import meanwhile
from tidegate.runtime.metrics import DECIDER, new_registry
from tidegate.runtime.producer import said
from tidegate.runtime.redis_server import redis_probe
from tidegate.runtime.tracer import tracer

log = logging.getLogger(__name__)


def exit_at_once(why: str, error: BaseException | None = None) -> NoReturn:
    """Exit without acknowledging, committing or flushing anything."""
    log.critical("%s; the process exits, and its successor repeats the unfinished records", why, exc_info=error)
    log_stopped("decider", os.EX_SOFTWARE)
    logging.shutdown()
    os._exit(os.EX_SOFTWARE)


class DeciderApp:
    """The Faust app of the decider: an agent with its lanes, and the upkeep. Whatever fails, the process ends."""

    def __init__(
        self,
        settings: DeciderSettings,
        *,
        specs: Specs,
        reservations: Reservations,
        clock: Clock,
        metrics: DeciderMetrics,
        beat: Callable[[], None],
        wrap: Callable[[Outbox], Outbox],
    ) -> None:
        """Set up the app. `wrap` may put something between the handler and its outbox."""
        self._settings, self._specs, self._reservations = settings, specs, reservations
        self._clock, self._metrics, self._beat = clock, metrics, beat
        outbox = KafkaOutbox(settings)
        self._states = outbox.states
        self._handler = Handler(
            specs=specs,
            reservations=reservations,
            outbox=wrap(outbox),
            clock=clock,
            metrics=metrics,
            limit=DeadLetterLimit(settings.dead_letter_limit),
            trace=tracer(settings),
        )
        names = consumed_topics(settings)
        self._handle = dict(zip(names, (self._handler.snapshot, self._handler.result), strict=True))
        self.assigned: frozenset[Partition] | None = None
        """The partitions that this process works on; None before the first assignment.

        As Faust's signal tells it: whoever reads `app.consumer` in another thread would create the consumer there.
        """
        self.app = new_app(settings)
        self.app.agent(self.app.topic(*names, **RAW), name="decider", concurrency=1)(self._decide)
        self.app.on_partitions_assigned.connect(self._assigned, weak=False)
        self.app.on_partitions_revoked.connect(self._revoked, weak=False)
        self.app.task(self._maintain)

    async def _decide(self, stream: Any) -> None:
        """Pass each record to the lane of its partition."""
        try:
            async with asyncio.TaskGroup() as tasks:
                may_start, drops = partial(still_assigned, self.app), partial(drop, self.app)
                lanes = Lanes(tasks, self._work, may_start=may_start, drop=drops)
                async for event in stream.noack().events():
                    await lanes.put(event.message.partition, event)
        except Exception as error:  # noqa: BLE001 - whatever it is, the process ends
            # Faust would restart it after the records that were in the lanes.
            exit_at_once("the agent failed", error)

    async def _work(self, event: Any) -> None:
        """Handle a record once the states are known."""
        m = event.message
        try:
            await self._states.ready()
            record = ConsumedRecord(m.topic, m.partition, m.offset, m.key, m.value, headers_of(m.headers))
            await self._handle[m.topic](record)
        except Exception as error:  # noqa: BLE001 - whatever it is, the process ends
            exit_at_once(f"cannot handle {m.topic}/{m.partition} offset {m.offset}", error)

    async def _assigned(self, _app: faust.App, assigned: Any, **_: Any) -> None:
        self.assigned = frozenset((p.topic, p.partition) for p in assigned if p.topic in self._handle)
        self._states.owned = frozenset(number for _, number in self.assigned)

    async def _revoked(self, *_: Any, **__: Any) -> None:
        self._states.forget()
        self._metrics.jobs.follow((), self._clock.now())

    async def _maintain(self) -> None:
        """Every second: signal health, forget removed jobs, refresh the cached views, and rebuild what Redis lost."""
        try:
            while True:
                self._beat()
                self._metrics.jobs.follow(self._specs, self._clock.now())
                await self._handler.forget_removed()
                await self.rebuild_reservations()
                await asyncio.sleep(1.0)
        except Exception as error:  # noqa: BLE001 - whatever it is, the process ends
            exit_at_once("the upkeep failed", error)

    async def rebuild_reservations(self) -> None:
        """Rebuild the reservations from the topics if Redis lost them, or leave them alone if those cannot be read."""
        if await self._reservations.refresh() is not RedisView.REBUILDING:
            return
        try:
            reading = meanwhile(read_holds, self._settings, self._specs, self._clock.now(), self._beat)
            holds = await asyncio.wrap_future(reading)
        except (KafkaException, TimeoutError, OSError) as error:  # nothing is granted until a later attempt succeeds
            log.warning("cannot read the topics to rebuild redis: %s", said(error))
            return
        if await self._reservations.restore(holds, self._specs):
            await self._reservations.refresh()
            self._metrics.rebuilds.inc()
            log.info("redis rebuilt from the topics: %d holds", len(holds))


def consumed_topics(settings: DeciderSettings) -> list[str]:
    """Return the topics the agent reads: snapshots, results."""
    return [topic.named(settings.topic_prefix) for topic in (SNAPSHOTS, RESULTS)]


def headers_of(found: Any) -> tuple[tuple[str, bytes | None], ...]:
    """Return a record's headers as pairs; Faust gives a list or a mapping."""
    if not found:
        return ()
    return tuple(found.items() if hasattr(found, "items") else found)


def run(settings: DeciderSettings, *, wrap: Callable[[Outbox], Outbox] = lambda outbox: outbox) -> NoReturn:
    """Run the decider until SIGTERM or SIGINT."""
    log.info("decides with %s", engine_name())
    clock = SystemClock()
    registry = new_registry(DECIDER)
    metrics = DeciderMetrics(registry)
    health = Health(clock, registry)
    health.serve(settings.health_host, settings.health_port)
    partitions = prepare_topics(settings)
    specs = CurrentSpecs(
        settings,
        clock,
        poll_seconds=settings.jobs_poll_seconds,
        on_refused=lambda error: metrics.dead_letters.labels(JOBS.suffix, error.code).inc(),
    )
    specs.start(lambda error: exit_at_once("cannot follow the jobs topic", error), health.beat)
    asks_redis = redis_probe(RedisClient(**settings.redis()), written_keys(settings.redis_prefix))
    Dependencies(clock, registry, {"kafka": kafka_probe(settings), "redis": asks_redis}).start()
    reservations = RedisReservations(
        connect(settings),
        clock,
        prefix=settings.redis_prefix,
        timeout_seconds=settings.redis_timeout_seconds,
        retry_seconds=settings.redis_retry_seconds,
    )
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    decider = DeciderApp(
        settings, specs=specs, reservations=reservations, clock=clock, metrics=metrics, beat=health.beat, wrap=wrap
    )
    # Before the first snapshot, so that the very first decision finds Redis ready.
    loop.run_until_complete(decider.rebuild_reservations())
    # Until the first assignment the watchdog watches all partitions, so that a start that hangs ends as well.
    every = frozenset((name, number) for name in consumed_topics(settings) for number in range(partitions))
    Watchdog(
        settings=settings,
        clock=clock,
        partitions=lambda: every if decider.assigned is None else decider.assigned,
        on_stall=exit_at_once,
        on_lag=metrics.lag_records.set,
        on_failure=lambda error: exit_at_once("the watchdog failed", error),
    ).start()
    worker = faust.Worker(decider.app, loop=loop, override_logging=False, redirect_stdouts=False, quiet=True)
    worker.spinner = None
    worker.execute_from_commandline()
    raise SystemExit(0)  # never reached; Faust's signature does not say so
