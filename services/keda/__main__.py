"""`python -m services.keda`: run the external scaler for KEDA with settings from `TIDEGATE_…` variables."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from contextlib import closing
from datetime import timedelta

from tidegate.runtime.extras import needs

with needs("keda", "keda"):
    from services.keda.app import ExternalScaler, serve
    from services.keda.settings import KedaSettings
    from tidegate.fleet.feed import Feed, is_live
    from tidegate.runtime.clock import SystemClock
    from tidegate.runtime.dependencies import Dependencies, kafka_probe
    from tidegate.runtime.health import Health
    from tidegate.runtime.metrics import new_registry
    from tidegate.runtime.service import run_service, take_no_arguments
    from tidegate.runtime.topics import check_topics

log = logging.getLogger("keda")

BEAT_SECONDS = 1.0
CLOSE_SECONDS = 5.0


def run(settings: KedaSettings) -> int:
    """Check the topics, then answer until a signal; return the exit code. Raises `TopicsLost`."""
    check_topics(settings)
    clock, registry, stopping = SystemClock(), new_registry("keda"), threading.Event()
    health = Health(clock, registry)
    dependencies = Dependencies(clock, registry, {"kafka": kafka_probe(settings)})
    with closing(Feed(settings, timedelta(hours=settings.keda_history_hours))) as feed:
        feed.start()
        scaler = ExternalScaler(feed, clock)
        server, port = serve(settings, scaler)
        log.info("KEDA can ask at port %d", port)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stopping.set())
        health.serve(settings.health_host, settings.health_port)
        dependencies.start()
        try:
            while not stopping.wait(BEAT_SECONDS):
                is_live(feed)
                health.beat()
        finally:
            scaler.ending.set()
            server.stop(CLOSE_SECONDS).wait(CLOSE_SECONDS + 1)
            dependencies.stop()
            health.close()
        return 0


def main() -> int:
    """Run until a signal or an error; return the exit code."""
    return run_service("keda", KedaSettings, run)


if __name__ == "__main__":
    take_no_arguments("keda")
    sys.exit(main())
