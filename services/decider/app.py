"""The decider put together: `build` takes every dependency, `run` makes them from settings and runs until a signal.

    jobs ──thread──> specs ─┐
    snapshots, results ──agent──> Lanes ──> Handler ──> decisions, commands, dead letters, states
                                               └──> Redis, mended by a task when it has forgotten

One agent takes snapshots and results and hands them to lanes, one for each partition number, which handle one record
at a time. Whatever the handler cannot handle ends the process with the record unacknowledged; a supervisor starts it
again and the same record gives the same ids.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import faust
from prometheus_client import CollectorRegistry

from services.decider.handler import Handler, Incoming
from services.decider.lanes import Lanes
from services.decider.ledger import RedisLedger, connect
from services.decider.metrics import Metrics
from services.decider.outbox import KafkaOutbox
from services.decider.ports import Ledger, Outbox, Specs
from services.decider.rebuild import read_standing
from services.decider.settings import DeciderSettings
from services.decider.shell import RAW, let_go, new_app, prepare_topics, still_ours
from services.decider.specs import SpecsInForce
from services.decider.watchdog import Watchdog
from tidegate.events.decision import RedisView
from tidegate.events.topics import RESULTS, SNAPSHOTS
from tidegate.runtime.clock import Clock, SystemClock
from tidegate.runtime.dead_letters import DeadLetterLimit
from tidegate.runtime.health import Health

log = logging.getLogger(__name__)


def die(why: str, error: BaseException | None = None) -> NoReturn:
    """End the process at once: nothing is acknowledged, committed or flushed on the way out."""
    log.critical("%s; the process ends and what was in work is repeated", why, exc_info=error)
    logging.shutdown()
    os._exit(os.EX_SOFTWARE)


def build(
    settings: DeciderSettings,
    *,
    specs: Specs,
    ledger: Ledger,
    clock: Clock,
    metrics: Metrics,
    beat: Callable[[], None] = lambda: None,
    wrap: Callable[[Outbox], Outbox] = lambda outbox: outbox,
    on_error: Callable[[str, BaseException], None] = die,
) -> faust.App:
    """Return the Faust app of the decider. `wrap` may put something between the handler and its outbox."""
    app = new_app(settings)
    names = consumed(settings)
    outbox = KafkaOutbox(settings)
    handler = Handler(
        specs=specs,
        ledger=ledger,
        outbox=wrap(outbox),
        clock=clock,
        metrics=metrics,
        limit=DeadLetterLimit(settings.dead_letter_limit),
    )
    handle = dict(zip(names, (handler.snapshot, handler.result), strict=True))

    async def work(event: Any) -> None:
        message = event.message
        try:
            await outbox.states.ready()
            await handle[message.topic](
                Incoming(
                    message.topic,
                    message.partition,
                    message.offset,
                    message.key,
                    message.value,
                    headers_of(message.headers),
                )
            )
        except Exception as error:
            on_error(f"{message.topic}/{message.partition} offset {message.offset} could not be handled", error)
            raise  # for an `on_error` that returns: the agent ends, and nothing more is acknowledged

    @app.agent(app.topic(*names, **RAW), name="decider", concurrency=1)  # type: ignore[untyped-decorator]
    async def decide(stream: Any) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                lanes = Lanes(tasks, work, ours=partial(still_ours, app), drop=partial(let_go, app))
                async for event in stream.noack().events():
                    await lanes.put(event.message.partition, event)
        except Exception as error:
            on_error("the agent broke off", error)  # Faust would start it anew, behind what was in the lanes
            raise

    async def revoked(*_: Any, **__: Any) -> None:
        outbox.states.forget()

    app.on_partitions_revoked.connect(revoked, weak=False)

    @app.task  # type: ignore[untyped-decorator]
    async def mend() -> None:
        """Keep the heart beating and the glance fresh, and rebuild the ledger when it has forgotten."""
        while True:
            beat()
            await mend_ledger(settings, specs, ledger, clock, metrics)
            await asyncio.sleep(1.0)

    return app


def consumed(settings: DeciderSettings) -> list[str]:
    """Return the topics the agent reads: snapshots, results."""
    return [topic.named(settings.topic_prefix) for topic in (SNAPSHOTS, RESULTS)]


def headers_of(found: Any) -> tuple[tuple[str, bytes | None], ...]:
    """Return a record's headers as pairs; Faust hands them on as a list or as a mapping."""
    if not found:
        return ()
    return tuple(found.items() if hasattr(found, "items") else found)


async def mend_ledger(settings: DeciderSettings, specs: Specs, ledger: Ledger, clock: Clock, metrics: Metrics) -> None:
    """Rebuild the ledger from the topics if it has forgotten; leave it as it is if that cannot be done now."""
    if await ledger.refresh() is not RedisView.REBUILDING:
        return
    try:
        holds = await asyncio.to_thread(read_standing, settings, specs, clock.now())
    except Exception as error:  # noqa: BLE001 - whatever it is, nothing is granted meanwhile, and it is tried again
        log.warning("the topics cannot be read to rebuild redis: %s", error)
        return
    if await ledger.restore(holds):
        await ledger.refresh()
        metrics.rebuilds.inc()
        log.info("redis rebuilt from the topics: %d holds", len(holds))


def run(settings: DeciderSettings, *, wrap: Callable[[Outbox], Outbox] = lambda outbox: outbox) -> NoReturn:
    """Run the decider until SIGTERM or SIGINT."""
    for chatty in ("faust", "mode", "aiokafka"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    clock = SystemClock()
    registry = CollectorRegistry()
    health = Health(clock, registry)
    health.serve(settings.health_host, settings.health_port)
    partitions = prepare_topics(settings)
    specs = SpecsInForce(settings, clock, poll_seconds=settings.jobs_poll_seconds)
    specs.start(on_failure=lambda error: die("the jobs topic cannot be followed", error))
    ledger = RedisLedger(
        connect(settings),
        clock,
        prefix=settings.redis_prefix,
        timeout_seconds=settings.redis_timeout_seconds,
        retry_seconds=settings.redis_retry_seconds,
    )
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    metrics = Metrics(registry)
    # Before the first snapshot, so that a first start does not begin with a hold.
    loop.run_until_complete(mend_ledger(settings, specs, ledger, clock, metrics))
    app = build(settings, specs=specs, ledger=ledger, clock=clock, metrics=metrics, beat=health.beat, wrap=wrap)
    # Until the first assignment all partitions are watched: a start that hangs must end as well. The set is handed over
    # by Faust's signal; asking `app.consumer` from the watchdog's thread would create the consumer there.
    own = frozenset((name, p) for name in consumed(settings) for p in range(partitions))

    @app.on_partitions_assigned.connect  # type: ignore[untyped-decorator]
    async def assigned_now(_app: faust.App, assigned: Any, **_: Any) -> None:
        nonlocal own
        own = frozenset((p.topic, p.partition) for p in assigned if p.topic in consumed(settings))

    watchdog = Watchdog(
        settings,
        clock,
        group=settings.group,
        partitions=lambda: own,
        patience_seconds=settings.stall_seconds,
        on_stall=die,
        on_lag=metrics.lag_records.set,
    )
    watchdog.start()
    worker = faust.Worker(app, loop=loop, override_logging=False, redirect_stdouts=False, quiet=True)
    worker.spinner = None
    worker.execute_from_commandline()
    raise SystemExit(0)  # it never returns; Faust says so only in a comment
