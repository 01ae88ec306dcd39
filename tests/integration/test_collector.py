"""The collector as a process with real Kafka and a real Spark job."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from demo.environment import LIGHT_JVMS
from services.actuator.backends.standalone import OPEN_JAVA
from tests.support.decider import ServiceProcess
from tests.support.provider import SparkCluster, StackProvider
from tidegate.events.envelope import decode
from tidegate.events.job import Application, JobSpec
from tidegate.events.snapshot import ClusterState, MetricSnapshot, Part
from tidegate.events.topics import SNAPSHOTS
from tidegate.runtime.consumer import TopicReader
from tidegate.runtime.publisher import Publisher
from tidegate.runtime.settings import ServiceSettings
from tidegate.runtime.topics import create_topics, ensure_topics

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
JOB = ROOT / "deploy" / "examples" / "rates.py"
INTERVAL = 5
"""Each snapshot must be made within the first half: no machine stands still for so long."""


class Rig:
    """One job on a stack: its topics, its collector, its driver and its snapshots."""

    def __init__(self, kafka: str, work: Path) -> None:
        self.name = f"h3-{uuid.uuid4().hex[:8]}"
        self.work = work
        self.settings = ServiceSettings(bootstrap_servers=kafka, topic_prefix=f"{self.name}.")
        self.admin = AdminClient(self.settings.kafka())
        ensure_topics(self.settings, partitions=2)
        self.source, self.sink = f"{self.name}.in", f"{self.name}.out"
        create_topics(self.admin, [NewTopic(self.source, 4, 1), NewTopic(self.sink, 4, 1)])
        self.publisher = Publisher(self.settings)
        self.producer = Producer({**self.settings.kafka(), "linger.ms": 5})
        self.processes: list[ServiceProcess] = []
        self.seen: list[MetricSnapshot] = []
        self.reader = TopicReader(self.settings, [SNAPSHOTS.named(self.settings.topic_prefix)])

    def spec(self, event_log_dir: Path, **application: Any) -> JobSpec:
        """Publish and return the job's spec."""
        spec = JobSpec(
            job_id=self.name,
            pipeline_id=self.name,
            sources=(self.source,),
            sinks=(self.sink,),
            interval_seconds=INTERVAL,
            application=Application(
                script=str(JOB),
                checkpoint_location=str(self.work / "checkpoint"),
                event_log_dir=str(event_log_dir),
                control_dir=str(self.work),
                **application,
            ),
        )
        self.publisher.publish(spec)
        return spec

    def collector(self, *args: str) -> ServiceProcess:
        """Start a collector, or a program in its place."""
        log = self.work / "collector.log"
        self.processes.append(ServiceProcess(self.settings, log, args=args or ("-m", "services.collector")))
        return self.processes[-1]

    def load(self, records: int) -> None:
        """Produce records, spread over the partitions."""
        for number in range(records):
            self.producer.produce(self.source, b"x", partition=number % 4)
        assert self.producer.flush(30) == 0

    def wait_for(self, what: str, condition: Callable[[MetricSnapshot], bool], seconds: float = 90.0) -> MetricSnapshot:
        """Return the first new snapshot for which the condition holds."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            message = self.reader.poll(0.5)
            if message is None:
                continue
            snapshot = decode(MetricSnapshot, message.value(), message.headers(), message.key())
            self.seen.append(snapshot)
            if condition(snapshot):
                return snapshot
        last = self.seen[-1].model_dump_json(exclude_none=True)[:1500] if self.seen else "none"
        raise TimeoutError(f"no snapshot {what} in {seconds:g} s; the last of {len(self.seen)}: {last}")

    def close(self) -> None:
        """End all processes and delete the topics."""
        for process in self.processes:
            process.close()
        self.reader.close()
        mine = [topic for topic in self.admin.list_topics(timeout=10).topics if topic.startswith(f"{self.name}.")]
        for future in self.admin.delete_topics(mine).values():
            future.result(30)


@pytest.fixture
def rig(kafka: str, tmp_path: Path) -> Iterator[Rig]:
    """A rig that cleans up after the test."""
    made = Rig(kafka, tmp_path)
    yield made
    made.close()


class Driver:
    """A driver on the standalone cluster, submitted over REST without Tidegate."""

    def __init__(self, rig: Rig, spark: SparkCluster, cores: int) -> None:
        self._rest = f"{spark.rest.rstrip('/')}/v1/submissions"
        arguments = {
            "--bootstrap-servers": rig.settings.bootstrap_servers,
            "--input": rig.source,
            "--output": rig.sink,
            "--checkpoint": str(rig.work / "checkpoint"),
            "--trigger": "1 second",
            "--max-offsets-per-trigger": "400",
        }
        properties = {
            "spark.app.name": "not the job's name",
            "spark.tidegate.job_id": rig.name,
            "spark.master": spark.master,
            "spark.submit.deployMode": "cluster",
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.cores.max": str(cores),
            "spark.jars": ",".join(map(str, spark.connector_jars)),
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": str(spark.event_log_dir),
            "spark.eventLog.rolling.enabled": "true",
            "spark.eventLog.compress": "true",
            **LIGHT_JVMS,
            "spark.driver.cores": "1",
            "spark.driver.defaultJavaOptions": OPEN_JAVA,
        }
        python = {"PYSPARK_PYTHON": str(spark.python), "PYSPARK_DRIVER_PYTHON": str(spark.python)}
        answer = httpx.post(
            f"{self._rest}/create",
            json={
                "action": "CreateSubmissionRequest",
                "appResource": "",
                "mainClass": "org.apache.spark.deploy.SparkSubmit",
                "clientSparkVersion": "4.2.0",
                "appArgs": ["--master", spark.master, str(JOB), *(part for pair in arguments.items() for part in pair)],
                "environmentVariables": python | {"SPARK_LOCAL_IP": "127.0.0.1"},
                "sparkProperties": properties,
            },
            trust_env=False,
            timeout=60,
        )
        answer.raise_for_status()
        assert answer.json()["success"], answer.text
        self._id = answer.json()["submissionId"]

    def kill(self) -> None:
        """Kill it through the master."""
        httpx.post(f"{self._rest}/kill/{self._id}", trust_env=False, timeout=60).raise_for_status()


@pytest.mark.timeout(600)
def test_a_real_job_from_never_started_to_dead(rig: Rig, spark: SparkCluster, stack: StackProvider) -> None:
    """A job's whole life in snapshots: never started, starting, working, idle, dead; idle differs from dead (F41).

    The driver's application has another name, so the job is known by `spark.tidegate.job_id` alone.
    """
    rig.spec(spark.event_log_dir, master=spark.master, rest_url=spark.rest, master_ui_url=spark.ui)
    collector = rig.collector()
    never = rig.wait_for("at all", lambda _: True)
    assert (never.state, never.incarnation, never.slots_granted) == (ClusterState.STOPPED, None, 0)
    assert never.missing == (Part.COMMITTED_OFFSETS,)
    assert never.sources[0].end_offsets == (0, 0, 0, 0)

    rig.load(1600)
    driver = Driver(rig, spark, cores=2)
    try:
        working = rig.wait_for("with a batch", lambda s: bool(s.batches), 360)
        assert working.state is ClusterState.RUNNING
        assert working.incarnation is not None
        assert working.incarnation.startswith("app-")
        assert working.missing == ()
        assert working.slots_granted == 2
        assert working.pool is not None
        assert working.pool.slots_used >= 2
        assert working.sources[0].end_offsets == (400, 400, 400, 400)
        # a stage is in the snapshot of the interval it finished in, which may be the one before its batch's
        stages = {stage.name: stage.tasks for snapshot in rig.seen for stage in snapshot.stages}
        assert all(stage.slowest_task_place is not None for snapshot in rig.seen for stage in snapshot.stages)
        assert list(stages.values()) == [4]
        assert working.batches[0].input_records == 400

        done = rig.wait_for("caught up", lambda s: s.sources[0].committed_offsets == (400, 400, 400, 400))
        batches = {b.batch_id: b.input_records for s in rig.seen for b in s.batches}
        assert sum(batches.values()) == 1600
        assert sum(len(s.batches) for s in rig.seen) == len(batches), "a batch is in one snapshot only"

        # idle: past the first idle event, which comes after 10 s
        idle = rig.wait_for("idle", lambda s: s.sequence >= done.sequence + 14)
        assert (idle.state, idle.batches, idle.missing) == (ClusterState.RUNNING, (), ())
        assert idle.incarnation == working.incarnation
    finally:
        driver.kill()
    dead = rig.wait_for("dead", lambda s: s.state is not ClusterState.RUNNING)
    assert (dead.state, dead.incarnation, dead.slots_granted) == (ClusterState.STOPPED, working.incarnation, 0)
    assert dead.sources[0].committed_offsets == (400, 400, 400, 400)
    assert dead.missing == ()

    sequences = [snapshot.sequence for snapshot in rig.seen]
    assert sequences == list(range(sequences[0], sequences[-1] + 1, INTERVAL)), "no gap and no double"
    assert all(0 <= s.observed_at.timestamp() - s.sequence < INTERVAL / 2 for s in rig.seen)
    assert collector.stop(15) == 0
