"""A real Prometheus reads real services: every panel has data, and the alerts of an operator's night fire on purpose.

Collector, decider and actuator run as processes on real Kafka and Redis. The collector has topics of its own, because
the snapshots of the decider come from the test: a job that is overloaded, one that commits nothing, one that cannot be
started.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest
from confluent_kafka import Producer

from services.actuator.settings import ActuatorSettings
from services.collector.settings import CollectorSettings
from tests.contract.test_observe import DASHBOARDS, targets
from tests.support.decider import Flow, ServiceProcess, number_now, overloaded_now, wait_for
from tests.support.events import job, result, snapshot
from tests.support.prometheus import Prometheus
from tests.support.provider import StackProvider
from tidegate.events.command import ScalingCommand
from tidegate.events.job import JobSpec
from tidegate.events.result import Phase
from tidegate.events.snapshot import ClusterState, MetricSnapshot, SourceOffsets, StateOperator, snapshot_id
from tidegate.events.topics import SNAPSHOTS
from tidegate.events.way import Way
from tidegate.runtime.poll import wait_until
from tidegate.runtime.settings import ServiceSettings
from tidegate.runtime.topics import ensure_topics
from tidegate.stack.ports import free_ports

ONE_RESTART = {"restart_budget": {"per_day": 1, "reserved_for_growth": 0}}


@dataclass
class Night:
    """Services under observation."""

    flow: Flow
    prometheus: Prometheus
    folder: Path
    settings: Mapping[str, ServiceSettings]
    running: dict[str, ServiceProcess] = field(default_factory=dict)

    def start(self, name: str) -> None:
        """Start a service."""
        log, args = self.folder / f"{name}.log", ("-m", f"services.{name}")
        self.running[name] = ServiceProcess(self.settings[name], log, args=args)

    def up(self) -> bool:
        """Return whether Prometheus reads every service."""
        return len(self.prometheus.instant("up == 1")) == len(self.settings)

    def close(self) -> None:
        """Kill what runs."""
        for service in self.running.values():
            service.close()


def specs(folder: Path) -> list[JobSpec]:
    """Return the jobs: `rates` is overloaded, `stuck` commits nothing, `broken` cannot be started."""

    def placed(spec: JobSpec, stop_seconds: float) -> JobSpec:
        application = spec.application.model_copy(
            update={
                "checkpoint_location": str(folder / "checkpoints" / spec.job_id),
                "event_log_dir": str(folder),
                "control_dir": str(folder / "control"),
                "rest_url": "http://127.0.0.1:1",
                "master_ui_url": "http://127.0.0.1:1",
                "stop_deadline_seconds": stop_seconds,
            }
        )
        return spec.model_copy(update={"application": application})

    guards = job().scaling.guards | ONE_RESTART
    return [
        placed(
            job("rates", rescale=(Way.RESTART,), guards=guards), 300.0
        ),  # no master answers: a change stays under way
        placed(job("stuck", lag_objective_seconds=5.0).model_copy(update={"interval_seconds": 1}), 1.0),
        placed(job("broken"), 1.0),
    ]


def frozen(at: int, arrived: int) -> MetricSnapshot:
    """Return the snapshot of the stuck job at a second: records arrive, and nothing is committed."""
    made = snapshot(0, job_id="stuck", slots=4)
    return made.model_copy(
        update={
            "snapshot_id": snapshot_id("stuck", at),
            "sequence": at,
            "interval_seconds": 1,
            "observed_at": datetime.fromtimestamp(at, UTC),
            "sources": (SourceOffsets(topic="in", end_offsets=(arrived,), committed_offsets=(10,)),),
        }
    )


def stopped(job_id: str) -> MetricSnapshot:
    """Return the present snapshot of a job that does not run."""
    return snapshot(number_now(), job_id=job_id, state=ClusterState.STOPPED, slots=0, incarnation=None)


@pytest.fixture(scope="module")
def night(stack: StackProvider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Night]:
    """The services, with what happens to them, until the first figures are there."""
    info, folder = stack.need(kafka=True, redis=True), tmp_path_factory.mktemp("night")
    url = info.redis_url.replace("redis://", f"redis://:{info.redis_password}@")
    tag = uuid.uuid4().hex[:8]
    flow = Flow(f"night-{tag}", info.bootstrap_servers, url, partitions=2)
    ports = dict(zip(("collector", "decider", "actuator"), free_ports(3), strict=True))
    shared = flow.settings.model_dump(include={"bootstrap_servers"})
    with_redis = flow.settings.model_dump(
        include={"topic_prefix", "redis_url", "redis_password", "redis_prefix", "session_timeout_seconds"}
    )
    settings = {
        "collector": CollectorSettings(**shared, topic_prefix=f"night-{tag}-c.", health_port=ports["collector"]),
        "decider": flow.settings.model_copy(update={"health_port": ports["decider"]}),
        "actuator": ActuatorSettings(
            **shared, **with_redis, actuator_group=f"night-{tag}", health_port=ports["actuator"]
        ),
    }
    ensure_topics(settings["collector"], partitions=2)
    of_collector = Flow(f"night-{tag}-c", info.bootstrap_servers, url, partitions=2)
    for spec in specs(folder):
        flow.send(spec)
        of_collector.send(spec)
    stopping = threading.Event()

    def feed() -> None:
        arrived = 1000
        while not stopping.wait(1.0):
            arrived += 100
            flow.send(frozen(int(time.time()), arrived), stopped("broken"))

    with ExitStack() as ends:
        ends.callback(flow.close)
        ends.callback(of_collector.close)
        prometheus = ends.enter_context(Prometheus(folder / "prometheus", ports))
        made = Night(flow, prometheus, folder, settings)
        ends.callback(made.close)
        for name in settings:
            made.start(name)
        thread = threading.Thread(target=feed, name="feed")
        ends.callback(thread.join)
        ends.callback(stopping.set)
        thread.start()
        wait_for("every service read", made.up, 60)
        state = StateOperator(name="agg", rows=10, memory_bytes=1_000_000, partitions=8)
        flow.send(*(each.model_copy(update={"state_operators": (state,)}) for each in overloaded_now("rates")))
        ordered = flow.wait_read(ScalingCommand, 2)
        newest = max(command.epoch for command in ordered)  # the decider drops results of older commands
        done = result("another", Phase.VERIFIED, number_now(), epoch=newest, outage_seconds=0.0, delay_seconds=9.0)
        flow.send(done.model_copy(update={"way": Way.IN_PLACE}))
        yield made


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_every_panel_has_data(night: Night, path: Path) -> None:
    """Each query of each dashboard runs as Grafana would send it, and returns data of the run."""
    queries = [
        (title, expr.replace("$__rate_interval", "15s").replace("[1h]", "[30s]").replace("[10m]", "[30s]"))
        for title, expr in targets(json.loads(path.read_text("utf-8")))
    ]
    assert queries

    def empty() -> list[tuple[str, str]]:
        return [(t, e) for t, e in queries if not night.prometheus.recent(e.replace("$job_id", "rates"))]

    wait_until(lambda: not empty(), 40, 1.0)
    assert empty() == []


def test_a_stuck_job(night: Night) -> None:
    """A job that commits nothing while records arrive."""
    told = night.prometheus.wait_for("TidegateJobStuck", 60, job_id="stuck")
    assert told.startswith("Job stuck commits nothing although records wait. Its delay grows by a second each second")


def test_a_failed_start(night: Night) -> None:
    """A job whose cluster takes no driver."""
    told = night.prometheus.wait_for("TidegateStartFailed", 60, job_id="broken")
    assert told.startswith("Job broken did not start. Failed starts in a row: ")


def test_a_used_up_restart_budget(night: Night) -> None:
    """The only restart of the day was ordered."""
    told = night.prometheus.wait_for("TidegateRestartBudgetUsedUp", job_id="rates")
    assert told.startswith("Job rates has used up its restarts of 24 hours")


def test_dead_letters(night: Night) -> None:
    """The first record that nobody can read."""
    producer = Producer(night.flow.settings.kafka())
    producer.produce(SNAPSHOTS.named(night.flow.settings.topic_prefix), b"{")
    assert producer.flush(10) == 0
    told = night.prometheus.wait_for("TidegateDeadLetters", service="decider", code="NOT_JSON")
    assert told.startswith("The decider cannot use records on the topic snapshots: NOT_JSON.")


def test_a_dead_collector(night: Night) -> None:
    """The collector is killed; the alert names it, and no other service, and ends when it is back."""
    wait_for("all is well", lambda: "TidegateServiceDown" not in night.prometheus.alerts(), 30)
    night.running["collector"].close()
    told = night.prometheus.wait_for("TidegateServiceDown", service="collector")
    assert told.startswith("The collector does not run, or its main loop hangs.")
    assert len(night.prometheus.alerts()["TidegateServiceDown"]) == 1
    night.start("collector")
    wait_for("the collector is back", night.up, 30)
    wait_for("no alert", lambda: "TidegateServiceDown" not in night.prometheus.alerts(), 30)


def test_a_removed_job_has_no_series(night: Night) -> None:
    """After its tombstone the decider's page does not name the job any more."""
    night.flow.send(job("gone", running=False))
    ours = '{job_id="gone",service="decider"}'

    def measured() -> bool:
        night.flow.send(stopped("gone"))
        return bool(night.prometheus.instant(ours))

    wait_for("series", measured, 30)
    night.flow.publisher.tombstone(night.flow.topic(JobSpec), b"gone")
    wait_for("no series", lambda: not night.prometheus.instant(ours), 30)
