"""`python -m services.operator`: run the operator with settings from `TIDEGATE_…` variables."""

from __future__ import annotations

import signal
import sys
from contextlib import closing
from datetime import timedelta

from tidegate.runtime.extras import needs

with needs("operator", "operator"):
    from services.operator.app import Operator, TopicRequests
    from services.operator.cluster import KubernetesStreamingJobs, own_namespace
    from services.operator.settings import OperatorSettings
    from tidegate.fleet.feed import Feed
    from tidegate.launcher.kubernetes.access import ApiAccess
    from tidegate.launcher.kubernetes.api import Api
    from tidegate.runtime.clock import SystemClock
    from tidegate.runtime.dependencies import Dependencies, kafka_probe
    from tidegate.runtime.health import Health
    from tidegate.runtime.metrics import new_registry
    from tidegate.runtime.service import run_service, take_no_arguments
    from tidegate.runtime.topics import check_topics


def run(settings: OperatorSettings) -> int:
    """Check the topics, then look after the StreamingJobs until a signal; return the exit code."""
    check_topics(settings)
    namespace = settings.operator_namespace or own_namespace()
    api = Api(ApiAccess.find(), timeout_seconds=settings.operator_timeout_seconds)
    clock, registry = SystemClock(), new_registry("operator")
    cluster = KubernetesStreamingJobs(api, namespace, clock)
    health = Health(clock, registry)
    dependencies = Dependencies(clock, registry, {"kafka": kafka_probe(settings), "kubernetes": cluster.answers})
    with closing(cluster), closing(Feed(settings, timedelta(hours=settings.operator_history_hours))) as feed:
        cluster.start()
        feed.start()
        operator = Operator(
            namespace=namespace,
            allowed=settings.operator_allowed_places,
            poll_seconds=settings.operator_poll_seconds,
            clock=clock,
            cluster=cluster,
            jobs=feed,
            requests=TopicRequests(settings),
            health=health,
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: operator.stop())
        health.serve(settings.health_host, settings.health_port)
        dependencies.start()
        try:
            return operator.run()
        finally:
            dependencies.stop()
            health.close()


def main() -> int:
    """Run until a signal or an error; return the exit code."""
    return run_service("operator", OperatorSettings, run)


if __name__ == "__main__":
    take_no_arguments("operator")
    sys.exit(main())
