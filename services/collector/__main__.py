"""`python -m services.collector`: reads the settings, puts the collector together, runs it until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys

from confluent_kafka import KafkaException
from pydantic import ValidationError

from services.collector.app import build
from services.collector.master import HttpMaster
from services.collector.offsets import KafkaOffsets
from services.collector.settings import CollectorSettings
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.dead_letters import TooManyDeadLetters
from tidegate.runtime.jobs import JobsView
from tidegate.runtime.kafka import Publisher, TopicsDoNotFit, check_topics
from tidegate.runtime.logs import configure
from tidegate.runtime.settings import wrong_settings

log = logging.getLogger("collector")


async def serve(settings: CollectorSettings) -> None:
    """Run until a signal comes."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    master = HttpMaster(settings.master_timeout_seconds)
    collector, health = build(
        settings,
        clock=SystemClock(),
        publisher=Publisher(settings),
        jobs=lambda bury: JobsView(settings, bury),
        offsets=KafkaOffsets(settings, settings.kafka_timeout_seconds),
        master=master,
    )
    health.serve(settings.health_host, settings.health_port)
    try:
        await collector.run(stop)
    finally:
        collector.close()
        health.close()
        await master.close()


def main() -> int:
    """Return the exit code: 0 after a signal, 2 for settings or topics that do not fit, 1 where it cannot go on."""
    try:
        settings = CollectorSettings()
    except ValidationError as error:
        sys.stderr.write(wrong_settings("collector", error))
        return 2
    configure("collector", settings)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it tells every request
    try:
        check_topics(settings)
        asyncio.run(serve(settings))
    except TopicsDoNotFit as error:
        log.critical("%s", error)
        return 2
    except (TooManyDeadLetters, KafkaException, TimeoutError) as error:
        log.critical("cannot go on: %s", error)
        return 1
    log.info("stopped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
