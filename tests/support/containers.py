"""The stack in containers: the official images with the settings and ports of the embedded stack.

All containers use the host's network, so that an address means the same inside and outside; this needs Linux. Spark's
image lacks our Python packages: a job that imports more than pyspark needs an image that has them, named in
TIDEGATE_SPARK_IMAGE.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from testcontainers.core.container import DockerContainer
from typing_extensions import override

from tests.support.programs import captured
from tests.support.provider import WORKER_MEMORY, WORKER_SLOTS, Controllable
from tidegate.stack.component import Component
from tidegate.stack.errors import StackError
from tidegate.stack.info import Ports, StackInfo
from tidegate.stack.kafka import Kafka
from tidegate.stack.ports import free_ports
from tidegate.stack.redis import Redis
from tidegate.stack.spark import SparkMaster, SparkWorker
from tidegate.stack.toolbox import prepare

KAFKA_IMAGE = "apache/kafka:4.3.1"
REDIS_IMAGE = "redis:7"
SPARK_IMAGE = os.environ.get("TIDEGATE_SPARK_IMAGE", "apache/spark:4.2.0-python3")
START_SECONDS = 120.0
ROOT = Path(__file__).parents[2]


def why_no_docker() -> str | None:
    """Return why containers cannot be used here, or None if they can."""
    # In its own process: the client leaks a socket when nobody answers, and pytest would blame a test for that.
    command = [sys.executable, "-c", "import docker; docker.from_env(timeout=5).ping()"]
    asked = captured(*command)
    if asked.returncode == 0:
        return None
    return f"no Docker daemon answers: {asked.stderr.strip().splitlines()[-1]}"


def why_no_compose() -> str | None:
    """Return why `docker compose` cannot be used here, or None if it can."""
    docker = shutil.which("docker")
    if docker is None:
        return "there is no docker command on this machine"
    asked = captured(docker, "compose", "version")
    return why_no_docker() if asked.returncode == 0 else "the docker command has no Compose plugin"


class Contained(Controllable):
    """One container; its health check is the embedded component's."""

    def __init__(self, image: str, command: list[str], component: Component, info: StackInfo, **options: Any) -> None:
        self._component = component
        self._info = info
        self._container = DockerContainer(image, command=command, network_mode="host", user="0", **options)
        # The folder of the whole run: jobs also use the folders of single tests.
        shared = str(info.work_dir.parent)
        self._container.with_volume_mapping(shared, shared, "rw")
        self._started = False

    def mount(self, path: Path) -> None:
        """Mount a folder of the host read-only at the same path."""
        self._container.with_volume_mapping(str(path), str(path), "ro")

    @override
    def kill(self) -> None:
        self._container.get_wrapped_container().kill()
        self._container.get_wrapped_container().wait(timeout=30)

    @override
    def pause(self) -> None:
        self._container.get_wrapped_container().pause()

    @override
    def resume(self) -> None:
        self._container.get_wrapped_container().unpause()

    @override
    def start(self) -> None:
        if not self._started:
            self._container.start()
            self._started = True
        else:
            # Docker's `start` does nothing if the container runs.
            self._container.get_wrapped_container().start()
        deadline = time.monotonic() + START_SECONDS
        while not self._component.healthy(self._info):
            if self._ended():
                raise self._failure("ended while it started")
            if time.monotonic() > deadline:
                raise self._failure(f"is not healthy after {START_SECONDS:g} s")
            time.sleep(0.2)

    def _ended(self) -> bool:
        container = self._container.get_wrapped_container()
        container.reload()
        return container.status in ("exited", "dead")

    def _failure(self, what: str) -> StackError:
        output = b"\n".join(self._container.get_logs())[-2000:].decode(errors="replace")
        return StackError(f"container {self._component.name} {what}; its log ends with:\n{output}")

    def close(self) -> None:
        """Remove the container."""
        if self._started:
            self._container.stop()


class ContainerProvider:
    """A `StackProvider` on Docker."""

    def __init__(self, work_dir: Path) -> None:
        work_dir.mkdir(parents=True, exist_ok=True)
        tools = prepare(lambda _text: None)
        free = free_ports(9)
        self.info = StackInfo(
            stack_id=uuid.uuid4().hex,
            state="up",
            work_dir=work_dir,
            ports=Ports(**dict(zip(Ports.model_fields, free[:8], strict=False)), spark_worker_uis=(free[8],)),
            java_home=tools.java.home,
            spark_home=Path("/opt/spark"),
            redis_server=Path("redis-server"),
            kafka_jars=tools.kafka_jars,
            connector_jars=tools.connector_jars,
            worker_slots=WORKER_SLOTS,
            worker_memory=WORKER_MEMORY,
            python=Path("python3"),
        )
        self.kafka = self._kafka()
        self.redis = self._redis()
        self.spark_master = self._spark(SparkMaster(work_dir))
        self.spark_worker = self._spark(SparkWorker(work_dir, 0))

    def need(self, *, kafka: bool = False, redis: bool = False, spark: bool = False) -> StackInfo:
        """Start the chosen containers and return when they are healthy."""
        if kafka:
            self.kafka.start()
        if redis:
            self.redis.start()
        if spark:
            self.spark_master.start()
            self.spark_worker.start()
        return self.info

    def close(self) -> None:
        """Remove all containers."""
        for contained in (self.spark_worker, self.spark_master, self.redis, self.kafka):
            contained.close()

    def _kafka(self) -> Contained:
        component = Kafka(self.info.work_dir)
        settings = component.write_settings(self.info)
        script = (
            f"/opt/kafka/bin/kafka-storage.sh format --ignore-formatted -t {uuid.uuid4().hex[:22]} -c {settings}"
            f" && exec /opt/kafka/bin/kafka-server-start.sh {settings}"
        )
        heap = {"KAFKA_HEAP_OPTS": "-Xmx400m"}
        return Contained(KAFKA_IMAGE, ["bash", "-c", script], component, self.info, env=heap)

    def _redis(self) -> Contained:
        component = Redis(self.info.work_dir)
        component.prepare(self.info)
        program, *words = component.command(self.info)
        # The image's entry point gives up root and could then not read the settings: only their owner may.
        return Contained(REDIS_IMAGE, words, component, self.info, entrypoint=program)

    def _spark(self, component: SparkMaster | SparkWorker) -> Contained:
        component.prepare(self.info)
        environment = dict(component.environment(self.info))
        contained = Contained(SPARK_IMAGE, component.command(self.info), component, self.info, env=environment)
        contained.mount(self.info.connector_jars[0].parent)
        contained.mount(ROOT)
        return contained
