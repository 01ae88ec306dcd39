"""`python -m services.collector`: run the collector with settings from `TIDEGATE_…` variables."""

from __future__ import annotations

import asyncio
import signal
import sys

from services.collector.app import build
from services.collector.master import HttpMaster
from services.collector.offsets import KafkaOffsets
from services.collector.settings import CollectorSettings
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.jobs import JobsView
from tidegate.runtime.kafka import Publisher, check_topics
from tidegate.runtime.service import run_service


async def serve(settings: CollectorSettings) -> None:
    """Run until a signal."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    master = HttpMaster(settings.master_timeout_seconds)
    collector, health = build(
        settings,
        clock=SystemClock(),
        publisher=Publisher(settings),
        jobs=lambda on_unreadable: JobsView(settings, on_unreadable),
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


def run(settings: CollectorSettings) -> int:
    """Check the topics, then measure until a signal; return the exit code."""
    check_topics(settings)
    asyncio.run(serve(settings))
    return 0


def main() -> int:
    """Run until a signal or an error; return the exit code."""
    return run_service("collector", CollectorSettings, run)


if __name__ == "__main__":
    sys.exit(main())
