"""`python -m services.collector`: run the collector with settings from `TIDEGATE_…` variables."""

from __future__ import annotations

import asyncio
import signal
import sys

from tidegate.runtime.extras import needs

with needs("collector", "collector"):
    from services.collector.app import build
    from services.collector.clusters import Clusters
    from services.collector.kubernetes import KubernetesClusters
    from services.collector.master import HttpMaster
    from services.collector.offsets import KafkaOffsets
    from services.collector.settings import CollectorSettings
    from services.collector.yarn import YarnClusters
    from tidegate.launcher.kubernetes.api import Api
    from tidegate.runtime.clock import SystemClock
    from tidegate.runtime.dependencies import Dependencies, kafka_probe
    from tidegate.runtime.jobs import JobsView
    from tidegate.runtime.metrics import COLLECTOR, new_registry
    from tidegate.runtime.publisher import Publisher
    from tidegate.runtime.service import run_service, take_no_arguments
    from tidegate.runtime.topics import check_topics


async def serve(settings: CollectorSettings) -> None:
    """Run until a signal."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    kafka_seconds, seconds = settings.kafka_timeout_seconds, settings.master_timeout_seconds
    clusters = Clusters(
        HttpMaster(seconds), KubernetesClusters(Api(timeout_seconds=seconds), seconds), YarnClusters(seconds)
    )
    clock, registry = SystemClock(), new_registry(COLLECTOR)
    collector = build(
        settings,
        clock=clock,
        publisher=Publisher(settings),
        jobs=lambda on_unreadable: JobsView(settings, on_unreadable),
        offsets={
            None: KafkaOffsets(settings, kafka_seconds),
            **{name: KafkaOffsets(each, kafka_seconds) for name, each in settings.kafka_clusters.items()},
        },
        clusters=clusters,
        registry=registry,
    )
    collector.health.serve(settings.health_host, settings.health_port)
    dependencies = Dependencies(clock, registry, {"kafka": kafka_probe(settings)})
    dependencies.start()
    try:
        await collector.run(stop)
    finally:
        collector.close()
        dependencies.stop()
        collector.health.close()
        await clusters.close()


def run(settings: CollectorSettings) -> int:
    """Check the topics, then measure until a signal; return the exit code."""
    check_topics(settings)
    asyncio.run(serve(settings))
    return 0


def main() -> int:
    """Run until a signal or an error; return the exit code."""
    return run_service("collector", CollectorSettings, run)


if __name__ == "__main__":
    take_no_arguments("collector")
    sys.exit(main())
