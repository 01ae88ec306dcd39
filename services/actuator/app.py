"""The composition root of the actuator: `build` makes the service from its settings."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

import redis

from services.actuator.backends import Backend
from services.actuator.backends.kubernetes import Kubernetes
from services.actuator.backends.local import Local
from services.actuator.backends.standalone import Standalone
from services.actuator.backends.yarn import Yarn
from services.actuator.command_log import CommandLog
from services.actuator.consumer import Actuator, Producer
from services.actuator.execute import CommandRunner, control_of
from services.actuator.fence import RedisFence, probed_keys
from services.actuator.metrics import ActuatorMetrics
from services.actuator.settings import ActuatorSettings
from tidegate.launcher.kubernetes.api import Api
from tidegate.remote.files import Files
from tidegate.remote.redis_client import RedisClient
from tidegate.runtime.clock import Clock
from tidegate.runtime.consumer import group_consumer
from tidegate.runtime.dependencies import Dependencies, kafka_probe
from tidegate.runtime.health import Health
from tidegate.runtime.jobs import JobsView
from tidegate.runtime.metrics import ACTUATOR, new_registry
from tidegate.runtime.publisher import Publisher
from tidegate.runtime.redis_server import Outage, address_of, redis_probe
from tidegate.runtime.topics import check_topics
from tidegate.runtime.tracer import tracer


def build(
    settings: ActuatorSettings,
    *,
    clock: Clock,
    producer: Producer | None = None,
    redis_client: redis.Redis | None = None,
    backends: Mapping[str, Backend] | None = None,
) -> Actuator:
    """Build the service; what is not passed in is made from the settings."""
    check_topics(settings)
    registry = new_registry(ACTUATOR)
    redis_client = redis_client or RedisClient(**settings.redis())
    publisher = producer or Publisher(settings)
    outage = Outage(address_of(redis_client), "until it can, the log and the control directory fence the jobs")
    asks_redis = redis_probe(redis_client, probed_keys(settings.redis_prefix), outage)
    api, files = Api(), Files(settings.files)
    runner = CommandRunner(
        clock=clock,
        log=CommandLog(),
        fence=RedisFence(redis_client, settings.redis_prefix),
        backends=backends
        or {
            "standalone": Standalone(),
            "local": Local(settings.driver_log_dir),
            "kubernetes": Kubernetes(api, clock),
            "yarn": Yarn(settings.driver_log_dir),
        },
        publish=lambda result, trace_id: publisher.publish(result, trace_id=trace_id),
        owner=uuid.uuid4().hex,
        control=lambda spec: control_of(spec, api, files),
        files=files,
        trace=tracer(settings),
    )
    session = int(settings.session_timeout_seconds * 1000)
    return Actuator(
        settings=settings,
        clock=clock,
        consumer=group_consumer(settings, settings.actuator_group, **{"session.timeout.ms": session}),
        producer=publisher,
        jobs=JobsView(settings),
        runner=runner,
        health=Health(clock, registry),
        metrics=ActuatorMetrics(registry),
        dependencies=Dependencies(clock, registry, {"kafka": kafka_probe(settings), "redis": asks_redis}),
    )
